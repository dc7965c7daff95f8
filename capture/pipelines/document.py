"""The tables of the pipelines, and which messages they have. Only the leader of the pipelines commits them.

Files and progress change in one commit: so each message counts once, whatever is killed.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final, Literal

import msgspec

from capture.archive.iceberg_state import Exposable, Layout
from capture.archive.index.version import Version
from capture.archive.manifest import Stored, quote_key
from capture.archive.stored_formats import PARQUET
from capture.pipelines.derivation import OutputFile, Unit
from capture.pipelines.upkeep import HIDDEN

FOLDER = "_pipelines"
"""The folder of all that belongs to pipelines, below the archive or below the archives: a store of its own."""
TOMBSTONES = "tombstones"
"""The format of files with deleted keys: no reader opens them."""
KEPT_RUNS = 50
"""Runs of a pipeline that its table remembers."""
STREAM: Final = "stream"
"""Why a run was made, of micro-batches."""
LONGEST = 3600.0
"""Seconds of micro-batches that one record of a run has: there is one every few seconds."""


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a pipeline. `began` and `ended` are Unix seconds.

    `rows_in` are new rows of its inputs, `rows_out` are rows that were written; `bytes_in` and `bytes_out` are those
    of the objects that they are in. `files` came, `replaced` went. `asked` is the request that it was made for, if any.
    `error` says why it failed: then it changed nothing. `violations` counts rows by the condition that they did not
    meet. `plan` is Spark's plan, of the last and of failed runs. After it `packed` small files, of `bytes_packed`
    bytes, were merged into larger ones. A run may stand for several `batches` of a stream, one after the other: then
    its `number` is the last one's, and its figures are their sums, as is `seconds`, which only they have.
    """

    number: int
    began: float
    ended: float
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    files: int = 0
    replaced: int = 0
    token: int = 0
    leader: str = ""
    why: Literal["new", "rerun", "asked", "stream"] = "new"
    batches: int = 0
    asked: str = ""
    error: str = ""
    violations: dict[str, int] = {}
    plan: str = ""
    seconds: float = 0.0
    packed: int = 0
    bytes_packed: int = 0

    @property
    def took(self) -> float:
        """Its duration in seconds; of several batches, without the time between them."""
        return self.seconds if self.batches else max(0.0, self.ended - self.began)


class PipelineTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pipeline's table: what it was computed by, its columns, and its runs, the last one at the end.

    `definition` is `Pipeline.definition`. `number` counts its committed runs; each record of a file has that of its
    run as `first` and `last`, a merged file those of the first and the last run that its rows are of. `rebuilt` is the
    number of the run that made all rows again; what reads this table makes its rows again after it. `columns` are the
    files' visible columns (`schema_evolution.write_columns`), and `partition` those that separate files.
    `payload_schemas` are the types of the inputs' payloads, as the first run has inferred them. `inputs` has for each
    other pipeline that it reads the number of its last run that this table has, and `input_rows` how many rows that
    pipeline's table had then. `rows` is the number of rows that runs have added (None: not known, or rows are
    replaced). `since_ns` is from when on it has messages (Unix nanoseconds). `asked` is the operators' last request
    that was carried out; while it is `paused` it runs only on request. If it was `streamed`, some of its messages came
    from a stream, and the archive may not have them.
    """

    definition: str
    number: int = 0
    rebuilt: int = 0
    columns: str = ""
    partition: list[str] = []
    payload_schemas: dict[str, str] = {}
    inputs: dict[str, int] = {}
    rows: int | None = None
    input_rows: dict[str, int] = {}
    since_ns: int = 0
    paused: bool = False
    asked: str = ""
    streamed: bool = False
    runs: list[Run] = []

    def with_run(self, run: Run) -> PipelineTable:
        """Return the table with a run at the end of its runs; only the last one, and failed ones, keep their plans.

        Batches of a stream that a leader has committed one after the other become one run, of LONGEST at the most.
        """
        runs = [one if one.error or not one.plan else msgspec.structs.replace(one, plan="") for one in self.runs]
        if runs and _are_one(runs[-1], run):
            run = _join(runs.pop(), run)
        return msgspec.structs.replace(self, runs=[*runs, run][-KEPT_RUNS:])

    def with_packed(self, files: int, size: int) -> PipelineTable:
        """Return the table whose last run says that so many files, of `size` bytes, were merged after it."""
        *others, last = self.runs
        last = msgspec.structs.replace(last, packed=last.packed + files, bytes_packed=last.bytes_packed + size)
        return msgspec.structs.replace(self, runs=[*others, last])


def count_new_rows(table: PipelineTable, name: str, other: PipelineTable, run: int) -> int | None:
    """Return how many rows of the `other` table, which is the input `name`, are of later runs than the table has.

    None if that is not known. `run` is the last one that the table has, 0 if it has none, or is made again.
    """
    had = table.input_rows.get(name) if run else 0
    return None if had is None or other.rows is None else other.rows - had


def _are_one(before: Run, after: Run) -> bool:
    if not before.why == after.why == STREAM or before.error or after.error:
        return False
    return before.token == after.token and 0 <= after.began - before.began < LONGEST


def _join(before: Run, after: Run) -> Run:
    """Return both as one run."""
    figures = ("rows_in", "rows_out", "bytes_in", "bytes_out", "files", "replaced", "packed", "bytes_packed")
    violations = Counter(before.violations)
    violations.update(after.violations)
    return msgspec.structs.replace(
        after,
        began=before.began,
        violations=dict(violations),
        **{name: getattr(before, name) + getattr(after, name) for name in (*figures, "batches", "seconds")},
    )


class Pipelines(Exposable, frozen=True, kw_only=True):
    """The tables of all pipelines at one moment, by the pipelines' names.

    `files` are the tables' files: the stream of a record is the pipeline, its key is `Unit.to_text`, and it names no
    sequences. `progress` has, for each table and each stream that it reads (`progress_of`), exactly the sequences whose
    messages the table has. `iceberg` is each table for other engines.

    In format 1 no file has rows of several runs. A version that only knows format 1 would leave out rows of such files
    for pipelines that read the table, so it has to refuse them.
    """

    FOLDER: ClassVar[str] = "_pipeline/"
    FORMAT: ClassVar[int] = 2
    PAGES: ClassVar[str] = "_index/pipeline/"
    LIST: ClassVar[str] = "files"

    files: list[Stored] = msgspec.field(default_factory=list)
    progress: Version = Version()
    tables: dict[str, PipelineTable] = msgspec.field(default_factory=dict)

    def list_versions(self) -> list[Version]:
        """Return the versions of indexes that it names: of the files, and the sets of its progress."""
        return [self.index, self.progress]

    def layout(self, stream: str) -> Layout:
        """Return how the files of a pipeline's table are laid out."""
        table = self.tables[stream]
        return Layout(table.columns, tuple(table.partition))

    def is_brief(self, stream: str) -> bool:
        """Return whether a batch of a stream made the last snapshot of a table: the next one replaces it soon."""
        table = self.tables.get(stream.partition(HIDDEN)[0])  # that of a quarantine is its pipeline's
        return table is not None and bool(table.runs) and table.runs[-1].why == STREAM


def progress_of(pipeline: str, stream: str) -> str:
    """Return the name of a set in `Pipelines.progress`."""
    return f"{pipeline} {stream}"


def run_folder(pipeline: str, token: int, unique: str) -> str:
    """Return the folder of a run's files, which no other run has; `unique` is a UUID's hex."""
    return f"table/{quote_key(pipeline)}/{token}-{unique}/"


def record_of(file: OutputFile, pipeline: str, run: int, *, node: str = "", stored_ns: int = 0) -> Stored:
    """Return the record of a new file of a table, which was made by the pipeline's run with this number."""
    return Stored(
        path=file.path,
        stream=pipeline,
        key=file.unit.to_text(),
        interval=0,
        first=run,
        last=run,
        count=file.rows,
        bytes=file.bytes,
        sha256=file.sha256,
        format=TOMBSTONES if file.tombstones else PARQUET.name,
        sequences=b"",
        node=node,
        stored_ns=stored_ns,
    )


def file_of(record: Stored) -> OutputFile:
    """Return the file of a record."""
    return OutputFile(
        path=record.path,
        unit=Unit.from_text(record.key),
        rows=record.count,
        bytes=record.bytes,
        sha256=record.sha256,
        tombstones=record.format == TOMBSTONES,
    )
