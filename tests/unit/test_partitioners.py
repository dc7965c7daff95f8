from __future__ import annotations

import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import ConfigError
from capture.partitioners import UNDECODABLE, by_batch, grouped, partitioner, per_record
from capture.partitioners.group import bounded
from capture.record import Record, Records

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
        errors or {},
    )


def test_a_token_of_the_subject_is_the_key() -> None:
    assert partitioner("subject:1")(records([b"a.b.c", b"a.d", b"x.y.z.w"])) == ["b", "d", "y"]


def test_a_subject_without_that_token_has_the_key_short() -> None:
    assert partitioner("subject:2")(records([b"a.b", b"a.b.c"])) == ["_short", "c"]


def test_a_token_that_is_not_utf8_is_a_key_nevertheless() -> None:
    assert partitioner("subject:0")(records([b"\xff.a"])) == ["\ufffd"]


def test_a_field_of_the_decoded_value_is_the_key() -> None:
    values: list[object] = [{"origin": "EWR"}, {"origin": 7}, {"origin": True}, {"origin": 1.5}]
    assert partitioner("field:origin")(records([b"a"] * 4, values)) == ["EWR", "7", "true", "1.5"]


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"origin": None}, {"origin": ""}, {"origin": {"a": 1}}])
def test_a_value_without_that_field_has_the_key_none(value: object) -> None:
    assert partitioner("field:origin")(records([b"a"], [value])) == ["_none"]


def test_by_time_everything_has_one_key() -> None:
    assert partitioner("time")(records([b"a", b"b"])) == ["all", "all"]


def test_a_plain_function_names_the_key_of_each_record() -> None:
    def first_letter(record: Record) -> str | None:
        return record.subject[0] if record.subject != "none" else None

    assert per_record(first_letter)(records([b"abc", b"none", b"b"])) == ["a", "_none", "b"]


def test_a_record_whose_key_can_not_be_told_is_kept_as_undecodable() -> None:
    groups = grouped(per_record(lambda record: record.value["origin"]))(records([b"a", b"b"], [{"origin": "x"}, {}]))
    assert [(key, found.sequences) for key, _, found in groups] == [("x", [1]), (UNDECODABLE, [2])]
    assert groups[1][2].errors == {0: "no key: KeyError: 'origin'"}


def test_undecodable_records_have_their_own_key_whatever_the_partitioner() -> None:
    groups = grouped(partitioner("subject:0"))(records([b"a", b"a", b"b"], errors={1: "bad"}))
    assert [(key, found.sequences) for key, _, found in groups] == [("a", [1]), (UNDECODABLE, [2]), ("b", [3])]
    assert groups[1][2].errors == {0: "bad"}


def test_a_group_lies_in_one_interval_of_message_time() -> None:
    times = [HOUR_NS - 1, HOUR_NS, HOUR_NS + 5]
    groups = grouped(partitioner("time"))(records([b"a"] * 3, times_ns=times))
    assert [(key, start, found.sequences) for key, start, found in groups] == [("all", 0, [1]), ("all", 3600, [2, 3])]


def test_a_batch_of_one_key_and_interval_is_not_copied() -> None:
    whole = records([b"a"] * 3)
    assert grouped(partitioner("subject:0"))(whole)[0][2] is whole


def test_no_record_makes_no_group() -> None:
    assert grouped(partitioner("subject:0"))(Records()) == []


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c.d"]), st.integers(0, 3 * HOUR_NS), st.booleans()),
        max_size=30,
    )
)
def test_grouping_loses_and_invents_nothing(drawn: list[tuple[bytes, int, bool]]) -> None:
    errors = {index: "bad" for index, (_, _, bad) in enumerate(drawn) if bad}
    whole = records([subject for subject, _, _ in drawn], errors=errors, times_ns=[time for _, time, _ in drawn])
    groups = grouped(partitioner("subject:0"), interval=3600.0)(whole)
    assert sorted(sequence for _, _, found in groups for sequence in found.sequences) == whole.sequences
    assert len({(key, start) for key, start, _ in groups}) == len(groups)
    for key, start, found in groups:
        assert (key == UNDECODABLE) == (len(found.errors) == len(found))
        assert all(start * 10**9 <= time < (start + 3600) * 10**9 for time in found.times_ns)
        assert [whole.subjects[sequence - 1] for sequence in found.sequences] == found.subjects


@given(st.text(st.characters(), max_size=300))
def test_any_text_is_a_key_that_can_be_written(key: str) -> None:
    assert 0 < len(bounded(key).encode()) <= 217


def test_long_keys_that_begin_alike_stay_apart() -> None:
    assert bounded("k" * 300 + "1") != bounded("k" * 300 + "2")


def test_your_own_partitioner_is_named_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_keys")
    vars(module).update(one=lambda record: record.sequence, whole=by_batch(lambda records: ["k"] * len(records)))
    monkeypatch.setitem(sys.modules, "my_keys", module)
    assert partitioner("my_keys:one")(records([b"a", b"b"])) == ["1", "2"]
    assert partitioner("my_keys:whole")(records([b"a", b"b"])) == ["k", "k"]


@pytest.mark.parametrize("spec", ["colour", "subject:", "subject:-1", "subject:x", "field:", "time:3", "no_module:f"])
def test_a_partitioner_that_can_not_be_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        partitioner(spec)
