"""What a commit of the Iceberg table costs, by the number of its files: `python tests/bench/bench_iceberg.py`.

The files are records only: no rows, one footer for all. With the path of an earlier checkout as the argument, it also
prints that version's figures, from manifests as that version laid them out; it reads all of them at each commit.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from statistics import mean, median
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, update_table_metadata
from pyiceberg.typedef import Record

from capture.archive import iceberg_state
from capture.archive.iceberg_state import Expiry, Iceberg
from capture.archive.manifest import Stored
from capture.archive.table import Table
from capture.formats.envelope import SCHEMA
from capture.iceberg import Exposer
from capture.iceberg.columns import evolve, new_metadata
from capture.iceberg.memory_catalog import MemoryFiles
from capture.stores import MemoryStore

FILES = (10_000, 100_000, 1_000_000)
EARLIER_FILES = (10_000, 100_000)
KEYS, ROWS, HOUR, BEGAN = 100, 1000, 3600, 1_700_000_000 // 3600 * 3600
APPENDS = 40
BASE, STREAM, CODEC = "s3://bucket/lake", "ORDERS", "deflate"
NEW = "change" in inspect.signature(Exposer.expose).parameters
if NEW:
    from capture.archive.table import TableChange  # earlier versions do not have it
ROUNDS = 5 if NEW else 1
PER_MANIFEST, PER_BLOCK = (2000, 64) if NEW else (1000, 1)
"""As the exposer lays out a table that has grown file by file: full manifests are of 1,000 to 4,000 files."""


def main(earlier: str = "") -> None:
    """Print the figures of this version, and of an earlier one if there is a checkout of it."""
    header = ["", "files", "manifests", "CPU ms", "most", "objects read", "kB read", "objects written", "kB written"]
    print(f"one commit of a stream's Iceberg table in memory: medians; {os.cpu_count()} cores")
    _print_rows([header])
    for count in FILES:
        _print_rows(asyncio.run(_measure(count)))
    if earlier:
        for count in EARLIER_FILES:
            command = [sys.executable, __file__, "--json", str(count)]
            done = subprocess.run(command, env=os.environ | {"PYTHONPATH": earlier}, stdout=subprocess.PIPE, check=True)
            _print_rows([[f"{what}, earlier", *figures] for what, *figures in json.loads(done.stdout)])


def _print_rows(rows: list[list[Any]]) -> None:
    for row in rows:
        cells = [str(cell).ljust(44) if not place else str(cell).rjust(15) for place, cell in enumerate(row)]
        print("  ".join(cells).rstrip(), flush=True)


class Counting(MemoryStore):
    """A store that counts; every table file has the same footer."""

    def __init__(self, footer: bytes) -> None:
        super().__init__(uuid4().hex)
        self.footer = footer
        self.gets: list[int] = []
        self.puts: list[int] = []

    async def get(self, path: str) -> bytes:
        """Count it."""
        data = await super().get(path)
        self.gets.append(len(data))
        return data

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return the end of the one file that all are."""
        return self.footer[start : start + length]

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        """Count it."""
        assert isinstance(data, bytes)
        self.puts.append(len(data))
        await super().put(path, data, if_absent=if_absent)


async def _measure(count: int) -> list[list[Any]]:
    """Return the rows of figures for a table of this many files."""
    store = Counting(_parquet())
    lake = _Lake(store, count)
    rows = []

    async def run(what: str, rounds: int, came: int, gone: Any, *, fresh: bool, every: bool = False) -> None:
        found = [await lake.commit(came, gone(number), fresh=fresh) for number in range(rounds)]
        middle = mean if every else median
        cells = [round(middle(column), 1) for column in zip(*found, strict=True)]
        manifests, cpu, *others = cells
        rows.append([what, f"{count:,}", round(manifests), cpu, max(one[1] for one in found), *others])

    step = count // (2 * ROUNDS + 1)
    await run("append of 1, a new leader", ROUNDS, 1, lambda _: [], fresh=True)
    if NEW:
        await run("append of 1, the same leader", ROUNDS, 1, lambda _: [], fresh=False)
        await run(f"{APPENDS} appends of 1, means with merges", APPENDS, 1, lambda _: [], fresh=False, every=True)
        await run("1 for the newest 10", ROUNDS, 1, lambda _: lake.files[-10:], fresh=False)
    for fresh, who in ((True, "a new leader"), (False, "the same leader"))[: 2 if NEW else 1]:
        moved = 0 if fresh else ROUNDS
        await run(
            f"1 for 10 of an hour, {who}",
            ROUNDS,
            1,
            lambda number, moved=moved: lake.find((number + 1 + moved) * step),
            fresh=fresh,
        )
    size = len(msgspec.json.encode(lake.table.iceberg))
    rows.append([f"the table's state: {size / 1000:.0f} kB", f"{count:,}", *[""] * 7])
    return rows


