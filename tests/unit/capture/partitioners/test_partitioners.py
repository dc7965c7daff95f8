from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Hashable
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.archive.manifest import Partition, block_path
from capture.errors import ConfigError
from capture.ingest.block import Groups
from capture.ingest.keys import Reserved, key_text
from capture.ingest.pipeline import group
from capture.ingest.record import Record, Records
from capture.partitioners import UNDECODABLE, Partitioner, by_batch, partitioner, per_record

HOUR_NS = 3600 * 1_000_000_000


def records(
    subjects: list[bytes],
    values: list[object] | None = None,
    errors: dict[int, str] | None = None,
    times_ns: list[int] | None = None,
) -> Records:
    count = len(subjects)
    return Records(
        "S",
        list(range(1, count + 1)),
        times_ns or [0] * count,
        subjects,
        [b""] * count,
        [b"%d" % index for index in range(count)],
        [1] * count,
        [b"reply.%d" % index for index in range(count)],
        values or [None] * count,
        errors=errors or {},
    )


def groups_of(partitioner: Partitioner[Any], records: Records[Any]) -> Groups:
    return group(records, partitioner(records), 3600.0)


def test_a_token_of_the_subject_is_the_key() -> None:
    assert partitioner("subject:1")(records([b"a.b.c", b"a.d", b"x.y.z.w"])) == ["b", "d", "y"]


def test_a_subject_without_that_token_has_the_key_short() -> None:
    assert partitioner("subject:2")(records([b"a.b", b"a.b.c"])) == [Reserved.SHORT, "c"]


def test_a_token_that_is_not_utf8_is_a_key_nevertheless() -> None:
    assert partitioner("subject:0")(records([b"\xff.a"])) == ["\ufffd"]


def test_a_field_of_the_decoded_value_is_the_key() -> None:
    values: list[object] = [{"origin": "EWR"}, {"origin": 7}, {"origin": True}, {"origin": 1.5}]
    assert partitioner("field:origin")(records([b"a"] * 4, values)) == ["EWR", "7", "true", "1.5"]


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"origin": None}, {"origin": {"a": 1}}])
def test_a_value_without_that_field_has_the_key_none(value: object) -> None:
    assert partitioner("field:origin")(records([b"a"], [value])) == [Reserved.NONE]


def test_by_time_everything_has_one_key() -> None:
    assert partitioner("time")(records([b"a", b"b"])) == ["all", "all"]


def test_a_plain_function_names_the_key_of_each_record() -> None:
    def first_letter(record: Record) -> str | None:
        return record.subject[0] if record.subject != "none" else None

    assert per_record(first_letter)(records([b"abc", b"none", b"b"])) == ["a", None, "b"]


def test_a_record_whose_key_can_not_be_told_is_kept_as_undecodable() -> None:
    groups = groups_of(per_record(lambda record: record.value["origin"]), records([b"a", b"b"], [{"origin": "x"}, {}]))
    assert [(key, found.sequences) for key, _, found in groups] == [("x", [1]), (UNDECODABLE, [2])]
    assert groups[1][2].errors == {0: "no key: KeyError: 'origin'"}


def test_undecodable_records_have_their_own_key_whatever_the_partitioner() -> None:
    groups = groups_of(partitioner("subject:0"), records([b"a", b"a", b"b"], errors={1: "bad"}))
    assert [(key, found.sequences) for key, _, found in groups] == [("a", [1]), (UNDECODABLE, [2]), ("b", [3])]
    assert groups[1][2].errors == {0: "bad"}


def test_tokens_that_read_as_a_reserved_key_are_keys_of_their_own() -> None:
    subjects = [b"o._undecodable", b"o._none", b"o", b"o._short", b"o.bad", b"o.__none"]
    groups = groups_of(partitioner("subject:1"), records(subjects, errors={4: "bad"}))
    assert [(key, found.sequences) for key, _, found in groups] == [
        ("__undecodable", [1]),
        ("__none", [2]),
        ("_short", [3]),
        ("__short", [4]),
        (UNDECODABLE, [5]),
        ("___none", [6]),
    ]
    values: list[object] = [{"origin": "_none"}, {"origin": None}, {"origin": ""}]
    fields = groups_of(partitioner("field:origin"), records([b"a"] * 3, values))
    assert [(key, found.sequences) for key, _, found in fields] == [("__none", [1]), ("_none", [2, 3])]
    assert key_text(Place("_none")) == "/city=__none"


