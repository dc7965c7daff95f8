"""Publishes the rows of a DataFrame, in the executors. Message ids keep retried tasks from storing messages twice."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from capture.errors import ConfigError, SparkError
from capture.spark.jetstream.blocking import Blocking
from capture.spark.jetstream.rows import Outgoing, check_columns, make_outgoing
from capture.spark.jetstream.source_options import WriteOptions
from natty import Publisher

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Properties of a task of a streaming query: the first stays with the checkpoint."""

log = logging.getLogger("capture.spark.jetstream")


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """The number of messages that a task has stored."""

    messages: int


def publish(options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]) -> Published:
    """Publish a partition's rows. PublishError names the first message that was not stored, and how many were not."""
    context = TaskContext.get()
    assert context is not None
    prefix, count = f"{write_id}-{context.partitionId()}-", 0
    with Blocking(options.nats) as client:
        publisher = client.natty.publisher(options.stream)
        client.run(publisher.__aenter__())
        try:
            for batch in batches:
                client.run(_publish(publisher, make_outgoing(batch, options, prefix, count)))
                count += batch.num_rows
            client.run(publisher.flush())
        finally:
            client.run(_leave(publisher))
    return Published(count)


async def _publish(publisher: Publisher, messages: Iterable[Outgoing]) -> None:
    for subject, payload, headers, message_id in messages:
        await publisher.publish(subject, payload, msg_id=message_id, headers=headers)


async def _leave(publisher: Publisher) -> None:
    publisher.abandon()


class JetStreamWriter(DataSourceArrowWriter):
    """A batch. Its message ids begin with `writeId`, by default a unique one for this run."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse(overwrite)
        check_columns(schema, options)
        self._options = options
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition."""
        return publish(self._options, self._write_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how much was stored."""
        _say(self._options, messages, "")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how much stays stored: a stream can't undo it."""
        _say(self._options, messages, "the write failed; ")


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches. Their message ids begin with `writeId`, by default the query's id, and the micro-batch's number.

    Both are the same after a restart from the checkpoint.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse(overwrite)
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition of a micro-batch. SparkError if Spark does not name the micro-batch."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SparkError("Spark does not report which micro-batch this is: message ids can't be made of it")
        return publish(self._options, f"{self._options.write_id or query}-{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log how much was stored."""
        _say(self._options, messages, f"micro-batch {batchId}: ")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log how much stays stored: a stream can't undo it."""
        _say(self._options, messages, f"micro-batch {batchId} failed; ")


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError('a stream can\'t be overwritten: take .mode("append"), or purge the stream first')


def _say(options: WriteOptions, messages: list[WriterCommitMessage | None], what: str) -> None:
    stored = sum(one.messages for one in messages if isinstance(one, Published))
    level = logging.WARNING if "failed" in what else logging.INFO
    log.log(level, "%s%d messages of whole partitions are in stream %s", what, stored, options.stream)
