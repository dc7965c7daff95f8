"""Every way to publish, beside nats-py and natsrpy, plain and over TLS: `python tests/bench/bench_publish.py [rounds]`.

The stream is on disk and a message has 128 bytes. A round runs every path once, ours and theirs in turn; the figures
are the medians of the rounds, the ratios are to nats-py's path of the same kind in the same run. natsrpy has no
settings for TLS, so it is measured only without TLS.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import nats
import natsrpy
from bench_table import PAYLOAD, Took, loops, middle, print_machine, print_table, stopwatch
from nats.aio.client import Client

from natty import Natty
from natty.config import tls
from natty.testing import NatsServer, ServerOptions, find_server, server_version

ROUNDS = 3
TASKS = 1000  # that await their acks at the same time
BATCH = 500  # messages of an atomic batch
STREAM, SUBJECT = "WRITTEN", "written.one"
BACKGROUND, AWAITED = "nats-py publish_async", "nats-py publish, awaited by 1000 tasks"
GOALS = {"publisher, fast ingest": 7.0, "publisher, window": 4.0}  # times the messages a second of publish_async

Path = Callable[[], Awaitable[None]]


async def in_tasks(messages: int, publish: Callable[[], Awaitable[Any]]) -> None:
    async def work() -> None:
        for _ in range(messages // TASKS):
            await publish()

    await asyncio.gather(*(work() for _ in range(TASKS)))


def our_paths(natty: Natty) -> dict[str, tuple[int, Path, str]]:
    """Return our paths by name: how many messages, what publishes them, and which of nats-py's does the same."""

    async def publisher(path: str) -> None:
        async with natty.publisher(STREAM, path=path) as opened:
            for _ in range(100_000):
                await opened.publish(SUBJECT, PAYLOAD)

    async def background() -> None:
        for _ in range(100_000):
            await natty.publish_async(SUBJECT, PAYLOAD)
        await natty.flush_publishers()

    async def atomic() -> None:
        for _ in range(40):
            await natty.publish_atomic([(SUBJECT, PAYLOAD)] * BATCH)

    return {
        "publisher, fast ingest": (100_000, lambda: publisher("fast"), BACKGROUND),
        "publisher, window": (100_000, lambda: publisher("window"), BACKGROUND),
        "publish_async": (100_000, background, BACKGROUND),
        f"publish_atomic, batches of {BATCH}": (20_000, atomic, BACKGROUND),
        "publish, awaited by 1000 tasks": (
            40_000,
            lambda: in_tasks(40_000, lambda: natty.publish(SUBJECT, PAYLOAD)),
            AWAITED,
        ),
    }


def their_paths(client: Client, other: Any) -> dict[str, tuple[int, Path, str]]:
    jetstream = client.jetstream(publish_async_max_pending=4000)

    async def background() -> None:
        for _ in range(15_000):
            await jetstream.publish_async(SUBJECT, PAYLOAD)
        await jetstream.publish_async_completed()

    paths: dict[str, tuple[int, Path, str]] = {
        BACKGROUND: (15_000, background, ""),
        AWAITED: (10_000, lambda: in_tasks(10_000, lambda: jetstream.publish(SUBJECT, PAYLOAD)), ""),
    }
    if other is not None:
        name = f"natsrpy publish, awaited by {TASKS} tasks"
        paths[name] = (10_000, lambda: in_tasks(10_000, lambda: other.publish(SUBJECT, PAYLOAD, wait=True)), AWAITED)
    return paths


@asynccontextmanager
async def natsrpy_jetstream(server: NatsServer) -> AsyncIterator[Any]:
    if server.tls_files is not None:
        yield None
        return
    client = natsrpy.Nats([server.url])
    await client.startup()
    try:
        yield await client.jetstream()
    finally:
        await client.shutdown()


async def timed(natty: Natty, messages: int, publish: Path) -> Took:
    """Measure with an empty stream, and see that everything is in it."""
    await natty.ensure_stream(STREAM, subjects=["written.>"], allow_batched=True, allow_atomic=True)
    with stopwatch(messages) as took:
        await publish()
    state = (await natty.jetstream.request(f"STREAM.INFO.{STREAM}"))["state"]
    if state["messages"] != messages:
        raise RuntimeError(f"the figures would be worthless: {state['messages']} of {messages} messages are stored")
    await natty.jetstream.request(f"STREAM.DELETE.{STREAM}")
    return took


async def measure(title: str, server: NatsServer, rounds: int) -> list[str]:
    """Print the table of a server and a loop; return the goals that are missed."""
    files = server.tls_files
    context = tls.client_context(ca=files.ca, cert=files.client_cert, key=files.client_key) if files else None
    figures: dict[str, list[Took]] = {}
    async with Natty(**server.connect_options()) as natty, natsrpy_jetstream(server) as other:
        client = await nats.connect(server.url, tls=context)
        paths = our_paths(natty) | their_paths(client, other)
        for _ in range(rounds):
            for name, (messages, publish, _) in paths.items():
                figures.setdefault(name, []).append(await timed(natty, messages, publish))
        await client.close()
    rows, missed = [], []
    for name, (_, _, against) in paths.items():
        rate, micros = middle(figures[name])
        row = [name, f"{rate:,.0f}", f"{micros:.1f}", "", ""]
        if against:
            their_rate, their_micros = middle(figures[against])
            row[3:] = [f"{rate / their_rate:.1f} ×", f"{their_micros / micros:.1f} ×"]
            if rate / their_rate < GOALS.get(name, 0.0):
                missed.append(f"  {title}: {name}: {rate / their_rate:.1f} × of {GOALS[name]:g} ×")
        rows.append(row)
    print_table(title, ("", "msg/s", "CPU µs/msg", "msg/s ratio", "CPU ratio"), rows)
    return missed


def main(rounds: int) -> None:
    began, missed = time.monotonic(), []
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns at how nats-py closes a TLS connection
    third = f"natsrpy {version('natsrpy')}"
    print_machine(f"nats-server {server_version(find_server())}", f"nats-py {version('nats-py')}", third)
    print(f"{len(PAYLOAD)}-byte messages, medians of {rounds} rounds")
    for name, options in (("plain", ServerOptions(tls=None)), ("mutual TLS", ServerOptions(tls="mutual"))):
        with NatsServer(options) as server:
            for loop, factory in loops().items():
                with asyncio.Runner(loop_factory=factory) as runner:
                    missed += runner.run(measure(f"{name}, {loop}", server, rounds))
    print("\nevery goal is reached" if not missed else "\nnot reached:", *missed, sep="\n")
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
