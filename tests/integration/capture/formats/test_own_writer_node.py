"""The writer of docs/extending.md, a module of the user: under a real node, and under the commands that read blocks."""

import asyncio
import json
import logging
import os
import subprocess
import sys

import cramjam
import msgspec
import pytest
from own_code import write_module

from capture.archive.manifest import BLOCKS
from capture.config.load import load
from capture.errors import NotDrainedError
from capture.node.node import Node
from capture.stores import open_store

MESSAGES = 1000
READING = (
    ("cat",),
    ("sql", "SELECT count(*) FROM messages"),
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    folder = write_module(tmp_path / "modules", "msgpack_blocks")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    yield folder
    sys.modules.pop("msgpack_blocks", None)


async def capture(*arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CAPTURE_", "NATS_"))}
    command = [sys.executable, "-m", "capture", *map(str, arguments)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done


async def objects_in(store, ending):
    """Return the bytes of all blocks whose name ends so."""
    paths = [one.path for one in await store.list(BLOCKS) if one.path.endswith(ending)]
    return [bytes(cramjam.zstd.decompress(await store.get(path))) for path in paths]


async def rows_in(store):
    undecodable = [json.loads(line) for one in await objects_in(store, ".ndjson.zst") for line in one.splitlines()]
    assert {(row["payload"], row["error"].partition(":")[0]) for row in undecodable} == {("{", "DecodeError")}
    decoded = await objects_in(store, ".msgpack.zst")
    assert len(await store.list(BLOCKS)) == len(decoded) + len(undecodable)
    return [row for one in decoded for row in msgspec.msgpack.decode(one)]


@pytest.mark.long
async def test_a_node_with_a_users_writer_stores_every_message_and_each_command_says_what_it_can_not_do(fleet, module):
    settings = {"format": "msgpack_blocks:MessagePack", "compression": "zstd", "compaction__min_files": 1}
    config = fleet.configure(ack_wait=3.0, limits__max_age=0.3, compaction__max_wait=0.0, **settings)
    said = await capture("config", "check", "--config", config)
    assert said.returncode == 0, said.stderr
    assert (
        "note: blocks are msgpack_blocks:MessagePack: messages are not stored whole: `capture restore`" in said.stdout
    )
    assert "note: blocks are msgpack_blocks:MessagePack: the compaction leaves these objects as they are" in said.stdout
    nodes = [fleet.start(name, config) for name in ("a", "b")]
    await fleet.publish([b'{"n":%d}' % number for number in range(MESSAGES // 2)])
    await fleet.until(lambda state: state["ack_floor"]["stream_seq"] > 0)
    nodes[0].kill()
    await fleet.publish([b'{"n":%d}' % number for number in range(MESSAGES // 2, MESSAGES - 1)] + [b"{"])
    await fleet.until_all_acked(MESSAGES)
    assert await fleet.stop(nodes[1]) == 0
    rows = await rows_in(open_store(str(fleet.store)))
    assert {row["value"]["n"] for row in rows} == set(range(MESSAGES - 1))
    verified = await capture("verify", "--config", config, "--deep", "--json")
    verdict = json.loads(verified.stdout)
    assert (verified.returncode, verdict["stored"], verdict["undecodable"]) == (0, MESSAGES - 1, 1), verdict
    assert verdict["missing"] == 0
    assert "1 undecodable and kept raw" in (await capture("verify", "--config", config)).stdout
    swept = await capture("sweep", "--config", config)  # the killed node led the sweep, and the other may not have yet
    assert swept.returncode == 0, swept.stderr
    assert ".msgpack.zst" in (await capture("ls", "--config", config)).stdout
    assert fleet.stream in (await capture("status", "--config", config)).stdout
    compacted = await capture("compact", "--config", config)
    assert compacted.returncode == 0, compacted.stderr
    store = open_store(str(fleet.store))
    assert await objects_in(store, ".msgpack.zst"), "these blocks stay as they are"
    for command in READING:
        refused = await capture(*command, "--config", config)
        assert refused.returncode != 0, command
        assert "own-msgpack" in refused.stderr or "whole" in refused.stderr, (command, refused.stderr)
    restored = await capture("restore", "--as", f"{fleet.stream}-copy", "--detached", "--config", config)
    assert "not keep messages whole" in restored.stdout, restored
    copy = (await fleet.natty.jetstream.request(f"STREAM.INFO.{fleet.stream}-copy"))["state"]
    assert (copy["messages"], copy["first_seq"]) == (1, MESSAGES), "the undecodable one, which was the last"
    purged = await capture("purge", "--captured", "--config", config)
    assert "sequence 1 is only in a block that does not keep messages whole (own-msgpack)" in purged.stdout, purged
    assert (await fleet.natty.jetstream.request(f"STREAM.INFO.{fleet.stream}"))["state"]["messages"] == MESSAGES, purged
    damaged = next(fleet.store.rglob("*.msgpack.zst"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert "SHA-256" in (await capture("verify", "--config", config, "--deep")).stdout


class Picky:
    """A writer that fails on a message once, as one with a fault that is then mended."""

    format = "picky"
    failed = 0

    def __init__(self, fault):
        self._fault = fault

    def write(self, block):
        if b"bad" in block.records.payloads and not self.failed:
            self.failed += 1
            raise self._fault("this one is bad")
        return b"\n".join(block.records.payloads)


@pytest.mark.parametrize("fault", [ValueError, asyncio.CancelledError, GeneratorExit, SystemExit])
async def test_messages_that_a_users_writer_can_not_write_are_handed_back_and_stored_later(fleet, caplog, fault):
    settings = {"decoder": "raw", "partition": "time", "limits__max_age": 0.2, "redeliver_after": [0.1]}
    picky = Picky(fault)
    node = Node(load(fleet.configure(**settings)), writer=picky)
    running = asyncio.create_task(node.run())
    try:
        await fleet.until(lambda state: True)
        await fleet.publish([b"good", b"bad", b"good"])
        await fleet.until_all_acked(3)
    finally:
        node.stop()
        await running
    assert picky.failed == 1
    assert "the writer Picky failed on" in caplog.text
    faults = [one for one in caplog.records if one.__dict__.get("action") == "writer_failed"]
    assert len(faults) == 1  # with the line of the writer that raised
    assert 'raise self._fault("this one is bad")' in logging.Formatter().format(faults[0])
    assert f"could not be stored in {node.store.url}" not in caplog.text  # it is no fault of the store
    assert f"{fault.__name__}: this one is bad. None of them was acknowledged" in caplog.text
    stored = [one for one in await node.store.list(BLOCKS) if one.path.endswith(".picky")]
    lines = b"\n".join([await node.store.get(one.path) for one in stored]).split(b"\n")
    assert sorted(lines) == [b"bad", b"good", b"good"]


TRANSLATED = '''
"""A literal translation of a writer of decoded values: it skips what has none."""
import json
from capture.decoders import values_of

class Values:
    format = "values"
    def __init__(self, decode):
        self._decode = decode
    def write(self, block):
        return b"".join(json.dumps(one).encode() for one in values_of(block.records, self._decode) if one is not None)
'''


@pytest.mark.long
async def test_a_users_writer_that_skips_messages_without_a_value_loses_none(fleet, tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "translated.py").write_text(TRANSLATED)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    config = fleet.configure(format="translated:Values", limits__max_age=0.2)
    said = await capture("config", "check", "--config", config)
    assert (said.returncode, "note: `check_writer` finds a fault in translated:Values: " in said.stdout) == (0, True)
    payloads = [b'{"n":1}', b"{", b"null", b"", b'{"n":2}']
    node = Node(load(config))
    running = asyncio.create_task(node.run())
    try:
        await fleet.until(lambda state: True)
        await fleet.publish(payloads)
        await fleet.until_all_acked(len(payloads))
    finally:
        node.stop()
        await running
    stored = {one.path: await node.store.get(one.path) for one in await node.store.list(BLOCKS)}
    assert all(stored.values()), "no object is empty"
    values = b"".join(data for path, data in sorted(stored.items()) if path.endswith(".values"))
    assert sorted(values.split(b"}")) == [b"", b'{"n": 1', b'{"n": 2']
    lines = b"".join(data for path, data in stored.items() if path.endswith(".ndjson")).splitlines()
    assert sorted(json.loads(line)["payload"] for line in lines) == ["", "null", "{"]
    verified = await capture("verify", "--config", config, "--deep")
    assert verified.stdout.startswith("2 stored, 3 undecodable and kept raw, "), verified


async def test_a_writer_that_writes_nothing_stores_and_acknowledges_nothing(fleet, caplog):
    class Nothing:
        format = "nothing"

        def write(self, block):
            return b""

    settings = {"decoder": "raw", "partition": "time", "limits__max_age": 0.2, "redeliver_after": [60.0]}
    node = Node(load(fleet.configure(**settings)), writer=Nothing())
    running = asyncio.create_task(node.run())
    try:
        await fleet.until(lambda state: True)
        await fleet.publish([b"a", b"b"])
        await fleet.until(lambda state: "returned no bytes for" in caplog.text)
        await fleet.until(lambda state: (state["num_ack_pending"], state["ack_floor"]["stream_seq"]) == (2, 0))
    finally:
        node.stop()
        with pytest.raises(NotDrainedError, match="2 of the messages that were read could not be stored"):
            await running
    assert await node.store.list(BLOCKS) == []
