"""natty beside nats-py and natsrpy on a real server, plain and TLS: `python tests/bench/bench_client.py [rounds]`.

The stream is on disk and a message has 128 bytes. A round runs every path once, ours and theirs in turn; the figures
are the medians of the rounds, the ratios are ours to theirs. A goal is checked by two measures: messages per second
includes the server, which shares the processors with the client; CPU is that of the client alone. Busy machines distort
CPU less. natsrpy (Rust under Python) has no settings for TLS, so it is measured only without TLS, on asyncio as its
users run it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import nats
import natsrpy
from bench_table import PAYLOAD, Took, loops, middle, print_machine, print_table, stopwatch
from nats.aio.client import Client
from natsrpy.js import JetStream

from natty import Natty
from natty.config import tls
from natty.testing import NatsServer, ServerOptions, find_server, server_version

OURS, THEIRS = 100_000, 15_000  # messages of one measurement: about as long for the one as for the other
ROUNDS = 3
FETCH = 1000
WINDOW = 4000  # nats-py's own, and the goal is against it
CONSUME_GOAL, INGEST_GOAL, WINDOW_GOAL = 10, 7, 4  # times nats-py

TASKS = 1000  # that await natsrpy's acks at the same time: it has no publishing in the background
RUST_PUBLISH = f"natsrpy publish, {TASKS} tasks"

READ, WRITTEN = "READ", "WRITTEN"  # streams
CONSUMER = {"max_ack_pending": 100_000, "ack_wait": 120.0}


@dataclass(frozen=True)
class Pair:
    """One of our paths and the ones of nats-py and natsrpy that do the same."""

    ours: str
    theirs: str
    rust: str
    goal: int


CONSUME = {
    policy: Pair(
        f"pull, ack {policy}",
        f"nats-py fetch({FETCH}), ack {policy}",
        f"natsrpy fetch({FETCH}), ack {policy}",
        CONSUME_GOAL,
    )
    for policy in ("none", "all", "explicit")
}
PUBLISH = {
    "fast": Pair("publisher, fast ingest", "nats-py publish_async", RUST_PUBLISH, INGEST_GOAL),
    "window": Pair("publisher, window", "nats-py publish_async", RUST_PUBLISH, WINDOW_GOAL),
}
Figures = dict[str, list[Took]]


async def fill(natty: Natty) -> None:
    await natty.ensure_stream(READ, subjects=["read.>"], allow_batched=True)
    async with natty.publisher(READ) as publisher:
        for _ in range(OURS):
            await publisher.publish("read.one", PAYLOAD)


async def consume_ours(natty: Natty, durable: str, policy: str) -> Took:
    pull, left = natty.pull(READ, durable), OURS
    with stopwatch(OURS) as took:
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                left -= len(batch)
                if policy == "explicit":
                    pull.ack(batch.replies)
                elif policy == "all":
                    pull.ack(batch.replies[-1:])
                pull.finish(len(batch))
                if not left:
                    pull.stop()
        await natty.connection.flush()
    return took


async def consume_theirs(client: Client, durable: str, policy: str) -> Took:
    subscription, left = await client.jetstream().pull_subscribe_bind(durable, stream=READ), THEIRS
    with stopwatch(THEIRS) as took:
        while left:
            messages = await subscription.fetch(min(FETCH, left), timeout=10)
            left -= len(messages)
            if policy == "explicit":
                for message in messages:
                    await message.ack()
            elif policy == "all":
                await messages[-1].ack()
        await client.flush()
    await subscription.unsubscribe()
    return took


async def publish_ours(natty: Natty, path: str) -> Took:
    with stopwatch(OURS) as took:
        async with natty.publisher(WRITTEN, path=path) as publisher:
            for _ in range(OURS):
                await publisher.publish("written.one", PAYLOAD)
    return took


async def publish_theirs(client: Client) -> Took:
    jetstream = client.jetstream(publish_async_max_pending=WINDOW)
    with stopwatch(THEIRS) as took:
        for _ in range(THEIRS):
            await jetstream.publish_async("written.one", PAYLOAD)
        await jetstream.publish_async_completed()
    return took


async def consume_rust(jetstream: JetStream, durable: str, policy: str) -> Took:
    consumer, left = await (await jetstream.streams.get(READ)).consumers.get_pull(durable), THEIRS
    with stopwatch(THEIRS) as took:
        while left:
            messages = await consumer.fetch(min(FETCH, left), timeout=10)
            left -= len(messages)
            if policy == "explicit":
                for message in messages:
                    await message.ack()
            elif policy == "all":
                await messages[-1].ack()
    return took


async def publish_rust(jetstream: JetStream) -> Took:
    async def work() -> None:
        for _ in range(THEIRS // TASKS):
            await jetstream.publish("written.one", PAYLOAD, wait=True)

    with stopwatch(THEIRS) as took:
        await asyncio.gather(*(work() for _ in range(TASKS)))
    return took


async def consumed(natty: Natty, policy: str, consume: Callable[[str], Awaitable[Took]]) -> Took:
    """Measure with a new consumer, and see that the server has its acks."""
    await natty.ensure_consumer(READ, "bench", ack_policy=policy, **CONSUMER)
    took = await consume("bench")
    await until(natty, f"CONSUMER.INFO.{READ}.bench", lambda info: acked(info, policy, took.messages))
    await natty.jetstream.request(f"CONSUMER.DELETE.{READ}.bench")
    return took


async def published(natty: Natty, publish: Callable[[], Awaitable[Took]]) -> Took:
    """Measure with an empty stream, and see that everything is in it."""
    await natty.ensure_stream(WRITTEN, subjects=["written.>"], allow_batched=True)
    took = await publish()
    await until(natty, f"STREAM.INFO.{WRITTEN}", lambda info: info["state"]["messages"] == took.messages)
    await natty.jetstream.request(f"STREAM.DELETE.{WRITTEN}")
    return took


def acked(info: dict[str, Any], policy: str, messages: int) -> bool:
    reached = info["delivered" if policy == "none" else "ack_floor"]["stream_seq"]
    return bool(reached == messages and not info["num_ack_pending"])


async def until(natty: Natty, question: str, right: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + 10
    while not right(answer := await natty.jetstream.request(question)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the figures would be worthless, {question} says {answer}")
        await asyncio.sleep(0.02)


@asynccontextmanager
async def clients(server: NatsServer) -> AsyncIterator[tuple[Natty, Client]]:
    files = server.tls_files
    context = tls.client_context(ca=files.ca, cert=files.client_cert, key=files.client_key) if files else None
    async with Natty(**server.connect_options()) as natty:
        client = await nats.connect(server.url, tls=context)
        try:
            yield natty, client
        finally:
            await client.close()


@asynccontextmanager
async def rust_client(server: NatsServer) -> AsyncIterator[JetStream | None]:
    if server.tls_files is not None or not isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
        yield None
        return
    client = natsrpy.Nats([server.url])
    await client.startup()
    try:
        yield await client.jetstream()
    finally:
        await client.shutdown()


async def measure(server: NatsServer, rounds: int) -> Figures:
    figures: Figures = {}

    def note(name: str, took: Took) -> None:
        figures.setdefault(name, []).append(took)

    async with clients(server) as (natty, client), rust_client(server) as rust:
        await fill(natty)
        for _ in range(rounds):
            for policy, pair in CONSUME.items():
                note(pair.ours, await consumed(natty, policy, lambda name, p=policy: consume_ours(natty, name, p)))
                note(pair.theirs, await consumed(natty, policy, lambda name, p=policy: consume_theirs(client, name, p)))
                if rust:
                    note(pair.rust, await consumed(natty, policy, lambda name, p=policy: consume_rust(rust, name, p)))
            for path, pair in PUBLISH.items():
                note(pair.ours, await published(natty, lambda path=path: publish_ours(natty, path)))
                note(pair.theirs, await published(natty, lambda: publish_theirs(client)))
            if rust:
                note(RUST_PUBLISH, await published(natty, lambda: publish_rust(rust)))
        await natty.jetstream.request(f"STREAM.DELETE.{READ}")
    return figures


def show(title: str, figures: Figures) -> list[tuple[str, float, float, int]]:
    """Print the table of a server and a loop; return what has a goal: (path, ratio by messages, by CPU, goal)."""
    rows, goals = [], []
    for pair in (*CONSUME.values(), *PUBLISH.values()):
        rate, micros = middle(figures[pair.ours])
        rows.append((pair.ours, f"{rate:,.0f}", f"{micros:.1f}", "", "", ""))
        for rival in (pair.theirs, pair.rust):
            if rival not in figures:
                continue
            their_rate, their_micros = middle(figures[rival])
            ratio, by_cpu = rate / their_rate, their_micros / micros
            if rival == pair.theirs:
                goals.append((f"{title}: {pair.ours}", ratio, by_cpu, pair.goal))
            rows.append(
                (
                    f"· {rival}",
                    f"{their_rate:,.0f}",
                    f"{their_micros:.1f}",
                    f"{ratio:.1f} ×",
                    f"{by_cpu:.1f} ×",
                    f"≥ {pair.goal}" if rival == pair.theirs else "",
                )
            )
    print_table(title, ("", "msg/s", "CPU µs/msg", "ours, msg/s", "ours, CPU", "goal"), rows)
    return goals


def main(rounds: int) -> None:
    began = time.monotonic()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns at how nats-py closes a TLS connection
    print_machine(f"nats-server {server_version(find_server())}", f"nats-py {version('nats-py')}")
    print(
        f"{len(PAYLOAD)}-byte messages, {OURS:,} ours and {THEIRS:,} theirs a measurement, medians of {rounds} rounds"
    )
    goals = []
    for name, options in (("plain", ServerOptions(tls=None)), ("mutual TLS", ServerOptions(tls="mutual"))):
        with NatsServer(options) as server:
            for loop, factory in loops().items():
                with asyncio.Runner(loop_factory=factory) as runner:
                    goals += show(f"{name}, {loop}", runner.run(measure(server, rounds)))
    for name, column in (("client CPU", 2), ("messages a second", 1)):
        missed = [goal for goal in goals if goal[column] < goal[3]]
        print(
            f"\nby {name} {len(goals) - len(missed)} of {len(goals)} goals reached{', not these:' if missed else '.'}"
        )
        for goal in missed:
            print(f"  {goal[0]}: {goal[column]:.1f} × of {goal[3]} ×")
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
