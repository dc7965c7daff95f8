"""Streams as a server returns them, message by message, for comparison before and after a restore."""

import asyncio
import json
import time

from archiving import store_all, sweep_once
from patient import PATIENCE

from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.restoring.past import Window
from capture.restoring.plan import Options
from capture.restoring.rebuild import prepare, restore_exactly
from capture.restoring.replay import rebuild_published
from capture.stores import open_store
from natty import NoRespondersError

AT_ONCE = 64
OWN, LEVEL = "_nats.", "_nats.req.level"
REPEATED = b"NATS/1.0\r\nColour: red\r\nColour: blue\r\nColour: \r\nEmpty:\r\nNot-Utf8: \xff\xfe\r\n\r\n"
LARGE = (1 << 20) - 200


async def info(natty, stream, **body):
    return await natty.jetstream.request(f"STREAM.INFO.{stream}", body or None)


async def dumped(natty, stream):
    """Return every message of a stream as STREAM.MSG.GET returns it, by sequence, and the stream's state."""
    state = (await info(natty, stream, deleted_details=True))["state"]
    deleted = Sequences.from_iterable(state.get("deleted") or [])
    there = iter(Sequences.from_range(max(1, state["first_seq"]), state["last_seq"]) - deleted)
    found = {}

    async def read():
        for sequence in there:
            answer = await natty.jetstream.request(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
            found[sequence] = answer["message"]

    await asyncio.gather(*(read() for _ in range(AT_ONCE)))
    told = {name: state.get(name) for name in ("messages", "bytes", "first_seq", "last_seq", "num_deleted", "deleted")}
    return told, dict(sorted(found.items()))


async def configured(natty, stream):
    """Return a stream's configuration without the server's additions, but with the API level that it needs."""
    return without_own((await info(natty, stream))["config"])


def without_own(config):
    metadata = config.get("metadata") or {}
    metadata = {name: value for name, value in metadata.items() if name == LEVEL or not name.startswith(OWN)}
    return {**config, "metadata": metadata}


async def positions(natty, stream):
    """Return the configuration and the ack floor of each consumer."""
    listed = (await natty.jetstream.request(f"CONSUMER.LIST.{stream}")).get("consumers") or []
    return {one["name"]: (without_own(one["config"]), place_of(one, "ack_floor")) for one in listed}


def place_of(consumer, name):
    return consumer[name]["consumer_seq"], consumer[name]["stream_seq"]


async def send(natty, subject, payload=b"", headers=b""):
    """Publish with raw headers, wait until the message is stored, and return its sequence.

    The servers of a cluster may learn of a new stream's subjects some time after it was made.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            answer = json.loads((await natty.connection.request(subject, payload, headers=headers))[3])
            break
        except NoRespondersError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
    assert "error" not in answer, answer
    return answer["seq"]


async def all_kinds(natty, name, **settings):
    """Create a stream with messages of every kind, and gaps of every kind."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_rollup_hdrs=True, **settings)
    await send(natty, f"{name}.a", b"purged")
    await send(natty, f"{name}.a", b"purged too")
    for number in range(6):
        await send(natty, f"{name}.b.{number}", b"%d" % number, REPEATED if number % 2 else b"")
    await send(natty, f"{name}.empty")
    await send(natty, f"{name}.binary", bytes(range(256)), REPEATED)
    await send(natty, f"{name}.large", bytes(range(256)) * (LARGE // 256))
    await send(natty, f"{name}.rolled", b"old")
    await send(natty, f"{name}.rolled", b"new", b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n")
    await send(natty, f"{name}.last", b"deleted tail")
    await natty.jetstream.request(f"STREAM.PURGE.{name}", {"seq": 3})


async def delete(natty, stream, *sequences):
    for sequence in sequences:
        await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})


async def read_some(natty, stream, durable, count):
    """Read and acknowledge `count` messages of a durable consumer; return their sequences."""
    pull, found = natty.pull(stream, durable, max_messages=1), []
    async with asyncio.timeout(PATIENCE):
        async for batch in pull:
            found += batch.sequences
            pull.ack(batch.replies)
            pull.finish(len(batch))
            if len(found) == count:
                pull.stop()
    async with asyncio.timeout(PATIENCE):
        while (await floor_of(natty, stream, durable)) < found[-1]:
            await asyncio.sleep(0.02)
    return found


async def floor_of(natty, stream, durable):
    """Return the sequence up to which a consumer has acknowledged every message."""
    return (await natty.jetstream.request(f"CONSUMER.INFO.{stream}.{durable}"))["ack_floor"]["stream_seq"]


class Capturing:
    """A stream and its archive in a folder; the test's process stores and sweeps."""

    def __init__(self, natty, stream, folder, **settings):
        self.natty, self.stream = natty, stream
        self.config = load(None, {"stream": stream, "store": str(folder / stream), **settings}, environment={})
        self.store = open_store(self.config.store)

    async def capture(self, **options):
        await store_all(self.natty, self.config, self.store, **options)
        await sweep_once(self.natty, self.config, self.store)


async def planned(natty, captured, **options):
    """Return the plan of a restore; `options` are settings of the window and all others."""
    window = Window(**{name: options.pop(name) for name in Window.__dataclass_fields__ if name in options})
    offline = options.pop("offline", False)
    return await prepare(natty, captured.config, captured.store, Options(window=window, **options), offline=offline)


async def restored(natty, captured, *, on_progress=None, **options):
    """Restore a stream; return the result."""
    plan = await planned(natty, captured, **options)
    carry_out = restore_exactly if plan.exact else rebuild_published
    return await carry_out(natty, plan, captured.store, captured.config.keys(), on_progress)
