"""`capture run --workers 1` to 4 on this machine: `python tests/bench/bench_workers.py [messages] [rounds]`.

Each run stores the same stream, over mutual TLS, with explicit acks, as NDJSON. The durable is paused until all workers
are ready. Rate and CPU are measured from the time when a fifth of the messages is acknowledged, since each process does
some things once, until all are, except those that the last open blocks of the workers may hold, which wait for their
age. CPU is that of all workers and their supervisor together, and that of the server apart. PSS and RSS are those of
the largest worker at the end.
"once" is the number of messages that verify finds stored, and that no second block has; the last table kills each
worker in turn.
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
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from bench_capture import WITHIN, cpu_seconds, peak_bytes
from bench_table import loops, print_machine, print_table

from capture.config.load import load
from capture.stores import open_store
from capture.verification.check import check
from natty import Natty
from natty.testing import NatsServer, ServerOptions, find_server, server_version
from natty.testing.spawner import free_ports

MESSAGES = 1_000_000
ROUNDS = 3
SIZES = 128, 1024  # bytes of a payload
WORKERS = 1, 2, 3, 4
SUBJECTS, BLOCK = 4, 5_000
STREAM, DURABLE = "BENCH", "bench"
MAX_AGE, ACK_WAIT = 2.0, 10.0  # seconds
POLL = 0.05  # seconds
PAUSED_UNTIL = "2099-01-01T00:00:00Z"


@dataclass
class Took:
    """What one run took: messages a second, CPU µs a message, bytes."""

    rate: float
    ours: float
    servers: float
    pss: int
    rss: int
    supervisor: int
    shares: list[int] = field(default_factory=list)


async def fill(natty: Natty, messages: int, size: int) -> None:
    await natty.ensure_stream(STREAM, subjects=["bench.>"], allow_batched=True)
    chance = random.Random(1)
    async with natty.publisher(STREAM) as publisher:
        for index in range(messages):
            text = b'{"number":%d,"text":"%b"}' % (index, chance.randbytes(45).hex().encode())
            await publisher.publish(f"bench.s{index % SUBJECTS}", text.ljust(size))


class Run:
    """A `capture run` on a durable that is paused until `begin`."""

    def __init__(self, natty: Natty, server: NatsServer, folder: Path, workers: int) -> None:
        self.natty, self.server, self.folder, self.workers = natty, server, folder, workers
        (self.port,) = free_ports(1)
        files = server.tls_files
        assert files is not None
        flags = {
            "--server": server.url,
            "--tlsca": files.ca,
            "--tlscert": files.client_cert,
            "--tlskey": files.client_key,
            "--stream": STREAM,
            "--durable": DURABLE,
            "--store": folder / "archive",
            "--format": "ndjson",
            "--partition": "subject:1",
            "--max-messages": BLOCK,
            "--max-age": MAX_AGE,
            "--workers": workers,
            "--metrics": f"127.0.0.1:{self.port}",
        }
        words = [str(word) for option in flags.items() for word in option]
        environment = os.environ | {"CAPTURE_ARCHIVE": folder.name, "CAPTURE_ACK_WAIT": str(ACK_WAIT)}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "capture", "run", *words], env=environment, stdout=log, stderr=log
            )

    def pids(self) -> list[int]:
        """Return the processes that capture."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
        return sorted(found) if self.workers > 1 else [self.process.pid]

    def fetch(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WITHIN) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, ""
        except (URLError, ConnectionError):
            return 0, ""

    async def until_ready(self) -> None:
        deadline = time.monotonic() + WITHIN
        while (await asyncio.to_thread(self.fetch, "/readyz"))[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text())
            await asyncio.sleep(0.1)

    async def until(self, unsettled: int) -> int:
        """Wait until no more than so many messages are not acknowledged; return how many are not."""
        deadline = time.monotonic() + WITHIN
        while True:
            state = await self.natty.jetstream.request(f"CONSUMER.INFO.{STREAM}.{DURABLE}")
            if (left := int(state["num_pending"] + state["num_ack_pending"])) <= unsettled:
                return left
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{state}\n{(self.folder / 'log').read_text()}")
            await asyncio.sleep(POLL)

    async def begin(self) -> None:
        await self.natty.jetstream.request(f"CONSUMER.PAUSE.{STREAM}.{DURABLE}", {})

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(WITHIN):
            raise RuntimeError((self.folder / "log").read_text())

    async def check_stored(self, messages: int, *, once: bool) -> int:
        """Return how many messages are stored more than once. RuntimeError if one is missing."""
        config = load(None, {"stream": STREAM, "store": str(self.folder / "archive"), "durable": DURABLE})
        found = (await check(self.natty, config, open_store(config.store))).verdict.as_dict()
        if found["stored"] != messages or found["missing"] or (once and found["duplicates"]):
            raise RuntimeError(f"{found}")
        return int(str(found["duplicates"]))


