import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from capture.merging import Group, Merged, Part
from capture.sequences import Sequences
from capture.spark.read import map_in_arrow
from capture.spark.table import load
from capture.spark.write import Place, Task, find_repeated, merge_each, write_and_report
from capture.writers.evolution import write_columns
from capture.writers.inputs import Columns

MOST_MEMORY = 256 * 1024 * 1024
"""Bytes that the rows of a group may take in an executor's Python before it is sorted by Spark, which spills."""
TASKS_A_CORE = 4
"""Of the job that merges small groups: they are not all equally large."""


@dataclass(frozen=True)
class Merger:
    """Merges groups on one Spark session, with the typed columns that their inputs have together."""

    spark: SparkSession
    place: Place
    columns: Columns

    def merge(self, group: Group) -> Merged:
        """Write a group's outputs, sorted by sequence, each sequence once; says what became of them.

        One job of one task a part, no shuffle: read → sort → write. The executor puts the file into the store itself
        and reports its facts; it counts only once a table names it. Of copies of a message the first delivery is kept.
        Raises whatever Spark does, and CompactionError unless exactly the messages that the inputs' entries name were
        read and written.
        """
        messages = load(self.spark, self.place.store, group.inputs, self.columns, key_file=self.place.key_file)
        exclude = group.excluded
        repeated = self._repeated(messages, exclude) if group.distinct == "message_id" else Sequences()
        done = [self._part(messages, group, part, exclude | repeated) for part in group.parts]
        conflicts: dict[str, int] = {}
        for one in done:
            conflicts |= {name: conflicts.get(name, 0) + count for name, count in one.conflicts.items()}
        return Merged(
            outputs=[output for one in done for output in one.outputs],
            rows_in=sum(one.rows_in for one in done),
            duplicates=sum(one.duplicates for one in done),
            repeated=repeated.to_text(),
            conflicts=conflicts,
        )

    def merge_small(self, groups: Sequence[Group]) -> list[Merged | None]:
        """Merge groups in one job, each in the memory of a task; None for one that is too large for that."""
        rows = [(number, msgspec.json.encode(self._task(group)).decode()) for number, group in enumerate(groups)]
        tasks = min(len(rows), TASKS_A_CORE * self.spark.sparkContext.defaultParallelism)
        named = self.spark.createDataFrame(
            self.spark.sparkContext.parallelize(rows, tasks), "number BIGINT, task STRING"
        )
        run = partial(merge_each, self.place, most_bytes=MOST_MEMORY)
        reports = map_in_arrow(named, run, _schema("number BIGINT, merged STRING")).collect()
        said = {one["number"]: one["merged"] for one in reports}
        return [said[number] and msgspec.json.decode(said[number], type=Merged) for number in range(len(groups))]

    def _part(self, messages: DataFrame, group: Group, part: Part, exclude: Sequences) -> Merged:
        if group.bounds:
            messages = messages.where(F.col("sequence").between(part.first, part.last))
        rows = messages.coalesce(1).sortWithinPartitions("sequence", "deliveries")
        run = partial(write_and_report, self.place, self._task(group), part, exclude.to_text())
        [report] = map_in_arrow(rows, run, _schema("number BIGINT, merged STRING")).collect()
        return msgspec.json.decode(report["merged"], type=Merged)

    def _repeated(self, messages: DataFrame, exclude: Sequences) -> Sequences:
        """The sequences of messages whose id an earlier one has: a job of its own, which reads two columns."""
        ids = messages.where("message_id <> ''").select("message_id", "sequence")
        rows = ids.coalesce(1).sortWithinPartitions("message_id", "sequence")
        [found] = map_in_arrow(rows, partial(find_repeated, exclude.to_text()), _schema("repeated STRING")).collect()
        return Sequences.from_text(found["repeated"])

    def _task(self, group: Group) -> Task:
        columns = write_columns(self.columns.of(group.inputs))
        return Task(group=group, columns=columns, stored_ns=time.time_ns())


def _schema(text: str) -> DataType:
    return StructType.fromDDL(text)
