"""Handlers on a real server over mutual TLS: `python tests/bench/bench_consume.py [rounds] [backlog]`.

First messages per second with a handler that does nothing, beside the bare pull and nats-py's `fetch(1000)`, all of
them with an ack for every message; figures are medians of the rounds. Then the cost of an idle consumer, and memory: a
backlog (default: a million small messages) and a handler so slow that nearly all of it stays in the stream. Busy
machines distort messages per second more than CPU.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import nats
from bench_table import PAYLOAD, Took, loops, middle, print_machine, print_table, stopwatch
from nats.aio.client import Client

from natty import Batch, Message, Natty
from natty.config import tls
from natty.testing import NatsServer, ServerOptions, find_server, server_version

OURS, THEIRS = 100_000, 15_000  # messages of one measurement: about as long for the one as for the other
ROUNDS = 3
FETCH = 1000
GOAL = 70_000  # messages a second, `async def` and acks, on a quiet machine of two cores
BACKLOG = 1_000_000
SLOW_FOR = 8.0  # seconds that the slow handler is watched
IDLE_FOR = 10.0  # seconds that a consumer at rest is watched
IDLE_GOAL = 0.005  # of a core
MEMORY_GOAL = 64 * 1024 * 1024  # bytes that a backlog may add

CONSUMER = {"max_ack_pending": 100_000, "ack_wait": 120.0}


class Countdown:
    """Handlers that do nothing but count; the last message stops the consumption."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.consumption: Any = None

    def count(self, messages: int) -> None:
        self.left -= messages
        if self.left <= 0:
            self.consumption.stop()

    async def handle(self, message: Message) -> None:
        self.count(1)

    async def body(self, body: bytes) -> None:
        self.count(1)

    async def yielding(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.count(1)

    async def batch(self, messages: list[Message]) -> None:
        self.count(len(messages))

    async def whole(self, batch: Batch) -> None:
        self.count(len(batch))


async def handled(natty: Natty, name: str, **options: Any) -> Took:
    countdown = Countdown(OURS)
    handler = getattr(countdown, name)
    countdown.consumption = consumption = natty.consume("READ", "bench", handler, **options)
    with stopwatch(OURS) as took:
        await consumption
    return took


async def pulled(natty: Natty) -> Took:
    pull, left = natty.pull("READ", "bench"), OURS
    with stopwatch(OURS) as took:
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                left -= len(batch)
                pull.ack(batch.replies)
                pull.finish(len(batch))
                if not left:
                    pull.stop()
        await natty.connection.flush()
    return took


async def fetched(client: Client) -> Took:
    subscription, left = await client.jetstream().pull_subscribe_bind("bench", stream="READ"), THEIRS
    with stopwatch(THEIRS) as took:
        while left:
            messages = await subscription.fetch(min(FETCH, left), timeout=10)
            left -= len(messages)
            for message in messages:
                await message.ack()
        await client.flush()
    await subscription.unsubscribe()
    return took


async def with_new_consumer(natty: Natty, consume: Callable[[], Awaitable[Took]]) -> Took:
    """Measure with a new consumer, and see that the server has its acks."""
    await natty.create_consumer("READ", "bench", **CONSUMER)
    took = await consume()
    deadline = time.monotonic() + 10
    while (info := await natty.jetstream.request("CONSUMER.INFO.READ.bench"))["ack_floor"]["stream_seq"] < (
        took.messages
    ):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the figures would be worthless, the consumer says {info}")
        await asyncio.sleep(0.02)
    await natty.delete_consumer("READ", "bench")
    return took


async def fill(natty: Natty, messages: int, payload: bytes) -> None:
    await natty.create_stream("READ", subjects=["read.>"], allow_batched=True)
    async with natty.publisher("READ") as publisher:
        for number in range(messages):
            await publisher.publish(f"read.{number % 100}", payload)


async def measure(server: NatsServer, rounds: int) -> dict[str, list[Took]]:
    figures: dict[str, list[Took]] = {}
    async with Natty(**server.connect_options()) as natty:
        await fill(natty, OURS, PAYLOAD)
        paths: dict[str, Callable[[], Awaitable[Took]]] = {
            "consume, async handler": lambda: handled(natty, "handle"),
            "consume, concurrency 100": lambda: handled(natty, "handle", concurrency=100),
            "consume, ordered_by subject": lambda: handled(natty, "handle", concurrency=100, ordered_by="subject"),
            "consume, bytes body": lambda: handled(natty, "body"),
            "consume, timeout": lambda: handled(natty, "handle", timeout=5.0),
            "consume, handler that yields": lambda: handled(natty, "yielding", concurrency=100),
            "consume, list of 100": lambda: handled(natty, "batch", batch=100),
            "consume, Batch of 100": lambda: handled(natty, "whole", batch=100),
            "pull, acks by batch": lambda: pulled(natty),
        }
        files = server.tls_files
        assert files is not None
        context = tls.client_context(ca=files.ca, cert=files.client_cert, key=files.client_key)
        client = await nats.connect(server.url, tls=context)
        for _ in range(rounds):
            for name, path in paths.items():
                figures.setdefault(name, []).append(await with_new_consumer(natty, path))
            theirs = await with_new_consumer(natty, lambda: fetched(client))
            figures.setdefault(f"nats-py fetch({FETCH}), ack each", []).append(theirs)
        await client.close()
        await natty.delete_stream("READ")
    return figures


def show(title: str, figures: dict[str, list[Took]]) -> None:
    *ours, theirs = figures
    their_rate, their_micros = middle(figures[theirs])
    rows = []
    for name in ours:
        rate, micros = middle(figures[name])
        rows.append((name, f"{rate:,.0f}", f"{micros:.1f}", f"{rate / their_rate:.1f} ×"))
    rows.append((theirs, f"{their_rate:,.0f}", f"{their_micros:.1f}", ""))
    print_table(title, ("", "msg/s", "CPU µs/msg", "msg/s ratio"), rows)
    rate, _ = middle(figures[ours[0]])
    print(f"{ours[0]}: {rate:,.0f} msg/s, goal {GOAL:,} {'reached' if rate >= GOAL else 'NOT REACHED'}")


def resident() -> int:
    """Return this process's memory in RAM, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def idle(server: NatsServer) -> None:
    """Print what a connected consumer costs while nothing comes."""
    async with Natty(**server.connect_options()) as natty:
        await natty.create_stream("READ", subjects=["read.>"])

        async def handle(message: Message) -> None: ...

        consumption = natty.consume("READ", "idle", handle)
        task = asyncio.ensure_future(consumption.run())
        await asyncio.sleep(1)
        before = time.process_time()
        await asyncio.sleep(IDLE_FOR)
        share = (time.process_time() - before) / IDLE_FOR
        consumption.stop()
        await task
        await natty.delete_stream("READ")
    print(
        f"\na consumer at rest, dead letters watched: {share:.2%} of a core,"
        f" goal {IDLE_GOAL:.1%} {'reached' if share <= IDLE_GOAL else 'NOT REACHED'}"
    )


async def memory(server: NatsServer, backlog: int) -> None:
    async with Natty(**server.connect_options()) as natty:
        await fill(natty, backlog, b"x" * 16)
        done = 0

        async def slow(message: Message) -> None:
            nonlocal done
            await asyncio.sleep(0.01)
            done += 1

        before = most = resident()
        consumption = natty.consume("READ", "slow", slow, concurrency=100)
        task = asyncio.ensure_future(consumption.run())
        end = time.monotonic() + SLOW_FOR
        while time.monotonic() < end:
            await asyncio.sleep(0.05)
            most = max(most, resident())
        consumption.stop()
        await task
        info = await natty.jetstream.request("CONSUMER.INFO.READ.slow")
        await natty.delete_stream("READ")
    mib = 1024 * 1024
    print(
        f"\nbacklog of {backlog:,}, handler of 10 ms, concurrency 100: {done:,} handled in {SLOW_FOR:.0f} s,"
        f" {info['num_pending']:,} left; memory {before / mib:.1f} MiB before, {most / mib:.1f} at most:"
        f" {(most - before) / mib:.1f} more, goal {MEMORY_GOAL / mib:.0f}"
        f" {'reached' if most - before <= MEMORY_GOAL else 'NOT REACHED'}"
    )


def main(rounds: int, backlog: int) -> None:
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns at how nats-py closes a TLS connection
    print_machine(f"nats-server {server_version(find_server())}", f"{len(PAYLOAD)}-byte messages, {rounds} rounds")
    with NatsServer(ServerOptions()) as server:
        for loop, factory in loops().items():
            with asyncio.Runner(loop_factory=factory) as runner:
                show(f"mutual TLS, {loop}", runner.run(measure(server, rounds)))
        asyncio.run(idle(server))
        asyncio.run(memory(server, backlog))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *(ROUNDS, BACKLOG)[len(sys.argv) - 1 :])
