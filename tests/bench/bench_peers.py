"""natty and capture beside nats-py, natsrpy and a peer: `python tests/bench/bench_peers.py [rounds] [peer]`.

Every path runs in a process of its own, in turn with the others, at three sizes of payload, plain and over mutual TLS.
The stream is on disk. Figures are medians of the rounds: messages a second, µs of CPU a message of the client (all
threads) and of the server, payload megabytes for each second of a core that both use, and the ratio of messages a
second to the peer's. natsrpy has no settings for TLS, so it is measured only without.

`peer` is a program, e.g. one that uses nats.go's PublishAsync and Consume, and jet-capture's memory and disk buffers:

    PROGRAM publish URL CA CERT KEY STREAM SUBJECT BYTES MESSAGES
    PROGRAM consume URL CA CERT KEY STREAM DURABLE BYTES MESSAGES explicit|all
    PROGRAM capture URL CA CERT KEY STREAM DURABLE BYTES MESSAGES memory|disk FOLDER BLOCK

CA, CERT and KEY are "" without TLS. The first two print {"wall": seconds, "cpu": seconds}. The third stores blocks of
BLOCK messages by subject, acks these, and is killed then.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import bench_capture
import nats
import natsrpy
from bench_table import Took, loops, print_machine, print_table, stopwatch
from nats.aio.client import Client

from natty import Message, Natty
from natty.config import tls
from natty.testing import NatsServer, ServerOptions, find_server, server_version

ROUNDS = 3
MESSAGES = {128: 300_000, 1024: 200_000, 16_384: 20_000}  # by the bytes of a payload
SLOW = 10  # clients that await each message get one of so many
BLOCKS = {128: 10_000, 1024: 5_000, 16_384: 500}  # messages of a block: ten fit in half of `max_open_bytes`
SUBJECTS, TASKS, FETCH = 10, 1000, 1000
QUIET = 1.0  # seconds without an ack, after which a peer is done
STREAM, DURABLE = bench_capture.STREAM, bench_capture.DURABLE
BATCHES = {128: 5_000, 1024: 5_000, 16_384: 1_000}  # messages that a peer's capture may request at once
PEER = "peer"


class Access(NamedTuple):
    """How a client reaches the server; the files' names are "" without TLS."""

    url: str
    ca: str
    cert: str
    key: str

    def natty(self) -> Natty:
        return Natty(self.url, tls_ca=self.ca, tls_cert=self.cert, tls_key=self.key)

    async def nats_py(self) -> Client:
        context = tls.client_context(ca=self.ca, cert=self.cert, key=self.key) if self.ca else None
        return await nats.connect(self.url, tls=context)


Work = Callable[[Access, int, int], Awaitable[Took]]  # with the bytes of a payload, and the number of messages


def publisher(path: str) -> Work:
    async def work(access: Access, size: int, messages: int) -> Took:
        payload = os.urandom(size)
        async with access.natty() as natty:
            with stopwatch(messages) as took:
                async with natty.publisher(STREAM, path=path) as opened:
                    for _ in range(messages):
                        await opened.publish("bench.s0", payload)
        return took

    return work


async def publish_by_nats_py(access: Access, size: int, messages: int) -> Took:
    client, payload = await access.nats_py(), os.urandom(size)
    jetstream = client.jetstream(publish_async_max_pending=4000)
    with stopwatch(messages) as took:
        for _ in range(messages):
            await jetstream.publish_async("bench.s0", payload)
        await jetstream.publish_async_completed()
    await client.close()
    return took


