"""When a pipeline runs next, as its leader decides and as the status reports it."""

import pytest

from capture.maintenance.schedule import Schedule
from capture.pipelines.document import Run
from capture.pipelines.due import find_next, is_due

EVERY_10 = Schedule(every=10.0)


def run(began, error="", took=1.0):
    return Run(number=1, began=began, ended=began + took, error=error)


def fails(*times):
    return [run(at, "no") for at in times]


@pytest.mark.parametrize(
    ("times", "runs", "now", "next_"),
    [
        (EVERY_10, [], 1003.0, 1010.0),
        (EVERY_10, [run(1001.0)], 1003.0, 1010.0),
        (EVERY_10, fails(1001.0), 1003.0, 1032.0),  # 30 s after the end, though slots begin in between
        (EVERY_10, fails(1.0, 1001.0), 1003.0, 1062.0),
        (EVERY_10, fails(*range(1, 40), 1001.0), 1003.0, 1002.0 + 3600.0),
        (EVERY_10, [*fails(1.0, 11.0), run(900.0), *fails(1001.0)], 1003.0, 1032.0),
        (EVERY_10, fails(900.0), 1003.0, 1010.0),  # the time after the failure is over
        (EVERY_10, fails(2000.0), 1003.0, 1010.0),  # the clock of an earlier leader was wrong
        (Schedule(every=3600.0), fails(7201.0), 7203.0, 10_800.0),  # no slot has begun since the run
        (Schedule(every=3600.0), fails(10_795.0), 10_797.0, 10_826.0),  # one begins before the time is over
    ],
)
def test_the_next_run_waits_for_a_slot_and_for_the_end_of_the_time_after_failures(times, runs, now, next_):
    assert find_next(times, runs, now) == next_
    if runs and runs[-1].error and next_ < 1e5:  # the leader, which looks now and then, decides the same
        moments = [now + step / 4 for step in range(4 * 3700)]
        assert next(at for at in moments if is_due(times, runs, at, looked=now)) == next_


def test_nothing_new_at_the_last_look_waits_for_the_next_slot():
    assert is_due(EVERY_10, [run(900.0)], 1003.0)
    assert not is_due(EVERY_10, [run(900.0)], 1003.0, looked=1001.0)
    assert is_due(EVERY_10, [run(900.0)], 1010.0, looked=1001.0)
    assert is_due(EVERY_10, [run(2000.0)], 1003.0)  # a clock was wrong
