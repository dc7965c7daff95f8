"""What is recorded of a real stream, and that it is enough to make the stream again."""

import asyncio
import base64
import json

import cramjam
import pytest
from patient import NEVER, PATIENCE, until
from restoring import read_some

from capture.archive import chain
from capture.archive.identity import claim
from capture.archive.manifest import ENTRIES, decode_entry
from capture.archive.recording import Recording, record
from capture.archive.sequences import Sequences
from capture.decoders import decoder
from capture.formats import read_object, writer
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.commit import Committer
from capture.ingest.pipeline import capture
from capture.ingest.source import Source
from capture.partitioners import partitioner
from capture.stores import MemoryStore
from capture.testing import HeadState, MemoryHead

NOW = 1_795_230_000.0
TTL = b"NATS/1.0\r\nNats-TTL: 1h\r\nColour: red\r\nColour: \xff\r\nEmpty:\r\n\r\n"


class Recorder:
    """Records the streams of an archive in memory as the sweep's leader does."""

    def __init__(self, natty):
        self.natty = natty
        self.store = MemoryStore("a")
        self.head = HeadState()
        self.now = NOW

    async def claim(self, stream):
        await claim(self.store, "orders", stream, (await info(self.natty, stream))["created"])

    async def record(self, of_manifest=0):
        """Record, and return the committed recording."""
        self.now += 10.0
        pointer, told = MemoryHead(1, self.head), {"archive": "orders", "grace": 900.0, "node": "node"}
        await record(self.store, pointer, self.natty, now=self.now, of_manifest=of_manifest, **told)
        return await chain.read(self.store, self.head.head, Recording)


@pytest.fixture
def recorder(natty):
    return Recorder(natty)


@pytest.fixture
async def stream(natty, natty_name, recorder):
    """The name of a stream of ten messages, some with headers and a time to live; it is claimed."""
    name = natty_name("recorded")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_msg_ttl=True, metadata={"who": "tests"})
    for number in range(1, 11):
        natty.connection.send(f"{name}.{number}".encode(), b"%d\xff" % number, headers=TTL if number % 3 == 0 else b"")
    await natty.connection.flush()
    async with asyncio.timeout(PATIENCE):
        while (await info(natty, name))["state"]["messages"] < 10:
            await asyncio.sleep(0.02)
    await recorder.claim(name)
    return name


async def info(natty, stream, **body):
    return await natty.jetstream.request(f"STREAM.INFO.{stream}", body or None)


def as_configured(config):
    """Without what a server adds of its own version where it tells of one consumer, and not where it lists them."""
    own = ("_nats.ver", "_nats.level")
    return config | {"metadata": {name: value for name, value in config["metadata"].items() if name not in own}}


async def delete(natty, stream, *sequences):
    for sequence in sequences:
        await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})


async def test_configuration_deleted_sequences_and_consumers_are_recorded_as_the_server_tells_them(
    natty, recorder, stream
):
    await delete(natty, stream, 3, 5, 6)
    await natty.ensure_consumer(stream, "reader", ack_wait=NEVER)
    assert await read_some(natty, stream, "reader", 3) == [1, 2, 4]
    ephemeral = {"stream_name": stream, "config": {"ack_policy": "explicit", "inactive_threshold": 300 * 10**9}}
    name = (await natty.jetstream.request(f"CONSUMER.CREATE.{stream}", ephemeral))["name"]
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"CONSUMER.INFO.{stream}.reader"))["ack_floor"]["stream_seq"] < 4:
            await asyncio.sleep(0.02)

    recording = await recorder.record()
    told, one = await info(natty, stream), recording.streams[stream]
    assert (recording.archive, recording.created, recording.leader) == ("orders", recorder.now, "node")
    assert (one.created, one.state) == (told["created"], told["state"])
    assert [(kept.config, kept.first_seq, kept.last_seq) for kept in one.configurations] == [(told["config"], 1, 10)]
    assert list(recording.find_deleted(stream)) == [3, 5, 6]
    assert set(one.consumers) == {"reader", name}
    assert [one.consumers[which].ephemeral for which in ("reader", name)] == [False, True]
    reader = await natty.jetstream.request(f"CONSUMER.INFO.{stream}.reader")
    assert as_configured(one.consumers["reader"].config) == as_configured(reader["config"])
    for kept, place in (
        (one.consumers["reader"].ack_floor, "ack_floor"),
        (one.consumers["reader"].delivered, "delivered"),
    ):
        assert (kept.consumer_seq, kept.stream_seq) == (reader[place]["consumer_seq"], reader[place]["stream_seq"])


async def test_what_was_deleted_stays_recorded_when_the_stream_has_moved_on_and_when_it_is_gone(
    natty, recorder, stream
):
    await delete(natty, stream, 3, 5)
    await recorder.record()
    await natty.jetstream.request(f"STREAM.PURGE.{stream}", {"seq": 7})  # messages 1 to 6 are gone
    await delete(natty, stream, 9)
    recording = await recorder.record()
    assert list(recording.find_deleted(stream)) == [3, 5, 9]
    assert recording.streams[stream].state["first_seq"] == 7

    await natty.delete_stream(stream)
    assert await recorder.record() == recording
    await natty.ensure_stream(stream, subjects=[f"{stream}.>"])  # another one of the same name
    assert await recorder.record() == recording


async def test_a_change_of_the_configuration_is_added_with_its_time(natty, recorder, stream):
    before = await recorder.record()
    config = (await info(natty, stream))["config"]
    changed = config | {"max_msgs": 1000}
    await natty.jetstream.request(f"STREAM.UPDATE.{stream}", changed)
    after = (await recorder.record()).streams[stream].configurations
    assert after[:1] == before.streams[stream].configurations
    assert (after[1].config["max_msgs"], after[1].since) == (1000, recorder.now)
    assert len(after) == 2


