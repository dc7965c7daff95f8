"""Defines the contract between the leader, which plans and commits a pipeline's run, and Spark, which computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from capture.archive.manifest import Stored
from capture.errors import PipelineError
from capture.pipelines.upkeep import Merging, Upkeep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Cell = str | int | float | bool | None
"""A value of a partition column, as JSON has it: dates and times are ISO 8601 texts, decimals texts."""


SMALL_BYTES = 4 << 20
"""A run is small if its inputs' objects have at most this many bytes, and the files that it changes, too."""
INFER = "infer"
"""In place of the type of payloads: that of the first messages."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a run reads of one object of an archive: the rows of the `given` sequences (`Sequences.to_text`), each once.

    "" means all rows of the object; then no two of them have the same sequence.
    """

    stored: Stored
    given: str = ""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes of the batch with this `number` that the pipeline's streaming query holds: `count` messages.

    They are those of the `given` sequences (`Sequences.to_text`); "" means all of the batch. `bytes` is the size of all
    payloads of the batch.
    """

    number: int
    count: int
    bytes: int
    given: str = ""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A table that a query names: a stream's messages, or the rows of another pipeline.

    `new` is what the last committed run did not have; `all` is everything, and empty if the run does not need it.
    Messages have the envelope's columns, `time` (a timestamp, of `time_ns`), and their typed columns; with
    `payload_schema`, in Spark's DDL, also the fields of the payload's JSON; "infer": as new messages have them. `typed`
    (`schema_evolution.write_columns`) are typed columns that messages have even if no object to read has them: then
    they are null. Of another pipeline's rows, new are those of the runs after `after`; with `rows` it is known how many
    these are. With `is_plain` messages are as a stream gives them: without typed columns, and without what only
    their capture knows. `columns` are those of another pipeline's table; "" for messages. `store` is the URL of the
    objects' store, `key_file` has the keys of encrypted ones. Only messages that the stream stored at or after
    `since_ns` (Unix nanoseconds) are rows. With `held`, new are messages that the pipeline's streaming query holds,
    instead of `new`.
    """

    store: str
    new: list[Part] = []
    held: Held | None = None
    is_plain: bool = False
    all: list[Part] = []
    payload_schema: str = ""
    typed: str = ""
    columns: str = ""
    after: int = 0
    rows: int | None = None
    key_file: str = ""
    since_ns: int = 0


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that are in files of their own: of one partition and, if rows have a key, of one hash bucket."""

    partition: list[Cell] = []
    bucket: int = 0

    def to_text(self) -> str:
        """Return the unit as JSON: the key of its files' records."""
        return msgspec.json.encode([*self.partition, self.bucket]).decode()

    @classmethod
    def from_text(cls, text: str) -> Unit:
        """Return the unit that `to_text` wrote."""
        *partition, bucket = msgspec.json.decode(text, type=list[Cell])
        assert isinstance(bucket, int), text
        return cls(partition=partition, bucket=bucket)


class OutputFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a pipeline's table, in Parquet.

    With `tombstones`, its rows are keys that were deleted, with the sequence that deleted them: no reader sees them.
    """

    path: str
    unit: Unit
    rows: int
    bytes: int
    sha256: str
    tombstones: bool = False


class Derivation(msgspec.Struct, frozen=True, kw_only=True):
    """A run to compute. New files are written below `folder`, whose name no other run has.

    `upkeep` says how: `Upkeep.ROWS` computes `sql` over the new rows; `MERGE` merges the states that `merging`
    computes of them with those in `files`; `GROUPS` computes `sql` again for the `groups` (their expressions, by
    column) that new rows touch; `WHOLE` computes it over all rows, and the result replaces all `files`. Rows with a
    `key` replace those with the same key; of several, the one with the highest sequence stays. With `latest` rows are
    the inputs' own, the column `key` is the expression `latest`, and a message that deletes its key leaves a tombstone.
    With `python`, "module:function", a function of the user computes the rows.

    `columns` are those that the table has (`schema_evolution.write_columns`); "" before the first run. `files` are the
    table's files that may be replaced, or are read; `number` is the run's, `run` is counted from 1 for each pipeline.
    If neither the objects of its inputs nor the files that it changes have more than `small_bytes` bytes, no executor
    writes files: the driver's process does.
    """

    pipeline: str
    store: str
    folder: str
    inputs: Mapping[str, Input]
    upkeep: Upkeep
    sql: str = ""
    merging: Merging | None = None
    groups: Mapping[str, str] = {}
    latest: str = ""
    python: str = ""
    key: list[str] = []
    partition: list[str] = []
    buckets: int = 1
    columns: str = ""
    files: list[OutputFile] = []
    number: int = 1
    expect: list[str] = []
    on_violation: str = "fail"
    small_bytes: int = SMALL_BYTES


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has computed: the files to add, the paths of those that they replace, and the table's columns.

    `rows_in` are the new rows that were read, `rows_out` the rows in the files that came. `violations` counts the rows
    that did not meet a condition, by condition; they are in the `quarantined` files, if anywhere, which have
    `quarantine_columns`. `payload_schemas` are the inferred types of payloads, in Spark's DDL, by input. `plan` is
    Spark's plan of the query.
    """

    came: list[OutputFile] = []
    gone: list[str] = []
    columns: str = ""
    rows_in: int = 0
    rows_out: int = 0
    violations: dict[str, int] = {}
    quarantined: list[OutputFile] = []
    quarantine_columns: str = ""
    payload_schemas: dict[str, str] = {}
    plan: str = ""


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """Small files to merge: each list in `packs` has files of one unit, which no other list has files of.

    `columns` and `partition` are those of the `table`. The merged files are written below `folder`, whose name nothing
    else has; each row gets the number of its run, in the column `upkeep.SEQUENCE`. After so many `seconds` no further
    file is begun.
    """

    table: str
    store: str
    folder: str
    columns: str
    partition: list[str] = []
    packs: list[list[Stored]] = []
    seconds: float = 30.0


class PackedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the small files of a `unit` (`Unit.to_text`): the files that `came` have the rows of those `gone`.

    `gone` has paths, at least two or none. Files that are `large` when they are decoded stay as they are, and so do
    `refused` ones: they are damaged, or are not files of such a table; each has its reason. If the merge has `failed`,
    with this reason, it may be tried again.
    """

    unit: str
    came: list[OutputFile] = []
    gone: list[str] = []
    large: list[str] = []
    refused: dict[str, str] = {}
    failed: str = ""


class PackedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the first units of a `Packing`, in its order. For the others there was no time."""

    units: list[PackedUnit] = []


class Rows(Protocol):
    """An input as DataFrames."""

    def new(self) -> DataFrame:
        """Return the rows that the last committed run did not have."""
        ...

    def all(self) -> DataFrame:
        """Return all rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    """A run, for a pipeline's function: `function(spark, inputs: dict[str, DataFrame], run: PipelineRun)`.

    It returns a DataFrame. The inputs have the rows that the last committed run did not have; if `everything`, all of
    them. Their hidden column `__sequence` is the order of rows: a result with a key may have it, too; otherwise rows
    of this run replace others.
    """

    pipeline: str
    number: int
    everything: bool
    _inputs: Mapping[str, Rows] = field(default_factory=dict, repr=False)

    def all(self, name: str) -> DataFrame:
        """Return all rows of an input, which are read only if they are used. PipelineError if there is no such input.

        The rows are only there if the run was asked to give them: in mode "replace", and where a pipeline says so.
        """
        if name not in self._inputs:
            raise PipelineError(f"it has no input {name!r}: they are {', '.join(self._inputs)}")
        return self._inputs[name].all()


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline's streaming query: it reads new messages of a stream in batches, and holds one of them at a time.

    `options` are those of the data source `jetstream`. A batch begins at most every `every` seconds.
    """

    pipeline: str
    options: Mapping[str, str]
    every: float


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch that a streaming query holds: the sequences of its messages (`Sequences.to_text`), at least one.

    `count` is the number of its rows, `bytes` is the size of their payloads. `number` is the query's own.
    """

    number: int
    count: int
    bytes: int
    sequences: str


class Deriver(Protocol):
    """Computes a pipeline's run: `capture.spark.SparkDriver`."""

    async def derive(self, asked: Derivation) -> Derived:
        """Write the files of a run, and return facts about them. The table changes only when they are committed.

        PipelineError if the query, its data or the user's function are at fault; SparkError if Spark ends.
        """
        ...

    async def pack(self, asked: Packing) -> PackedFiles:
        """Merge small files. The table changes only when that is committed. PipelineError; SparkError if Spark ends.

        A call that is cancelled ends nothing else: the merge may go on until its seconds are over.
        """
        ...


class StreamDeriver(Deriver, Protocol):
    """Also runs streaming queries, one for each pipeline that follows its stream: `capture.spark.SparkDriver`."""

    async def follow(self, asked: Following) -> None:
        """Start the pipeline's streaming query. It is replaced if there is one. SparkError if it does not start."""
        ...

    async def next_batch(self, pipeline: str, after: int) -> Batch:
        """Return the next batch with messages, as soon as there is one; the batch with the number `after` is let go.

        A call that is cancelled loses no batch. SparkError if the query has ended, with its reason.
        """
        ...

    async def unfollow(self, pipeline: str) -> None:
        """End the pipeline's streaming query, if it runs."""
        ...
