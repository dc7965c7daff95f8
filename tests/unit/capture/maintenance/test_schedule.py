import pytest

from capture.errors import ConfigError
from capture.maintenance.schedule import AT_ONCE, LOOK, Moment, Schedule, is_due, next_run


def test_slots_begin_at_multiples_and_the_next_one_is_never_now():
    assert next_run(1005.0, 10.0) == 1010.0
    assert next_run(1009.9, 10.0) == 1010.0
    assert next_run(1010.0, 10.0) == 1020.0


def test_an_outage_of_many_slots_is_followed_by_one():
    assert next_run(9000.5, 10.0) == 9010.0


def test_a_schedule_needs_a_positive_interval():
    with pytest.raises(ValueError, match="above 0"):
        next_run(2.0, 0.0)


def test_work_is_done_in_the_turn_that_is_nearest_to_its_time():
    """Two turns of 5 s may take a millisecond less than 10 s, and the work is not to wait for a third."""
    assert [is_due(since, 10.0, 5.0) for since in (0.0, 5.0, 9.999, 10.001, 14.0)] == [False, False, True, True, True]
    assert is_due(9.999, 10.0, 10.0)


# --- the compaction's ------------------------------------------------------------------------------------------------

NIGHTLY = Schedule(cron="30 2 * * *")
MIDNIGHT = 1_795_219_200.0  # 2026-11-21, in UTC


def waiting(count, size=10):
    return count, count * size


def test_a_slot_takes_what_was_stored_before_it_began_however_late_it_is_asked():
    half_past_two = MIDNIGHT + 2.5 * 3600
    for now in (half_past_two, half_past_two + 1, half_past_two + 80_000.5):
        assert NIGHTLY.moment(now, *waiting(3)) == Moment(half_past_two, half_past_two)
    yesterday = half_past_two - 86_400
    assert NIGHTLY.moment(half_past_two - 0.5, *waiting(3)) == Moment(yesterday, yesterday)
    assert Schedule(every=300.0).moment(MIDNIGHT + 299, 0, 0) == Moment(MIDNIGHT, MIDNIGHT)


def test_after_an_outage_of_many_slots_the_last_one_is_made_up_for_and_no_other():
    outage = MIDNIGHT + 30 * 86_400.0
    assert NIGHTLY.moment(outage, *waiting(1)).now == outage - 21.5 * 3600
    assert NIGHTLY.next(outage) == outage + 2.5 * 3600
    assert Schedule(every=300.0).next(outage + 1) == outage + 300


def test_so_much_that_waits_begins_a_slot_at_once():
    for schedule in (Schedule(cron="30 2 * * *", waiting_files=3), Schedule(every=1e6, waiting_bytes=30)):
        assert schedule.moment(MIDNIGHT, *waiting(3)) == Moment(MIDNIGHT)
        assert schedule.moment(MIDNIGHT, *waiting(2)).now < MIDNIGHT
        assert schedule.next(MIDNIGHT) == MIDNIGHT + LOOK
    assert AT_ONCE.moment(MIDNIGHT, *waiting(1)) == Moment(MIDNIGHT)


@pytest.mark.parametrize("cron", ["never", "0 3 * * * *"])
def test_what_is_no_cron_expression_is_refused_with_its_fields(cron):
    with pytest.raises(ConfigError, match=r"is not a cron expression \(minute hour day month weekday\): write five"):
        Schedule(cron=cron)


def test_an_expression_is_read_once(monkeypatch):
    schedule = Schedule(cron="30 2 * * *")
    monkeypatch.setattr("capture.maintenance.schedule.Cron", None)
    assert schedule.next(MIDNIGHT) == MIDNIGHT + 2.5 * 3600
    assert schedule.last(MIDNIGHT) == MIDNIGHT - 21.5 * 3600
