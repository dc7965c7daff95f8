"""Every format, compressed and encrypted: what goes in comes out, others can read it, damage is told in a sentence."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import cramjam
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed import HEADERS, block, csv_rows, stored_as

from capture.archive.encryption import Keys
from capture.archive.manifest import Manifest, decode_entry
from capture.archive.picture import Picture
from capture.archive.table import Table
from capture.config.load import load
from capture.decoders import decoder
from capture.errors import CaptureError, ConfigError, FormatError, StoreError
from capture.formats import read_object, reader, writer
from capture.formats.contract import sample_blocks
from capture.formats.envelope import SCHEMA, to_table
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.hooks import Completion
from capture.ingest.pipeline import group
from capture.ingest.record import Delivered
from capture.maintenance.compaction_plan import Policy, plan
from capture.node.metrics import NodeCollector
from capture.node.node import Node
from capture.partitioners import UNDECODABLE, partitioner
from capture.stores.memory import MemoryStore
from capture.verification.objects import read_archive
from natty.wire.message import Batch

KEYS = Keys({"2026": bytes(range(32))})
CHOICES = [
    ("parquet", ""),
    ("parquet", "none"),
    ("parquet", "snappy"),
    ("ndjson", ""),
    ("ndjson", "gzip"),
    ("ndjson", "snappy"),
    ("ndjson", "zstd"),
    ("raw", ""),
    ("raw", "gzip"),
    ("raw", "snappy"),
    ("raw", "zstd"),
]
LARGE = 1 << 20


# --- what goes in comes out ------------------------------------------------------------------------------------------

raw_headers = st.one_of(
    st.just(b""),
    st.just(HEADERS),
    st.just(b"NATS/1.0\r\n\r\n"),
    st.binary(max_size=20).map(lambda value: b"NATS/1.0\r\nA: " + value + b"\r\nA: 2\r\n\r\n"),
)
payloads = st.one_of(
    st.binary(max_size=40),
    st.just(b""),
    st.just(bytes(range(256)) * (LARGE // 256)),
    st.text(max_size=10).map(str.encode),
)
messages = st.tuples(
    st.one_of(st.sampled_from([b"a.b", b"\xff.\xfe", "ä.ö".encode()]), st.binary(min_size=1)), raw_headers, payloads
)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("name", "compression"), CHOICES)
@settings(max_examples=10)
@given(drawn=st.lists(messages, min_size=1, max_size=4))
def test_what_a_restore_needs_comes_back_byte_for_byte(
    name: str, compression: str, keys: Keys | None, drawn: list[tuple[bytes, bytes, bytes]]
) -> None:
    kept = block(*drawn, errors={0: "not JSON"})
    wanted = writer(name, compression=compression, keys=keys)
    assert reader(wanted.format).restorable
    data = wanted.write(kept)
    rows = read_object(data, stored_as(data, kept, wanted.format), keys)
    assert rows.select(SCHEMA.names).to_pylist() == to_table(kept.records).to_pylist()
    for row, (subject, headers, payload) in zip(rows.to_pylist(), drawn, strict=True):
        assert (row["subject_raw"] or row["subject"].encode()) == subject
        assert (row["header_block"] or b"") == headers
        assert row["payload"] == payload
    [places] = reader(wanted.format, keys).positions(BytesIO(data), kept)
    assert places == (kept.records.sequences, kept.records.times_ns)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "zstd"])
def test_an_object_s_name_says_what_is_inside(compression: str) -> None:
    ending = {"gzip": "gz", "snappy": "sz", "zstd": "zst"}[compression]
    assert writer("ndjson", compression=compression).format == f"ndjson.{ending}"
    assert writer("csv", compression=compression, keys=KEYS).format == f"csv.{ending}.enc"
    assert writer("parquet", compression=compression).format == "parquet"


def test_parquet_is_compressed_inside_as_it_is_told() -> None:
    kept = block((b"a", b"", b"x"))
    for compression, inside in (("", "ZSTD"), ("none", "UNCOMPRESSED"), ("gzip", "GZIP"), ("snappy", "SNAPPY")):
        data = writer("parquet", compression=compression).write(kept)
        assert pq.read_metadata(pa.BufferReader(data)).row_group(0).column(0).compression == inside


def test_a_block_of_an_earlier_version_reads_with_what_it_has() -> None:
    table = to_table(block((b"a", b"", b"x")).records).drop_columns(["subject_raw"])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    rows = reader("parquet").read(bytes(sink.getvalue()), block((b"a", b"", b"x")))
    assert rows.schema.names == SCHEMA.names
    assert rows["subject_raw"].to_pylist() == [None]


# --- others can read it ----------------------------------------------------------------------------------------------


def written(name: str, compression: str = "") -> bytes:
    return writer(name, compression=compression).write(block((b"a.b", HEADERS, b"text"), (b"\xff", b"", b"\xff")))


@pytest.mark.parametrize(
    ("compression", "decompress"),
    [
        ("gzip", gzip.decompress),
        ("zstd", lambda data: pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()),
        ("snappy", lambda data: bytes(cramjam.snappy.decompress(data))),
    ],
)
def test_ndjson_is_read_by_anybody(compression: str, decompress: Callable[[bytes], bytes]) -> None:
    lines = decompress(written("ndjson", compression)).decode().splitlines()
    first, second = map(json.loads, lines)
    assert (first["payload"], first["headers"]["Colour"], first["message_id"]) == ("text", ["red", "blue"], "id-1")
    assert (second["payload_base64"], second["subject_raw_base64"]) == ("/w==", "/w==")
    assert "subject_raw_base64" not in first


def test_framed_snappy_has_its_stream_identifier_and_checksums() -> None:
    assert written("ndjson", "snappy").startswith(b"\xff\x06\x00\x00sNaPpY")


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import the block of docs/formats.md that defines a function, as `my_module`."""
    text = (Path(__file__).parents[4] / "docs" / "formats.md").read_text()

    def imported(function: str) -> ModuleType:
        [code] = [one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"def {function}(" in one]
        (tmp_path / "my_module.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        return import_module("my_module")

    yield imported
    sys.modules.pop("my_module", None)


def test_raw_is_read_by_the_dozen_lines_of_the_docs(documented: Callable[[str], Any]) -> None:
    assert list(documented("messages").messages(written("raw"))) == [
        ("FLIGHTS", 100, 1_792_540_800_123_456_789, 1, b"a.b", HEADERS, b"", b"text"),
        ("FLIGHTS", 101, 1_792_540_800_123_456_790, 1, b"\xff", b"", b"", b"\xff"),
    ]


def test_an_encrypted_block_is_opened_by_the_lines_of_the_docs(documented: Callable[[str], Any]) -> None:
    data = writer("raw", keys=KEYS).write(block((b"a.b", HEADERS, b"text"), (b"\xff", b"", b"\xff")))
    assert documented("decrypted").decrypted(data, {"2026": bytes(range(32))}) == written("raw")


def test_the_decoders_of_the_docs_do_what_they_say(documented: Callable[[str], Any]) -> None:
    documented("by_region")
    kept = block((b"a", b"", b'{"id":7,"country":"se","total":2000}'))
    records = decoder("my_module:orders")(Batch(kept.records.raw()))
    [(key, _, _)] = group(records, partitioner("decoder")(records), 3600.0)
    assert key == "/country=se/large=true"
    assert decoder("my_module:length")(Batch(kept.records.raw())).values == [36]
    for spec, columns in (("my_module:Order", ["id", "country", "total"]), ("my_module:loose", ["id", "total"])):
        wanted = writer("parquet", decode=decoder(spec))
        assert reader("parquet").read(wanted.write(kept), kept).column_names[len(SCHEMA) : -1] == columns
    (row,) = csv_rows(writer("csv", decode=decoder("my_module:orders"), flatten="my_module:lines").write(kept))
    assert (row["id"], row["total"]) == ("7", "2000.0")


def test_parquet_is_read_by_pyarrow() -> None:
    rows = pq.read_table(pa.BufferReader(written("parquet"))).to_pylist()
    assert [row["payload"] for row in rows] == [b"text", b"\xff"]


# --- damage ----------------------------------------------------------------------------------------------------------

EVERY = [*CHOICES, ("csv", ""), ("csv", "zstd")]


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("name", "compression"), EVERY)
def test_a_changed_byte_is_one_clear_sentence(name: str, compression: str, keys: Keys | None) -> None:
    kept = block((b"a", HEADERS, random.Random(1).randbytes(500)))
    wanted = writer(name, compression=compression, keys=keys)
    good = wanted.write(kept)
    entry = stored_as(good, kept, wanted.format)
    for at in range(0, len(good), max(1, len(good) // 40)):
        bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(FormatError, match=f"^{entry.path} was changed: its SHA-256 is not the recorded one$"):
            read_object(bad, entry, keys)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("name", "compression"), EVERY)
def test_bytes_that_are_no_block_are_one_clear_sentence_though_their_hash_is_right(
    name: str, compression: str, keys: Keys | None
) -> None:
    kept = block((b"a", HEADERS, b"x" * 100))
    wanted = writer(name, compression=compression, keys=keys)
    good = wanted.write(kept)
    for bad in (b"", b"nonsense", good[: len(good) // 2], good[:-1] if name != "csv" else b"a,b\r\n1,2\r\n"):
        if name == "ndjson" and (not compression and bad == good[:-1]):
            continue  # only the last line's end is missing
        with pytest.raises(
            CaptureError, match=f"^blocks/FLIGHTS.{wanted.format}(:| can't be read as | has )"
        ) as caught:
            read_object(bad, stored_as(bad, kept, wanted.format), keys)
        assert "\n" not in str(caught.value)


def test_a_cut_raw_block_is_noticed_wherever_it_is_cut() -> None:
    kept = block((b"a", HEADERS, b"x" * 100), (b"a", b"", b"y" * 10))
    good = writer("raw").write(kept)
    for length in range(len(good)):
        with pytest.raises(FormatError):
            reader("raw").read(good[:length], kept)


def test_a_newer_parquet_block_is_refused_by_its_number() -> None:
    kept = block((b"a", b"", b"x"))
    sink = pa.BufferOutputStream()
    pq.write_table(to_table(kept.records).replace_schema_metadata({"capture.version": "2"}), sink)
    with pytest.raises(FormatError, match="it has format 2; this version reads up to 1"):
        reader("parquet").read(bytes(sink.getvalue()), kept)


@pytest.mark.parametrize("format", ["xml", "ndjson.xz", "ndjson.gz.gz", "parquet.enc.gz", "", "gz"])
def test_an_unknown_format_is_refused_by_name(format: str) -> None:
    with pytest.raises(FormatError, match="is not a format that this version reads"):
        reader(format)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("ndjson", {"compression": "xz"}, "no compression 'xz'; the known ones are none, gzip, snappy, zstd"),
        ("parquet", {"compression": "lz4"}, "Parquet has no compression 'lz4'"),
        ("parquet", {"flatten": "a:b"}, "flatten makes rows for csv; parquet has none"),
        (
            "csv",
            {"flatten": "no_such:f"},
            "can't be loaded: .*; install it as a package, or put its folder into PYTHONPATH$",
        ),
        ("csv", {"flatten": "json:f"}, "can't be loaded: AttributeError: module 'json' has no attribute 'f'$"),
    ],
)
def test_a_choice_that_is_none_is_refused(name: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        writer(name, **options)  # type: ignore[arg-type]


def test_what_does_not_fit_is_a_figure_of_the_node(tmp_path: Path) -> None:
    node = Node(load(None, {"stream": "S", "store": str(tmp_path), "format": "csv"}, environment={}))
    node.writer.unfit["delay"] += 2
    done = Completion(stream="S", key="k", path="", first=1, last=2, count=2, bytes=9, duration=0.1)
    for one in (done, replace(done, key=UNDECODABLE), replace(done, count=7, error=OSError("away"))):
        node._count(one)
    samples = [sample for metric in NodeCollector(node).collect() for sample in metric.samples]
    shown = {(one.name, *one.labels.values()): one.value for one in samples}
    assert shown["capture_messages_total", "S"] == 4
    assert shown["capture_undecodable_total", "S"] == 2
    assert (shown["capture_failures_total", "S"], shown["capture_handed_back_total", "S"]) == (1, 7)
    assert shown["capture_unfit_total", "S", "delay"] == 2
    assert shown["capture_store_failing", "S"] == 0


async def test_that_blocks_are_not_stored_is_a_figure_of_the_node_until_one_is(tmp_path: Path) -> None:
    """It does not end between two failures, however long `max_age` makes the time between them."""
    flags = {"stream": "S", "store": str(tmp_path), "limits.max_age": 900.0, "ack_wait": 1800.0}
    node, clock, fails = Node(load(None, flags, environment={})), [0.0], [True]
    node._handed_back._clock = lambda: clock[0]

    async def commit(_: SealedBlock) -> None:
        if fails[0]:
            raise StoreError("away")

    def failing() -> float:
        samples = [sample for metric in NodeCollector(node).collect() for sample in metric.samples]
        return next(one.value for one in samples if one.name == "capture_store_failing")

    watched = node._handed_back.watch(commit)
    with pytest.raises(StoreError):
        await watched(block())
    clock[0] = 900.0
    assert failing() == 1
    fails[0] = False
    await watched(block())
    assert failing() == 0


# --- through the commit ----------------------------------------------------------------------------------------------


@dataclass
class Ignored:
    def ack(self, messages: Delivered) -> None: ...

    def nak(self, messages: Delivered, delay: float = 0.0) -> None: ...


@pytest.mark.parametrize(("name", "compression"), [*CHOICES, ("csv", "gzip")])
async def test_the_entry_has_the_hash_of_the_stored_object_and_its_format(name: str, compression: str) -> None:
    store = MemoryStore("m")
    wanted = writer(name, compression=compression, keys=KEYS)
    stored = await Committer(store, wanted, Ignored()).commit(block((b"a", b"", b"x")))
    data = await store.get(stored.path)
    assert stored.path.endswith(f".{wanted.format}")
    entry = decode_entry(msgspec.json.encode(stored), "entry")
    assert (entry.sha256, entry.format, entry.bytes) == (sha256(data).hexdigest(), wanted.format, len(data))
    assert read_object(data, entry, KEYS).num_rows == 1


@pytest.mark.parametrize(("name", "compression"), [*CHOICES, ("csv", "gzip")])
async def test_verify_reads_every_format_again_with_its_key(name: str, compression: str) -> None:
    store = MemoryStore("m")
    wanted = writer(name, compression=compression, keys=KEYS)
    stored = await Committer(store, wanted, Ignored()).commit(block((b"a", b"", b"x"), (b"b", b"", b"y")))
    picture = Picture(Manifest(blocks=[stored]), Table())
    sound = (await read_archive(store, picture, deep=True, keys=KEYS))["FLIGHTS"]
    assert (sound.problems, len(sound.stored)) == ((), 2)
    closed = (await read_archive(store, picture, deep=True))["FLIGHTS"]
    assert (len(closed.stored), len(closed.proven), closed.problems) == (2, 0, ())
    assert closed.unchecked == (
        f"{stored.path} can't be opened: it is encrypted, and there are no keys: name key_file, or set CAPTURE_KEYS",
    )


def test_only_blocks_that_the_table_can_take_in_are_compacted() -> None:
    kept = block((b"a", b"", b"x"))
    formats = ["parquet", "ndjson", "csv", "csv.gz", "raw", "ndjson.gz", "raw.zst", "avro", "parquet.enc"]
    blocks = [stored_as(b"", kept, format) for format in formats]
    for encrypted, wanted in ((True, {"parquet.enc"}), (False, set())):
        policy = Policy(min_files=1, max_wait=0.0, encrypted=encrypted)
        [group] = plan(Picture(Manifest(blocks=blocks), Table()), policy, now=1e10, token=1)
        assert {one.format for one in group.inputs} == {"parquet", "ndjson", "raw", "ndjson.gz", "raw.zst"} | wanted


def test_every_sample_survives_every_layer() -> None:
    for _, kept in sample_blocks():
        for name, compression in CHOICES:
            wanted = writer(name, compression=compression, keys=KEYS)
            rows = reader(wanted.format, KEYS).read(wanted.write(kept), kept)
            assert rows.select(SCHEMA.names).to_pylist() == to_table(kept.records).to_pylist()