async def prepare(natty: Natty, server: NatsServer, folder: Path, workers: int) -> Run:
    await natty.ensure_consumer(STREAM, DURABLE, ack_policy="explicit", max_ack_pending=250_000, ack_wait=ACK_WAIT)
    await natty.jetstream.request(f"CONSUMER.PAUSE.{STREAM}.{DURABLE}", {"pause_until": PAUSED_UNTIL})
    run = Run(natty, server, folder, workers)
    await run.until_ready()
    return run


async def measure(natty: Natty, server: NatsServer, messages: int, workers: int) -> Took:
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as folder:
        run = await prepare(natty, server, Path(folder), workers)
        try:
            pids, pid = run.pids(), server.pid
            assert pid is not None
            ours = {*pids, run.process.pid}
            await run.begin()
            measured = await run.until(messages * 4 // 5)
            wall, cpu, servers = time.perf_counter(), sum(map(cpu_seconds, ours)), cpu_seconds(pid)
            measured -= await run.until(workers * SUBJECTS * BLOCK)
            wall, cpu = time.perf_counter() - wall, sum(map(cpu_seconds, ours)) - cpu
            servers = cpu_seconds(pid) - servers
            await run.until(0)
            memory = max(map(read_pss, pids)), max(map(peak_bytes, pids)), read_pss(run.process.pid)
            text = (await asyncio.to_thread(run.fetch, "/metrics"))[1]
        finally:
            run.stop()
        await run.check_stored(messages, once=True)
    await natty.jetstream.request(f"CONSUMER.DELETE.{STREAM}.{DURABLE}")
    micros = 1e6 / measured
    shares = [int(float(one.split()[-1])) for one in text.splitlines() if one.startswith("capture_messages_total")]
    return Took(measured / wall, cpu * micros, servers * micros, *memory, sorted(shares))


async def kill_each(natty: Natty, server: NatsServer, messages: int, workers: int) -> tuple[int, float]:
    """Kill each worker in turn while they store; return how many messages were stored twice, and the seconds."""
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as folder:
        run = await prepare(natty, server, Path(folder), workers)
        try:
            began = time.perf_counter()
            await run.begin()
            for number, victim in enumerate(run.pids(), 1):
                await run.until(messages - messages * number // (workers + 1))
                os.kill(victim, signal.SIGKILL)
            await run.until(0)
            took = time.perf_counter() - began
        finally:
            run.stop()
        twice = await run.check_stored(messages, once=False)
    await natty.jetstream.request(f"CONSUMER.DELETE.{STREAM}.{DURABLE}")
    return twice, took


def read_pss(pid: int) -> int:
    """Return the memory of a process, with its part of what it shares, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


async def run_all(messages: int, rounds: int) -> None:
    for size in SIZES:
        with NatsServer(ServerOptions()) as server:
            async with Natty(**server.connect_options()) as natty:
                await fill(natty, messages, size)
                figures: dict[int, list[Took]] = {workers: [] for workers in WORKERS}
                for _ in range(rounds):
                    for workers in WORKERS:
                        took = await measure(natty, server, messages, workers)
                        figures[workers].append(took)
                        shares = ", ".join(f"{share:,}" for share in took.shares)
                        print(f"{size} B, {workers}: {took.rate:,.0f} msg/s, {took.ours:.2f} µs; {shares}", flush=True)
                print_figures(size, figures)
                rows = []
                for workers in WORKERS[1:]:
                    twice, seconds = await kill_each(natty, server, messages, workers)
                    rows.append((str(workers), f"{messages:,}", "0", f"{twice:,}", f"{seconds:.0f} s"))
                print_table(
                    f"{size} bytes, each worker killed once", ("workers", "stored", "lost", "twice", "all acked"), rows
                )


def print_figures(size: int, figures: dict[int, list[Took]]) -> None:
    def middle(workers: int, name: str) -> Any:
        return median(getattr(took, name) for took in figures[workers])

    rows = [
        (
            str(workers),
            f"{middle(workers, 'rate'):,.0f}",
            f"{middle(workers, 'ours'):.2f}",
            f"{middle(workers, 'ours') / middle(1, 'ours') - 1:+.0%}",
            f"{middle(workers, 'servers'):.2f}",
            f"{middle(workers, 'pss') / 2**20:.0f} MiB",
            f"{middle(workers, 'rss') / 2**20:.0f} MiB",
            f"{middle(workers, 'supervisor') / 2**20:.0f} MiB" if workers > 1 else "",
        )
        for workers in figures
    ]
    header = ("workers", "msg/s", "CPU µs/msg", "to 1", "server µs/msg", "PSS", "peak RSS", "supervisor")
    print_table(f"{size} bytes, all stored once", header, rows)


def main(messages: int, rounds: int) -> None:
    began = time.monotonic()
    loop, factory = list(loops().items())[-1]  # what a node runs on
    print_machine(f"nats-server {server_version(find_server())}", "mutual TLS", loop)
    print(f"{messages:,} messages, {SUBJECTS} subjects, blocks of {BLOCK:,}, medians of {rounds} rounds")
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run_all(messages, rounds))
    print(f"took {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [MESSAGES, ROUNDS][len(given) :]))
