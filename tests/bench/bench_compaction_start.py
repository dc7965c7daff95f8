"""From the start of a `capture compact` to its commit, by phases: `python tests/bench/bench_compaction.py start`.

The phases are those that are visible from outside: processes that start, and objects in the store.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench_table import PAYLOAD, print_table

from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.record import Delivered, Records
from capture.stores import open_store
from natty import Natty
from natty.testing import NatsServer

sys.path.append(str(Path(__file__).parents[1] / "support"))
from electing import vacated_archive

STREAM, NOW = "BENCH", 1_795_230_000
BLOCKS, ROWS = 10, 10_000
ROUNDS = 3
LOOK_EVERY = 0.02  # seconds
COMMAND, DRIVER, JVM, WORKERS = "the command", "Spark's driver", "the JVM", "the workers"
KINDS = {"capture/spark/__main__.py": DRIVER, "SparkSubmit": JVM, "pyspark.daemon": WORKERS, "\0compact\0": COMMAND}
TICKS = os.sysconf("SC_CLK_TCK")


class Nobody:
    """Where acks go that nobody waits for."""

    def ack(self, messages: Delivered) -> None:
        pass

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        pass


def start(root: Path) -> None:
    """Print when each phase was reached, in several runs; one before them makes the archive of classes."""
    _, *found = [_run(root / str(number)) for number in range(ROUNDS + 1)]
    title = (
        f"`capture compact` of {BLOCKS} blocks of {ROWS:,} messages: seconds since its start, with the archive built"
    )
    rows = [[phase, *(f"{one.get(phase, float('nan')):.2f}" for one in found)] for phase in found[0]]
    print_table(title, ["", *(f"run {number}" for number in range(1, ROUNDS + 1))], rows)


def _run(folder: Path) -> dict[str, float]:
    with NatsServer() as server:
        asyncio.run(_store_blocks(folder / "lake", server))
        options = server.connect_options()
        files = [f'{name} = "{options[name]}"' for name in ("tls_ca", "tls_cert", "tls_key")]
        (folder / "capture.toml").write_text("\n".join([
            f'stream = "{STREAM}"', f'store = "{folder / "lake"}"', "[nats]", f"servers = {options['servers']}", *files,
        ]))  # fmt: skip
        return _watched(folder)


async def _store_blocks(lake: Path, server: NatsServer) -> None:
    async with Natty(**server.connect_options()) as natty:
        await natty.create_stream(STREAM, subjects=["bench.>"])
        await vacated_archive(natty, STREAM)  # else the very first leaders wait out a lease
    committer = Committer(open_store(str(lake)), writer("parquet"), Nobody())
    for first in range(1, BLOCKS * ROWS + 1, ROWS):
        sequences = list(range(first, first + ROWS))
        records: Records[None] = Records(
            STREAM,
            sequences,
            [NOW * 10**9 + one for one in sequences],
            [b"bench.%d" % (one % 10) for one in sequences],
            [b""] * ROWS,
            [b"%d" % one + PAYLOAD[len(str(one)) :] for one in sequences],
            [1] * ROWS,
            [b""] * ROWS,
            [None] * ROWS,
        )
        await committer.commit(SealedBlock(STREAM, "k", NOW, records, "messages"))


def _watched(folder: Path) -> dict[str, float]:
    """Run the command; return when it came to which phase, and what took how many CPU seconds."""
    lake, found, cpu, began = folder / "lake", dict[str, float](), dict[int, tuple[str, float]](), time.perf_counter()
    command = [sys.executable, "-m", "capture", "compact", "--config", str(folder / "capture.toml"), "--all"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    phases: dict[str, Callable[[], bool]] = {
        "elected, the blocks swept": lambda: any(lake.glob("_manifest/*")),
        "Spark's driver begins": lambda: any(one == DRIVER for one, _ in cpu.values()),
        "its JVM begins": lambda: any(one == JVM for one, _ in cpu.values()),
        "a worker has the job": lambda: any(one == WORKERS for one, _ in cpu.values()),
        "the output is stored": lambda: any(lake.glob("table/**/*.parquet")),
        "committed": lambda: any(lake.glob("_table/0000000002-*")),
    }
    while process.poll() is None:
        cpu |= below(process.pid)
        while phases and (phase := next(iter(phases))) and phases[phase]():
            found[phase] = time.perf_counter() - began
            del phases[phase]
        time.sleep(LOOK_EVERY)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    found["the process has ended"] = time.perf_counter() - began
    for kind in (COMMAND, DRIVER, JVM, WORKERS):
        found[f"CPU seconds of {kind}"] = sum(seconds for one, seconds in cpu.values() if one == kind)
    return found


def below(parent: int) -> dict[int, tuple[str, float]]:
    """What a process and its descendants are, and their CPU seconds."""
    children: dict[int, list[int]] = {}
    known: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            facts = (entry / "stat").read_text().rpartition(")")[2].split()
            line = (entry / "cmdline").read_text("utf-8", "replace")
        except OSError:  # it has ended
            continue
        kind = next((kind for mark, kind in KINDS.items() if mark in line), "")
        if kind:  # else it has ended, or is none of ours
            known[int(entry.name)] = kind, sum(map(int, facts[11:13])) / TICKS
        children.setdefault(int(facts[1]), []).append(int(entry.name))
    found, waiting = [parent], [parent]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return {number: known[number] for number in found if number in known}
