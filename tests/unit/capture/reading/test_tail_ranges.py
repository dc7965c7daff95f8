from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from capture.archive.sequences import Sequences
from capture.reading.stream_range import StreamFacts
from capture.reading.tail import GAP, PIECE, count_sequences, cover, cut


@given(st.sets(st.integers(1, 20 * GAP), max_size=60))
def test_ranges_hold_all_wanted_sequences_and_few_others(wanted):
    spans = list(cover(Sequences.from_iterable(wanted)))
    held = [one for first, last in spans for one in range(first, last + 1)]
    assert held == sorted(set(held))
    assert wanted <= set(held)
    assert {one for span in spans for one in span} <= wanted
    assert all(after[0] - before[1] - 1 > GAP for before, after in pairwise(spans))


@given(st.sets(st.integers(1, 10**5), max_size=60))
def test_large_ranges_are_cut_and_nothing_is_left_out(wanted):
    spans = list(cover(Sequences.from_iterable(wanted)))
    cuts = list(cut(spans, PIECE))
    assert all(last - first < PIECE for first, last in cuts)
    assert [one for first, last in cuts for one in range(first, last + 1)] == [
        one for first, last in spans for one in range(first, last + 1)
    ]


def test_a_stream_of_which_most_is_deleted_is_read_in_few_pieces():
    facts = StreamFacts("S", "", 1, 10**9, True, messages=10 * PIECE)
    assert len(list(cut([(1, facts.last)], count_sequences(facts)))) == 10
    assert count_sequences(StreamFacts("S", "", 1, 10**9, True, messages=0)) == PIECE * 10**9
    assert count_sequences(StreamFacts("S", "", 5, 10, True, messages=6)) == PIECE