async def publish_by_natsrpy(access: Access, size: int, messages: int) -> Took:
    client, payload = natsrpy.Nats([access.url]), os.urandom(size)
    await client.startup()
    jetstream = await client.jetstream()

    async def publish() -> None:
        for _ in range(messages // TASKS):
            await jetstream.publish("bench.s0", payload, wait=True)

    with stopwatch(messages) as took:
        await asyncio.gather(*(publish() for _ in range(TASKS)))
    await client.shutdown()
    return took


def puller(ack: str) -> Work:
    async def work(access: Access, size: int, messages: int) -> Took:
        async with access.natty() as natty:
            pull, left = natty.pull(STREAM, DURABLE), messages
            with stopwatch(messages) as took:
                async with aclosing(pull.__aiter__()) as batches:
                    async for batch in batches:
                        left -= len(batch)
                        pull.ack(batch.replies if ack == "explicit" else batch.replies[-1:])
                        pull.finish(len(batch))
                        if not left:
                            pull.stop()
                await natty.connection.flush()
        return took

    return work


async def handle(access: Access, size: int, messages: int) -> Took:
    left = messages

    async def handler(message: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            consumption.stop()

    async with access.natty() as natty:
        consumption = natty.consume(STREAM, DURABLE, handler)
        with stopwatch(messages) as took:
            await consumption
    return took


async def fetch_by_nats_py(access: Access, size: int, messages: int) -> Took:
    client, left = await access.nats_py(), messages
    subscription = await client.jetstream().pull_subscribe_bind(DURABLE, stream=STREAM)
    with stopwatch(messages) as took:
        while left:
            fetched = await subscription.fetch(min(FETCH, left), timeout=10)
            left -= len(fetched)
            for message in fetched:
                await message.ack()
        await client.flush()
    await client.close()
    return took


async def fetch_by_natsrpy(access: Access, size: int, messages: int) -> Took:
    client, left = natsrpy.Nats([access.url]), messages
    await client.startup()
    stream = await (await client.jetstream()).streams.get(STREAM)
    consumer = await stream.consumers.get_pull(DURABLE)
    with stopwatch(messages) as took:
        while left:
            fetched = await consumer.fetch(max_messages=min(FETCH, left), timeout=10)
            left -= len(fetched)
            await asyncio.gather(*(message.ack() for message in fetched))
        await client.flush()
    await client.shutdown()
    return took


class Way(NamedTuple):
    """One way to do something: what does it (none: the peer), how many messages it gets, and the consumer's acks."""

    work: Work | None = None
    share: int = 1
    ack: str = "explicit"
    only_plain: bool = False


PUBLISH = {
    "natty, fast ingest": Way(publisher("fast")),
    "natty, window": Way(publisher("window")),
    "nats-py publish_async": Way(publish_by_nats_py, SLOW),
    f"natsrpy publish, {TASKS} tasks": Way(publish_by_natsrpy, SLOW, only_plain=True),
    PEER: Way(),
}
CONSUME = {
    "natty pull, acks": Way(puller("explicit")),
    "natty handler, acks": Way(handle),
    f"nats-py fetch({FETCH}), acks": Way(fetch_by_nats_py, SLOW),
    f"natsrpy fetch({FETCH}), acks": Way(fetch_by_natsrpy, SLOW, only_plain=True),
    PEER: Way(),
    "natty pull, ack all": Way(puller("all"), ack="all"),
    f"{PEER}, ack all": Way(ack="all"),
}
CAPTURE = {
    "capture, NDJSON": bench_capture.Run("ndjson"),
    "capture, NDJSON, ack all": bench_capture.Run("ndjson", ack="all"),
    "capture, Parquet": bench_capture.Run("parquet"),
    f"{PEER}, memory": bench_capture.Run("memory"),
    f"{PEER}, disk": bench_capture.Run("disk"),
}
WORK = {name: path.work for paths in (PUBLISH, CONSUME) for name, path in paths.items() if path.work}


@dataclass
class Figure:
    """What one run took, for each message: seconds, of the client's CPU and of the server's."""

    wall: float
    client: float
    server: float


class Bench:
    """The runs against one server. `peer` is the program, or ""."""

    def __init__(self, server: NatsServer, natty: Natty, peer: str) -> None:
        files = server.tls_files
        names = (files.ca, files.client_cert, files.client_key) if files else ("", "", "")
        self.access = Access(server.url, *map(str, names))
        self.server, self.natty, self.peer = server, natty, peer

    def plays(self, name: str, way: Way | bench_capture.Run) -> bool:
        """Whether this path can be measured here."""
        if name.startswith(PEER):
            return bool(self.peer)
        return not (isinstance(way, Way) and way.only_plain and self.access.ca)

    async def publish(self, name: str, path: Way, size: int) -> Figure:
        messages = MESSAGES[size] // path.share
        await self.natty.ensure_stream(STREAM, subjects=["bench.>"], allow_batched=True)
        figure = await self._run("publish", name, path, [STREAM, "bench.s0", str(size), str(messages)])
        stored = (await self.natty.jetstream.request(f"STREAM.INFO.{STREAM}"))["state"]["messages"]
        if stored != messages:
            raise RuntimeError(f"the figures would be worthless: {stored} of {messages} messages are stored")
        await self.natty.delete_stream(STREAM)
        return figure

    async def consume(self, name: str, path: Way, size: int) -> Figure:
        messages = MESSAGES[size] // path.share
        await self.natty.ensure_consumer(STREAM, DURABLE, ack_policy=path.ack, **bench_capture.CONSUMER)
        figure = await self._run("consume", name, path, [STREAM, DURABLE, str(size), str(messages), path.ack])
        await bench_capture.until(self.natty, lambda state: state["ack_floor"]["stream_seq"] >= messages)
        await self.natty.delete_consumer(STREAM, DURABLE)
        return figure

    async def _run(self, what: str, name: str, path: Way, words: list[str]) -> Figure:
        program = [sys.executable, __file__, "work", name] if path.work else [self.peer, what]
        before = self._server_cpu()
        process = await asyncio.create_subprocess_exec(*program, *self.access, *words, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{name} ended with status {process.returncode}")
        took, messages = json.loads(out), int(words[3])
        return Figure(took["wall"] / messages, took["cpu"] / messages, (self._server_cpu() - before) / messages)

    async def capture(self, name: str, run: bench_capture.Run, size: int) -> Figure:
        messages, before = MESSAGES[size], self._server_cpu()
        if name.startswith(PEER):
            took = await self._capture_by_peer(run.form, size, messages)
            messages = took.messages
        else:
            bench_capture.BLOCK = BLOCKS[size]
            took, _, blocks, _ = await bench_capture.captured(self.natty, self.server, messages, run)
            if blocks != messages // BLOCKS[size]:
                raise RuntimeError(f"the figures would be worthless: of {blocks} blocks some waited for `max_age`")
        return Figure(took.wall / messages, took.cpu / messages, (self._server_cpu() - before) / messages)

    async def _capture_by_peer(self, buffers: str, size: int, messages: int) -> Took:
        await self.natty.ensure_consumer(STREAM, DURABLE, max_batch=BATCHES[size], **bench_capture.CONSUMER)
        with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder:
            words = [STREAM, DURABLE, str(size), str(messages), buffers, folder, str(BLOCKS[size])]
            process = subprocess.Popen([self.peer, "capture", *self.access, *words], stderr=subprocess.DEVNULL)
            await bench_capture.until(self.natty, lambda state: state["delivered"]["stream_seq"] > 0, [process])
            began, cpu = time.perf_counter(), bench_capture.cpu_seconds(process.pid)
            await bench_capture.until(self.natty, lambda state: not state["num_pending"], [process])
            took = await self._until_quiet(process.pid, messages)
            took.wall, took.cpu = took.wall - began, took.cpu - cpu
            process.kill()
            process.wait()
        await self.natty.delete_consumer(STREAM, DURABLE)
        return took

    async def _until_quiet(self, pid: int, messages: int) -> Took:
        """Return the clocks of the last ack, and how many messages are acked: a last block may stay open."""
        took = Took(0)
        while time.perf_counter() < took.wall + QUIET or not took.messages:
            acked = messages - (await bench_capture.info(self.natty))["num_ack_pending"]
            if acked != took.messages:
                took = Took(acked, time.perf_counter(), bench_capture.cpu_seconds(pid))
            await asyncio.sleep(bench_capture.POLL)
        return took

    def _server_cpu(self) -> float:
        assert self.server.pid
        return bench_capture.cpu_seconds(self.server.pid)


async def fill(natty: Natty, size: int) -> None:
    """Store the messages, JSON as a node would get it, with one of ten subjects each."""
    chance = random.Random(1)
    await natty.ensure_stream(STREAM, subjects=["bench.>"], allow_batched=True)
    async with natty.publisher(STREAM) as publisher:
        for index in range(MESSAGES[size]):
            text = b'{"number":%d,"text":"%b"}' % (index, chance.randbytes(size // 2 - 20).hex().encode())
            await publisher.publish(f"bench.s{index % SUBJECTS}", text.ljust(size))


async def measure(title: str, server: NatsServer, rounds: int, peer: str) -> None:
    async with Natty(**server.connect_options()) as natty:
        bench = Bench(server, natty, peer)

        async def compare(
            what: str, ways: Mapping[str, Any], run: Callable[[str, Any, int], Awaitable[Figure]]
        ) -> None:
            played = {name: way for name, way in ways.items() if bench.plays(name, way)}
            taken = [{name: await run(name, way, size) for name, way in played.items()} for _ in range(rounds)]
            show(f"{what}, {size:,} bytes, {title}", {name: [one[name] for one in taken] for name in played}, size)

        for size in MESSAGES:
            await compare("publish", PUBLISH, bench.publish)
            await fill(natty, size)
            await compare("consume", CONSUME, bench.consume)
            await compare("capture by subject", CAPTURE, bench.capture)
            await natty.delete_stream(STREAM)


def is_all(name: str) -> bool:
    return name.endswith("ack all")


def show(title: str, figures: dict[str, list[Figure]], size: int) -> None:
    middle = {
        name: Figure(*(median(getattr(one, part) for one in taken) for part in ("wall", "client", "server")))
        for name, taken in figures.items()
    }
    rows = []
    for name, one in middle.items():
        peers = [its.wall for it, its in middle.items() if it.startswith(PEER) and is_all(it) == is_all(name)]
        peers = peers or [its.wall for it, its in middle.items() if it.startswith(PEER)]
        ratios = " / ".join(f"{wall / one.wall:.2f}" for wall in peers)
        megabytes = size / (one.client + one.server) / 1e6
        cells = f"{1 / one.wall:,.0f}", f"{one.client * 1e6:.1f}", f"{one.server * 1e6:.1f}", f"{megabytes:,.0f}"
        rows.append((name, *cells, ratios))
    print_table(title, ("", "msg/s", "client µs", "server µs", "MB/core s", f"× {PEER}"), rows)


def work(name: str, *words: str) -> None:
    """Run one path in this process, and print what it took."""
    access, (_, _, size, messages, *_) = Access(*words[:4]), words[4:]
    with asyncio.Runner(loop_factory=[*loops().values()][-1]) as runner:
        took = runner.run(WORK[name](access, int(size), int(messages)))
    print(json.dumps({"wall": took.wall, "cpu": took.cpu}))


def main(rounds: int, peer: str) -> None:
    began = time.monotonic()
    print_machine(f"nats-server {server_version(find_server())}", f"medians of {rounds} rounds")
    for title, options in (("plain", ServerOptions(tls=None)), ("mutual TLS", ServerOptions(tls="mutual"))):
        with NatsServer(options) as server:
            asyncio.run(measure(title, server, rounds, peer))
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS, sys.argv[2] if len(sys.argv) > 2 else "")
