import pytest

from capture.schedule import due, next_run


def test_a_new_leader_runs_at_once_and_then_once_a_slot():
    assert due(None, 1005.0, 10.0)
    assert not due(1005.0, 1009.9, 10.0)
    assert due(1005.0, 1010.0, 10.0)
    assert next_run(1005.0, 10.0) == 1010.0
    assert next_run(1010.0, 10.0) == 1020.0


def test_an_outage_of_many_slots_is_made_up_for_by_one_run():
    assert due(1005.0, 9000.0, 10.0)
    assert not due(9000.0, 9001.0, 10.0)


def test_a_clock_that_was_set_back_delays_nothing():
    assert due(5000.0, 1000.0, 10.0)


def test_a_schedule_needs_a_positive_interval():
    with pytest.raises(ValueError, match="above 0"):
        due(1.0, 2.0, 0.0)
