"""Each program of examples/ runs as a process of its own, with mutual TLS to a real server, and does what it says."""

import json
import signal
import sys
import time
from pathlib import Path
from threading import Timer

import pytest
from electing import vacated
from patient import PATIENCE

from natty.elections.work_loop import LAST_RUN

EXAMPLES = Path(__file__).parents[3] / "examples"
SAYS = {
    "beside_faststream": [
        *(f"book {number} ordered in EXAMPLE_SHIPMENTS" for number in range(5)),
        *(f"book {number} shipped" for number in range(5)),
    ],
    "handler_errors": [
        "example.errors.2 failed and is retried in 0.5 s: an order without a customer",
        "example.errors.2 is dead letter 1: an order without a customer",
    ],
    "spark_source": ["5 orders on example.spark.eu", "5 orders on example.spark.us", "2 counts in EXAMPLE_COUNTS"],
    "group_member": [*(f"billing.customer{number} [0, 1, 2, 3]" for number in range(5)), "10 partitions, active"],
    "orders": ["orders stored"],
    "service": ["handled example.orders.0 1", "handled example.orders.19 20", "counts 20"],
}
UNTIL_STOPPED = ["handler_errors", "orders", "service"]
LONG = {"spark_source": [pytest.mark.spark]}


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*SAYS, "nightly"])


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


def test_the_nightly_report_runs_on_one_node_and_a_missed_night_is_made_up_for_once(shell, served):
    async def miss(natty):
        """Keep that the last report was that of a night in 1970."""
        await vacated(natty, "example-nightly")
        async with natty.leader("example-nightly", lease=600.0) as term:
            await term.commit(LAST_RUN, b'{"slot": 0, "node": "nobody"}')

    async def kept(natty):
        """Return the night of the last report, and the token under which it was written or read."""
        last = await natty.election("example-nightly").last_commit(LAST_RUN)
        return json.loads(last.data)["slot"], int(last.headers["Natty-Token"][0])

    def wait_for(condition):
        for _ in range(int(PATIENCE * 10)):
            if condition(*served(kept)):
                return served(kept)
            time.sleep(0.1)
        raise AssertionError(served(kept))

    def start():
        return shell.execute([sys.executable, "-u", EXAMPLES / "nightly.py"], PYTHONPATH=str(EXAMPLES.parent))

    served(miss)
    first = start()
    patience = Timer(2 * PATIENCE, first.kill)
    patience.start()
    assert first.stdout.readline().startswith("the report of the night, by ")
    patience.cancel()
    night, token = wait_for(lambda slot, token: slot > 0)
    second = start()
    first.kill()
    assert shell.finish(first).out == ""
    wait_for(lambda slot, newer: newer > token)  # the second one leads, and has read that nothing was missed
    second.send_signal(signal.SIGINT)
    ended = shell.finish(second)
    assert (ended.status, ended.out) == (0, "")
    assert [line for line in ended.err.splitlines() if not line.startswith("INFO:natty")] == []
    assert " is a candidate of 'example-nightly'" in ended.err
    assert served(kept)[0] == night
