"""Each program of examples/ runs as a process of its own, with mutual TLS to a real server, and does what it says."""

import signal
import sys
from pathlib import Path
from threading import Timer

import pytest
from patient import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "beside_faststream": [
        *(f"book {number} ordered in EXAMPLE_SHIPMENTS" for number in range(5)),
        *(f"book {number} shipped" for number in range(5)),
    ],
    "service": ["handled example.orders.0 1", "handled example.orders.19 20", "counts 20"],
}
UNTIL_STOPPED = ["service"]


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_does_what_it_says(name, shell):
    process = shell.execute([sys.executable, "-u", EXAMPLES / f"{name}.py"], PYTHONPATH=str(EXAMPLES.parent))
    patience = Timer(2 * PATIENCE, process.kill)  # a first claim whose ack comes late costs a lease
    patience.start()
    missing = SAYS[name]
    while missing and (line := process.stdout.readline()):
        missing = [text for text in missing if text not in line]
    if name in UNTIL_STOPPED:
        process.send_signal(signal.SIGTERM)
    done = shell.finish(process)
    patience.cancel()
    assert (done.status, missing) == (0, []), done.err
    assert "Traceback" not in done.err
    assert done.out.splitlines()[-1] == "stopped"
