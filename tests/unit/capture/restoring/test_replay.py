"""What a restore publishes: fillers for sequences without a message, a part at a time."""

import tracemalloc

from capture.restoring.replay import GAP, WINDOW, _fillers


def test_the_fillers_of_a_gap_of_any_length_are_made_a_part_at_a_time():
    count, last = 0, 10 + 30 * WINDOW
    tracemalloc.start()
    try:
        for some in _fillers(11, last):
            assert [some[0], some[-1]] == [(GAP, b"", b"", 11 + count), (GAP, b"", b"", 10 + count + len(some))]
            count += len(some)
            del some
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == last - 10
    assert peak < 3 * WINDOW * 200  # bytes


def test_the_last_part_of_a_gap_may_be_smaller_and_no_gap_has_no_part():
    assert list(map(len, _fillers(1, WINDOW + 1))) == [WINDOW, 1]
    assert list(_fillers(5, 4)) == []
