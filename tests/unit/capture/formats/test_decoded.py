"""What is decoded is what is stored: values without the envelope, and beside it. No message is lost on the way."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from sealed import HEADERS

from capture.archive.encryption import Keys
from capture.archive.manifest import BLOCKS, ENTRIES, Manifest, Stored, decode_entry
from capture.archive.picture import Picture
from capture.archive.stored_formats import FORMATS, STORED, ending_of, format_of, list_limits
from capture.archive.table import Table
from capture.decoders import Decoding, decoder, per_message
from capture.errors import ConfigError, FormatError
from capture.formats import check_writer, read_object, reader, writer
from capture.formats.batches import pieces
from capture.formats.contract import sample_blocks
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.commit import Committer
from capture.ingest.pipeline import capture
from capture.ingest.record import Delivered
from capture.maintenance.compaction_plan import Policy, plan
from capture.partitioners import partitioner
from capture.stores import MemoryStore
from capture.verification.objects import read_archive
from natty.wire.ack import ack_subject
from natty.wire.message import Batch, Message

TIME = 1_792_540_800_000_000_000
KEYS = Keys({"k": os.urandom(32)})


@dataclass
class Point:
    x: int
    at: datetime


VALUES: dict[bytes, Any] = {
    b"dict": {"id": 1, "a": {"b": [1, 2]}},
    b"dataclass": Point(7, datetime(2026, 11, 21, tzinfo=UTC)),
    b"list": [{"id": 1}, {"id": 2}],
    b"text": "a\n\u2028b",
    b"bytes": b"\x00\xff\n",
    b"number": 1.5,
    b"raw json": msgspec.Raw(b'{\n  "id": 3\n}'),
    b"none": None,
    b"no json": object(),
    b"lone surrogate": "\ud800",
}
WITHOUT = [b"none", b"no json", b"lone surrogate", b"unknown"]


def look_up(message: Message) -> Any:
    return VALUES[message.data]  # KeyError: undecodable


class _Acks:
    def __init__(self) -> None:
        self.acked: list[bytes] = []

    def ack(self, messages: Delivered) -> None:
        self.acked += messages.replies

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        raise AssertionError(f"handed back: {messages}")


class Found:
    """What a pipeline with a writer stored of some payloads: the objects by key, and their entries."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.entries: dict[str, Stored] = {}
        self.data: dict[str, bytes] = {}
        self.acks = _Acks()

    async def fill(self, payloads: list[bytes], wanted: Any, decode: Any, partition: str = "time") -> Found:
        raw = [
            (b"s.%d" % at, ack_subject("S", "c", at, TIME), HEADERS, payload) for at, payload in enumerate(payloads, 1)
        ]

        async def source() -> Any:
            yield Batch(raw)

        commit = Committer(self.store, wanted, self.acks).commit
        blocks = OpenBlocks(Limits(interval=86_400))
        keys = partitioner(partition)
        await capture(source(), decode, keys, blocks, commit, retain=wanted.retain)
        for one in await self.store.list(ENTRIES):
            entry = decode_entry(await self.store.get(one.path), one.path)
            self.entries[entry.key] = entry
            self.data[entry.key] = await self.store.get(entry.path)
        assert len(await self.store.list(BLOCKS)) == len(self.entries)
        assert len(self.acks.acked) == len(payloads)
        return self

    def undecodable(self, keys: Keys | None = None) -> dict[bytes, str]:
        """The payloads and errors of the undecodable messages."""
        entry = self.entries["_undecodable"]
        rows = read_object(self.data["_undecodable"], entry, keys).to_pylist()
        return {row["payload"]: row["error"] for row in rows}


async def captured(payloads: list[bytes], name: str, decode: Any, **options: Any) -> Found:
    return await Found().fill(payloads, writer(name, decode=decode, **options), Decoding.of(decode).decode)


