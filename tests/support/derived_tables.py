"""Tables of pipelines for other engines: files with hidden columns, as a run writes them, and their commits."""

import datetime
import hashlib
import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from exposing import HOUR, read_back

from capture.archive import chain
from capture.archive.chain import Retired
from capture.archive.iceberg_state import Expiry, archive_location, folder
from capture.archive.table import TableChange
from capture.iceberg import Exposer
from capture.maintenance.merge.schema_evolution import write_columns
from capture.pipelines.derivation import OutputFile, Unit
from capture.pipelines.document import Pipelines, PipelineTable, record_of, run_folder
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead

HIDDEN = pa.schema(
    [
        pa.field("__sequence", pa.int64()),
        pa.field("__1", pa.struct([("value", pa.float64()), ("seen", pa.list_(pa.map_(pa.string(), pa.int64())))])),
    ]
)
"""Columns of every file that the table does not have: the order of rows, and an aggregate's state."""


class Derived:
    """The table of one pipeline in a store; each `run` commits it as the leader of the pipelines would.

    It commits the head in memory, or that of `pointer`.
    """

    def __init__(self, root, *, name="daily", rule=None):
        self.store, self.name = open_store(str(root)), name
        self.exposer = Exposer(self.store, rule or Expiry(), node="node-1")
        self.state, self.document, self.number = HeadState(), Pipelines(), 0
        self.pointer, self.now = None, HOUR

    async def file(self, rows, *, partition=(), bucket=0, tombstones=False, hidden=True):
        """Store a file with these rows, and `hidden` columns beside them; return its record."""
        columns = {
            "__sequence": pa.array(range(len(rows)), pa.int64()),
            "__1": pa.array([{"value": 1.5, "seen": [[("a", 1)]]}] * len(rows), HIDDEN.field("__1").type),
        }
        for name, column in columns.items() if hidden else ():
            rows = rows.append_column(name, column)
        content = io.BytesIO()
        pq.write_table(rows, content, compression="zstd")
        data = content.getvalue()
        digest = hashlib.sha256(data).hexdigest()
        path = f"{run_folder(self.name, 1, digest[:32])}{len(self.document.files)}-{self.number}-{bucket}.parquet"
        await self.store.put(path, data, if_absent=False)
        unit = Unit(partition=list(partition), bucket=bucket)
        made = OutputFile(path=path, unit=unit, rows=len(rows), bytes=len(data), sha256=digest, tombstones=tombstones)
        return record_of(made, self.name, self.number + 1)

    def prepare(self, came, gone=(), *, columns, partition=()):
        """Return the document with these files added and removed."""
        self.number, self.now = self.number + 1, self.now + 60
        lost = {one.path for one in gone}
        table = PipelineTable(
            definition="", number=self.number, columns=write_columns(columns), partition=list(partition)
        )
        return msgspec.structs.replace(
            self.document,
            files=[*(one for one in self.document.files if one.path not in lost), *came],
            tables={self.name: table},
            retired=[*self.document.retired, *(Retired(one.path, self.now) for one in gone)],
        )

    async def expose(self, document, came, gone=(), *, same_rows=False):
        """Return the document with its Iceberg table."""

        async def files(stream):
            for one in document.files:
                yield [one]

        change = TableChange(document, came, gone, files, 1, self.now, same_rows=same_rows)
        return await self.exposer.expose(change)

    async def run(self, came, gone=(), *, same_rows=False, **how):
        """Commit a run with these files."""
        document = await self.expose(self.prepare(came, gone, **how), came, gone, same_rows=same_rows)
        pointer = self.pointer or MemoryHead(self.number, self.state)
        head = await chain.commit(self.store, pointer, await pointer.read(), document)
        self.document = await chain.read(self.store, head, Pipelines)
        await self.exposer.announce(self.document)

    async def rerun(self, came, **how):
        """Commit a run that makes all rows again."""
        await self.run(came, self.document.files, **how)

    @property
    def shown(self):
        """The state of the Iceberg table."""
        return self.document.iceberg[self.name]

    @property
    def location(self):
        """The table's folder, for readers without a catalog."""
        return f"{archive_location(self.store)}/{folder(self.name)}"

    async def reader(self):
        """Return the table as pyiceberg reads it."""
        return await read_back(self.store, self.shown)

    async def rows(self, snapshot_id=None, where=None):
        """Return the rows that pyiceberg reads, each a dict, in no order."""
        more = {"row_filter": where} if where else {}
        return (await self.reader()).scan(snapshot_id=snapshot_id, **more).to_arrow().to_pylist()


