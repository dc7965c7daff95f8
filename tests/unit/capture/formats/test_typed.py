"""Typed columns: what the decoder's type says, and what becomes of values that it doesn't say."""

from __future__ import annotations

import enum
import json
import logging
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.decoders import Decoding, json_as, per_message, typed
from capture.decoders import decoder as known_decoder
from capture.decoders.json import decode as as_json
from capture.errors import ConfigError
from capture.formats import reader, writer
from capture.formats import typed_columns as typed_module
from capture.formats.envelope import SCHEMA
from capture.formats.parquet import ParquetWriter
from capture.formats.schema import CONFLICTS, schema_of
from capture.formats.typed_columns import WHOLE, typed_columns
from capture.ingest.block import OpenBlocks, SealedBlock
from capture.ingest.pipeline import group
from capture.ingest.record import Records
from capture.maintenance.merge.schema_evolution import evolve, in_table, typed_part
from capture.partitioners import UNDECODABLE, partitioner
from natty.wire.message import Batch, Message

FLIGHT = pa.schema([("origin", pa.string()), ("delay", pa.int64()), ("time", pa.timestamp("us", "UTC"))])


class Leg(msgspec.Struct):
    gate: int
    day: date | None = None


class Flight(msgspec.Struct, rename="camel"):
    origin: str
    dep_delay: int | None = None
    subject: str = ""
    legs: list[Leg] = []


def block(*payloads: bytes, errors: dict[int, str] | None = None) -> SealedBlock:
    count = len(payloads)
    records: Records[Any] = Records(
        "FLIGHTS",
        list(range(1, count + 1)),
        [10**18] * count,
        [b"a"] * count,
        [b""] * count,
        list(payloads),
        [1] * count,
        [b"$JS.ACK.FLIGHTS.c.1.%d.1.5000.0" % n for n in range(1, count + 1)],
        [None] * count,
        errors=errors or {},
    )
    return SealedBlock("FLIGHTS", "EWR", 0, records, "age")


def values(decode: Decoding[Any], *payloads: bytes, errors: dict[int, str] | None = None) -> pa.Table:
    """The typed columns of a block, read back from its file."""
    kept = block(*payloads, errors=errors)
    rows = reader("parquet").read(writer("parquet", decode=decode).write(kept), kept)
    assert rows["payload"].to_pylist() == list(payloads)
    return rows.select([name for name in rows.column_names if name not in SCHEMA.names])


# --- the schema ------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Everything(msgspec.Struct):
    a: int
    b: float | None
    c: str
    d: bool
    e: datetime
    f: date
    g: list[int]
    h: Leg
    i: Colour
    j: Literal[1, 2]
    k: uuid.UUID
    l: int | float  # noqa: E741
    m: dict[str, int]
    n: int | str
    o: Any
    p: bytes
    q: Everything | None = None


def test_each_kind_of_field_has_its_column_or_stays_in_the_payload() -> None:
    leg = pa.struct([("gate", pa.int64()), ("day", pa.date32())])
    assert schema_of(Everything) == pa.schema(
        {
            "a": pa.int64(),
            "b": pa.float64(),
            "c": pa.string(),
            "d": pa.bool_(),
            "e": pa.timestamp("us", "UTC"),
            "f": pa.date32(),
            "g": pa.list_(pa.int64()),
            "h": leg,
            "i": pa.string(),
            "j": pa.int64(),
            "k": pa.string(),
            "l": pa.float64(),
            "p": pa.string(),
            "q": schema_of_inner(leg),
        }
    )


def schema_of_inner(leg: pa.DataType) -> pa.DataType:
    """`Everything` inside of itself: the same without a column for a further one."""
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us", "UTC"), pa.date32()]
    kinds += [pa.list_(pa.int64()), leg, pa.string(), pa.int64(), pa.string(), pa.float64(), pa.string()]
    return pa.struct(list(zip("abcdefghijklp", kinds, strict=True)))


class Typed(TypedDict):
    n: int


@dataclass
class Plain:
    n: int


