"""JSON that a decoder made itself, and values that JSON can't express: one message never spoils or forges others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealed import block, csv_rows

from capture.decoders import Decoding, decoder, per_message
from capture.formats import writer
from capture.formats.json_text import DEEPEST
from capture.formats.ndjson import NdjsonWriter
from capture.ingest.record import Records
from natty.wire.ack import ack_subject
from natty.wire.message import Batch, Message

INVALID = [
    b"",
    b" ",
    b"not json",
    b"\xff",
    b'{"a":"\xff"}',
    b'{"a":1',
    b'{"a":1} {"b":2}',
    b'{"a":1}\n{"b":2}',
    b'1}\n{"sequence":1',
    b'1,"payload":"EVIL","subject":"forged"',
    b'"x"}\r{"stream":"S"',
    b'"a\nb"',
    b"NaN",
    b"1e999",
    b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
]
VALID = [b'{"a":1}', b' {"a":\r\n1.10,\t"b":[ ]}\n', b"null", b'"\xc3\xa4"', b"[" * DEEPEST + b"]" * DEEPEST]

WRAPPED = {
    "alone": lambda raw: raw,
    "in a dict": lambda raw: {"x": {"y": raw}},
    "in a list": lambda raw: [1, [raw]],
    "in a Struct": lambda raw: Holder(raw),
    "in a dataclass": lambda raw: Plain([raw]),
}


class Holder(msgspec.Struct):
    inside: Any


@dataclass
class Plain:
    inside: Any


def raw_json(message: Message) -> msgspec.Raw:
    return msgspec.Raw(message.data)


def values_stored(name: str, payloads: list[bytes], decode: Any) -> tuple[list[bytes], dict[bytes, str]]:
    """What a writer without the envelope stores of these payloads, and the reason by payload for the others."""
    raw = [(b"s", ack_subject("S", "c", at, 1), b"", one) for at, one in enumerate(payloads, 1)]
    wanted = writer(name, decode=decode, envelope="none")
    records: Records[Any] = Decoding.of(decode)(Batch(raw))
    retain = wanted.retain
    assert retain is not None
    retain(records)
    good = [one for index, one in enumerate(records.payloads) if index not in records.errors]
    return good, {records.payloads[index]: reason for index, reason in records.errors.items()}


def lines_beside(envelope: str, payloads: list[bytes], decode: Any) -> list[dict[str, Any]]:
    """The lines of NDJSON with the envelope, which must be as many as the messages and readable."""
    kept = block(*((b"real.%d" % at, b"", one) for at, one in enumerate(payloads)))
    data = writer("ndjson", decode=decode, envelope=envelope).write(kept)
    lines = [json.loads(line, parse_constant=pytest.fail) for line in data.split(b"\n")[:-1]]
    assert len(lines) == len(data.splitlines()) == len(payloads)
    rows = [row for part in NdjsonWriter().parts(BytesIO(data), 1 << 20) for row in part.to_pylist()]
    assert [(row["subject"], row["payload"]) for row in rows] == [
        (f"real.{at}", one) for at, one in enumerate(payloads)
    ]
    assert [line["sequence"] for line in lines] == [row["sequence"] for row in rows]
    return lines


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("name", ["ndjson", "raw", "csv"])
def test_json_of_the_decoder_that_is_not_one_value_makes_its_message_undecodable(name: str, wrap: Any) -> None:
    stored, errors = values_stored(name, INVALID, per_message(lambda message: wrap(raw_json(message))))
    deep = [INVALID[-1]] if name == "csv" and wrap is WRAPPED["alone"] else []  # its elements are the rows
    assert (len(stored), list(errors)) == (len(deep), [one for one in INVALID if one not in deep])
    assert all(reason.startswith("no value to store: ") for reason in errors.values())


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("envelope", ["nested", "columns"])
def test_json_of_the_decoder_never_forges_or_spoils_a_line(envelope: str, wrap: Any) -> None:
    lines = lines_beside(envelope, INVALID, per_message(lambda message: wrap(raw_json(message))))
    assert all(line["error"].startswith("no JSON: ") for line in lines)
    assert all(line.keys() <= {*lines[0], "value", "payload_base64"} for line in lines)
    assert [line.get("value") for line in lines] == [None] * len(lines)


def test_valid_json_of_the_decoder_is_kept_as_it_is_on_one_line() -> None:
    stored, errors = values_stored("ndjson", VALID, per_message(raw_json))
    assert errors == {}
    assert stored == [b'{"a":1}\n', b'{"a":1.10,"b":[]}\n', b"null\n", b'"\xc3\xa4"\n', VALID[-1] + b"\n"]
    stored, errors = values_stored("csv", VALID[:2], per_message(raw_json))
    assert (stored, errors) == ([b'[{"a":"1"}]', b'[{"a":"1.1","b":"[]"}]'], {})
    lines = lines_beside("nested", VALID[:4], per_message(raw_json))
    assert [line["value"] for line in lines] == [{"a": 1}, {"a": 1.1, "b": []}, None, "ä"]
    lines = lines_beside("columns", VALID[:2], per_message(raw_json))
    assert [(line["a"], line.get("b"), line["error"]) for line in lines] == [(1, None, None), (1.1, [], None)]


@given(st.lists(st.binary(max_size=8) | st.sampled_from(INVALID + VALID) | st.text('{}[]",:1a\n\r\\ ').map(str.encode)))
def test_no_payload_changes_the_lines_of_others(payloads: list[bytes]) -> None:
    for wrap in WRAPPED.values():
        decode = per_message(lambda message, wrap=wrap: wrap(raw_json(message)))
        for envelope in ("nested", "columns"):
            lines_beside(envelope, payloads, decode)
        stored, errors = values_stored("ndjson", payloads, decode)
        assert len(stored) == sum(one not in errors for one in payloads)
        for line in stored:
            assert line.splitlines(keepends=True) == [line]
            json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_numbers_that_json_does_not_have_are_not_stored_as_null(number: float, wrap: Any) -> None:
    decode = per_message(lambda _: wrap(number))
    for name in ("ndjson", "raw"):
        stored, errors = values_stored(name, [b"p"], decode)
        assert (stored, errors) == ([], {b"p": f"no value to store: ValueError: JSON has no {number}"})
    for envelope in ("nested", "columns"):
        [line] = lines_beside(envelope, [b"p"], decode)
        assert line["error"] == f"no JSON: ValueError: JSON has no {number}"


def test_long_integers_and_nulls_are_json() -> None:
    values = {b"p": {"a": 10**30, "b": None}, b"q": [1.7e308, None, {"c": -0.0}]}
    stored, errors = values_stored("ndjson", [*values], per_message(lambda message: values[message.data]))
    assert (list(map(json.loads, stored)), errors) == ([*values.values()], {})


def test_a_list_in_a_csv_cell_loses_no_number() -> None:
    stored, errors = values_stored("csv", [b"p"], per_message(lambda _: {"a": [float("nan")]}))
    assert (stored, list(errors)) == ([], [b"p"])
    assert values_stored("csv", [b"p"], per_message(lambda _: {"a": float("inf")}))[0] == [b'[{"a":"inf"}]']


def test_fields_that_would_be_one_csv_column_lose_no_value() -> None:
    payloads = [b'{"a.b":1,"a":{"b":2}}', b'[{"a.b":1},{"a":{"b":2}}]']
    stored, errors = values_stored("csv", payloads, decoder("json"))
    assert errors == {payloads[0]: "no value to store: ValueError: two of its fields would be the column 'a.b'"}
    assert stored == [b'[{"a.b":"1"},{"a.b":"2"}]']
    row, *_ = csv_rows(writer("csv", decode=decoder("json")).write(block((b"s", b"", payloads[0]))))
    assert (row["payload"], row["error"][:8]) == (payloads[0].decode(), "flatten:")


@pytest.mark.parametrize("envelope", ["nested", "columns"])
def test_a_block_with_a_deeply_nested_value_is_readable_from_any_stack(envelope: str) -> None:
    def at_depth(frames: int, read: Any) -> Any:
        return at_depth(frames - 1, read) if frames else read()

    payloads = [b'{"x":' + b"[" * depth + b"]" * depth + b"}" for depth in (DEEPEST - 1, DEEPEST, 900)]
    lines = at_depth(600, lambda: lines_beside(envelope, payloads[:2], decoder("json")))
    assert [line["error"] is None for line in lines] == [True, False]
    assert lines_beside(envelope, payloads[2:], decoder("json"))[0]["error"].startswith("no JSON: ")
