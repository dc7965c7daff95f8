"""Tables of pipelines in a real store, as their leader commits them."""

from capture.archive.index.contents import commit
from capture.archive.index.tree import Index
from capture.archive.index.version import Held, Total, Version
from capture.pipelines.derivation import OutputFile, Unit
from capture.pipelines.document import Pipelines, PipelineTable, progress_of, record_of
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead

SHA256 = "0" * 64


class PipelineTables:
    """The committed tables of an archive's pipelines; `folder` is the archive's."""

    def __init__(self, folder, token=1, signer=None):
        self.store = open_store(str(folder / "_pipelines"))
        self.head, self.document = None, Pipelines()
        self._pointer = MemoryHead(token, HeadState(), signer)

    async def commit(self, tables, files=(), progress=None, iceberg=None):
        """Commit tables by name, files as (table, rows, run, unit, tombstones), and runs of sequences by progress."""
        streams = {
            progress_of(*place): Total(held=Held(count=sum(b - a + 1 for a, b in runs), runs=runs))
            for place, runs in (progress or {}).items()
        }
        records = [
            record_of(
                OutputFile(
                    path=f"table/{table}/1-{number}/{number}.parquet",
                    unit=unit,
                    rows=rows,
                    bytes=100 * rows,
                    sha256=SHA256,
                    tombstones=tombstones,
                ),
                table,
                run,
            )
            for number, (table, rows, run, unit, tombstones) in enumerate(files)
        ]
        after = Pipelines(files=records, tables=tables, progress=Version(streams=streams), iceberg=iceberg or {})
        index = Index(self.store, Pipelines.PAGES)
        self.head, document = await commit(index, self._pointer, self.head, self.document, after, now=1.0, grace=900.0)
        self.document = document


def table(pipeline, **facts):
    """Return the table of a pipeline that was made by its own definition."""
    return PipelineTable(**{"definition": pipeline.definition, "number": 1} | facts)


def file(name, rows, run=1, bucket=0, *, tombstones=False):
    """Return a file of a table."""
    return name, rows, run, Unit(bucket=bucket), tombstones
