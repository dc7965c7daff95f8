"""Each program of examples/ runs as a process of its own, with mutual TLS to a real server, and does what it says."""

import signal
import sys
from pathlib import Path
from threading import Timer

import pytest
from patient import PATIENCE

EXAMPLES = Path(__file__).parents[3] / "examples"
SAYS = {
    "beside_faststream": [
        *(f"book {number} ordered in EXAMPLE_SHIPMENTS" for number in range(5)),
        *(f"book {number} shipped" for number in range(5)),
    ],
    "spark_source": ["5 orders on example.spark.eu", "5 orders on example.spark.us", "2 counts in EXAMPLE_COUNTS"],
    "group_member": [*(f"billing.customer{number} [0, 1, 2, 3]" for number in range(5)), "10 partitions, active"],
    "service": ["handled example.orders.0 1", "handled example.orders.19 20", "counts 20"],
}
UNTIL_STOPPED = ["service"]
LONG = {"spark_source": [pytest.mark.spark, pytest.mark.long]}


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, [])) for name in SAYS])
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
