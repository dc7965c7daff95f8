from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from capture.archive.coverage import Coverage, coverage
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences


def stored(sequences, stream="S"):
    held = Sequences.from_iterable(sequences)
    return Stored(
        path=f"blocks/{stream}/{sorted(sequences)}",
        stream=stream,
        key="k",
        interval=0,
        first=held.first,
        last=held.last,
        count=len(held),
        bytes=1,
        sha256="",
        format="parquet",
        sequences=held.to_bytes(),
    )


def of(*sequences):
    return Sequences.from_iterable(sequences)


def test_gaps_lie_between_the_first_that_ever_was_and_what_is_acknowledged():
    found = Coverage(held=of(5, 6, 9, 12), removed=of(3, 10))
    assert list(found.gaps(11)) == [4, 7, 8, 11]
    assert list(found.gaps(6)) == [4]
    assert list(found.gaps(0)) == []
    assert list(Coverage().gaps(100)) == []


def test_gaps_begin_earlier_where_more_was_asked_for():
    assert list(Coverage(held=of(5)).gaps(6, 3)) == [3, 4, 6]
    assert list(Coverage(held=of(5)).gaps(6, 6)) == [6]
    assert list(Coverage().gaps(2, 1)) == [1, 2]


def test_streams_are_told_apart_and_one_of_which_all_was_removed_is_there():
    found = coverage([stored([1, 2]), stored([2, 3]), stored([2], "T")], {"U": of(7), "T": of(1)})
    assert {stream: list(one.held) for stream, one in found.items()} == {"S": [1, 2, 3], "T": [2], "U": []}
    assert list(found["S"].overlaps) == [2]
    assert list(found["T"].overlaps) == []
    assert list(found["T"].removed) == [1]


@given(st.lists(st.sets(st.one_of(st.integers(1, 30), st.integers(65_530, 65_540)), min_size=1), max_size=6))
def test_overlaps_are_what_more_than_one_object_holds(sets):
    counts = Counter(one for held in sets for one in held)
    found = coverage(map(stored, sets), {}).get("S", Coverage())
    assert set(found.held) == set(counts)
    assert set(found.overlaps) == {one for one, count in counts.items() if count > 1}
    assert set(Sequences.find_repeated(map(Sequences.from_iterable, sets))) == set(found.overlaps)
