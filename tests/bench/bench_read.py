"""The costs of reading an archive: batches, messages, `capture cat`, and SQL; from blocks, and compacted.

`python tests/bench/bench_read.py [--messages 1000000]`. Each way is a separate process, so that its memory can be
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

BLOCK = 50_000  # messages
STREAM, CREATED = "BENCH", "2026-11-21T00:00:00Z"
WAYS = ("batches", "messages", "cat", "sql count", "sql where")
PAYLOAD = b'{"n": %d, "text": "' + b"." * 90 + b'"}'


async def fill(folder: str, messages: int) -> None:
    """Store messages of about 128 bytes with two headers, as nodes do."""
    from archived import Settled

    from capture.archive.identity import claim
    from capture.formats import writer
    from capture.ingest.block import SealedBlock
    from capture.ingest.commit import Committer
    from capture.ingest.record import Records
    from capture.stores import open_store

    store = open_store(folder)
    await claim(store, STREAM, STREAM, CREATED)
    committer = Committer(store, writer("parquet"), Settled())
    for first in range(1, messages + 1, BLOCK):
        numbers = range(first, min(first + BLOCK, messages + 1))
        headers = [b"NATS/1.0\r\nNats-Msg-Id: %d\r\nRegion: eu\r\n\r\n" % number for number in numbers]
        records = Records(
            STREAM,
            list(numbers),
            [1_795_230_000_000_000_000 + 1000 * number for number in numbers],
            [b"bench.%d" % (number % 100) for number in numbers],
            headers,
            [PAYLOAD % number for number in numbers],
            [1] * len(numbers),
            [b""] * len(numbers),
            [None] * len(numbers),
        )
        await committer.commit(SealedBlock(STREAM, "", 1_795_230_000, records, "messages"))


async def compacted(folder: str) -> None:
    """Adopt the blocks, and merge them by pyarrow."""
    from capture.maintenance.compaction import compact
    from capture.maintenance.compaction_plan import Policy
    from capture.maintenance.leading import Leading
    from capture.maintenance.sweep import sweep
    from capture.maintenance.table_commits import TableLeading
    from capture.stores import open_store
    from capture.testing import ArrowEngine, HeadState, MemoryHead

    store, manifest, table = open_store(folder), HeadState(), HeadState()
    now = time.time()
    await sweep(Leading(store, MemoryHead(1, manifest), table.read), now=now)
    policy = Policy(min_files=1, max_wait=0.0, target_bytes=1 << 24)
    await compact(TableLeading(store, MemoryHead(1, table), manifest.read, grace=900.0), ArrowEngine(), policy, now=now)


async def count(way: str, folder: str) -> int:
    """Read everything in one way; return how many messages that were."""
    import capture

    match way:
        case "batches":
            return sum([len(batch) async for batch in capture.read_batches(folder)])
        case "messages":
            number = 0
            async for _ in capture.read(folder):
                number += 1
            return number
    from capture.reading.duck import query
    from capture.reading.merge import make_look
    from capture.stores import open_store

    where = "" if way == "sql count" else " WHERE subject = 'bench.7' OR octet_length(payload) > 0"
    store = open_store(folder)
    answer = await query(store, await make_look(store)(), f"SELECT count(*) FROM messages{where}")
    return int(answer.rows[0][0])


def child(way: str, folder: str) -> None:
    """Measure one way in this process, and print it."""
    import capture.reading.read  # noqa: F401 # not what is measured

    began, cpu = time.perf_counter(), time.process_time()
    if way == "cat":
        command = [sys.executable, "-m", "capture", "cat", folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent, memory, number = used.ru_utime + used.ru_stime, used.ru_maxrss, -1
    else:
        number = asyncio.run(count(way, folder))
        spent, memory = time.process_time() - cpu, _highest()
    print(number, time.perf_counter() - began, spent, memory >> 10)


def _highest() -> int:
    """Return the most KiB that this process had; getrusage counts what its parent had before, too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(fill(folder, given.messages))
        for state in ("blocks", "compacted"):
            if state == "compacted":
                asyncio.run(compacted(folder))
            size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet")) >> 20
            print(f"\n{given.messages:,} messages, {state} ({size} MB of Parquet in all)")
            print(f"{'':12}{'msg/s':>12}{'CPU µs/msg':>12}{'memory MB':>12}")
            for way in WAYS:
                ran = subprocess.run(
                    [sys.executable, __file__, "--child", way, folder], capture_output=True, text=True, check=True
                )
                number, wall, cpu, memory = ran.stdout.split()
                assert int(number) in (-1, given.messages), f"{way} read {number}"
                per_second, micros = given.messages / float(wall), float(cpu) / given.messages * 1e6
                print(f"{way:12}{per_second:>12,.0f}{micros:>12.2f}{memory:>12}")


if __name__ == "__main__":
    main()
