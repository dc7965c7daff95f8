import pytest

from capture.schedule import next_run


def test_slots_begin_at_multiples_and_the_next_one_is_never_now():
    assert next_run(1005.0, 10.0) == 1010.0
    assert next_run(1009.9, 10.0) == 1010.0
    assert next_run(1010.0, 10.0) == 1020.0


def test_an_outage_of_many_slots_is_followed_by_one():
    assert next_run(9000.5, 10.0) == 9010.0


def test_a_schedule_needs_a_positive_interval():
    with pytest.raises(ValueError, match="above 0"):
        next_run(2.0, 0.0)
