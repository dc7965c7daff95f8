"""A capture node beside the bare consume loop: `python tests/bench/bench_capture.py [messages] [rounds]`.

The node is `capture run` as a process of its own: explicit acks, after blocks and entries are synced to the disk. The
bare loop is `natty.pull` with the same acks, in this process. Both read the same stream, over mutual TLS, from the
first message delivered to the last one acked. "peak" is the node's resident memory at its highest (VmHWM).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import Any

from bench_table import Took, loops, middle, print_machine, print_table, stopwatch

from natty import Natty
from natty.testing import NatsServer, ServerOptions, find_server, server_version

MESSAGES = 300_000
PAYLOAD_BYTES = 128
ROUNDS = 2
SUBJECTS = 10
STREAM, DURABLE = "BENCH", "bench"
BLOCK = 10_000  # messages of a block; as many as a subject has of them, divided without a rest
CONSUMER = {"max_ack_pending": 250_000, "ack_wait": 120.0}  # what a node asks for by default
FORMATS = ("ndjson", "parquet")
WITHIN = 60.0  # seconds that a node may take
POLL = 0.01  # seconds
TICKS = os.sysconf("SC_CLK_TCK")
MEMORY = "VmHWM:"

Figures = dict[str, list[Took]]


async def fill(natty: Natty, messages: int) -> None:
    await natty.ensure_stream(STREAM, subjects=["bench.>"], allow_batched=True)
    chance = random.Random(1)
    async with natty.publisher(STREAM) as publisher:
        for index in range(messages):
            text = b'{"number":%d,"text":"%b"}' % (index, chance.randbytes(45).hex().encode())
            await publisher.publish(f"bench.s{index % SUBJECTS}.event", text.ljust(PAYLOAD_BYTES))


async def info(natty: Natty) -> dict[str, Any]:
    return await natty.jetstream.request(f"CONSUMER.INFO.{STREAM}.{DURABLE}")


async def bare(natty: Natty, messages: int) -> Took:
    """Consume everything and ack it, and do nothing else."""
    await natty.ensure_consumer(STREAM, DURABLE, **CONSUMER)
    pull, left = natty.pull(STREAM, DURABLE), messages
    with stopwatch(messages) as took:
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                left -= len(batch)
                pull.ack(batch.replies)
                pull.finished(len(batch))
                if not left:
                    pull.stop()
        await until(natty, lambda state: state["ack_floor"]["stream_seq"] >= messages)
    await natty.jetstream.request(f"CONSUMER.DELETE.{STREAM}.{DURABLE}")
    return took


async def captured(natty: Natty, server: NatsServer, messages: int, form: str) -> tuple[Took, int, int, float]:
    """Capture everything with a node; return what it took, its peak memory, its blocks and their bytes a message."""
    await natty.ensure_consumer(STREAM, DURABLE, **CONSUMER)
    with tempfile.TemporaryDirectory(prefix="bench-capture-") as folder:
        with (Path(folder) / "node.log").open("wb") as log:
            node = subprocess.Popen(command(server, Path(folder) / "archive", form), stdout=log, stderr=log)
        try:
            took = await watch(natty, node, messages)
            peak = peak_bytes(node.pid)
        except BaseException:
            print((Path(folder) / "node.log").read_text(), file=sys.stderr)
            raise
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(WITHIN)
        blocks = [path.stat().st_size for path in (Path(folder) / "archive" / "blocks").rglob(f"*.{form}")]
    await natty.jetstream.request(f"CONSUMER.DELETE.{STREAM}.{DURABLE}")
    return took, peak, len(blocks), sum(blocks) / messages


def command(server: NatsServer, archive: Path, form: str) -> list[str]:
    files = server.tls_files
    assert files is not None
    options = {
        "--server": server.url,
        "--tlsca": files.ca,
        "--tlscert": files.client_cert,
        "--tlskey": files.client_key,
        "--stream": STREAM,
        "--durable": DURABLE,
        "--store": archive,
        "--format": form,
        "--partition": "subject:1",
        "--max-messages": BLOCK,
        "--max-age": 5.0,  # what redelivery would leave over
    }
    flags = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "capture", "run", *flags]


async def watch(natty: Natty, node: subprocess.Popen[bytes], messages: int) -> Took:
    """Measure the node from its first message to its last ack."""
    took = Took(messages)
    await until(natty, lambda state: state["delivered"]["stream_seq"] > 0, node)
    wall, cpu = time.perf_counter(), cpu_seconds(node.pid)
    await until(natty, lambda state: state["ack_floor"]["stream_seq"] >= messages, node)
    took.wall, took.cpu = time.perf_counter() - wall, cpu_seconds(node.pid) - cpu
    return took


async def until(
    natty: Natty, right: Callable[[dict[str, Any]], bool], node: subprocess.Popen[bytes] | None = None
) -> None:
    deadline = time.monotonic() + WITHIN
    while not right(state := await info(natty)):
        if node is not None and node.poll() is not None:
            raise RuntimeError(f"the node ended with status {node.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"not done within {WITHIN:g} s: {state}")
        await asyncio.sleep(POLL)


def cpu_seconds(pid: int) -> float:
    """Return the CPU of a process, all threads, children not included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(MEMORY))


async def measure(server: NatsServer, messages: int, rounds: int) -> tuple[Figures, dict[str, list[int]]]:
    figures: Figures = {}
    peaks: dict[str, list[int]] = {}
    async with Natty(**server.connect_options()) as natty:
        await fill(natty, messages)
        for _ in range(rounds):
            figures.setdefault("bare", []).append(await bare(natty, messages))
            for form in FORMATS:
                took, peak, blocks, size = await captured(natty, server, messages, form)
                figures.setdefault(form, []).append(took)
                peaks.setdefault(form, []).append(peak)
                print(f"{form}: {blocks} blocks, {size:.0f} bytes a message", flush=True)
    return figures, peaks


def main(messages: int, rounds: int) -> None:
    began = time.monotonic()
    messages -= messages % (SUBJECTS * BLOCK)
    loop, factory = list(loops().items())[-1]  # what a node runs on
    print_machine(f"nats-server {server_version(find_server())}", "mutual TLS", loop)
    print(
        f"{messages:,} messages of {PAYLOAD_BYTES} bytes of JSON, {SUBJECTS} subjects, blocks of {BLOCK:,},"
        f" medians of {rounds} rounds"
    )
    with NatsServer(ServerOptions()) as server, asyncio.Runner(loop_factory=factory) as runner:
        figures, peaks = runner.run(measure(server, messages, rounds))
    rate, micros = middle(figures["bare"])
    rows = [("bare consume loop", f"{rate:,.0f}", f"{micros:.1f}", "", "", "")]
    for form in FORMATS:
        node_rate, node_micros = middle(figures[form])
        peak = median(peaks[form]) / 2**20
        rows.append(
            (
                f"capture to {form}",
                f"{node_rate:,.0f}",
                f"{node_micros:.1f}",
                f"{node_rate / rate:.2f} ×",
                f"{node_micros / micros:.1f} ×",
                f"{peak:.0f} MiB",
            )
        )
    print_table("", ("", "msg/s", "CPU µs/msg", "msg/s ratio", "CPU ratio", "peak"), rows)
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [MESSAGES, ROUNDS][len(given) :]))