class _Lake:
    """A table with synthetic files."""

    def __init__(self, store: Counting, count: int) -> None:
        self.store, self.now = store, BEGAN + 1e9
        self.files = [_stored(number) for number in range(count - 100 if NEW else 0, count)]  # earlier ones need all
        self.next = count
        self.table = Table(iceberg={STREAM: _build(store, count)}, number=1)
        self.leader = self._lead()
        gc.collect()
        gc.freeze()  # so that the bench's own objects cost the commits nothing

    def _lead(self) -> Exposer:
        return Exposer(self.store, Expiry(location=BASE, keep_for=1e9))

    def find(self, number: int) -> list[Stored]:
        """Return ten neighbours, which the table had at first."""
        return [_stored(one) for one in range(number, number + 10)]

    async def commit(self, came: int, gone: list[Stored], *, fresh: bool) -> tuple[float, ...]:
        """Return manifests, CPU in ms, objects and kB read, objects and kB written."""
        new = [_stored(self.next + one, len(self.store.footer)) for one in range(came)]
        self.next += came
        paths = {one.path for one in gone}
        self.files = [*(one for one in self.files if one.path not in paths), *new]
        self.leader = self._lead() if fresh else self.leader
        self.store.gets.clear()
        self.store.puts.clear()
        self.now += 1

        async def files(_: str) -> AsyncIterator[list[Stored]]:
            raise AssertionError("the table is not to be built anew")
            yield []

        table = msgspec.structs.replace(self.table, files=new if NEW else self.files)
        began = time.process_time()
        if NEW:
            table = await self.leader.expose(TableChange(table, new, gone, files, token=1, now=self.now))
        else:
            table = await self.leader.expose(self.store, table, token=1, now=self.now)
        cpu = time.process_time() - began
        self.table = msgspec.structs.replace(table, number=table.number + 1, retired=[])
        gets, puts = self.store.gets, self.store.puts
        manifests = sum(
            path.endswith("-m.avro") for one in table.iceberg[STREAM].snapshots for path in one.objects
        ) - sum(path.endswith("-m.avro") for one in table.iceberg[STREAM].snapshots for path in one.dropped)
        return manifests, round(cpu * 1e3, 1), len(gets), sum(gets) / 1e3, len(puts), sum(puts) / 1e3


def _parquet() -> bytes:
    file = io.BytesIO()
    columns = {"stream": [STREAM] * ROWS, "sequence": list(range(ROWS)), "subject": ["orders.eu"] * ROWS}
    table = pa.Table.from_pydict({name: columns.get(name, [None] * ROWS) for name in SCHEMA.names}, schema=SCHEMA)
    pq.write_table(table, file)
    return file.getvalue()


def _stored(number: int, size: int = 100_000) -> Stored:
    interval = BEGAN + number // KEYS * HOUR
    return Stored(
        path=f"table/{STREAM}/k{number % KEYS:02}/{interval:010}/c-1-{number:012}.parquet",
        stream=STREAM,
        key=f"k{number % KEYS:02}",
        interval=interval,
        first=1 + number * ROWS,
        last=(number + 1) * ROWS,
        count=ROWS,
        bytes=size,
        sha256="0" * 64,
        format="parquet",
        sequences=b"",
    )


# --- a table that was not committed file by file ---------------------------------------------------------------------


def _build(store: Counting, count: int) -> Iceberg:
    """Store the metadata of a table with so many files. Return the state that names it."""
    files = MemoryFiles()
    metadata = evolve(new_metadata(f"{BASE}/{iceberg_state.folder(STREAM)}"), "", files)
    header, entry = _template(metadata, files)
    manifests = [
        _manifest(metadata, files, header, entry, range(start, min(start + PER_MANIFEST, count)))
        for start in range(0, count, PER_MANIFEST)
    ]
    location = f"{metadata.location}/metadata/snap-1.avro"
    with write_manifest_list(2, files.new_output(location), 77, None, 1, CODEC) as writer:
        writer.add_manifests(manifests)
    totals = {"total-data-files": count, "total-records": count * ROWS, "total-files-size": count * 100_000}
    zero = dict.fromkeys(("total-delete-files", "total-position-deletes", "total-equality-deletes"), "0")
    summary = Summary(Operation.APPEND, **{name: str(value) for name, value in totals.items()}, **zero)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": 77,
            "sequence-number": 1,
            "timestamp-ms": metadata.last_updated_ms + 1,
            "manifest-list": location,
            "summary": summary,
            "schema-id": metadata.current_schema_id,
        }
    )
    reference = SetSnapshotRefUpdate.model_validate({"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": 77})
    metadata = update_table_metadata(metadata, (AddSnapshotUpdate(snapshot=snapshot), reference))
    data, path = metadata.model_dump_json().encode(), f"{iceberg_state.folder(STREAM)}/metadata/1.metadata.json"
    content = {one.removeprefix(f"{BASE}/"): files.content[one] for one in files.written}
    for name, value in {**content, path: data}.items():
        store._objects[name] = (value, 0.0)
    objects = {name: sha256(value).hexdigest() for name, value in content.items()}
    made = iceberg_state.Snapshot(id=77, made=float(BEGAN), objects=objects)
    digest = sha256(data).hexdigest()
    return Iceberg(location=metadata.location, number=1, metadata=path, sha256=digest, snapshots=[made])