async def test_a_recording_is_never_of_an_earlier_manifest_than_the_one_before(natty, recorder, stream):
    for of_manifest, kept in ((7, 7), (3, 7), (8, 8)):
        await natty.publish(f"{stream}.more", b"")
        recording = await recorder.record(of_manifest)
        assert (recording.created, recording.of_manifest) == (recorder.now, kept)


async def test_a_sweep_of_many_consumers_asks_once_a_page_and_writes_nothing_when_nothing_has_changed(
    natty, recorder, stream, monkeypatch
):
    count = 1000
    slots = asyncio.Semaphore(64)

    async def create(number):
        config = {"durable_name": f"c{number}", "ack_policy": "explicit", "mem_storage": True}
        async with slots:
            body = {"stream_name": stream, "config": config}
            await natty.jetstream.request(f"CONSUMER.CREATE.{stream}.c{number}", body)

    await asyncio.gather(*(create(number) for number in range(count)))
    await delete(natty, stream, 5)
    asked, request = [], natty.jetstream.request

    async def counted(subject, *arguments, **options):
        asked.append(subject.split(".")[:2])
        return await request(subject, *arguments, **options)

    monkeypatch.setattr(natty.jetstream, "request", counted)
    assert len((await recorder.record()).streams[stream].consumers) == count
    assert asked == [["CONSUMER", "LIST"]] * 4 + [["STREAM", "INFO"]] * 2  # the second one for what is deleted
    objects = await recorder.store.list()
    asked.clear()
    await recorder.record()
    assert asked == [["CONSUMER", "LIST"]] * 4 + [["STREAM", "INFO"]]
    assert await recorder.store.list() == objects


# A restore, by hand: what the archive holds is enough for it.


async def captured(natty, stream, store, count):
    """Capture so many messages into the store."""
    await natty.ensure_consumer(stream, "capture", ack_wait=NEVER)
    async with Source(natty, stream, "capture", ack_wait=NEVER) as source:
        commit = Committer(store, writer("parquet"), source).commit
        blocks = OpenBlocks(Limits(interval=86_400))
        run = asyncio.create_task(capture(source, decoder("raw"), partitioner("time"), blocks, commit))
        await until(lambda: source.read >= count)
        source.stop()
        await run


def number(value):
    """An unsigned integer in seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def piece(name, content, time_ns=0, sequence=0, headers=b""):
    parts = number(len(name)) + number(2 * time_ns) + number(sequence) + number(len(headers)) + number(len(content))
    return parts + name + headers + content


def stream_archive(state, consumers, rows):
    pieces = [b"NATSARC1", piece(b"state.json", json.dumps(state | {"consumer_count": len(consumers)}).encode())]
    for name, one in consumers.items():
        floor = {"consumer_seq": one.ack_floor.consumer_seq, "stream_seq": one.ack_floor.stream_seq}
        content = {"config": one.config, "state": {"delivered": floor, "ack_floor": floor}}
        pieces.append(piece(f"consumers/{name}".encode(), json.dumps(content).encode()))
    for row in sorted(rows, key=lambda row: row["sequence"]):
        subject, headers = row["subject_raw"] or row["subject"].encode(), row["header_block"] or b""
        pieces.append(piece(subject, row["payload"], row["time_ns"], row["sequence"], headers))
    return bytes(cramjam.snappy.compress(b"".join([*pieces, piece(b"", b"")])))


async def dumped(natty, stream):
    """Everything that the server tells of a stream's messages, by their sequences."""
    state = (await info(natty, stream, deleted_details=True))["state"]
    deleted = Sequences.from_iterable(state.get("deleted") or [])
    there = Sequences.from_range(state["first_seq"], state["last_seq"]) - deleted
    return state, {
        sequence: (await natty.jetstream.request(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))["message"]
        for sequence in there
    }


async def test_the_archive_is_enough_to_make_the_stream_again_exactly_and_its_consumers_go_on(natty, recorder, stream):
    store = recorder.store
    await captured(natty, stream, store, 10)
    await natty.ensure_consumer(stream, "reader", ack_wait=NEVER)
    assert await read_some(natty, stream, "reader", 2) == [1, 2]
    await delete(natty, stream, 4, 7, 10)
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"CONSUMER.INFO.{stream}.reader"))["ack_floor"]["stream_seq"] < 2:
            await asyncio.sleep(0.02)
    recording = await recorder.record()
    state, messages = await dumped(natty, stream)
    assert b"Nats-TTL: 1h" in base64.b64decode(messages[3]["hdrs"])
    await natty.delete_stream(stream)

    record, deleted = recording.streams[stream], recording.find_deleted(stream)
    entries = [decode_entry(await store.get(one.path), one.path) for one in await store.list(ENTRIES)]
    rows = [row for one in entries for row in read_object(await store.get(one.path), one).to_pylist()]
    data = stream_archive(record.state, record.consumers, [row for row in rows if row["sequence"] not in deleted])
    body = {"config": record.configurations[-1].config, "state": record.state}
    subject = (await natty.jetstream.request(f"STREAM.RESTORE.{stream}", body))["deliver_subject"]
    for chunk in (data, b""):
        answer = (await natty.connection.request(subject, chunk))[3]
    assert "error" not in json.loads(answer)

    again, restored = await dumped(natty, stream)
    assert restored == messages
    for name in ("messages", "bytes", "first_seq", "first_ts", "last_seq", "deleted"):
        assert again[name] == state[name]
    assert (await info(natty, stream))["config"] == record.configurations[-1].config
    assert await read_some(natty, stream, "reader", 2) == [3, 5]
