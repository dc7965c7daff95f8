"""The data source against a real server, without Spark: what is missing was removed, or is lost."""

import asyncio
import logging

import pytest
from jetstream_ranges import WAYS, read, sequences_of, whole_range
from patient import FILLING, PATIENCE

from capture.errors import DataLossError
from capture.reading import direct_get
from capture.reading.direct_answers import list_sequences
from capture.reading.stream_range import stream_facts
from capture.spark.jetstream.ranges import RangeReader
from capture.spark.jetstream.readers import ENVELOPE


@pytest.mark.parametrize("way", WAYS)
async def test_messages_that_were_deleted_one_by_one_are_counted_and_no_loss(natty, stream, way):
    for sequence in (1, 7, 8, 20):
        await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
    reader = RangeReader(natty, await whole_range(natty, stream, first=2, last=20, direct=way == "direct"))
    assert await read(reader) == [2, 3, 4, 5, 6, *range(9, 20)]
    assert (reader.tally.read, reader.tally.deleted, reader.tally.lost) == (16, 3, 0)


@pytest.mark.parametrize("way", WAYS)
async def test_a_range_that_was_purged_before_it_was_read_is_named(natty, stream, way, caplog):
    wanted = await whole_range(natty, stream, direct=way == "direct")
    await natty.jetstream.request(f"STREAM.PURGE.{stream}", {"seq": 11})
    with pytest.raises(DataLossError, match=r"sequences 1–10 \(10\) were removed from the front.*failOnDataLoss"):
        await read(RangeReader(natty, wanted))
    reader = RangeReader(natty, wanted, fail=False)
    with caplog.at_level(logging.INFO, "capture.spark.jetstream"):
        assert await read(reader) == list(range(11, 21))
    assert (reader.tally.read, reader.tally.deleted, reader.tally.lost) == (10, 0, 10)
    assert "sequences 1–10 (10) were removed" in caplog.text
    assert "10 read, 10 lost, 0 not there" in caplog.text


@pytest.mark.parametrize("way", WAYS)
async def test_a_range_of_which_nothing_is_left_is_lost(natty, stream, way):
    wanted = await whole_range(natty, stream, direct=way == "direct")
    await natty.jetstream.request(f"STREAM.PURGE.{stream}")
    with pytest.raises(DataLossError, match=r"sequences 1–20 \(20\)"):
        await read(RangeReader(natty, wanted))
    reader = RangeReader(natty, wanted, fail=False)
    assert await read(reader) == []
    assert reader.tally.lost == 20


@pytest.mark.parametrize("way", WAYS)
async def test_a_front_that_overtakes_the_reader_is_noticed_where_it_does(natty, stream, way, monkeypatch):
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", 4)
    monkeypatch.setattr("capture.reading.stream_range.REQUEST_MESSAGES", 4)
    reader = RangeReader(natty, await whole_range(natty, stream, direct=way == "direct"), fail=False)
    found = []
    async for messages in reader:
        if not found:
            await natty.jetstream.request(f"STREAM.PURGE.{stream}", {"seq": 18})
        found += list_sequences(messages)
    assert found[-3:] == [18, 19, 20]
    assert found == sorted(set(found))
    assert (reader.tally.read, reader.tally.lost) == (len(found), 20 - len(found))
    assert reader.tally.deleted == 0
    assert reader.tally.lost > 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_gap_that_the_front_has_passed_is_not_taken_for_removed_messages(natty, stream, way, monkeypatch):
    async def overtaken(reader, asked=RangeReader._front):
        if reader.tally.read:  # an answer is there; what was in its gap, nobody can tell any more
            await natty.jetstream.request(f"STREAM.PURGE.{stream}", {"seq": 13})
        return await asked(reader)

    monkeypatch.setattr(RangeReader, "_front", overtaken)
    for sequence in (5, 6, 7, 10, 16, 17):
        await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
    wanted = await whole_range(natty, stream, direct=way == "direct")
    reader = RangeReader(natty, wanted, fail=False)
    assert await read(reader) == [1, 2, 3, 4, 8, 9, *range(11, 16), 18, 19, 20]
    assert (reader.tally.read, reader.tally.lost, reader.tally.deleted) == (14, 4, 2)


async def test_what_expires_in_the_middle_of_an_answer_is_lost_and_not_called_removed(natty, natty_name):
    name, rounds = natty_name("BRIEF"), 0
    await natty.create_stream(
        name, subjects=[name], allow_direct=True, allow_batched=True, max_age=1.0, storage="memory"
    )
    async with natty.publisher(name, **FILLING) as publisher:
        for _ in range(30_000):
            await publisher.publish(name, b"x")
    async with asyncio.timeout(PATIENCE):
        while (facts := await stream_facts(natty, name)).first < facts.last:
            reader = RangeReader(natty, await whole_range(natty, name, first=facts.first), fail=False)
            found = await read(reader)
            assert (reader.tally.read, reader.tally.deleted) == (len(found), 0)
            assert reader.tally.read + reader.tally.lost == facts.last - facts.first + 1
            rounds += 1
    assert rounds


async def test_messages_that_expire_while_they_are_read_are_accounted_for(natty, natty_name):
    name = natty_name("BRIEF")
    await natty.create_stream(name, subjects=[name], allow_direct=True, allow_batched=True, max_age=1.0)
    async with natty.publisher(name, **FILLING) as publisher:
        for _ in range(2000):
            await publisher.publish(name, b"x")
    reader = RangeReader(natty, await whole_range(natty, name, last=2000), fail=False)
    async with asyncio.timeout(PATIENCE):
        while (await stream_facts(natty, name)).first <= 2000:
            await asyncio.sleep(0.05)
    found = await read(reader)
    assert reader.tally.read == len(found)
    assert reader.tally.read + reader.tally.lost + reader.tally.deleted == 2000
    assert reader.tally.lost == 2000


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(natty, stream, way):
    wanted = await whole_range(natty, stream, direct=way == "direct")
    await natty.delete_stream(stream)
    await natty.create_stream(stream, subjects=[f"{stream}.>"], allow_direct=True)
    with pytest.raises(DataLossError, match="was deleted and created again while it was being read"):
        await read(RangeReader(natty, wanted, fail=False))


async def test_an_explicit_beginning_that_is_gone_is_an_error(natty, stream, source):
    await natty.jetstream.request(f"STREAM.PURGE.{stream}", {"seq": 5})
    with pytest.raises(DataLossError, match=r"sequences 2–4 .* omit startSequence"):
        await asyncio.to_thread(source(startSequence=2).reader(ENVELOPE).partitions)
    went_on = source(startSequence=2, failOnDataLoss=False)
    assert await asyncio.to_thread(sequences_of, went_on) == list(range(5, 21))
    assert await asyncio.to_thread(sequences_of, source()) == list(range(5, 21))