MARK, MARKED_INTERVAL, MARKED_FIRST = 999_999_999_999, 1_999_999_999, 0x1122334455667788


def _template(metadata: Any, files: MemoryFiles) -> tuple[bytes, bytes]:
    """Return the header of a manifest, and an entry with marks to replace."""
    numbers = [field.field_id for field in metadata.schema().fields]
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{BASE}/table/{STREAM}/kXX/{MARKED_INTERVAL:010}/c-1-{MARK}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record("kXX", MARKED_INTERVAL * 1_000_000),
        record_count=ROWS,
        file_size_in_bytes=100_000,
        column_sizes=dict.fromkeys(numbers, 5000),
        value_counts=dict.fromkeys(numbers, ROWS),
        null_value_counts=dict.fromkeys(numbers, 0),
        nan_value_counts={},
        lower_bounds={4: _long(MARKED_FIRST), 6: b"orders.eu"},
        upper_bounds={4: _long(MARKED_FIRST + ROWS - 1), 6: b"orders.us"},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=1,
    )
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING, snapshot_id=77, sequence_number=1, file_sequence_number=1, data_file=file
    )
    with write_manifest(2, metadata.spec(), metadata.schema(), files.new_output("one"), 77, CODEC) as writer:
        start = writer.tell()
        writer.add_entry(entry)
    data = files.content.pop("one")
    files.written.clear()
    decoder = new_decoder(data[start:])
    assert decoder.read_int() == 1
    return data[:start], zlib.decompress(decoder.read_bytes(), -15)


def _manifest(metadata: Any, files: MemoryFiles, header: bytes, entry: bytes, numbers: range) -> ManifestFile:
    def fill(number: int) -> bytes:
        one = _stored(number)
        return (
            entry.replace(b"kXX", one.key.encode())
            .replace(str(MARK).encode(), b"%012d" % number)
            .replace(b"%d" % MARKED_INTERVAL, b"%d" % one.interval)
            .replace(_varint(MARKED_INTERVAL * 1_000_000), _varint(one.interval * 1_000_000))
            .replace(_long(MARKED_FIRST), _long(one.first))
            .replace(_long(MARKED_FIRST + ROWS - 1), _long(one.last))
        )

    def blocks() -> Iterator[bytes]:
        yield header
        for start in range(0, len(numbers), PER_BLOCK):
            raws = [fill(number) for number in numbers[start : start + PER_BLOCK]]
            deflate = zlib.compressobj(wbits=-15)
            packed = deflate.compress(b"".join(raws)) + deflate.flush()
            yield _varint(len(raws)) + _varint(len(packed)) + packed + header[-16:]

    first, last = _stored(numbers[0]), _stored(numbers[-1])
    name = f"{first.first}-{last.first}-{uuid4().hex}-m.avro" if NEW else f"{uuid4().hex}-m.avro"
    location, data = f"{metadata.location}/metadata/{name}", b"".join(blocks())
    files.write(location, data)
    times = [(one.interval * 1_000_000).to_bytes(8, "little") for one in (first, last)]
    return ManifestFile.from_args(
        manifest_path=location,
        manifest_length=len(data),
        partition_spec_id=0,
        content=0,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=77,
        added_files_count=0,
        existing_files_count=len(numbers),
        deleted_files_count=0,
        added_rows_count=0,
        existing_rows_count=len(numbers) * ROWS,
        deleted_rows_count=0,
        partitions=[
            PartitionFieldSummary(False, False, b"k00", b"k%02d" % (KEYS - 1)),
            PartitionFieldSummary(False, False, *times),
        ],
        key_metadata=None,
    )


def _long(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _varint(value: int) -> bytes:
    file = io.BytesIO()
    BinaryEncoder(file).write_int(value)
    return file.getvalue()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--json"]:
        print(json.dumps(asyncio.run(_measure(int(sys.argv[2])))))
    else:
        main(*sys.argv[1:])
