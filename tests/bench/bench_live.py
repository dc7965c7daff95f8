"""The cost of a live answer, and whether it is right: `python tests/bench/bench_live.py [--tails …] [--seconds 60]`.

Cost: an archive of 100 000 messages in blocks, and tails of some sizes that only the stream holds; nats-server over
TLS. The live part is all that the archive's answer does not have: the state of stream and consumer, and the tail as
rows. Beside it stands the floor: the same direct gets by a plain TLS socket that discards the answers. Prints medians
and 99th percentiles of the rounds, and CPU. The loop is that of the command line: uvloop, if it is installed.

The monotone count: for `--seconds`, a publisher runs, a node, the leader and the server get SIGKILL in turn, and
queries count in a loop. Prints how often a count was below what was acknowledged before the query began, and how often
a sequence came twice: both must be 0.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from capture.reading.direct_get import REQUEST_BYTES, REQUEST_MESSAGES  # noqa: E402
from natty import Natty  # noqa: E402
from natty.cli.run import run_async  # noqa: E402
from natty.testing import NatsServer  # noqa: E402

ARCHIVED, BLOCK = 100_000, 10_000  # messages
GOAL = 0.1  # seconds of the live part at the 99th percentile, for a tail of 10 000
GOAL_RATE = 150_000  # messages a second of the live part, for a tail of 1 000 000
AT_ONCE = 4  # requests of the floor in flight
PAYLOAD = b'{"n": 1, "text": "' + b"." * 90 + b'"}'
SQL = "SELECT count(*), max(sequence) FROM messages"
STREAM = "LIVE"


def show(what: str, times: Sequence[float], more: str = "") -> None:
    """Print the median and the 99th percentile of some seconds."""
    ordered = sorted(times)
    most = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    median = 1e3 * statistics.median(ordered)
    print(f"  {what:38} {median:9.1f} ms {1e3 * most:9.1f} ms  ({len(ordered)} rounds){more}")


async def publish(natty: Natty, stream: str, count: int) -> None:
    async with natty.publisher(stream) as publisher:
        for number in range(count):
            headers = {"Region": "eu"} if number % 10 == 0 else None
            await publisher.publish(f"{stream}.{number % 100}", PAYLOAD, headers=headers)


def server_cpu(server: NatsServer) -> float:
    """Return the CPU seconds of the server."""
    return (
        sum(int((one / "schedstat").read_text().split()[0]) for one in Path(f"/proc/{server.pid}/task").iterdir()) / 1e9
    )


class Floor:
    """A plain TLS socket that sends batched direct gets, several in flight, and discards the answers."""

    def __init__(self, server: NatsServer) -> None:
        options = server.connect_options()
        where = urlsplit(server.url)
        plain = socket.create_connection((where.hostname, where.port))
        while not plain.recv(1 << 16).endswith(b"\r\n"):  # INFO
            pass
        context = ssl.create_default_context(cafile=str(options["tls_ca"]))
        context.load_cert_chain(options["tls_cert"], options["tls_key"])
        self._socket = context.wrap_socket(plain, server_hostname=where.hostname)
        self._buffer, self._end, self._answers = bytearray(1 << 18), b"", 0
        hello = {"verbose": False, "tls_required": True, "headers": True, "no_responders": True}
        self._socket.sendall(b"CONNECT %b\r\nSUB floor 1\r\n" % json.dumps(hello).encode())

    def read(self, first: int, last: int) -> None:
        """Read a range."""
        begins = list(range(first, last + 1, REQUEST_MESSAGES))
        self._answers = 0
        for number, begin in enumerate(begins):
            self._wait(number - AT_ONCE + 1)
            body = {"seq": begin, "batch": min(REQUEST_MESSAGES, last + 1 - begin), "max_bytes": REQUEST_BYTES}
            text = json.dumps(body).encode()
            self._socket.sendall(b"PUB $JS.API.DIRECT.GET.%b floor %d\r\n%b\r\n" % (STREAM.encode(), len(text), text))
        self._wait(len(begins))

    def _wait(self, answers: int) -> None:
        while self._answers < answers:
            size = self._socket.recv_into(self._buffer)
            assert size, "the server has closed the connection"
            some = self._end + self._buffer[:size]
            self._answers += some.count(b" 204 EOB")
            self._end = bytes(some[-7:])


async def measure(server: NatsServer, tiers: Any, tail: int, rounds: int) -> None:
    """Answer the query again and again, and print what its parts take."""
    print(f"a tail of {tail:,} messages")
    live, ours, theirs, whole, alone, floor, least = ([] for _ in range(7))
    socket_ = Floor(server)
    for _ in range(rounds):
        used, begin = server_cpu(server), time.perf_counter()
        socket_.read(ARCHIVED + 1, ARCHIVED + tail)
        floor.append(time.perf_counter() - begin)
        least.append(server_cpu(server) - used)
        used, begin = server_cpu(server), time.perf_counter()
        snapshot = await tiers.snapshot()
        looked = time.perf_counter()
        await tiers.look()
        look = time.perf_counter() - looked
        begun, looked_for = time.perf_counter(), time.process_time()
        rows = 0
        async with aclosing(snapshot.read_tails(print)) as batches:
            async for batch in batches:
                rows += len(batch)
        live.append(time.perf_counter() - begun + max(0.0, looked - begin - look))
        ours.append(time.process_time() - looked_for)
        theirs.append(server_cpu(server) - used)
        assert rows == tail, (rows, tail)
        begin = time.perf_counter()
        [[count, last]] = await tiers.ask(SQL)
        whole.append(time.perf_counter() - begin)
        assert count == last == ARCHIVED + tail
        begin = time.perf_counter()
        await tiers.ask_archive(SQL)
        alone.append(time.perf_counter() - begin)
    rate, goal = tail / statistics.median(live), ""
    if tail >= 1_000_000:
        goal = f"; goal: {GOAL_RATE:,}"
    elif tail == 10_000:
        goal = f"; goal at the 99th percentile: {1e3 * GOAL:.0f} ms"
    ratio = statistics.median(live) / statistics.median(floor)
    show("live part", live, f" {rate:,.0f} messages/s{goal}")
    show("floor: the answers discarded", floor, f" the live part takes {ratio:.1f} times as long")
    show("our CPU of reading the tail", ours, per_message(ours, tail))
    show("the server's CPU of the live part", theirs, per_message(theirs, tail))
    show("the server's CPU of the floor", least, per_message(least, tail))
    show("answer over archive and stream", whole)
    show("answer over the archive alone", alone)
    print(f"  largest resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB")


def per_message(times: Sequence[float], count: int) -> str:
    return f" {1e6 * statistics.median(times) / count:.1f} µs a message"


async def run_costs(tails: Sequence[int], rounds: Callable[[int], int]) -> None:
    from two_tiers import TwoTiers

    with NatsServer() as server:
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            async with Natty(**server.connect_options()):
                times.append(time.perf_counter() - begin)
        show("connection, with TLS", times)
        async with Natty(**server.connect_options()) as natty:
            tiers = await TwoTiers(natty, STREAM).create(allow_batched=True)
            await publish(natty, STREAM, ARCHIVED)
            for first in range(1, ARCHIVED, BLOCK):
                await tiers.keep(range(first, first + BLOCK))
            held = 0
            for tail in sorted(tails):
                await publish(natty, STREAM, tail - held)
                held = tail
                await measure(server, tiers, tail, rounds(tail))


async def run_count(seconds: float) -> None:
    """Count while a node, the leader and the server are killed in turn, and print what came of it."""
    from capture_chaos_nodes import environment, toml
    from compacting import GRACE
    from live_struck import VICTIMS, Struck
    from patient import PATIENT
    from secret import write_secret

    from capture.config.load import load

    logging.getLogger("natty").setLevel(logging.ERROR)
    print(f"counts for {seconds:g} s, while {', '.join(VICTIMS)} get SIGKILL in turn")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="capture-")))
        server = stack.enter_context(NatsServer())
        options = server.connect_options()
        settings = {
            **{"stream": STREAM, "store": str(folder / "lake"), "decoder": "json", "partition": "subject:1"},
            **{"lease": 1.0, "limits": {"max_age": 0.3}, "sweep": {"every": 0.2, "grace": GRACE}},
            **{"compaction": {"min_files": 1_000_000, "max_wait": 1e9}, "nats": {**options, **PATIENT}},
        }
        path = write_secret(folder / "capture.toml", toml(settings))

        def start(name: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "capture", "run", "--config", str(path), "--node-name", name]
            with (folder / f"{name}.log").open("ab") as log:
                node = subprocess.Popen(command, stdout=log, stderr=log, env=environment({}))
            stack.callback(node.wait)
            stack.callback(node.kill)
            return node

        async with Natty(**{**options, **PATIENT}) as natty, Natty(**{**options, **PATIENT, "timeout": 5.0}) as client:
            await natty.create_stream(STREAM, subjects=[f"{STREAM}.*"], allow_direct=True, allow_batched=True)
            struck = Struck(server, natty, client, load(path, environment={}), start, random.Random(7))
            tally = await struck.run(seconds)
    kills = ", ".join(f"{victim} {count} times" for victim, count in tally.kills.items())
    print(f"  {struck.published.acked:,} messages were acknowledged; killed were {kills}")
    sentences = f"{tally.refusals.total():,} sentences instead of one, {dict(tally.refusals)}"
    print(f"  {tally.answers:,} answers; {sentences}")
    print(f"  {len(tally.too_low)} counts below what was acknowledged before the query, or counted before (goal: 0)")
    print(
        f"  {len(tally.repeated)} counts with a sequence twice, {len(tally.too_high)} above what was published (0, 0)"
    )
    print(f"  {len(tally.gone)} reports of lost messages (goal: 0)")
    show("an answer", tally.times)
    print(f"  the longest wait for one, with the questions that got a sentence: {tally.longest:.1f} s")
    if tally.wrong:
        sys.exit(f"wrong: {tally.wrong}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tails", type=int, nargs="*", default=[100, 10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=0, help="default: 100, and 5 for more than 100 000 messages")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the monotone count; 0: none")
    given = parser.parse_args()
    print(f"load at the beginning: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if given.tails:
        run_async(run_costs(given.tails, lambda tail: given.rounds or (100 if tail <= 100_000 else 5)))
    if given.seconds:
        run_async(run_count(given.seconds))
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