def rows_of(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


# --- none ------------------------------------------------------------------------------------------------------------


async def test_ndjson_without_an_envelope_is_a_line_for_each_value() -> None:
    found = await captured([*VALUES, b"unknown"], "ndjson", per_message(look_up), envelope="none")
    lines = found.data["all"].split(b"\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"id": 1, "a": {"b": [1, 2]}},
        {"x": 7, "at": "2026-11-21T00:00:00Z"},
        [{"id": 1}, {"id": 2}],
        "a\n\u2028b",
        "AP8K",
        1.5,
        {"id": 3},
    ]
    assert lines[-1] == b""
    assert found.entries["all"].format == "ndjson-value"
    assert found.entries["all"].path.endswith(".ndjson")


async def test_raw_without_an_envelope_is_the_bytes_that_the_decoder_returned() -> None:
    found = await captured([*VALUES, b"unknown"], "raw", per_message(look_up), envelope="none")
    assert found.data["all"] == (
        b'{"id":1,"a":{"b":[1,2]}}{"x":7,"at":"2026-11-21T00:00:00Z"}[{"id":1},{"id":2}]'
        + "a\n\u2028b".encode() + b"\x00\xff\n" + b"1.5" + b'{"id":3}'
    )  # fmt: skip
    assert (found.entries["all"].format, found.entries["all"].path[-4:]) == ("raw-value", ".raw")


async def test_csv_without_an_envelope_has_your_columns_only() -> None:
    payloads = [
        b'{"first_name":"Bob","age":7,"stream":"mine","at":{"gate":1.5},"ok":true,"tags":[1],"no":null}',
        b'[{"first_name":"Eve"},{"first_name":"Al,\\r\\n\\"x","error":"e"}]',
        b"12345678901234567890123",
    ]
    found = await captured(payloads, "csv", decoder("json"), envelope="none", compression="gzip")
    text = gzip.decompress(found.data["all"])
    assert text.split(b"\r\n")[0] == b"first_name,age,stream,at.gate,ok,tags,no,error,value"
    one, two, three, number = rows_of(text)
    assert (one["age"], one["stream"], one["at.gate"], one["ok"], one["tags"]) == ("7", "mine", "1.5", "true", "[1]")
    assert (two["first_name"], two["error"], three["first_name"], three["error"]) == ("Eve", "", 'Al,\r\n"x', "e")
    assert float(number["value"]) == 12345678901234567890123.0
    assert (found.entries["all"].format, found.entries["all"].path[-7:]) == ("csv-value.gz", ".csv.gz")


async def test_csv_without_an_envelope_takes_your_flatten(monkeypatch: pytest.MonkeyPatch) -> None:
    def legs(value: Any) -> Iterator[dict[str, Any]]:
        yield from ({"leg": leg, "of": value["flight"]} for leg in value["legs"])

    monkeypatch.setattr("capture.testing.legs", legs, raising=False)
    payloads = [b'{"flight":"F1","legs":["a","b"]}', b'{"flight":"F2","legs":[]}', b'{"legs":["x"]}']
    found = await captured(payloads, "csv", decoder("json"), envelope="none", flatten="capture.testing:legs")
    assert found.data["all"] == b"leg,of\r\na,F1\r\nb,F1\r\n"
    assert found.undecodable() == {
        payloads[1]: "no value to store: ValueError: the value makes no row",
        payloads[2]: "no value to store: KeyError: 'flight'",
    }


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize("name", ["ndjson", "raw", "csv"])
async def test_a_message_without_a_value_is_stored_whole(name: str, keys: Keys | None) -> None:
    found = await captured([*VALUES, b"unknown"], name, per_message(look_up), envelope="none", keys=keys)
    kept = found.undecodable(keys)
    assert sorted(kept) == sorted(WITHOUT)
    assert kept[b"none"] == "no value to store: ValueError: the decoder returned None"
    assert kept[b"unknown"] == "KeyError: b'unknown'"
    assert "no value to store: TypeError" in kept[b"no json"]
    entry = found.entries["_undecodable"]
    assert entry.format.partition(".")[0] == name
    if format_of(name).restorable:
        rows = read_object(found.data["_undecodable"], entry, keys).to_pylist()
        assert {(row["header_block"], row["subject"][:2]) for row in rows} == {(HEADERS, "s.")}


async def test_a_partitioner_still_gets_the_value_and_the_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def by_id(record: Any) -> Any:
        seen.append(record.payload)
        return record.value["id"]

    monkeypatch.setattr("capture.testing.by_id", by_id, raising=False)
    wanted = writer("ndjson", decode=decoder("json"), envelope="none")
    payloads = [b'{ "id":1}', b'{"id": 2}', b"{}"]
    found = await Found().fill(payloads, wanted, decoder("json").decode, "capture.testing:by_id")
    assert seen == payloads
    assert (found.data["1"], found.data["2"]) == (b'{"id":1}\n', b'{"id":2}\n')
    assert found.undecodable() == {b"{}": "no key: KeyError: 'id'"}


# --- columns and nested ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("envelope", ["columns", "nested"])
async def test_ndjson_beside_its_envelope_keeps_the_message_and_the_value(envelope: str) -> None:
    payloads = [*VALUES, b"unknown"]
    found = await captured(payloads, "ndjson", per_message(look_up), envelope=envelope)
    rows = {row["payload"]: row for row in map(json.loads, found.data["all"].splitlines())}
    assert list(rows) == [one.decode() for one in VALUES]
    if envelope == "nested":
        assert rows["dict"]["value"] == {"id": 1, "a": {"b": [1, 2]}}
        assert rows["none"]["value"] is None
    else:
        assert (rows["dict"]["id"], rows["dict"]["a"], rows["dataclass"]["x"]) == (1, {"b": [1, 2]}, 7)
        assert {"value"}.isdisjoint(rows["dict"] | rows["none"])
    assert rows["list"]["value"] == [{"id": 1}, {"id": 2}]
    assert (rows["bytes"]["value"], rows["number"]["value"]) == ("AP8K", 1.5)
    assert rows["no json"]["error"].startswith("no JSON: TypeError")
    assert (rows["dict"]["error"], rows["dict"]["sequence"]) == (None, 1)
    entry = found.entries["all"]
    assert (entry.format, entry.path[-7:]) == ("ndjson-decoded", ".ndjson")
    back = [row for batch in pieces(found.data["all"], entry) for row in batch.to_pylist()]
    assert [row["payload"] for row in back] == list(VALUES)
    assert {row["header_block"] for row in back} == {HEADERS}
    assert found.undecodable() == {b"unknown": "KeyError: b'unknown'"}


async def test_no_field_of_a_value_hides_one_of_the_envelope() -> None:
    payload = b'{"sequence":"mine","value_sequence":1,"Payload_Base64":2,"subject_raw_base64":3,"value":4}'
    found = await captured([payload], "ndjson", decoder("json"), envelope="columns")
    row = json.loads(found.data["all"])
    assert (row["sequence"], row["value_sequence"], row["value_value_sequence"]) == (1, "mine", 1)
    assert (row["value_Payload_Base64"], row["value_subject_raw_base64"], row["value"]) == (2, 3, 4)
    [back] = read_object(found.data["all"], found.entries["all"]).to_pylist()
    assert (back["sequence"], back["subject_raw"], back["payload"]) == (1, None, payload)


@pytest.mark.parametrize("nested", [True, False])
def test_ndjson_with_values_conforms_like_other_formats(nested: bool) -> None:
    envelope = "nested" if nested else "columns"
    wanted = writer("ndjson", decode=decoder("json"), envelope=envelope)
    check_writer(wanted)
    for _, block in sample_blocks():
        assert all(line.startswith(b"{") for line in wanted.write(block).splitlines())


# --- what such an archive can't do -----------------------------------------------------------------------------------


def merged(entry: Stored) -> list[Any]:
    """The groups of files that the compaction merges when this is the only block."""
    return plan(Picture(Manifest(blocks=[entry]), Table()), Policy(min_files=1, max_wait=0), now=2e9, token=1)


async def test_values_alone_are_refused_by_readers_and_left_by_the_compaction() -> None:
    for name in ("ndjson", "raw", "csv"):
        found = await captured([b'{"id":1}'], name, decoder("json"), envelope="none")
        entry, data = found.entries["all"], found.data["all"]
        with pytest.raises(FormatError, match=f"{name}-value does not keep messages whole"):
            list(pieces(data, entry))
        with pytest.raises(FormatError, match="holds decoded values without the envelope: read the object itself"):
            read_object(data, entry)
        assert not reader(entry.format).restorable
        assert not merged(entry)


async def test_ndjson_with_values_is_left_by_the_compaction() -> None:
    found = await captured([b'{"id":1}'], "ndjson", decoder("json"), envelope="nested")
    assert not merged(found.entries["all"])
    whole = await captured([b'{"id":1}'], "ndjson", decoder("json"))
    assert merged(whole.entries["all"])


@pytest.mark.parametrize("compression", ["", "zstd"])
@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
async def test_verify_counts_values_by_their_entries_and_sees_damage(keys: Keys | None, compression: str) -> None:
    payloads = [b'{"id":%d}' % number for number in range(50)]
    found = await captured(payloads, "ndjson", decoder("json"), envelope="none", keys=keys, compression=compression)
    pending = list(found.entries.values())
    picture = Picture(Manifest(), Table())
    held = (await read_archive(found.store, picture, pending_entries=pending, keys=keys))["S"]
    assert (len(held.stored), held.problems, held.unchecked, len(held.proven)) == (50, (), (), 0)
    if keys:
        held = (await read_archive(found.store, picture, pending_entries=pending))["S"]
        assert len(held.unchecked) == 1
    entry = pending[0]
    damaged = bytearray(found.data["all"])
    damaged[-2] ^= 1
    await found.store.put(entry.path, bytes(damaged), if_absent=False)
    held = (await read_archive(found.store, picture, pending_entries=pending, keys=keys))["S"]
    assert (len(held.stored), len(held.lost), len(held.problems)) == (0, 50, 1)


def test_what_a_format_does_not_allow_follows_from_its_abilities() -> None:
    assert {name: len(list(list_limits(name))) for name in STORED} == {
        "parquet": 0, "ndjson": 0, "raw": 0, "csv": 2, "ndjson-decoded": 1,
        "ndjson-value": 3, "csv-value": 3, "raw-value": 3,
    }  # fmt: skip
    assert set(STORED) - set(FORMATS) <= {made for one in FORMATS.values() for made in one.envelopes.values()}
    assert (ending_of("ndjson-value.zst.enc"), ending_of("parquet"), ending_of("x.y")) == (
        "ndjson.zst.enc",
        "parquet",
        "x.y",
    )


@pytest.mark.parametrize(
    ("name", "envelope", "reason"),
    [
        ("parquet", "none", "format parquet has no envelope 'none'; ndjson, csv, raw have"),
        ("csv", "nested", "format csv has no envelope 'nested'; ndjson has"),
        ("raw", "columns", "format raw has no envelope 'columns'; parquet, ndjson, csv have"),
        ("ndjson", "flat", "there is no envelope 'flat'; the known ones are columns, nested, none"),
    ],
)
def test_an_envelope_that_a_format_does_not_have_is_refused(name: str, envelope: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        writer(name, decode=decoder("json"), envelope=envelope)


@pytest.mark.parametrize(
    ("name", "envelope"), [("ndjson", "none"), ("ndjson", "nested"), ("raw", "none"), ("csv", "none")]
)
def test_there_is_nothing_to_store_without_a_decoder(name: str, envelope: str) -> None:
    with pytest.raises(ConfigError, match="the decoder 'raw' makes none: name another decoder"):
        writer(name, envelope=envelope)
    writer(name)


@pytest.mark.parametrize("name", ["parquet", "csv"])
def test_columns_are_what_parquet_and_csv_have_anyway(name: str) -> None:
    assert writer(name, decode=decoder("json"), envelope="columns").format == name
    assert type(writer(name, envelope="columns")) is type(writer(name))