DAY = datetime.date(2026, 11, 21)
SALES = pa.schema([("country", pa.string()), ("day", pa.date32()), ("total", pa.int32())])
WIDER = pa.schema([("country", pa.string()), ("total", pa.int64()), ("tags", pa.list_(pa.string()))])
OTHER = pa.schema([("day", pa.date32()), ("total", pa.string()), ("tags", pa.list_(pa.string()))])


async def _partitioned(table):
    """Files of two partitions, of one without a value, and of deleted keys."""
    files = [
        await table.file(_rows(SALES, ("de", DAY, 1), ("de", DAY, 2)), partition=["de", "2026-11-21"]),
        await table.file(_rows(SALES, ("fr", DAY, 3)), partition=["fr", "2026-11-21"], bucket=5),
        await table.file(_rows(SALES, (None, None, 4)), partition=[None, None]),
        await table.file(_rows(SALES, ("it", DAY, 5)), partition=["it", "2026-11-21"], tombstones=True),
    ]
    await table.run(files, columns=SALES, partition=["country", "day"])
    return [["de", "2026-11-21", 1], ["de", "2026-11-21", 2], ["fr", "2026-11-21", 3], [None, None, 4]]


async def _replaced(table):
    """Another file in the place of one, and of the one without a value."""
    gone = [one for one in table.document.files if one.key in ('["de","2026-11-21",0]', "[null,null,0]")]
    files = [
        await table.file(_rows(SALES, ("de", DAY, 7)), partition=["de", "2026-11-21"]),
        await table.file(_rows(SALES, (None, None, 8)), partition=[None, None]),
    ]
    await table.run(files, gone, columns=SALES, partition=["country", "day"])
    return [["fr", "2026-11-21", 3], ["de", "2026-11-21", 7], [None, None, 8]]


async def _wider(table):
    """All rows again: a column was dropped, which was in the partition, one was widened, and one came."""
    file = await table.file(_rows(WIDER, ("de", 2**40, ["a", None])), partition=["de"])
    await table.rerun([file], columns=WIDER, partition=["country"])
    return [["de", 2**40, ["a", None]]]


async def _added(table):
    """More rows; none is replaced."""
    await table.run(
        [await table.file(_rows(WIDER, ("fr", 2**41, None)), partition=["fr"])], columns=WIDER, partition=["country"]
    )
    return [["de", 2**40, ["a", None]], ["fr", 2**41, None]]


async def _unpartitioned(table):
    """All rows again, without partitions: older snapshots stay."""
    await table.rerun([await table.file(_rows(WIDER, ("es", 11, [])))], columns=WIDER)
    return [["es", 11, []]]


async def _merged(table):
    """Another file in the place of those of the table, with the same rows."""
    await table.run(
        [await table.file(_rows(WIDER, ("es", 11, [])))], table.document.files, columns=WIDER, same_rows=True
    )
    return [["es", 11, []]]


async def _retyped(table):
    """All rows again: a column has another type, and another column separates files."""
    file = await table.file(_rows(OTHER, (DAY, "twelve", ["b"])), partition=["2026-11-21"])
    await table.rerun([file], columns=OTHER, partition=["day"])
    return [["2026-11-21", "twelve", ["b"]]]


async def _emptied(table):
    """All rows again, and there are none."""
    await table.rerun([], columns=OTHER, partition=["day"])
    return []


STEPS = [_partitioned, _replaced, _wider, _added, _unpartitioned, _merged, _retyped, _emptied]
"""Runs of one pipeline. Each returns the rows that its table has then, ordered by `total`."""


def _rows(columns, *values):
    lists = [list(one) for one in zip(*values, strict=True)]
    return pa.table(dict(zip(columns.names, lists, strict=True)), schema=columns)