def test_a_group_lies_in_one_interval_of_message_time() -> None:
    times = [HOUR_NS - 1, HOUR_NS, HOUR_NS + 5]
    groups = groups_of(partitioner("time"), records([b"a"] * 3, times_ns=times))
    assert [(key, start, found.sequences) for key, start, found in groups] == [("all", 0, [1]), ("all", 3600, [2, 3])]


def test_a_batch_of_one_key_and_interval_is_not_copied() -> None:
    whole = records([b"a"] * 3)
    assert groups_of(partitioner("subject:0"), whole)[0][2] is whole


def test_no_record_makes_no_group() -> None:
    assert groups_of(partitioner("subject:0"), Records()) == []


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c.d"]), st.integers(0, 3 * HOUR_NS), st.booleans()),
        max_size=30,
    )
)
def test_grouping_loses_and_invents_nothing(drawn: list[tuple[bytes, int, bool]]) -> None:
    errors = {index: "bad" for index, (_, _, bad) in enumerate(drawn) if bad}
    whole = records([subject for subject, _, _ in drawn], errors=errors, times_ns=[time for _, time, _ in drawn])
    groups = groups_of(partitioner("subject:0"), whole)
    assert sorted(sequence for _, _, found in groups for sequence in found.sequences) == whole.sequences
    assert len({(key, start) for key, start, _ in groups}) == len(groups)
    for key, start, found in groups:
        assert (key == UNDECODABLE) == (len(found.errors) == len(found))
        assert all(start * 10**9 <= time < (start + 3600) * 10**9 for time in found.times_ns)
        assert [whole.subjects[sequence - 1] for sequence in found.sequences] == found.subjects


@given(st.text(st.characters(), max_size=300))
def test_any_text_is_a_key_that_can_be_written(key: str) -> None:
    assert 0 < len(key_text(key).encode()) <= 217


def test_long_keys_that_begin_alike_stay_apart() -> None:
    assert key_text("k" * 300 + "1") != key_text("k" * 300 + "2")


def test_your_own_partitioner_is_named_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_keys")
    vars(module).update(one=lambda record: record.sequence, whole=by_batch(lambda records: ["k"] * len(records)))
    monkeypatch.setitem(sys.modules, "my_keys", module)
    assert partitioner("my_keys:one")(records([b"a", b"b"])) == [1, 2]
    assert partitioner("my_keys:whole")(records([b"a", b"b"])) == ["k", "k"]


@pytest.mark.parametrize(
    "spec", ["colour", "subject:", "subject:-1", "subject:x", "field:", "time:3", "decoder:x", "no_module:f"]
)
def test_a_partitioner_that_can_not_be_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        partitioner(spec)


# --- keys of any hashable type ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Region:
    region: str
    level: int
    date: str | None = None


class Place(msgspec.Struct, frozen=True):
    city: str


class Point(NamedTuple):
    x: int
    y: bool


class Size(enum.StrEnum):
    SMALL = "small"


@pytest.mark.parametrize(
    ("key", "text", "folders"),
    [
        ("eu", "eu", "key=eu"),
        ("/a=1", "//a=1", "key=%2F%2Fa%3D1"),
        ("//", "///", "key=%2F%2F%2F"),
        (None, "_none", "key=_none"),
        ("", "_none", "key=_none"),
        ("_none", "__none", "key=__none"),
        ("none", "none", "key=none"),
        (7, "7", "key=7"),
        (True, "true", "key=true"),
        (Size.SMALL, "small", "key=small"),
        (("a", 1), "('a', 1)", "key=%28%27a%27%2C%201%29"),
        (Region("e/u", 3), "/region=e%2Fu/level=3/date_=_none", "region=e%2Fu/level=3/date_=_none"),
        (Region("../..", 3, "="), "/region=..%2F../level=3/date_=%3D", "region=..%2F../level=3/date_=%3D"),
        (Place("Malmö"), "/city=Malm%C3%B6", "city=Malm%C3%B6"),
        (Point(1, True), "/x=1/y=true", "x=1/y=true"),
    ],
)
def test_a_key_is_text_in_the_manifest_and_folders_in_the_path(key: Hashable, text: str, folders: str) -> None:
    assert key_text(key) == text
    path = block_path(Partition("S", key_text(key), 0, 3600), 1, 2, 2, "0123456789abcdef", ".raw")
    assert path == f"blocks/stream=S/{folders}/date=1970-01-01/hour=00/S-1-2-2-01234567.raw"


