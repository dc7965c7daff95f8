"""The data source against a real server, without Spark: what is read, what goes wrong meanwhile, micro-batches."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hostile import MALFORMED, publish_raw
from jetstream_ranges import WAYS, read, rows_of, sequences_of, whole_range
from patient import NEVER, PATIENCE, PATIENT, until
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from capture.errors import CaptureError, ConfigError, DataLossError
from capture.formats.envelope import SCHEMA
from capture.reading import direct_get
from capture.reading.direct_answers import is_message, list_sequences, take_until
from capture.spark.jetstream.ranges import RangeReader
from capture.spark.jetstream.readers import ENVELOPE
from natty import Batch, Natty
from natty.testing import NatsServer, ServerOptions


@pytest.mark.parametrize("way", WAYS)
async def test_messages_are_read_as_the_archive_keeps_them(source, stream, way):
    rows = await asyncio.to_thread(rows_of, source(readBy=way, partitions=3))
    assert [row["sequence"] for row in rows] == list(range(1, 21))
    assert [list(row) for row in rows[:1]] == [SCHEMA.names]
    assert (rows[0]["stream"], rows[0]["subject"], rows[0]["payload"]) == (stream, f"{stream}.1", b"message 1")
    assert rows[0]["header_block"] == b"NATS/1.0\r\nNats-Msg-Id: id-1\r\n\r\n"
    third = dict(rows[2]["headers"])
    assert third == {"Number": ["3"], "Nats-Stream": ["mine", "own"], "Nats-Msg-Id": ["id-3"]}
    assert [row["message_id"] for row in rows] == [f"id-{number}" for number in range(1, 21)]
    assert all(before["time_ns"] < after["time_ns"] for before, after in pairwise(rows))


async def test_both_ways_of_reading_bring_the_same(source):
    by_direct_get = await asyncio.to_thread(rows_of, source(readBy="direct"))
    assert by_direct_get == await asyncio.to_thread(rows_of, source(readBy="consumer"))


@pytest.mark.parametrize("way", WAYS)
async def test_a_subject_a_beginning_and_an_end_bound_what_is_read(source, stream, way):
    bounded = source(readBy=way, subject=f"{stream}.1", startSequence=4, endSequence=12, partitions=2)
    assert await asyncio.to_thread(sequences_of, bounded) == [5, 7, 9, 11]
    assert await asyncio.to_thread(sequences_of, source(readBy=way, subject=f"{stream}.9")) == []


async def test_a_time_is_where_it_begins(source, natty, stream):
    at = (await natty.jetstream.read(stream, sequence=15)).time
    assert await asyncio.to_thread(sequences_of, source(startTime=at[:26] + "Z" if len(at) > 27 else at)) == [
        *range(15, 21)
    ]
    assert await asyncio.to_thread(sequences_of, source(startTime=datetime(2100, 1, 1, tzinfo=UTC).isoformat())) == []


async def test_only_the_columns_of_a_schema_are_made(source):
    schema = type(ENVELOPE)([ENVELOPE["payload"], ENVELOPE["sequence"]])
    rows = await asyncio.to_thread(rows_of, source(), schema)
    assert rows[0] == {"payload": b"message 1", "sequence": 1}


async def test_a_stream_without_direct_get_is_read_by_a_consumer_that_is_gone_afterwards(natty, stream, source):
    await natty.ensure_stream(stream, allow_direct=False, allow_destructive=True)
    assert await asyncio.to_thread(sequences_of, source(partitions=2)) == list(range(1, 21))
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["consumer_count"]:
            await asyncio.sleep(0.05)
    with pytest.raises(ConfigError, match="set allow_direct on it, or omit readBy"):
        await asyncio.to_thread(source(readBy="direct").reader(ENVELOPE).partitions)


# --- what goes wrong meanwhile ---------------------------------------------------------------------------------------


async def test_requests_follow_one_another_until_the_end(natty, stream, monkeypatch):
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", 3)
    assert await read(RangeReader(natty, await whole_range(natty, stream))) == list(range(1, 21))
    monkeypatch.setattr(direct_get, "REQUEST_BYTES", 1)
    assert await read(RangeReader(natty, await whole_range(natty, stream, last=17))) == list(range(1, 18))


async def test_a_connection_that_is_lost_in_the_middle_costs_no_message(natty_proxy, stream, monkeypatch):
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", 4)
    monkeypatch.setattr(direct_get, "SILENCE", NEVER)  # the lost connection itself must have it asked for again
    monkeypatch.setattr(direct_get, "GIVE_UP", NEVER)
    async with asyncio.timeout(PATIENCE), Natty(**{**natty_proxy.options, **PATIENT}) as client:
        found = []
        async for messages in RangeReader(client, await whole_range(client, stream)):
            if len(found) in (4, 12):
                natty_proxy.hold()
                await asyncio.sleep(0.05)  # the next request is under way, and its answer held
                await natty_proxy.cut()
                natty_proxy.release()
                await natty_proxy.restore()
            found += list_sequences(messages)
        assert found == list(range(1, 21))
        await until(lambda: client.connection.reconnects >= 1)


@pytest.mark.parametrize("place", [0, 1, -2], ids=["the first", "one in the middle", "the last"])
async def test_an_answer_of_which_a_part_is_missing_is_asked_for_again(place, natty, stream, monkeypatch):
    whole, cut = direct_get.DirectGet._receive, []

    def lossy(self, batch):
        messages = list(batch.raw)
        if len(cut) < 3 and len(messages) > 2 and not is_message(messages[-1][2]):
            cut.append(messages.pop(place))
        whole(self, Batch(messages))

    monkeypatch.setattr(direct_get.DirectGet, "_receive", lossy)
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", 7)
    assert await read(RangeReader(natty, await whole_range(natty, stream))) == list(range(1, 21))
    assert cut


async def test_the_next_request_is_sent_before_an_answer_is_parsed(natty, stream, monkeypatch):
    make, sent = direct_get.DirectGet.make, []

    def note(self, *answer):
        sent.append((self._number, self._connection._out[:]))
        return make(self, *answer)

    monkeypatch.setattr(direct_get.DirectGet, "make", note)
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", 7)
    assert await read(RangeReader(natty, await whole_range(natty, stream))) == list(range(1, 21))
    assert sent == [(2, []), (3, []), (3, [])]  # and nothing waits to be written


@pytest.mark.parametrize("missing", [1, 10, 20])
async def test_answers_of_which_a_part_is_always_missing_are_no_missing_answers(missing, natty, stream, monkeypatch):
    whole, line = direct_get.DirectGet._receive, b"\r\nNats-Sequence: %d\r\n" % missing
    monkeypatch.setattr(
        direct_get.DirectGet,
        "_receive",
        lambda self, batch: whole(self, Batch([raw for raw in batch.raw if line not in raw[2]])),
    )
    monkeypatch.setattr(direct_get, "GIVE_UP", 0.5)
    with pytest.raises(
        CaptureError, match=f"for 0.5 s every answer to a direct get of stream {stream} lacked messages"
    ):
        _ = [rows async for rows in direct_get.DirectGet(natty, stream, 1, 20)]


async def test_a_message_that_leaves_the_stream_while_its_headers_are_looked_up_is_left_out(natty, stream, monkeypatch):
    await publish_raw(natty, f"{stream}.k".encode(), b"", MALFORMED[0])
    await natty.publish(f"{stream}.k", b"")

    async def gone(self, sequence):
        return None

    monkeypatch.setattr(direct_get.DirectGet, "_read_block", gone)
    direct = direct_get.DirectGet(natty, stream, 1, 22)
    assert [one async for rows in direct for one in list_sequences(rows)] == [*range(1, 21), 22]
    assert direct._number == 1


async def test_a_refusal_for_another_stream_ends_nothing(natty, stream):
    direct = direct_get.DirectGet(natty, stream, 1, 20)
    for name, ends in ((f"{stream}X", False), (stream, True)):
        direct._on_refusal(f'Permissions Violation for Publish to "$JS.API.DIRECT.GET.{name}"')
        assert direct._request.ended.is_set() == ends


async def test_an_answer_that_waits_for_a_slow_reader_is_not_requested_again(natty, stream, monkeypatch):
    monkeypatch.setattr(direct_get, "SILENCE", 0.5)
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", 7)
    direct, found = direct_get.DirectGet(natty, stream, 1, 20), []
    async for rows in direct:
        found += list_sequences(rows)
        await asyncio.sleep(1.0)
    assert found == list(range(1, 21))
    assert direct._number == 3


async def test_an_answer_that_does_not_come_is_asked_for_again(natty, stream, monkeypatch):
    send, swallowed = natty.connection.send, []

    def deaf(subject, data=b"", **more):
        if b".DIRECT.GET." in bytes(subject if isinstance(subject, bytes) else subject.encode()) and not swallowed:
            swallowed.append(data)
        else:
            send(subject, data, **more)

    monkeypatch.setattr(natty.connection, "send", deaf)
    monkeypatch.setattr(direct_get, "SILENCE", 0.2)
    assert await read(RangeReader(natty, await whole_range(natty, stream))) == list(range(1, 21))
    assert swallowed


async def test_a_replica_that_is_behind_is_waited_for(natty, stream, monkeypatch):
    """What it has not got yet is no deleted message: the leader is asked before the end is believed."""
    ask, behind = direct_get.DirectGet._ask, []

    async def lagging(self, position, sent=None):
        answer = await ask(self, position, sent)
        if answer is not None and len(behind) < 2:
            behind.append(position)
            return (
                answer._replace(messages=take_until(answer.messages, 12), last=12, pending=0) if position < 12 else None
            )
        return answer

    monkeypatch.setattr(direct_get.DirectGet, "_ask", lagging)
    reader = RangeReader(natty, await whole_range(natty, stream))
    assert await read(reader) == list(range(1, 21))
    assert len(behind) == 2
    assert reader.tally.deleted == 0


async def test_a_mirror_that_answers_for_the_stream_is_not_believed(natty, stream):
    """It may hold less: this one has no messages of odd numbers."""
    mirror = f"{stream}_COPY"
    await natty.create_stream(
        mirror, mirror={"name": stream, "filter_subject": f"{stream}.0"}, allow_direct=True, mirror_direct=True
    )
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{mirror}"))["state"]["messages"] < 10:
            await asyncio.sleep(0.05)
    for _ in range(10):
        assert await read(RangeReader(natty, await whole_range(natty, stream))) == list(range(1, 21))


async def test_a_stream_that_allows_no_direct_gets_any_more_is_read_by_a_consumer(natty, stream, monkeypatch):
    wanted = await whole_range(natty, stream)
    await natty.ensure_stream(stream, allow_direct=False, allow_destructive=True)
    monkeypatch.setattr(direct_get, "DOUBT", 0.1)
    async with asyncio.timeout(PATIENCE / 2):  # before GIVE_UP
        assert await read(RangeReader(natty, wanted)) == list(range(1, 21))


async def test_what_is_not_permitted_is_said(natty_name, tmp_path):
    config = """
        accounts { A { jetstream: enabled, users: [
          { user: all, password: all },
          { user: few, password: few, permissions: { publish: { deny: ["$JS.API.DIRECT.GET.>"] } } } ] } }
    """
    with NatsServer(ServerOptions(tls=False, config=config), folder=tmp_path) as server:
        async with Natty(server.url, user="all", password="all", **PATIENT) as natty:
            await natty.create_stream("S", subjects=["s"], allow_direct=True)
            await natty.publish("s", b"x")
        async with Natty(server.url, user="few", password="few", **PATIENT) as natty:
            with pytest.raises(CaptureError, match="not permitted"):
                await read(RangeReader(natty, await whole_range(natty, "S")))


# --- streaming, as Spark asks for it ---------------------------------------------------------------------------------


@pytest.fixture
def streaming(source):
    readers = []

    def make(**options):
        readers.append(source(**options).streamReader(ENVELOPE))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


async def test_micro_batches_follow_one_another_and_are_bounded(streaming):
    def run():
        reader = streaming(maxMessagesPerTrigger=8)
        assert reader.getDefaultReadLimit() == ReadMaxRows(8)
        at, found = reader.initialOffset(), []
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            parts = reader.partitions(at, end)
            assert reader.partitions(at, end) == parts, "the same again after a restart"
            found.append(
                [seq for part in parts for batch in reader.read(part) for seq in batch["sequence"].to_pylist()]
            )
            at = end
        return found, reader.reportLatestOffset()["next"], reader.latestOffset(at, ReadAllAvailable()) == at

    assert await asyncio.to_thread(run) == ([[*range(1, 9)], [*range(9, 17)], [*range(17, 21)]], 21, True)


async def test_available_now_ends_at_what_there_was(streaming, natty, stream):
    reader = streaming()
    at = await asyncio.to_thread(reader.initialOffset)
    await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
    await natty.publish(f"{stream}.1", b"later")
    end = await asyncio.to_thread(reader.latestOffset, at, ReadAllAvailable())
    assert end["next"] == 21
    assert await asyncio.to_thread(reader.latestOffset, end, ReadAllAvailable()) == end


async def test_available_now_ends_at_nothing_where_the_stream_never_held_a_message(streaming, natty, natty_name):
    name = natty_name("NEW")
    await natty.create_stream(name, subjects=[name], allow_direct=True)
    reader = streaming(stream=name)
    at = await asyncio.to_thread(reader.initialOffset)
    await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
    await natty.publish(name, b"later")
    assert await asyncio.to_thread(reader.latestOffset, at, ReadAllAvailable()) == at


async def test_a_checkpoint_that_is_behind_the_front_fails_or_goes_on(streaming, natty, stream):
    strict, lenient = streaming(), streaming(failOnDataLoss=False, maxMessagesPerTrigger=4)
    at = await asyncio.to_thread(strict.initialOffset)
    await natty.jetstream.request(f"STREAM.PURGE.{stream}", {"seq": 11})
    with pytest.raises(DataLossError, match=r"sequences 1–10 \(10\)"):
        await asyncio.to_thread(strict.latestOffset, at, ReadAllAvailable())
    end = await asyncio.to_thread(lenient.latestOffset, at, ReadMaxRows(4))
    assert end["next"] == 15
    [part] = await asyncio.to_thread(lenient.partitions, at, end)
    assert (part.first, part.last) == (11, 14)


async def test_an_empty_stream_is_read_when_something_comes(streaming, natty, stream):
    await natty.jetstream.request(f"STREAM.PURGE.{stream}")
    reader = streaming()
    at = await asyncio.to_thread(reader.initialOffset)
    assert at["next"] == 21
    assert await asyncio.to_thread(reader.latestOffset, at, ReadAllAvailable()) == at
    await natty.publish(f"{stream}.1", b"first")
    end = await asyncio.to_thread(reader.latestOffset, at, ReadAllAvailable())
    [part] = await asyncio.to_thread(reader.partitions, at, end)
    [batch] = await asyncio.to_thread(list, reader.read(part))
    assert batch["payload"].to_pylist() == [b"first"]
