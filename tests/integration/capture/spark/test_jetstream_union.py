"""The data source over archive and stream, against a real server, without Spark."""

import asyncio
import pickle

import pytest
from jetstream_ranges import rows_of, sequences_of, source_of
from pyspark.sql.types import LongType, StructType
from two_tiers import TwoTiers

from capture.archive.encryption import Keys
from capture.archive.sequences import Sequences
from capture.errors import CaptureError, ConfigError, DataLossError, KeyMissingError, NoArchiveError
from capture.formats import writer
from capture.spark.jetstream.readers import ENVELOPE
from capture.spark.jetstream.union import ArchivePart, TailPart, split


@pytest.fixture
async def tiers(natty, natty_name):
    tiers = await TwoTiers(natty, natty_name("UNION")).create()
    await tiers.publish(30)
    await tiers.keep([1, 2, 3, 4, 5, 9])
    await tiers.keep([4, 5, 6, 20], writer("ndjson"))
    await tiers.remove(2)
    return tiers


@pytest.fixture
def source(nats_server, tiers):
    make = source_of(nats_server, tiers.stream)
    return lambda **options: make(archive=tiers.store.url, **options)


def read(source, parts):
    reader = source.reader(ENVELOPE)
    return sorted(
        one
        for part in parts
        for batch in reader.read(pickle.loads(pickle.dumps(part)))
        for one in batch.column("sequence").to_pylist()
    )


@pytest.mark.parametrize("partitions", [0, 1, 5])
async def test_each_message_is_read_once_wherever_it_is(source, partitions):
    options = {"partitions": partitions} if partitions else {}
    found = await asyncio.to_thread(sequences_of, source(**options))
    assert sorted(found) == list(range(1, 31))


async def test_the_rows_of_archive_and_stream_have_all_columns(source):
    rows = await asyncio.to_thread(rows_of, source())
    assert {tuple(row) for row in rows} == {tuple(ENVELOPE.fieldNames())}
    assert {row["payload"] for row in rows} == {b'{"n": 1}'}


async def test_options_select_messages_of_both(source, tiers):
    chosen = source(subject=f"{tiers.stream}.1", startSequence=4, endSequence=12)
    assert sorted(await asyncio.to_thread(sequences_of, chosen)) == [4, 6, 8, 10, 12]
    at = (await tiers.natty.jetstream.read(tiers.stream, sequence=19)).time
    found = await asyncio.to_thread(sequences_of, source(startTime=at))
    assert sorted(found) == list(range(19, 31))


async def test_messages_that_left_the_stream_after_the_planning_come_from_the_archive(source, tiers):
    made = source()
    parts = await asyncio.to_thread(lambda: made.reader(ENVELOPE).partitions())
    assert {type(part) for part in parts} == {ArchivePart, TailPart}
    await tiers.publish(3)
    await tiers.keep([7, 8])
    await tiers.natty.jetstream.request(f"STREAM.PURGE.{tiers.stream}", {"seq": 9})
    assert await asyncio.to_thread(read, made, parts) == list(range(1, 31))
    await tiers.natty.jetstream.request(f"STREAM.PURGE.{tiers.stream}", {"seq": 12})
    with pytest.raises(DataLossError, match=r"2 messages left stream .*: 10–11; set failOnDataLoss to false"):
        await asyncio.to_thread(read, made, parts)
    assert len(await asyncio.to_thread(read, source(failOnDataLoss="false"), parts)) == 28


async def test_the_archive_answers_alone_for_a_stream_that_is_gone(source, tiers):
    await tiers.natty.jetstream.request(f"STREAM.DELETE.{tiers.stream}")
    assert sorted(await asyncio.to_thread(sequences_of, source())) == [1, 2, 3, 4, 5, 6, 9, 20]
    await tiers.natty.create_stream(tiers.stream, subjects=[f"{tiers.stream}.>"], allow_direct=True)
    with pytest.raises(CaptureError, match="it is another stream"):
        await asyncio.to_thread(sequences_of, source())


async def test_an_encrypted_archive_needs_its_key(source, tiers):
    await tiers.keep([10], writer("raw", keys=Keys({"k": bytes(32)})))
    with pytest.raises(KeyMissingError, match="is encrypted, and there are no keys: give keyFile, or set CAPTURE_KEYS"):
        await asyncio.to_thread(sequences_of, source())


async def test_options_that_do_not_go_with_an_archive_are_refused(source, nats_server, tiers):
    with pytest.raises(ConfigError, match="readBy is for reading a stream alone"):
        source(readBy="direct").reader(ENVELOPE)
    with pytest.raises(ConfigError, match="keyFile is for reading an archive"):
        source_of(nats_server, tiers.stream)(keyFile="keys").reader(ENVELOPE)


async def test_a_reader_of_micro_batches_is_refused_when_it_begins_since_spark_hides_an_earlier_error(
    source, nats_server, tiers
):
    with_archive = source().streamReader(ENVELOPE)
    with pytest.raises(ConfigError, match="a streaming query reads the stream alone"):
        with_archive.initialOffset()
    with_unknown_column = source_of(nats_server, tiers.stream)().streamReader(StructType().add("sequenc", LongType()))
    with pytest.raises(ConfigError, match="there is no column sequenc; did you mean sequence"):
        with_unknown_column.prepareForTriggerAvailableNow()


async def test_a_relative_path_of_an_archive_is_named_as_the_reason(nats_server, tiers, tmp_path):
    made = source_of(nats_server, tiers.stream)
    with pytest.raises(NoArchiveError, match=r"orders is relative to the working folder of Spark's processes"):
        await asyncio.to_thread(sequences_of, made(archive="orders"))
    with pytest.raises(NoArchiveError) as raised:
        await asyncio.to_thread(sequences_of, made(archive=str(tmp_path / "nothing")))
    assert "is relative to" not in str(raised.value)


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_a_tail_is_split_into_parts_that_are_the_whole(count):
    wanted = Sequences.from_iterable([1, 2, 3, 7, 8, 100, 2000])
    parts = list(split(wanted, count))
    assert len(parts) == min(count or 1, 7)
    assert Sequences.union_of(parts) == wanted
    assert sum(map(len, parts)) == len(wanted)
    assert list(split(Sequences(), count)) == []