@pytest.mark.parametrize("shape", [Typed, Plain, pa.schema([("n", pa.int64())])])
def test_dataclasses_typed_dicts_and_arrow_schemas_do_as_well(shape: Any) -> None:
    assert schema_of(shape) == pa.schema([("n", pa.int64())])


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (int, "neither a Struct, dataclass or TypedDict"),
        (pa.schema([("a", pa.int64()), ("A", pa.int64())]), "differ by more than upper and lower case"),
        (pa.schema([("a", pa.duration("s"))]), "type duration.* can't be read from JSON: a"),
    ],
)
def test_a_shape_of_which_no_columns_can_be_made_is_refused_at_the_start(shape: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        writer("parquet", decode=Decoding(as_json, shape=shape, is_json=True))


# --- the columns -----------------------------------------------------------------------------------------------------


def test_fields_are_columns_by_their_names_in_json_and_never_hide_the_envelope() -> None:
    payload = b'{"origin":"EWR","depDelay":-3,"subject":"s","legs":[{"gate":7,"day":"2026-11-21"}],"new":1}'
    assert values(json_as(Flight), payload, b'{"origin":"\\u00e4"}').to_pylist() == [
        {
            "origin": "EWR",
            "depDelay": -3,
            "value_subject": "s",
            "legs": [{"gate": 7, "day": date(2026, 11, 21)}],
            CONFLICTS: None,
        },
        {"origin": "ä", "depDelay": None, "value_subject": None, "legs": None, CONFLICTS: None},
    ]


def test_what_is_no_json_but_has_typed_values_gets_columns_too() -> None:
    def decode(message: Message) -> Plain:
        return Plain(len(message.data))

    assert values(typed(Plain)(decode), b"abc", b"").to_pylist() == [
        {"n": 3, CONFLICTS: None},
        {"n": 0, CONFLICTS: None},
    ]


def test_a_value_that_is_not_of_its_shape_is_null_and_told() -> None:
    decode: Decoding[Any] = Decoding(per_message(lambda message: object()), shape=Plain)
    assert values(decode, b"abc").to_pylist() == [{"n": None, CONFLICTS: [WHOLE]}]


def test_an_undecodable_message_has_nulls_for_its_columns() -> None:
    rows = values(json_as(Flight), b'{"origin":"EWR"}', b"\xff", errors={1: "no JSON"})
    assert rows["origin"].to_pylist() == ["EWR", None]
    assert rows[CONFLICTS].to_pylist() == [None, None]


def test_typed_columns_have_statistics_and_a_dictionary_where_it_pays() -> None:
    kept = block(*[b'{"origin":"EWR","delay":%d}' % n for n in range(100)])
    data = writer("parquet", decode=Decoding(as_json, shape=FLIGHT, is_json=True)).write(kept)
    metadata = pq.read_metadata(pa.BufferReader(data))
    by_name = {metadata.row_group(0).column(n).path_in_schema: metadata.row_group(0).column(n) for n in range(16)}
    assert (by_name["delay"].statistics.min, by_name["delay"].statistics.max) == (0, 99)
    assert by_name["delay"].has_column_index
    assert "RLE_DICTIONARY" in by_name["origin"].encodings


plain_values = st.one_of(st.none(), st.text(max_size=5), st.integers(-(2**62), 2**62))
objects = st.fixed_dictionaries({}, optional={"origin": st.one_of(st.none(), st.text(max_size=5)), "n": plain_values})


@given(st.lists(objects, min_size=1, max_size=20), st.sampled_from([None, 1]))
def test_columns_say_what_parsing_each_payload_says(drawn: list[dict[str, Any]], indent: int | None) -> None:
    schema = pa.schema([("origin", pa.string())])
    found = typed_columns([json.dumps(one, indent=indent).encode() for one in drawn], schema)
    assert found.columns["origin"].to_pylist() == [one.get("origin") for one in drawn]
    assert not found.unfit


# --- evolution: a new field, a wider type, a conflict ----------------------------------------------------------------


def test_a_new_field_is_told_and_stays_in_the_payload(caplog: pytest.LogCaptureFixture) -> None:
    decode = Decoding(as_json, shape=FLIGHT, is_json=True)
    assert "gate" not in values(decode, b'{"origin":"EWR"}', b'{"origin":"EWR","gate":7}').column_names
    assert "there is a new field gate; the payloads keep all" in caplog.text


def test_each_thing_is_told_once_and_what_does_not_fit_is_counted_on(caplog: pytest.LogCaptureFixture) -> None:
    wanted = writer("parquet", decode=Decoding(as_json, shape=FLIGHT, is_json=True))
    for payload in (b'{"delay":"late","gate":1}', b'{"delay":"late","gate":1}', b'{"delay":"late","belt":1}'):
        wanted.write(block(payload))
    told = [record.getMessage().partition("'EWR': ")[2].partition(";")[0] for record in caplog.records]
    assert told == ["1 value does not fit delay, there is a new field gate", "there is a new field belt"]
    assert wanted.unfit == Counter(delay=3)


def test_each_column_is_counted_from_zero_so_that_an_increase_shows_the_first_burst() -> None:
    wanted = writer("parquet", decode=Decoding(as_json, shape=FLIGHT, is_json=True))
    columns = [*schema_of(FLIGHT).names, WHOLE]
    assert dict(wanted.unfit) == dict.fromkeys(columns, 0)
    wanted.write(block(b'{"delay":"late"}', b"3"))
    assert wanted.unfit.keys() == {*columns}
    assert dict(writer("csv", decode=Decoding(as_json)).unfit) == {"flatten": 0}
    assert dict(writer("ndjson-decoded", decode=Decoding(as_json)).unfit) == {"value": 0}


def test_names_that_publishers_choose_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.formats.parquet.MOST_TOLD", 3)
    wanted = writer("parquet", decode=Decoding(as_json, shape=FLIGHT, is_json=True))
    for number in range(10):
        wanted.write(block(b'{"n%d":1}' % number))
    assert len(caplog.records) == 3


def test_numbers_that_are_wider_widen_the_column_of_their_block(caplog: pytest.LogCaptureFixture) -> None:
    rows = values(Decoding(as_json, shape=FLIGHT, is_json=True), b'{"delay":1}', b'{"delay":1.5}', b"{}")
    assert rows["delay"].to_pylist() == [1.0, 1.5, None]
    assert rows[CONFLICTS].null_count == 3
    assert "FLIGHTS 1–3, key 'EWR': delay is double in this block" in caplog.text


def test_a_small_integer_widens_to_a_larger_one_first() -> None:
    found = typed_columns([b'{"n":1}', b'{"n":70000000000}'], pa.schema([("n", pa.int32())]))
    assert found.columns["n"].type == pa.int64()
    assert found.columns["n"].to_pylist() == [1, 70_000_000_000]


def test_a_value_of_another_type_is_null_named_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    wanted = writer("parquet", decode=Decoding(as_json, shape=FLIGHT, is_json=True))
    payloads = b'{"origin":"EWR","delay":"late"}', b'{"origin":7,"delay":[1]}', b"3", b'{"origin":"JFK","delay":5}'
    kept = block(*payloads)
    rows = reader("parquet").read(wanted.write(kept), kept)
    assert rows["payload"].to_pylist() == list(payloads)
    assert rows["origin"].to_pylist() == ["EWR", None, None, "JFK"]
    assert rows["delay"].to_pylist() == [None, None, None, 5]
    assert rows[CONFLICTS].to_pylist() == [["delay"], ["origin", "delay"], [WHOLE], None]
    assert wanted.unfit == Counter({"delay": 2, "origin": 1, WHOLE: 1})
    assert "2 values do not fit delay" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int64(), b"1", b"1e30000"),
        (pa.string(), b'"a"', b"7"),
        (pa.timestamp("us", "UTC"), b'"2026-11-21T00:00:00Z"', b'"yesterday"'),
        (pa.date32(), b'"2026-11-21"', b'"2026-13-41"'),
        (pa.decimal128(4, 2), b'"1.25"', b'"1.234567"'),
        (pa.list_(pa.int64()), b"[1]", b'[1,"x"]'),
        (pa.struct([("a", pa.int64())]), b'{"a":1}', b'{"a":[]}'),
        (pa.bool_(), b"true", b"1"),
    ],
)
def test_one_bad_value_spoils_nothing_but_itself(kind: pa.DataType, good: bytes, bad: bytes) -> None:
    lines = [b'{"c":%s,"d":%d}' % (bad if n == 37 else good, n) for n in range(100)]
    found = typed_columns(lines, pa.schema([("c", kind), ("d", pa.int64())]))
    assert found.unfit == {"c": [37]}
    assert found.columns["c"].null_count == 1
    assert found.columns["d"].to_pylist() == list(range(100))
    assert [n for n, names in enumerate(found.columns[CONFLICTS].to_pylist()) if names] == [37]


