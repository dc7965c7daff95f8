"""When repeated work is due: intervals, cron expressions, missed times, clocks that are set."""

import logging

import pytest

from natty import Natty, as_leader
from natty.config.cron import Cron
from natty.elections import ElectionOptions
from natty.elections.work_loop import AFTER, SET_BACK, Interval, Timetable

DAY, HOUR = 86_400.0, 3600.0
THREE = 1_795_219_200.0 + 3 * HOUR  # 2026-11-21T03:00Z
NOON = THREE + 9 * HOUR


def nightly(done):
    timing = Timetable(Cron("0 3 * * *"))
    timing.done = done
    return timing


def due(timing, wall):
    return timing.wait(0.0, wall) <= 0


def test_a_term_begins_with_a_run_and_the_interval_counts_from_start_to_start():
    timing = Interval(10.0)
    assert timing.wait(100.0, 0) <= 0
    timing.begin(100.0, 0)
    assert timing.wait(103.0, 0) == 7.0
    assert timing.wait(125.0, 0) <= 0  # it took longer than the interval: at once, and once
    timing.begin(125.0, 0)
    assert timing.wait(125.0, 0) == 10.0
    timing.begin_term()
    assert timing.wait(126.0, 0) <= 0


def test_an_interval_does_not_look_at_the_clock_that_is_set():
    timing = Interval(10.0)
    timing.begin(100.0, 5 * DAY)
    assert timing.wait(101.0, 0.0) == timing.wait(101.0, 99 * DAY) == 9.0


@pytest.mark.parametrize(("every", "first", "longest"), [(0.1, 0.1, 60.0), (5.0, 1.0, 60.0), (300.0, 1.0, 300.0)])
def test_the_pauses_after_errors_fit_the_interval(every, first, longest):
    timing = Interval(every)
    assert (timing.first_pause, timing.longest_pause) == (first, longest)
    timing.begin(100.0, 0)
    assert timing.fail(first, 0) == first
    assert timing.wait(100.0, 0) <= 0


def test_work_is_due_once_for_any_number_of_missed_times():
    timing = nightly(THREE - 5 * DAY)
    assert due(timing, NOON)
    timing.begin(0.0, NOON)
    assert timing.slot == THREE
    timing.done = timing.slot
    assert timing.wait(0.0, NOON) == pytest.approx(THREE + DAY + AFTER - NOON)


def test_nothing_is_due_before_the_next_time():
    timing = nightly(THREE)
    assert timing.wait(0.0, THREE + DAY - 1) == pytest.approx(1.0 + AFTER)
    assert due(timing, THREE + DAY + 2 * AFTER)


def test_a_run_begins_a_moment_after_its_time_when_coarse_clocks_show_it_too():
    timing = nightly(THREE)
    coarse = 0.01  # seconds between two ticks of a slow machine
    assert not due(timing, THREE + DAY + coarse)
    timing.begin(0.0, THREE + DAY + coarse)  # of a missed time
    assert timing.slot == THREE
    assert due(timing, THREE + DAY + 2 * AFTER)
    timing.begin(0.0, THREE + DAY + 2 * AFTER)
    assert timing.slot == THREE + DAY


def test_the_pause_after_an_error_is_not_longer_than_until_the_next_time():
    timing = nightly(THREE)
    assert timing.fail(600.0, THREE + DAY - 60) == pytest.approx(60.0 + AFTER)
    assert timing.fail(600.0, NOON) == 600.0


def test_a_clock_that_is_set_back_a_little_repeats_no_time_that_is_done():
    timing = nightly(THREE)
    before = THREE - SET_BACK + 1
    assert timing.wait(0.0, before) == pytest.approx(THREE + DAY + AFTER - before)
    assert timing.done == THREE


def test_a_success_that_is_hours_ahead_of_the_clock_counts_as_up_to_now(caplog):
    timing = nightly(THREE + 7 * DAY)  # by a node whose clock was a week ahead
    with caplog.at_level(logging.WARNING, "natty.leader"):
        assert timing.wait(0.0, NOON) == pytest.approx(THREE + DAY + AFTER - NOON)
        assert not due(timing, NOON + 1)
    assert due(timing, THREE + DAY + 1)
    assert [record.getMessage() for record in caplog.records] == [
        "the work last succeeded for 2026-11-28T03:00:00Z, which is hours ahead of this node's clock: "
        "continuing from now"
    ]


def test_a_clock_that_is_behind_the_last_success_is_logged_once_with_the_next_time(caplog):
    timing = nightly(THREE)
    with caplog.at_level(logging.WARNING, "natty.leader"):
        timing.wait(0.0, THREE - 10)  # it was set by some seconds
        assert not caplog.records
        for second in range(3):
            timing.wait(0.0, THREE - HOUR + second)
        timing.begin_term()
        timing.done = THREE
        timing.wait(0.0, THREE - HOUR + 3)
    assert [record.getMessage() for record in caplog.records] == [
        "the work last succeeded for 2026-11-21T03:00:00Z, which is ahead of this node's clock: "
        "it runs again at 2026-11-22T03:00:00Z"
    ]


def test_a_clock_that_is_set_ahead_makes_the_work_due_once():
    timing = nightly(THREE)
    assert due(timing, NOON + 30 * DAY)
    timing.begin(0.0, NOON + 30 * DAY)
    timing.done = timing.slot
    assert not due(timing, NOON + 30 * DAY)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"every": 0}, ValueError, "every is 0; write a number of seconds"),
        ({"every": "soon"}, ValueError, "every is 'soon'; write seconds, or text"),
        ({"every": "0s"}, ValueError, "every is '0s'; write seconds, or text"),
        ({"every": [5]}, TypeError, "every is \\[5\\]; write a number of seconds, .*, or text, or None"),
        ({"every": 5.0, "cron": "0 3 * * *"}, ValueError, "every=5 and cron='0 3 \\* \\* \\*' exclude each other"),
        ({"every": "5m", "cron": "0 3 * * *"}, ValueError, "every=300 and cron='0 3 \\* \\* \\*' exclude each other"),
        ({"cron": "0 3 * *"}, ValueError, "'0 3 \\* \\*' is not a cron expression"),
        ({"cron": "0 3 * * * *"}, ValueError, "'0 3 .*' is not a cron expression .*: write five fields, or one of @y"),
        ({"cron": ""}, ValueError, "'' is not a cron expression"),
        ({"cron": "0 3 * * *", "timezone": "Mars"}, ValueError, "there is no time zone 'Mars' here"),
        ({"timezone": "Europe/Berlin"}, ValueError, "timezone='Europe/Berlin' has no effect without cron"),
        ({"every": 5.0, "timezone": "Europe/Berlin"}, ValueError, "has no effect without cron"),
        ({"timezone": "UTC"}, ValueError, "timezone='UTC' has no effect without cron"),
        ({"every": 5.0, "timezone": "UTC"}, ValueError, "timezone='UTC' has no effect without cron"),
    ],
)
def test_the_options_of_the_loop_are_checked_at_the_call(options, error, said):
    for call in (ElectionOptions, as_leader, Natty().as_leader):
        with pytest.raises(error, match=said):
            call(name="job", **options)


@pytest.mark.parametrize(("every", "seconds"), [("5m", 300.0), ("250ms", 0.25), (60, 60), (float("inf"), float("inf"))])
def test_the_interval_is_seconds_or_text(every, seconds):
    assert ElectionOptions(name="job", every=every).interval == seconds
