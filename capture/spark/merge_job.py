"""Merges file groups in Spark jobs; the driver runs them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from capture.maintenance.engine import FileGroup, Merged, Part
from capture.maintenance.merge.inputs import Columns
from capture.maintenance.merge.merge_group import inputs_of
from capture.maintenance.merge.schema_evolution import write_columns
from capture.spark.frames import load, map_in_arrow
from capture.spark.merge_task import StoreAccess, Task, carry_out, find_repeated

TASKS_A_CORE = 4
"""Of the job that merges small file groups: several, since file groups differ in size."""


@dataclass(frozen=True)
class Merger:
    """Merges file groups on one Spark session, with the combined typed columns of their inputs.

    Rows stay in the executors' Python, which reads, sorts, writes and stores them. Spark carries only tasks and the
    facts of their results. Through the JVM a message costs ten times as much.
    """

    spark: SparkSession
    access: StoreAccess
    columns: Columns

    def merge(self, group: FileGroup) -> Merged:
        """Write a file group's outputs, sorted by sequence, each sequence once; return the result.

        It is one job without a shuffle, with a task for each part, which reads the inputs that overlap its part.
        """
        repeated = self._find_repeated(group) if group.distinct == "message_id" else None
        done = self._run([self._task(group, part, repeated) for part in group.parts], len(group.parts))
        if failed := next((one for one in done if one.failed), None):
            return failed
        conflicts: dict[str, int] = {}
        for one in done:
            conflicts |= {name: conflicts.get(name, 0) + count for name, count in one.conflicts.items()}
        return Merged(
            outputs=[output for one in done for output in one.outputs],
            rows_in=sum(one.rows_in for one in done),
            duplicates=sum(one.duplicates for one in done),
            repeated=repeated or "",
            conflicts=conflicts,
        )

    def merge_small(self, groups: Sequence[FileGroup]) -> list[Merged]:
        """Merge file groups in one job; each task may merge several, one after the other."""
        tasks = min(len(groups), TASKS_A_CORE * self.spark.sparkContext.defaultParallelism)
        return self._run([self._task(group) for group in groups], tasks)

    def _run(self, wanted: Sequence[Task], tasks: int) -> list[Merged]:
        """Carry out these tasks in one job with `tasks` partitions.

        It uses no rows of Spark: planning and compiling a query would take longer than most merges."""
        texts = [msgspec.json.encode(one) for one in wanted]
        said = self.spark.sparkContext.parallelize(texts, tasks).map(partial(carry_out, self.access)).collect()
        return [msgspec.json.decode(one, type=Merged) for one in said]

    def _task(self, group: FileGroup, part: Part | None = None, repeated: str | None = None) -> Task:
        columns = write_columns(self.columns.of(group.inputs))
        if part:
            group = msgspec.structs.replace(group, inputs=inputs_of(group, part.first, part.last))
        return Task(group=group, columns=columns, stored_ns=time.time_ns(), part=part, repeated=repeated)

    def _find_repeated(self, group: FileGroup) -> str:
        """Return the sequences of messages whose id an earlier one has, by a separate job that sorts two columns."""
        messages = load(self.spark, self.access.store, group.inputs, self.columns, key_file=self.access.key_file)
        ids = messages.where("message_id <> ''").select("message_id", "sequence")
        rows = ids.coalesce(1).sortWithinPartitions("message_id", "sequence")
        found_in = partial(find_repeated, group.exclude)
        [found] = map_in_arrow(rows, found_in, StructType.fromDDL("repeated STRING")).collect()
        return str(found["repeated"])