def test_a_field_twice_in_a_payload_and_line_breaks_in_it_cost_no_block() -> None:
    found = typed_columns([b'{"n":1,"n":2}', b' {\n"n":\n3}', b"[1]\n[2]", b"{}\n{}"], pa.schema([("n", pa.int64())]))
    assert found.columns["n"].to_pylist() == [2, 3, None, None]
    assert found.columns[CONFLICTS].to_pylist() == [None, None, [WHOLE], [WHOLE]]


def test_a_search_for_bad_values_ends_after_so_many_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    parses = []

    def counting(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        parses.append(len(lines))
        return parse(lines, schema)

    parse = typed_module._parse
    monkeypatch.setattr(typed_module, "_parse", counting)
    monkeypatch.setattr(typed_module, "PROBES", 20)
    lines = [b'{"t":"2026-11-21T00:00:00Z"}'] * 3 + [b'{"t":"never"}'] * 500
    found = typed_columns(lines, pa.schema([("t", pa.timestamp("us"))]))
    assert len(parses) < 30
    assert found.columns["t"].null_count == len(found.unfit["t"]) >= 500
    assert found.columns["t"].validate(full=True) is None


def test_payloads_of_several_lines_are_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(typed_module, "_convert_by_column")
    found = typed_columns([b'{\n"n":\n3}', b'  {"n":4}'], pa.schema([("n", pa.int64())]))
    assert found.columns["n"].to_pylist() == [3, 4]


any_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)
WILD = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.struct([("a", pa.float32())])))])


