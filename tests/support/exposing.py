"""Table files as the compaction writes them, and how other engines read them."""

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable

from capture.archive.iceberg_state import archive_location, folder
from capture.archive.manifest import Partition, Stored
from capture.archive.sequences import Sequences
from capture.archive.table import TableChange
from capture.formats.envelope import SCHEMA
from capture.iceberg.memory_catalog import MemoryFiles
from capture.maintenance.merge.schema_evolution import OWN

HOUR = 1_795_230_000


async def table_file(store, sequences, *, stream="S", key="eu", interval=HOUR, name="1", typed=None, own=True):
    """Store a table file and return its record; `typed` are additional columns."""
    rows, file = len(sequences), io.BytesIO()
    columns = {
        "stream": [stream] * rows,
        "sequence": sequences,
        "time_ns": [interval * 10**9 + one for one in sequences],
        "subject": [f"s.{one}" for one in sequences],
        "headers": [{"a": ["b"]}] * rows,
        "payload": [b"%d" % one for one in sequences],
    }
    table = pa.Table.from_pydict({name: columns.get(name, [None] * rows) for name in SCHEMA.names}, schema=SCHEMA)
    if own:
        table = table.append_column(OWN.field("key"), pa.array([key] * rows, pa.string()))
        table = table.append_column(OWN.field("interval"), pa.array([interval * 10**6] * rows, OWN.field(1).type))
    for field, values in (typed or {}).items():
        table = table.append_column(field, values)
    pq.write_table(table, file, compression="zstd", data_page_version="1.0")
    data = file.getvalue()
    one = Stored(
        path=f"table/{Partition(stream, key, interval, 3600).hive()}/c-1-{name}.parquet",
        stream=stream,
        key=key,
        interval=interval,
        first=min(sequences),
        last=max(sequences),
        count=rows,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format="parquet",
        sequences=Sequences.from_iterable(sequences).to_bytes(),
    )
    await store.put(one.path, data)
    return one


async def expose_files(exposer, before, table, *, token=1, now):
    """Return this table with its metadata for engines; `before` are the files of the table that was committed last."""

    async def files(stream):
        for one in table.files:
            if one.stream == stream:
                yield [one]

    old, new = {one.path for one in before}, {one.path for one in table.files}
    came, gone = [one for one in table.files if one.path not in old], [one for one in before if one.path not in new]
    return await exposer.expose(TableChange(table, came, gone, files, token, now))


def static_table(store, stream="S"):
    """Return the Iceberg table as a reader sees it that knows only its folder, without a server."""
    return StaticTable.from_metadata(f"{archive_location(store)}/{folder(stream)}")


def sequences_of(table, snapshot_id=None):
    """Return the sequences of an Iceberg table, in no order."""
    return sorted(table.scan(snapshot_id=snapshot_id, selected_fields=("sequence",)).to_arrow()["sequence"].to_pylist())


async def read_back(store, exposed):
    """Return an Iceberg table of any store, from a copy in memory, even if no other engine can read the store."""
    base = archive_location(store)
    files = MemoryFiles({f"{base}/{one.path}": await store.get(one.path) for one in await store.list()})
    location = f"{base}/{exposed.metadata}"
    metadata = FromInputFile.table_metadata(files.new_input(location))
    return StaticTable(("archive", "S"), metadata, location, files, NoopCatalog("archive"))
