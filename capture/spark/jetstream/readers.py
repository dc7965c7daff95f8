"""The readers with which Spark plans, in processes beside the driver, and reads, in those of the executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from capture.errors import ConfigError, DataLossError
from capture.formats.envelope import SCHEMA
from capture.reading.stream_range import StreamFacts, stream_facts
from capture.spark.jetstream.blocking import Blocking
from capture.spark.jetstream.ranges import RangeReader
from capture.spark.jetstream.source_options import ReadOptions, nearest
from capture.spark.jetstream.splits import LEAVE, Offset, Range, describe_gone, ranges, resume
from capture.spark.jetstream.union import ArchivePart, TailPart, plan_union, read_part
from natty import Natty
from natty.errors import JetStreamError
from natty.jetstream import NO_MESSAGE

ENVELOPE = from_arrow_schema(SCHEMA)
"""The columns of the archive's envelope, in Spark's types."""

log = logging.getLogger("capture.spark.jetstream")


def read_range(options: ReadOptions, columns: Sequence[str], wanted: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield a range's messages, with the requested columns."""
    if isinstance(wanted, ArchivePart | TailPart):
        with Blocking(options.nats) as client:
            yield from client.iterate(read_part(client.natty, options, columns, wanted))
        return
    if not isinstance(wanted, Range):  # Spark's own, if there is nothing to read
        return
    with Blocking(options.nats) as client:
        reader = RangeReader(
            client.natty, wanted, subject=options.subject, fail=options.fail_on_data_loss, columns=columns
        )
        for rows in client.iterate(aiter(reader)):
            yield rows.select(list(columns))


class JetStreamReader(DataSourceReader):
    """A batch: the stream's messages when it is planned, between `startSequence` or `startTime` and `endSequence`.

    With `archive` also those that the archive holds.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._columns = options, list_columns(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts to read. DataLossError if the first requested sequence is gone."""
        with Blocking(self._options.nats) as client:
            return client.run(self._plan(client.natty))

    async def _plan(self, natty: Natty) -> Sequence[InputPartition]:
        options = self._options
        if options.archive:
            return await plan_union(natty, options)
        stream = await _facts(natty, options)
        first = await find_beginning(natty, stream, options)
        last = min(stream.last, options.end_sequence or stream.last)
        return ranges(stream, first, last, options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's messages."""
        return read_range(self._options, self._columns, partition)


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches: ranges of sequences, the same ones again after a restart.

    `maxMessagesPerTrigger` bounds the sequences of a micro-batch. With Trigger.AvailableNow, the query ends at the last
    sequence that the stream had when the query began.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema  # checked later: Spark hides an error of the constructor
        self._client: Blocking | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        stream = self._stream()
        first = self._connect().run(find_beginning(self._connect().natty, stream, self._options))
        return Offset(stream.name, stream.created, first).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        wanted = self._options.max_messages_per_trigger
        return ReadMaxRows(wanted) if wanted else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends. DataLossError, see `splits.resume`."""
        offset = Offset(**start)
        stream = self._stream(offset, offset.next - 1)
        first, _ = resume(stream, offset, fail=self._options.fail_on_data_loss)
        after = stream.last + 1
        for bound in (self._target, self._options.end_sequence or None):
            if bound is not None:
                after = min(after, bound + 1)
        if isinstance(limit, ReadMaxRows):
            after = min(after, first + limit.max_rows)
        return Offset(stream.name, stream.created, max(after, first)).as_dict()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return where the stream ends now, for the query's progress."""
        stream = self._stream()
        return Offset(stream.name, stream.created, stream.last + 1).as_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """Record where the stream ends now."""
        self._target = self._stream().last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        """Return the ranges of a micro-batch. DataLossError, see `splits.resume`."""
        offset, last = Offset(**start), Offset(**end).next - 1
        stream = self._stream(offset, last)
        first, lost = resume(stream, offset, seen=last, fail=self._options.fail_on_data_loss)
        if lost:
            log.warning("%s", lost, extra={"action": "data_loss"})
        return ranges(stream, first, last, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a range's messages."""
        return read_range(self._options, list_columns(self._schema), partition)

    def stop(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            client.__exit__(None, None, None)

    def _connect(self) -> Blocking:
        if self._client is None:
            self._client = Blocking(self._options.nats).__enter__()
        return self._client

    def _stream(self, offset: Offset | None = None, least: int = 0) -> StreamFacts:
        """Return the facts of the stream, which has had the sequence `least` if it is the one of the offset."""
        if self._options.archive:
            raise ConfigError("archive is for spark.read: a streaming query reads the stream alone; omit the option")
        list_columns(self._schema)
        client = self._connect()
        return client.run(_facts(client.natty, self._options, offset.created if offset else "", least))


async def find_beginning(natty: Natty, stream: StreamFacts, options: ReadOptions) -> int:
    """Return the first sequence to read. DataLossError if `startSequence` names one that is gone."""
    if options.start_time:
        body = {"start_time": options.start_time, "next_by_subj": ">"}
        try:
            answer = await natty.jetstream.request(f"STREAM.MSG.GET.{stream.name}", body)
        except JetStreamError as error:
            if error.err_code != NO_MESSAGE:
                raise
            return stream.last + 1
        return int(answer["message"]["seq"])
    if 0 < options.start_sequence < stream.first:
        said = describe_gone(stream.name, options.start_sequence, stream.first - 1)
        if options.fail_on_data_loss:
            raise DataLossError(f"{said}; omit startSequence to begin with the messages that are left, or {LEAVE}")
        log.warning("%s", said, extra={"action": "data_loss"})
    return max(options.start_sequence, stream.first)


async def _facts(natty: Natty, options: ReadOptions, created: str = "", least: int = 0) -> StreamFacts:
    """Return the facts of the stream, and how to read it; `created` and `least` as for `led_info`.

    ConfigError if `readBy` is not possible.
    """
    stream = await stream_facts(natty, options.stream, created=created, least=least)
    if options.read_by == "direct" and not stream.direct:
        raise ConfigError(
            f"stream {stream.name} does not allow direct get: set allow_direct on it, or omit readBy to read it with "
            "a consumer"
        )
    return stream if options.read_by != "consumer" else replace(stream, direct=False)


def list_columns(schema: StructType) -> list[str]:
    """Return the names of the requested columns. ConfigError if one does not exist, or has another type."""
    known = {field.name: field.dataType for field in ENVELOPE.fields}
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(f"there is no column {field.name}; {nearest(field.name, known)}")
        if field.dataType != known[field.name]:
            raise ConfigError(
                f"column {field.name} is {known[field.name].simpleString()}, not {field.dataType.simpleString()}:"
                " read it as it is, and cast it"
            )
    return schema.fieldNames()
