"""Tables of pipelines for other engines: files with hidden columns, as a run writes them, and their commits."""

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
    """The table of one pipeline in a store; each `run` commits it as the leader of the pipelines would."""

    def __init__(self, root, *, name="daily", rule=None):
        self.store, self.name = open_store(str(root)), name
        self.exposer = Exposer(self.store, rule or Expiry(), node="node-1")
        self.state, self.document, self.number = HeadState(), Pipelines(), 0
        self.now = HOUR

    async def file(self, rows, *, partition=(), bucket=0, tombstones=False):
        """Store a file with these rows, with hidden columns beside them, and return its record."""
        hidden = {
            "__sequence": pa.array(range(len(rows)), pa.int64()),
            "__1": pa.array([{"value": 1.5, "seen": [[("a", 1)]]}] * len(rows), HIDDEN.field("__1").type),
        }
        for name, column in hidden.items():
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

    async def expose(self, document, came, gone=()):
        """Return the document with its Iceberg table."""

        async def files(stream):
            for one in document.files:
                yield [one]

        return await self.exposer.expose(TableChange(document, came, gone, files, 1, self.now))

    async def run(self, came, gone=(), **how):
        """Commit a run with these files."""
        document = await self.expose(self.prepare(came, gone, **how), came, gone)
        await chain.commit(self.store, MemoryHead(self.number, self.state), self.state.head, document)
        self.document = await chain.read(self.store, self.state.head, Pipelines)
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
