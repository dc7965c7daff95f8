"""From a real stream into blocks of every format: what the server stored is what comes back, byte for byte."""

import asyncio
import base64
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from archiving import compacted, sweep_once
from patient import NEVER, PATIENCE
from secret import write_secret

from capture.archive.encryption import Keys
from capture.archive.manifest import BLOCKS, ENTRIES, TABLE, decode_entry
from capture.config.load import load
from capture.decoders import decoder, json_as, keyed
from capture.formats import read_object, writer
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.commit import Committer
from capture.ingest.pipeline import capture
from capture.ingest.source import Source
from capture.node.node import Node
from capture.partitioners import partitioner
from capture.reading.read import read
from capture.stores import MemoryStore, open_store
from capture.verification.check import check

HEADERS = b"NATS/1.0\r\nNats-TTL: 1h\r\nNats-Msg-Id: id-1\r\nColour: red\r\nColour: \xff\xfe\r\nEmpty:\r\n\r\n"
LARGE = 1 << 19
KEYS = Keys({"of the test": os.urandom(32)})


@pytest.fixture
async def stream(natty, natty_name):
    """The name of a stream of messages of every kind, which permits a time to live for each."""
    name = natty_name("odd")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_msg_ttl=True)
    begin = name.encode()
    for subject, headers, payload in (
        (b".plain", b"", b'{"total":1}'),
        (b".ttl", HEADERS, b'{"total":2}'),
        (b".\xff\xfe", b"", b'{"total":3}'),
        (".ä".encode(), b"NATS/1.0\r\n\r\n", b""),
        (b".large", b"", bytes(range(256)) * (LARGE // 256)),
        (b".binary", b"", b"\x00\xff{"),
    ):
        natty.connection.send(begin + subject, payload, headers=headers)
    await natty.connection.flush()
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{name}"))["state"]["messages"] < 6:
            await asyncio.sleep(0.02)
    await natty.ensure_consumer(name, "capture", ack_wait=NEVER, max_ack_pending=1000)
    return name


async def captured(natty, stream, wanted, decode, partition_by="time"):
    """Capture the whole stream, and return the stored objects with their entries."""
    store = MemoryStore()
    async with Source(natty, stream, "capture", ack_wait=NEVER) as source:
        commit = Committer(store, wanted, source).commit
        blocks = OpenBlocks(Limits(interval=86_400))
        run = asyncio.create_task(capture(source, decode, partitioner(partition_by), blocks, commit))
        async with asyncio.timeout(PATIENCE):
            while source.read < 6:
                await asyncio.sleep(0.01)
        source.stop()
        await run
    async with asyncio.timeout(PATIENCE):
        while (await consumer(natty, stream))["ack_floor"]["stream_seq"] < 6:
            await asyncio.sleep(0.02)
    assert (await consumer(natty, stream))["num_redelivered"] == 0
    entries = [decode_entry(await store.get(one.path), one.path) for one in await store.list(ENTRIES)]
    assert len(entries) == len(await store.list(BLOCKS))
    return [(await store.get(entry.path), entry) for entry in sorted(entries, key=lambda entry: entry.first)]


async def consumer(natty, stream):
    return await natty.jetstream.request(f"CONSUMER.INFO.{stream}.capture")


async def stored_by_the_server(natty, stream, sequence):
    """What the server itself says of a message: raw headers, payload, and its time to the nanosecond."""
    message = (await natty.jetstream.request(f"STREAM.MSG.GET.{stream}", {"seq": sequence}))["message"]
    return base64.b64decode(message.get("hdrs", "")), base64.b64decode(message.get("data", "")), message["time"]


def nanoseconds(time):
    """The fraction of a second in the server's RFC 3339, which leaves zeros at the end out."""
    return int(time.removesuffix("Z").partition(".")[2].ljust(9, "0"))


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
@pytest.mark.parametrize(("name", "compression"), [("parquet", ""), ("ndjson", "zstd"), ("raw", "snappy")])
async def test_a_block_holds_what_the_server_stored_byte_for_byte(natty, stream, name, compression, keys):
    wanted = writer(name, compression=compression, keys=keys)
    [(data, entry)] = await captured(natty, stream, wanted, decoder("raw"))
    assert not (keys and any(text in data for text in (b"Colour", b"total", bytes(range(256)))))
    rows = read_object(data, entry, keys).to_pylist()
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        headers, payload, time = await stored_by_the_server(natty, stream, row["sequence"])
        assert (row["header_block"] or b"", row["payload"], row["stream"]) == (headers, payload, stream)
        assert row["time_ns"] % 10**9 == nanoseconds(time)
    assert rows[1]["header_block"] == HEADERS
    assert dict(rows[1]["headers"])["Nats-TTL"] == ["1h"]
    assert rows[1]["message_id"] == "id-1"
    assert [row["subject_raw"] for row in rows] == [None, None, stream.encode() + b".\xff\xfe", None, None, None]
    assert rows[3]["subject"] == f"{stream}.ä"


class Order(msgspec.Struct):
    total: int


async def test_what_is_not_of_its_type_is_stored_marked_and_acknowledged(natty, stream):
    wanted = writer("parquet", decode=json_as(Order))
    good, bad = sorted(await captured(natty, stream, wanted, json_as(Order)), key=lambda one: one[1].key != "all")
    assert read_object(*good)["total"].to_pylist() == [1, 2, 3]
    rows = read_object(*bad).to_pylist()
    assert (bad[1].key, [row["sequence"] for row in rows]) == ("_undecodable", [4, 5, 6])
    assert all(row["error"] and row["total"] is None for row in rows)
    assert rows[2]["payload"] == b"\x00\xff{"


@dataclass(frozen=True)
class Kind:
    kind: str
    large: bool


@keyed
def by_kind(message):
    return message.data, Kind(message.raw[0].rpartition(b".")[2].decode("utf-8", "replace"), len(message.data) > 1000)


async def test_a_key_of_several_fields_becomes_folders(natty, stream):
    found = await captured(natty, stream, writer("raw"), by_kind, "decoder")
    folders = [entry.path.split("/date=")[0] for _, entry in found]
    assert folders == [
        f"blocks/stream={stream}/kind={kind}"
        for kind in (
            "plain/large=false", "ttl/large=false", "%EF%BF%BD%EF%BF%BD/large=false", "%C3%A4/large=false",
            "large/large=true", "binary/large=false",
        )
    ]  # fmt: skip


async def test_a_node_encrypts_what_its_configuration_says_and_the_rest_needs_the_key(fleet):
    key_file = fleet.folder / "keys"
    secret = base64.b64encode(os.urandom(32)).decode()
    write_secret(key_file, f"one:{secret}\n")
    chosen = {"format": "raw", "compression": "zstd", "encrypt": True, "key_file": str(key_file)}
    config = fleet.configure(limits__max_age=0.5, **chosen)
    node = fleet.start("node-1", config)
    await fleet.publish([b'{"n": %d}' % number for number in range(30)])
    await fleet.until_all_acked(30)
    assert await fleet.stop(node) == 0
    store = open_store(str(fleet.store))
    blocks = await store.list(BLOCKS)
    assert {"".join(Path(one.path).suffixes) for one in blocks} == {".raw.zst.enc"}

    sound = await check(fleet.natty, load(config, environment={}), store, deep=True)
    assert sound.ok
    assert sound.sentence().startswith("30 stored")
    await sweep_once(fleet.natty, load(config, environment={}), store)
    report = await compacted(fleet, load(config, environment={}))
    assert (report.rows_in, report.failed) == (30, [])
    assert {"".join(Path(one.path).suffixes) for one in await store.list(TABLE)} == {".parquet.enc"}
    key_file.write_text(f"two:{base64.b64encode(bytes(32)).decode()}\n")
    closed = await check(fleet.natty, load(config, environment={}), store, deep=True)
    assert not closed.ok
    assert "can't be opened: it is encrypted with the key 'one'; the given ones are Keys(two)" in closed.sentence()
    assert secret not in "".join(path.read_text() for path in fleet.folder.glob("*.log"))


@pytest.mark.parametrize("envelope", ["nested", "columns", "none"])
async def test_payloads_that_are_not_json_cost_no_message_of_a_decoder_that_passes_them_on_as_json(
    fleet, monkeypatch, envelope
):
    payloads = [
        b'{"a":1}', b"not json", b"", b"\xff", b'1,"sequence":1', b'1,"payload":"EVIL","subject":"forged"',
        b'"x"}\r{"stream":"S"', b'{"a":\r2}', b'{"a":1}\n{"b":2}', b"[" * 900 + b"]" * 900,
    ]  # fmt: skip
    monkeypatch.setattr("capture.testing.raw_json", lambda message: msgspec.Raw(message.data), raising=False)
    config = load(
        fleet.configure(
            decoder="capture.testing:raw_json",
            format="ndjson",
            envelope=envelope,
            partition="time",
            limits__max_age=0.2,
        )
    )
    node = Node(config)
    running = asyncio.create_task(node.run())
    try:
        await fleet.until(lambda state: True)
        await fleet.publish(payloads)
        await fleet.until_all_acked(len(payloads))
    finally:
        node.stop()
        await running
    verdict = (await check(fleet.natty, config, node.store, deep=True)).verdict
    good = 2 if envelope == "none" else len(payloads)
    assert (verdict.ok, len(verdict.stored), len(verdict.undecodable)) == (True, good, len(payloads) - good), verdict
    if envelope == "none":
        entries = [decode_entry(await node.store.get(one.path), one.path) for one in await node.store.list(ENTRIES)]
        whole = [one for one in entries if one.key == "_undecodable"]
        rows = [row for one in whole for row in read_object(await node.store.get(one.path), one).to_pylist()]
        assert sorted(row["payload"] for row in rows) == sorted(set(payloads) - {payloads[0], payloads[7]})
    else:
        found = [message async for message in read(config)]
        assert [message.payload for message in found] == payloads
        assert not any(message.subject == "forged" for message in found)
