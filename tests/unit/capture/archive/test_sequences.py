from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.archive.sequences import MAXIMUM, SPAN, WIDEST, Sequences
from capture.errors import CaptureError

small = st.sets(st.integers(0, 300))
wide = st.sets(st.one_of(st.integers(0, 300), st.integers(65_000, 66_000), st.integers(2**32 - 50, 2**32 + 50)))


def of(values):
    return Sequences.from_iterable(values)


@given(wide)
def test_a_set_survives_its_text(values):
    assert set(Sequences.from_text(of(values).to_text())) == values
    assert set(Sequences.from_bytes(of(values).to_bytes())) == values


@given(st.lists(st.sets(st.one_of(st.integers(0, 9), st.integers(SPAN - 3, SPAN + 3), st.just(7 * SPAN))), max_size=5))
def test_repeated_ones_are_in_two_sets(sets):
    counts = Counter(one for held in sets for one in held)
    assert set(Sequences.find_repeated(map(of, sets))) == {one for one, count in counts.items() if count > 1}


@given(wide, wide)
def test_union_intersection_and_difference_are_those_of_python_sets(left, right):
    assert set(of(left) | of(right)) == left | right
    assert set(of(left) & of(right)) == left & right
    assert set(of(left) - of(right)) == left - right
    assert of(left).isdisjoint(of(right)) == left.isdisjoint(right)


@given(wide, wide)
def test_equal_sets_have_equal_texts_however_they_were_made(left, right):
    grown = Sequences.union_of([of(left), of(right)])
    shrunk = Sequences.from_range(0, 400) | grown
    shrunk = shrunk - (Sequences.from_range(0, 400) - grown)
    again = of(sorted(left | right, reverse=True))
    assert grown == shrunk == again
    assert grown.to_text() == shrunk.to_text() == again.to_text()
    assert hash(grown) == hash(shrunk)


def test_the_text_of_a_large_set_does_not_depend_on_its_history():
    dense = Sequences.from_range(0, 200_000) - of(range(0, 200_000, 2))
    assert dense.to_text() == (of(range(1, 200_001, 2)) | of([200_000])).to_text()
    thinned = Sequences.from_range(0, 200_000) - Sequences.from_range(10, 199_990)
    assert thinned.to_text() == of([*range(10), *range(199_991, 200_001)]).to_text()


@given(wide)
def test_runs_cover_exactly_the_set_and_never_touch(values):
    runs = list(of(values).runs())
    assert {one for first, last in runs for one in range(first, last + 1)} == values
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(runs))


def test_a_run_that_ends_where_a_container_ends_does_not_swallow_what_follows():
    assert list(of([65_535, 4_294_967_246]).runs()) == [(65_535, 65_535), (4_294_967_246, 4_294_967_246)]


@given(small)
def test_length_membership_and_ends_are_those_of_python_sets(values):
    sequences = of(values)
    assert len(sequences) == len(values)
    assert bool(sequences) == bool(values)
    assert all((one in sequences) == (one in values) for one in range(310))
    if values:
        assert (sequences.first, sequences.last) == (min(values), max(values))


@given(st.integers(1, 500), st.integers(0, 500))
def test_a_range_holds_both_its_ends(first, last):
    assert list(Sequences.from_range(first, last)) == list(range(first, last + 1))


def test_a_billion_sequences_cost_a_handful_of_bytes_and_one_run():
    sequences = Sequences.from_range(1, 1_000_000_000) | of([MAXIMUM])
    assert list(sequences.runs()) == [(1, 1_000_000_000), (MAXIMUM, MAXIMUM)]
    assert len(sequences.to_text()) < 500_000


@pytest.mark.parametrize("text", ["!", "AAAA", "////////////", "é"])
def test_a_text_that_is_no_set_is_refused(text):
    with pytest.raises(ValueError, match="not a set of sequences"):
        Sequences.from_text(text)


def test_the_empty_set_is_the_empty_text_and_has_no_ends():
    assert Sequences().to_text() == ""
    assert Sequences.from_text("") == Sequences.from_bytes(b"") == Sequences()
    with pytest.raises(ValueError):
        _ = Sequences().first


def test_a_set_describes_itself_by_runs():
    runs = of([3, 4, 5, 6, 7, 9, *range(12, 21), 30, 40, 50, 60, 61])
    assert runs.describe(limit=3) == "3–7, 9, 12–20 and 4 more"
    assert Sequences().describe() == "none"
    assert repr(of([1, 2])) == "Sequences(1–2)"


def test_a_set_is_not_equal_to_something_else():
    assert of([1]) != {1}


def test_a_range_that_memory_can_t_hold_is_refused_and_any_part_of_a_set_is_not():
    for first, last in ((1, WIDEST + 1), (1, MAXIMUM), (2**40, 2**62)):
        with pytest.raises(CaptureError, match="are more than the 100,000,000,000 that a set may have"):
            Sequences.from_range(first, last)
    held = Sequences.from_iterable([1, 2**40, MAXIMUM])
    assert list(held.within(1, MAXIMUM - 1)) == [1, 2**40]
    assert list(held.within(2, MAXIMUM)) == [2**40, MAXIMUM]


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 2**40), min_size=1, max_size=30), st.randoms())
def test_bytes_that_are_no_set_are_refused_and_never_kill(values, dice):
    data = bytearray(of(values).to_bytes())
    for _ in range(dice.randint(1, 4)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    del data[dice.randint(len(data) // 2, len(data)) :]
    try:
        found = Sequences.from_bytes(bytes(data))
    except ValueError:
        return
    assert not found or found.first + len(found) <= found.last + 1
