"""What may go by which rule, and the record of what went."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retaining import stored

from capture.archive.manifest import Manifest, Removed
from capture.archive.picture import Picture
from capture.archive.retention import Retention, Rule, record_removed, removed_sequences, sum_up
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.config.load import load
from capture.errors import ConfigError

NOW, GRACE = 100_000.0, 1_000.0
HOUR = 3600
YOUNG = 97_200  # an interval that no rule of an hour lets go yet
OLD = Rule(older_than=HOUR)


def gone(objects, *rules, now=NOW, interval=HOUR):
    found = Retention(rules, interval).find_expired(objects, now)
    return [(one.object.first, one.reason) for one in found]


# --- the rules -------------------------------------------------------------------------------------------------------


def test_without_rules_everything_is_kept():
    assert gone([stored(1)]) == []


def test_an_object_goes_when_its_interval_ended_so_long_ago():
    objects = [stored(1, interval=0), stored(2, interval=HOUR)]
    assert gone(objects, OLD, now=2.0 * HOUR) == []
    assert gone(objects, OLD, now=2.0 * HOUR + 1) == [(1, "rule 1, older_than")]
    assert gone(objects, OLD, now=3.0 * HOUR + 1) == [(1, "rule 1, older_than"), (2, "rule 1, older_than")]


def test_where_the_latest_message_is_recorded_its_time_counts():
    assert gone([stored(1, latest=60.0)], OLD, now=HOUR + 60.0) == []
    assert gone([stored(1, latest=60.0)], OLD, now=HOUR + 61.0) == [(1, "rule 1, older_than")]


def test_the_oldest_go_until_what_is_left_is_small_enough():
    objects = [stored(number, interval=number * HOUR) for number in (3, 1, 4, 2)]
    assert gone(objects, Rule(keep_bytes=400)) == []
    assert gone(objects, Rule(keep_bytes=399)) == [(1, "rule 1, keep_bytes")]
    assert gone(objects, Rule(keep_bytes=200)) == [(1, "rule 1, keep_bytes"), (2, "rule 1, keep_bytes")]
    assert len(gone(objects, Rule(keep_bytes=1))) == 4


def test_what_goes_by_its_age_makes_room_for_the_rest():
    objects = [stored(1, latest=90_000.0, interval=0), stored(2, interval=0), stored(3, latest=NOW)]
    both = [(1, "rule 1, older_than"), (2, "rule 1, older_than")]
    assert gone(objects, Rule(older_than=HOUR, keep_bytes=100)) == both


def test_the_first_rule_that_matches_decides_alone():
    objects = [stored(1, key="audit"), stored(2, key="debug"), stored(3, stream="T", key="debug")]
    assert gone(objects, Rule(key="audit"), OLD) == [(2, "rule 2, older_than"), (3, "rule 2, older_than")]
    assert [first for first, _ in gone(objects, Rule(stream="T", older_than=1e9), OLD)] == [1, 2]
    assert gone(objects, Rule(key="de*", older_than=HOUR)) == [(2, "rule 1, older_than"), (3, "rule 1, older_than")]
    assert gone(objects, Rule(key="*", keep_bytes=300), OLD) == []


def test_patterns_match_keys_of_several_fields_whole_and_tell_case_apart():
    rule = Rule(key="/region=eu/*")
    assert rule.decides(stored(1, key="/region=eu/level=3"))
    assert not rule.decides(stored(1, key="/region=EU/level=3"))
    assert not Rule(key="eu").decides(stored(1, key="europe"))


objects = st.lists(
    st.builds(
        stored,
        st.integers(1, 50),
        key=st.sampled_from(["a", "b"]),
        interval=st.integers(0, 5).map(lambda hours: hours * HOUR),
        size=st.integers(1, 300),
    ),
    unique_by=lambda one: one.path,
)


@given(objects, st.integers(1, 1000), st.integers(0, 10))
def test_nothing_goes_that_a_rule_would_keep_and_all_that_it_would_not(objects, keep_bytes, hours):
    rule, now = Rule(older_than=HOUR, keep_bytes=keep_bytes, key="a"), float(hours * HOUR)
    expired = [one.object for one in Retention([rule], HOUR).find_expired(objects, now)]
    left = [one for one in objects if one.key == "a" and one not in expired]
    assert all(one.key == "a" for one in expired)
    assert sum(one.bytes for one in left) <= keep_bytes
    assert all(one.interval + 2 * HOUR >= now for one in left)
    young = [one for one in expired if one.interval + 2 * HOUR >= now]
    if young:  # each of them had to go: with the last of them there would be too much
        assert sum(one.bytes for one in left) + young[-1].bytes > keep_bytes
        assert all(one.interval >= young[-1].interval for one in left)


# --- the record ------------------------------------------------------------------------------------------------------


def test_what_was_removed_is_added_up_by_stream():
    record = record_removed([], [stored(1, 3), stored(5, stream="T")], 10.0)
    record = record_removed(record, [stored(3, 4)], 20.0)
    counts = [(one.stream, one.objects, one.bytes, one.at) for one in record]
    assert counts == [("S", 2, 200, 20.0), ("T", 1, 100, 10.0)]
    assert list(removed_sequences(record)["S"]) == [1, 2, 3, 4]
    assert record_removed(record, [], 30.0) == record


def test_what_is_summed_up_stays_so_and_never_goes_back():
    record = sum_up(record_removed([], [stored(3, 20)], 10.0), {"S": 12, "T": 5}, 10.0)
    assert [(one.stream, one.below, one.objects) for one in record] == [("S", 12, 1), ("T", 5, 0)]
    record = sum_up(record_removed(record, [stored(25)], 20.0), {"S": 9}, 20.0)
    gone = removed_sequences(record)
    assert gone["S"] == Sequences.from_range(1, 20) | Sequences.from_range(25, 25)
    assert gone["T"] == Sequences.from_range(1, 4)


def test_a_picture_tells_what_was_removed_of_blocks_and_of_the_table():
    def removed(first):
        return [Removed(stream="S", sequences=Sequences.from_range(first, first).to_text(), objects=1, bytes=1, at=1.0)]

    picture = Picture(Manifest(removed=removed(1)), Table(removed=removed(4)))
    assert {stream: list(held) for stream, held in picture.removed.items()} == {"S": [1, 4]}


# --- in the file -----------------------------------------------------------------------------------------------------


def test_rules_are_read_in_their_order(tmp_path):
    path = tmp_path / "capture.toml"
    rules = '[[retention]]\nkey = "audit"\n[[retention]]\nolder_than = 86400\nkeep_bytes = 5\n'
    path.write_text(f'stream = "S"\nstore = "lake"\n{rules}')
    assert load(path, environment={}).retention == [Rule(key="audit"), Rule(older_than=86_400.0, keep_bytes=5)]


@pytest.mark.parametrize("wrong", ["older_than = 0", "keep_bytes = 0", "older = 5", 'older_than = "30d"'])
def test_a_rule_that_makes_no_sense_is_refused_with_its_place(tmp_path, wrong):
    path = tmp_path / "capture.toml"
    path.write_text(f'stream = "S"\nstore = "lake"\n[[retention]]\n[[retention]]\n{wrong}\n')
    with pytest.raises(ConfigError, match=r"retention 2: "):
        load(path, environment={})
