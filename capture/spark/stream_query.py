"""Streaming queries in Spark's driver: Structured Streaming reads batches, and each is held until the leader has it.

Where a query has come to is in its checkpoint, which lasts as long as the query. What counts is the exact set of
sequences that the leader commits with the rows: a query that begins again reads what that does not have.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from capture.archive.sequences import Sequences
from capture.errors import SparkError
from capture.pipelines.derivation import Batch, Following
from capture.spark.failure import sentence

Answer = Callable[[int, msgspec.Struct], None]
Fail = Callable[[int, Exception], None]
"""Answer the request with this number."""


class StreamQueries:
    """The streaming queries, by pipeline. Its methods are called from any thread."""

    def __init__(self, spark: SparkSession, answer: Answer, fail: Fail) -> None:
        self._spark, self._answer, self._fail = spark, answer, fail
        self._queries: dict[str, StreamQuery] = {}

    def __repr__(self) -> str:
        return f"StreamQueries({', '.join(self._queries)})"

    def start(self, asked: Following) -> None:
        """Start a pipeline's query; it replaces an earlier one. Raises Spark's errors if it can't be started."""
        self.stop(asked.pipeline)
        query = self._queries[asked.pipeline] = StreamQuery(asked, self._answer, self._fail)
        query.start(self._spark)

    def find(self, pipeline: str) -> StreamQuery:
        """Return a pipeline's query. SparkError if it was not started."""
        try:
            return self._queries[pipeline]
        except KeyError:
            raise SparkError(f"pipeline {pipeline} has no streaming query") from None

    def stop(self, pipeline: str) -> None:
        """End a pipeline's query, if there is one."""
        if query := self._queries.pop(pipeline, None):
            query.stop()

    def close(self) -> None:
        """End all queries."""
        for pipeline in list(self._queries):
            self.stop(pipeline)


class StreamQuery:
    """A pipeline's streaming query. Spark's thread waits in it until the leader asks for the next batch."""

    def __init__(self, asked: Following, answer: Answer, fail: Fail) -> None:
        self._asked, self._answer, self._fail = asked, answer, fail
        self._checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-"))
        self._changed = threading.Condition()
        self._asking: int | None = None  # the request that waits for a batch
        self._held: tuple[DataFrame, Batch] | None = None
        self._is_over = False
        self._failure: Exception | None = None
        self._end: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"StreamQuery({self._asked.pipeline}, {self._held and self._held[1]})"

    def take(self, number: int) -> DataFrame:
        """Return the messages of the batch with this number. SparkError if it is not held."""
        with self._changed:
            if self._held is None or self._held[1].number != number:
                raise SparkError(
                    f"the streaming query of pipeline {self._asked.pipeline} does not hold batch {number} any more"
                )
            return self._held[0]

    def start(self, spark: SparkSession) -> None:
        """Start it. Raises Spark's errors."""
        rows = spark.readStream.format("jetstream").options(**self._asked.options).load()
        writing = rows.writeStream.foreachBatch(self._take).trigger(processingTime=f"{self._asked.every} seconds")
        query = writing.option("checkpointLocation", self._checkpoint.as_uri()).start()
        self._end = query.stop
        watching = threading.Thread(target=self._watch, args=(query.awaitTermination,), daemon=True)
        watching.start()

    def ask(self, number: int, after: int) -> None:
        """Answer the request with the next batch, as soon as there is one; let the batch `after` go."""
        with self._changed:
            self._asking = number
            if self._held and self._held[1].number == after:
                self._held = None
            self._changed.notify_all()
            self._reply()

    def stop(self) -> None:
        """End it, and remove its checkpoint."""
        with self._changed:
            self._is_over, self._held = True, None
            self._changed.notify_all()
        with suppress(Py4JError, PySparkException, OSError):  # it has ended, or the JVM has
            self._end()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _take(self, rows: DataFrame, number: int) -> None:
        """Hold a batch until the leader asks for the next one. Spark's thread calls it.

        It is kept by a checkpoint: if that is lost, the run fails. What was only cached would be read from the stream
        again, which may not have it any more.
        """
        kept = rows.localCheckpoint()
        try:
            batch = _describe(kept, number)
            with self._changed:
                if batch is None or self._is_over:
                    return
                self._held = kept, batch
                self._reply()
                self._changed.wait_for(lambda: self._held is None)
        finally:
            with suppress(Py4JError, OSError):  # the JVM has ended
                kept._jdf.logicalPlan().rdd().unpersist(False)

    def _watch(self, wait: Callable[[], object]) -> None:
        """Keep the reason when the query ends, for the leader."""
        failure: Exception = SparkError(f"the streaming query of pipeline {self._asked.pipeline} was ended")
        try:
            wait()
        except Exception as error:
            failure = SparkError(f"the streaming query of pipeline {self._asked.pipeline} has ended: {sentence(error)}")
            failure.__cause__ = error
        with self._changed:
            self._held, self._failure = None, failure
            self._changed.notify_all()
            self._reply()

    def _reply(self) -> None:
        """Answer the request that waits, if there is an answer."""
        if self._asking is None:
            return
        if self._failure is not None:
            number, self._asking = self._asking, None
            self._fail(number, self._failure)
        elif self._held is not None:
            number, self._asking = self._asking, None
            self._answer(number, self._held[1])


def _describe(rows: DataFrame, number: int) -> Batch | None:
    """Return what a batch has; None if that is nothing."""
    found = rows.select("sequence", F.length("payload").alias("bytes")).toArrow()
    if not len(found):
        return None
    sequences = Sequences.from_iterable(found.column("sequence").to_pylist())
    size = pc.sum(found.column("bytes")).as_py() or 0
    return Batch(number=number, count=len(found), bytes=size, sequences=sequences.to_text())
