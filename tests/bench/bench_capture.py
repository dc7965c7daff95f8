"""A capture node beside the bare consume loop: `python tests/bench/bench_capture.py [messages] [rounds]`.

The node is a separate process, `capture run`: explicit acks, after blocks and entries are synced to the disk. The
bare loop is `natty.pull` with the same acks, in this process. Both read the same stream, over mutual TLS, from the
first message delivered to the last one acked. "peak" is the highest resident memory of the node (VmHWM). With 10 000
keys each block holds about thirty messages, so that figure measures the store.
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
from typing import IO, Any, NamedTuple

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
KEYS = 10_000
WITHIN = 300.0  # seconds that a node may take
POLL = 0.01  # seconds
TICKS = os.sysconf("SC_CLK_TCK")
MEMORY = "VmHWM:"

Figures = dict[str, list[Took]]


class Run(NamedTuple):
    """What a node is told."""

    form: str
    partition: str = "subject:1"
    buffers: str = "memory"
    ack: str = "explicit"
    nodes: int = 1
    decoder: str = "raw"
    max_age: float = 5.0  # seconds; of blocks that redelivery would leave over


RUNS = {
    "to ndjson": Run("ndjson"),
    "to ndjson, ack all": Run("ndjson", ack="all"),
    "to ndjson, two nodes": Run("ndjson", nodes=2),
    "to ndjson, buffers on disk": Run("ndjson", buffers="disk"),
    "to parquet": Run("parquet"),
    f"to ndjson, {KEYS:,} keys": Run("ndjson", "subject:2"),
    f"to ndjson, {KEYS:,} keys, on disk": Run("ndjson", "subject:2", "disk"),
}


async def fill(natty: Natty, messages: int) -> None:
    await natty.ensure_stream(STREAM, subjects=["bench.>"], allow_batched=True)
    chance = random.Random(1)
    async with natty.publisher(STREAM) as publisher:
        for index in range(messages):
            text = b'{"number":%d,"text":"%b"}' % (index, chance.randbytes(45).hex().encode())
            await publisher.publish(f"bench.s{index % SUBJECTS}.k{index % KEYS}", text.ljust(PAYLOAD_BYTES))


async def info(natty: Natty) -> dict[str, Any]:
    return await natty.jetstream.request(f"CONSUMER.INFO.{STREAM}.{DURABLE}")


async def bare(natty: Natty, messages: int, ack: str = "explicit") -> Took:
    """Consume everything and ack it, and do nothing else."""
    await natty.ensure_consumer(STREAM, DURABLE, ack_policy=ack, **CONSUMER)
    pull, left = natty.pull(STREAM, DURABLE), messages
    with stopwatch(messages) as took:
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                left -= len(batch)
                pull.ack(batch.replies if ack == "explicit" else batch.replies[-1:])
                pull.finish(len(batch))
                if not left:
                    pull.stop()
        await until(natty, lambda state: state["ack_floor"]["stream_seq"] >= messages)
    await natty.jetstream.request(f"CONSUMER.DELETE.{STREAM}.{DURABLE}")
    return took


async def captured(natty: Natty, server: NatsServer, messages: int, run: Run) -> tuple[Took, int, int, float]:
    """Capture everything with a node; return what it took, its peak memory, its blocks and their bytes a message."""
    await natty.ensure_consumer(STREAM, DURABLE, ack_policy=run.ack, **CONSUMER)
    with tempfile.TemporaryDirectory(prefix="bench-capture-") as folder:
        with (Path(folder) / "node.log").open("wb") as log:
            nodes = [start(server, Path(folder), run, log) for _ in range(run.nodes)]
        try:
            took = await watch(natty, nodes, messages)
            peak = max(peak_bytes(node.pid) for node in nodes)
        except BaseException:
            print((Path(folder) / "node.log").read_text(), file=sys.stderr)
            raise
        finally:
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            for node in nodes:
                node.wait(WITHIN)
        blocks = [path.stat().st_size for path in (Path(folder) / "archive" / "blocks").rglob(f"*.{run.form}")]
    await natty.jetstream.request(f"CONSUMER.DELETE.{STREAM}.{DURABLE}")
    return took, peak, len(blocks), sum(blocks) / messages


def start(server: NatsServer, folder: Path, run: Run, log: IO[bytes]) -> subprocess.Popen[bytes]:
    settings = {"ACK": run.ack, "BUFFERS__KIND": run.buffers, "BUFFERS__FOLDER": str(folder)}
    settings["ARCHIVE"] = folder.name  # a node refuses an archive that was in another folder
    environment = os.environ | {f"CAPTURE_{name}": value for name, value in settings.items()}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(command(server, folder / "archive", run), stdout=log, stderr=log, env=environment)


def command(server: NatsServer, archive: Path, run: Run) -> list[str]:
    files = server.tls_files
    tls = {"--tlsca": files.ca, "--tlscert": files.client_cert, "--tlskey": files.client_key} if files else {}
    options = tls | {
        "--server": server.url,
        "--stream": STREAM,
        "--durable": DURABLE,
        "--store": archive,
        "--decoder": run.decoder,
        "--format": run.form,
        "--partition": run.partition,
        "--max-messages": BLOCK,
        "--max-age": run.max_age,
    }
    flags = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "capture", "run", *flags]


async def watch(natty: Natty, nodes: list[subprocess.Popen[bytes]], messages: int) -> Took:
    """Measure the nodes from their first message to their last ack.

    The last blocks of several nodes are not full, and wait for `max_age`: what these may hold is not measured.
    """
    took = Took(messages - (SUBJECTS * BLOCK * len(nodes) if len(nodes) > 1 else 0))
    await until(natty, lambda state: state["delivered"]["stream_seq"] > 0, nodes)
    wall, cpu = time.perf_counter(), sum(cpu_seconds(node.pid) for node in nodes)
    await until(natty, lambda state: messages - state["num_pending"] - state["num_ack_pending"] >= took.messages, nodes)
    took.wall = time.perf_counter() - wall
    took.cpu = sum(cpu_seconds(node.pid) for node in nodes) - cpu
    await until(natty, lambda state: state["ack_floor"]["stream_seq"] >= messages, nodes)
    return took


async def until(
    natty: Natty, right: Callable[[dict[str, Any]], bool], nodes: list[subprocess.Popen[bytes]] | None = None
) -> None:
    deadline = time.monotonic() + WITHIN
    while not right(state := await info(natty)):
        for node in nodes or []:
            if node.poll() is not None:
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
            figures.setdefault("bare, ack all", []).append(await bare(natty, messages, "all"))
            for title, run in RUNS.items():
                took, peak, blocks, size = await captured(natty, server, messages, run)
                figures.setdefault(title, []).append(took)
                peaks.setdefault(title, []).append(peak)
                print(f"{title}: {blocks} blocks, {size:.0f} bytes a message", flush=True)
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
    all_rate, all_micros = middle(figures["bare, ack all"])
    rows = [
        ("bare consume loop", f"{rate:,.0f}", f"{micros:.1f}", "", "", ""),
        ("the same, ack all", f"{all_rate:,.0f}", f"{all_micros:.1f}", f"{all_rate / rate:.2f} ×", "", ""),
    ]
    for title in RUNS:
        node_rate, node_micros = middle(figures[title])
        peak = median(peaks[title]) / 2**20
        rows.append(
            (
                f"capture {title}",
                f"{node_rate:,.0f}",
                f"{node_micros:.1f}",
                f"{node_rate / rate:.2f} ×",
                f"{node_micros / micros:.1f} ×",
                f"{peak:.0f} MiB",
            )
        )
    print_table("", ("", "msg/s", "CPU µs/msg", "msg/s ratio", "CPU ratio", "peak"), rows)
    explicit, together, two = (
        middle(figures[title])[0] for title in ("to ndjson", "to ndjson, ack all", "to ndjson, two nodes")
    )
    print(f"to ndjson: ack all {together / explicit:.2f} × explicit, two nodes {two / explicit:.2f} × one")
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [MESSAGES, ROUNDS][len(given) :]))