any_line = st.one_of(any_json.map(lambda value: json.dumps(value).encode()), st.sampled_from([b"", b"null", b" null"]))


@given(st.lists(any_line, min_size=1, max_size=8))
def test_no_json_whatever_costs_a_block(lines: list[bytes]) -> None:
    columns = typed_columns(lines, WILD).columns
    assert columns.num_rows == len(lines)
    columns.validate(full=True)


def rows_of(schema: pa.Schema, *payloads: bytes) -> pa.Table:
    kept = block(*payloads)
    return reader("parquet").read(
        writer("parquet", decode=Decoding(as_json, shape=schema, is_json=True)).write(kept), kept
    )


def together(*blocks: pa.Table) -> pa.Table:
    """Return the rows of these blocks as a merge brings them together, the oldest first."""
    found = [pa.schema(list(typed_part(one.schema, of_table=False).values())) for one in blocks]
    columns = evolve(pa.schema([]), found)
    return pa.concat_tables([in_table(one, columns, of_table=False) for one in blocks])


def test_blocks_of_several_versions_are_rows_of_one_schema() -> None:
    old = rows_of(pa.schema([("n", pa.int64()), ("gone", pa.string())]), b'{"n":1,"gone":"g"}')
    new = rows_of(pa.schema([("n", pa.float64()), ("more", pa.bool_())]), b'{"n":1.5,"more":true}')
    none = rows_of(pa.schema([]), b"{}")
    rows = together(old, none, new)
    assert rows.schema.names[: len(SCHEMA)] == SCHEMA.names
    assert rows.select(["n", "gone", "more"]).to_pylist() == [
        {"n": 1.0, "gone": "g", "more": None},
        {"n": None, "gone": None, "more": None},
        {"n": 1.5, "gone": None, "more": True},
    ]


def test_of_types_that_conflict_the_newer_stays_and_the_older_values_are_named() -> None:
    old = rows_of(pa.schema([("n", pa.list_(pa.int64())), ("m", pa.int64())]), b'{"n":[1],"m":"x"}', b"{}")
    new = rows_of(pa.schema([("n", pa.bool_())]), b'{"n":true}')
    rows = together(old, new)
    assert rows["n"].to_pylist() == [None, None, True]
    assert rows[CONFLICTS].to_pylist() == [["m", "n"], None, None]
    assert rows["payload"].to_pylist() == [b'{"n":[1],"m":"x"}', b"{}", b'{"n":true}']


def test_large_integers_join_a_column_of_doubles() -> None:
    old = rows_of(pa.schema([("n", pa.int64())]), b'{"n":4611686018427387905}')
    new = rows_of(pa.schema([("n", pa.float64())]), b'{"n":1.5}')
    assert together(old, new)["n"].to_pylist() == [2.0**62, 1.5]


# --- through decode, partition and block -----------------------------------------------------------------------------


def test_from_a_batch_to_typed_columns_with_what_does_not_fit_kept_raw() -> None:
    payloads = b'{"origin":"EWR","depDelay":1}', b'{"origin":7}', b"no json"
    batch = Batch([(b"f", b"$JS.ACK.F.c.1.%d.%d.5000.0" % (n, n), b"", p) for n, p in enumerate(payloads, 1)])
    decode = json_as(Flight)
    blocks = OpenBlocks()
    records = decode(batch)
    blocks.add(group(records, partitioner("field:origin")(records), 3600.0), now=0.0)
    wanted = writer("parquet", decode=decode)
    found = {one.key: reader("parquet").read(wanted.write(one), one) for one in blocks.seal_all()}
    assert found["EWR"]["depDelay"].to_pylist() == [1]
    assert found[UNDECODABLE]["payload"].to_pylist() == [b'{"origin":7}', b"no json"]
    assert found[UNDECODABLE]["error"].to_pylist()[0].startswith("ValidationError: Expected `str`, got `int`")


def test_a_type_is_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capture.testing.Flight", Flight, raising=False)
    decode = known_decoder("capture.testing:Flight")
    records = decode(Batch([(b"f", b"$JS.ACK.F.c.1.1.1.5000.0", b"", b'{"origin":"EWR"}')]))
    assert records.values == [Flight("EWR")]
    assert ParquetWriter(decode).write(block(b'{"origin":"EWR"}'))
