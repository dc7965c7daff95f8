"""The cost of a live answer: `python tests/bench/bench_live.py [--tails 100 10000 1000000] [--rounds 100]`.

An archive of 100 000 messages in blocks, and tails of some sizes that only the stream holds; nats-server over TLS. The
live part is all that the archive's answer does not have: the state of stream and consumer, and the tail as rows. Prints
medians and 99th percentiles of the rounds. The loop is that of the command line: uvloop, if it is installed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from natty import Natty  # noqa: E402
from natty.cli.run import run_async  # noqa: E402
from natty.testing import NatsServer  # noqa: E402

ARCHIVED, BLOCK = 100_000, 10_000  # messages
TICKS = os.sysconf("SC_CLK_TCK")
GOAL = 0.1  # seconds of the live part at the 99th percentile, for a tail of 10 000
PAYLOAD = b'{"n": 1, "text": "' + b"." * 90 + b'"}'
SQL = "SELECT count(*), max(sequence) FROM messages"


def show(what: str, times: Sequence[float]) -> None:
    """Print the median and the 99th percentile of some seconds."""
    ordered = sorted(times)
    most = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    print(f"  {what:34} {1e3 * statistics.median(ordered):9.1f} ms {1e3 * most:9.1f} ms  ({len(ordered)} rounds)")


async def publish(natty: Natty, stream: str, count: int) -> None:
    async with natty.publisher(stream) as publisher:
        for number in range(count):
            headers = {"Region": "eu"} if number % 10 == 0 else None
            await publisher.publish(f"{stream}.{number % 100}", PAYLOAD, headers=headers)


def used_cpu(server: NatsServer) -> float:
    """Return the CPU seconds of this process and of the server."""
    ticks = sum(map(int, Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / TICKS


async def measure(server: NatsServer, tiers: Any, tail: int, rounds: int) -> None:
    """Answer the query again and again, and print what its parts take."""
    print(f"a tail of {tail:,} messages")
    live, cpu, whole, alone = [], [], [], []
    for _ in range(rounds):
        used, begin = used_cpu(server), time.perf_counter()
        snapshot = await tiers.snapshot()
        looked = time.perf_counter()
        await tiers.look()
        look = time.perf_counter() - looked
        begun = time.perf_counter()
        rows = 0
        async with aclosing(snapshot.read_tails(print)) as batches:
            async for batch in batches:
                rows += len(batch)
        live.append(time.perf_counter() - begun + max(0.0, looked - begin - look))
        cpu.append(used_cpu(server) - used)
        assert rows == tail, (rows, tail)
        begin = time.perf_counter()
        [[count, last]] = await tiers.ask(SQL)
        whole.append(time.perf_counter() - begin)
        assert count == last == ARCHIVED + tail
        begin = time.perf_counter()
        await tiers.ask_archive(SQL)
        alone.append(time.perf_counter() - begin)
    show("live part", live)
    show("CPU of it, with the server's", cpu)
    show("answer over archive and stream", whole)
    show("answer over the archive alone", alone)
    print(f"  largest resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB")


async def run(tails: Sequence[int], rounds: Callable[[int], int]) -> None:
    from two_tiers import TwoTiers

    with NatsServer() as server:
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            async with Natty(**server.connect_options()):
                times.append(time.perf_counter() - begin)
        show("connection, with TLS", times)
        async with Natty(**server.connect_options()) as natty:
            tiers = await TwoTiers(natty, "LIVE").create(allow_batched=True)
            await publish(natty, "LIVE", ARCHIVED)
            for first in range(1, ARCHIVED, BLOCK):
                await tiers.keep(range(first, first + BLOCK))
            held = 0
            for tail in sorted(tails):
                await publish(natty, "LIVE", tail - held)
                held = tail
                await measure(server, tiers, tail, rounds(tail))
    print(f"goal: live part of 10 000 messages at the 99th percentile: {1e3 * GOAL:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tails", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=0, help="default: 100, and 5 for more than 100 000 messages")
    given = parser.parse_args()
    run_async(run(given.tails, lambda tail: given.rounds or (100 if tail <= 100_000 else 5)))


if __name__ == "__main__":
    main()