def test_true_and_one_are_two_keys_though_they_are_equal() -> None:
    assert (key_text(1.0), key_text(True), key_text(1)) == ("1.0", "true", "1")


def test_a_field_of_a_key_is_as_short_as_a_path_allows() -> None:
    parts = key_text(Place("ä" * 500)).split("/")
    assert all(len(part.encode()) < 255 for part in parts)
    assert key_text(Place("ä" * 500)) != key_text(Place("ä" * 501))


def test_records_are_grouped_by_equal_keys_of_any_type() -> None:
    groups = groups_of(per_record(lambda record: Region(record.subject, 1)), records([b"eu", b"us", b"eu"]))
    assert [(key, found.sequences) for key, _, found in groups] == [
        ("/region=eu/level=1/date_=_none", [1, 3]),
        ("/region=us/level=1/date_=_none", [2]),
    ]


def test_keys_of_one_text_share_a_group_in_order() -> None:
    keys: list[Hashable] = [1, "1", 2, "1", 1]
    groups = groups_of(lambda records: keys, records([b"a"] * 5))
    assert [(key, found.sequences) for key, _, found in groups] == [("1", [1, 2, 4, 5]), ("2", [3])]


def test_a_key_that_is_not_hashable_makes_that_record_undecodable() -> None:
    def key(record: Record[Any]) -> Any:
        return [1] if record.sequence == 2 else "k"

    groups = groups_of(per_record(key), records([b"a"] * 3))
    assert [(key, found.sequences) for key, _, found in groups] == [("k", [1, 3]), (UNDECODABLE, [2])]
    assert groups[1][2].errors == {0: "no key: TypeError: unhashable type: 'list'"}


def test_the_key_that_the_decoder_returns_is_the_key() -> None:
    whole = records([b"a"] * 3, errors={2: "bad"})
    whole.keys = [Place("x"), None, None]
    groups = groups_of(partitioner("decoder"), whole)
    assert [(key, found.sequences) for key, _, found in groups] == [
        ("/city=x", [1]),
        ("_none", [2]),
        (UNDECODABLE, [3]),
    ]
    assert partitioner("decoder")(records([b"a"] * 2)) == [Reserved.NONE, Reserved.NONE]


def test_a_field_of_a_typed_value_is_the_key() -> None:
    assert partitioner("field:city")(records([b"a"], [Place("x")])) == ["x"]


def fails_on_two(found: Records[Any]) -> list[Any]:
    if 2 in found.sequences:
        raise KeyError("two")
    return ["k"] * len(found)


def returns_too_few(found: Records[Any]) -> list[Any]:
    return [f"k{sequence}" for sequence in found.sequences][:2]


def unhashable_for_two(found: Records[Any]) -> list[Any]:
    return [[] if sequence == 2 else "k" for sequence in found.sequences]


@pytest.mark.parametrize(("function", "bad"), [(fails_on_two, [2]), (returns_too_few, []), (unhashable_for_two, [2])])
def test_a_partitioner_of_batches_that_fails_stops_nothing(
    function: Any, bad: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("my_keys")
    vars(module).update(f=by_batch(function))
    monkeypatch.setitem(sys.modules, "my_keys", module)
    groups = groups_of(partitioner("my_keys:f"), records([b"a"] * 3))
    undecodable = [found.sequences for key, _, found in groups if key == UNDECODABLE]
    assert undecodable == ([bad] if bad else [])
    assert sorted(sequence for _, _, found in groups for sequence in found.sequences) == [1, 2, 3]
