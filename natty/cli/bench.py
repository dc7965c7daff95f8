"""`natty bench`: measures publishing and consuming."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from natty import Natty, StreamConfig
from natty.cli import connect
from natty.cli.tables import Json, print_document, print_table
from natty.publishing.options import PublishPath
from natty.wire.servers import NEEDS

_MAX_ACK_PENDING = 100_000
Row = dict[str, Any]


@connect.options
def bench(
    *,
    nats: dict[str, Any],
    msgs: Annotated[int, typer.Option(min=1, help="Number of messages.")] = 100_000,
    size: Annotated[int, typer.Option(min=0, help="Size of each message, in bytes.")] = 128,
    storage: Annotated[str, typer.Option(help="Storage of the stream: file or memory.")] = "file",
    replicas: Annotated[int, typer.Option(min=1, help="Number of replicas of the stream.")] = 1,
    as_json: Json = False,
) -> None:
    """Measure publishing and consuming on a temporary stream."""
    if storage not in ("file", "memory"):
        raise typer.BadParameter("choose file or memory", param_hint="--storage")
    settings = {"storage": storage, "num_replicas": replicas}
    rows = connect.call(nats, lambda natty: _bench(natty, msgs, size, settings))
    if as_json:
        print_document(rows)
        return
    print_table(
        ("", ">messages/s", ">MB/s", ">client CPU, µs per message"),
        [
            (row["step"], f"{row['rate']:,.0f}", f"{row['rate'] * size / 1e6:.1f}", f"{row['cpu_us']:.1f}")
            for row in rows
        ],
    )


async def _bench(natty: Natty, count: int, size: int, stream_settings: dict[str, Any]) -> list[Row]:
    # SIGTERM ends the command as Ctrl-C does, so that the stream is deleted
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    name = f"NATTY_BENCH_{secrets.token_hex(4)}"
    subject, body, rows = f"natty.bench.{name}", b"x" * size, list[Row]()
    fast = NEEDS["fast ingest"].is_met_by(natty.connection.server_version)
    try:
        wanted: StreamConfig = {"subjects": [subject]}
        if fast:
            wanted["allow_batched"] = True
        await natty.create_stream(name, **wanted, **stream_settings)
        paths: tuple[PublishPath, ...] = ("window", "fast") if fast else ("window",)
        for path in paths:
            await natty.jetstream.request(f"STREAM.PURGE.{name}")
            with _measure(rows, f"publish, {path}", count):
                await _publish(natty, name, subject, body, count, path)
        for policy in ("explicit", "all"):
            await natty.create_consumer(name, policy, ack_policy=policy, max_ack_pending=_MAX_ACK_PENDING)
            with _measure(rows, f"consume, acks {policy}", count):
                await _consume(natty, name, policy, count)
    finally:
        await natty.delete_stream(name)
    return rows


@contextmanager
def _measure(rows: list[Row], step: str, count: int) -> Iterator[None]:
    console = Console(stderr=True)
    wall, cpu = time.perf_counter(), time.process_time()
    if console.is_terminal:
        with console.status(step):
            yield
    else:
        yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rows.append({"step": step, "messages": count, "seconds": wall, "rate": count / wall, "cpu_us": 1e6 * cpu / count})


async def _publish(natty: Natty, stream: str, subject: str, body: bytes, count: int, path: PublishPath) -> None:
    async with natty.publisher(stream, path=path) as publisher:
        for _ in range(count):
            await publisher.publish(subject, body)


async def _consume(natty: Natty, stream: str, policy: str, count: int) -> None:
    """Take and acknowledge all messages; the time ends when the server has every ack."""
    pull, taken = natty.pull(stream, policy), 0
    async with aclosing(pull.__aiter__()) as batches:
        async for batch in batches:
            taken += len(batch)
            pull.ack(batch.replies if policy == "explicit" else batch.replies[-1:])
            if taken >= count:
                break
            pull.finish(len(batch))
        await natty.connection.flush()
