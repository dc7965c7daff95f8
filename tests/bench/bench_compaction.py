"""Compaction on Spark beside the same merge in pyarrow alone: `python tests/bench/bench_compaction.py`."""

import asyncio
import hashlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.compact import Group
from capture.manifest import Stored
from capture.sequences import Sequences
from capture.spark import SparkDriver, SparkOptions
from capture.writers.envelope import SCHEMA
from natty.leader.guard import members

BLOCKS = 40
ROWS = 10_000
REDELIVERED = 0.02
ROUNDS = 8  # the JVM compiles its hot code during the first five
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Took:
    wall: float = 0.0
    cpu: float = 0.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        inputs = [write_block(root, number) for number in range(BLOCKS)]
        rows, size = sum(block.count for block in inputs), sum(block.bytes for block in inputs)
        print(f"{len(inputs)} Parquet blocks, {rows:,} rows, {size / 2**20:.1f} MiB, {os.cpu_count()} cores")
        arrow = min((in_arrow(root, inputs) for _ in range(ROUNDS)), key=lambda took: took.cpu)
        show("pyarrow alone", arrow, rows)
        cold, warm = asyncio.run(on_spark(root, inputs))
        show("Spark, first (JVM cold)", cold, rows)
        show("Spark, best of the rest", warm, rows)
        print(f"Spark / pyarrow: {warm.cpu / arrow.cpu:.2f} × the CPU, {warm.wall / arrow.wall:.2f} × the time")


def show(name: str, took: Took, rows: int) -> None:
    print(f"{name:<26}{took.wall:6.2f} s {took.cpu:6.2f} CPU s {rows / took.wall:12,.0f} rows/s")


def write_block(root: Path, number: int) -> Stored:
    """A block of shuffled messages, some of which an earlier block holds too."""
    chance = random.Random(number)
    first = 1 + number * ROWS
    again = int(ROWS * REDELIVERED) if number else 0
    sequences = [*range(first + again, first + ROWS), *(chance.randrange(1, first) for _ in range(again))]
    chance.shuffle(sequences)
    columns = {
        "stream": ["FLIGHTS"] * ROWS,
        "sequence": sequences,
        "time_ns": [1_700_000_000_000_000_000 + sequence for sequence in sequences],
        "subject": [f"flights.EWR.{sequence % 20}" for sequence in sequences],
        "headers": [[("Nats-Msg-Id", [f"id-{sequence}"])] for sequence in sequences],
        "header_block": [b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\n\r\n" % sequence for sequence in sequences],
        "message_id": [f"id-{sequence}" for sequence in sequences],
        "deliveries": [1] * ROWS,
        "payload": [
            b'{"year":2013,"carrier":"UA","tail":"%s"}' % chance.randbytes(30).hex().encode() for _ in sequences
        ],
        "error": pa.nulls(ROWS, pa.string()),
        "subject_raw": pa.nulls(ROWS, pa.binary()),
        "origin_stream": pa.nulls(ROWS, pa.string()),
        "origin_sequence": pa.nulls(ROWS, pa.int64()),
    }
    file = root / "blocks" / f"{number}.parquet"
    file.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns, SCHEMA), file, compression="zstd", compression_level=1, use_dictionary=["subject"])
    return Stored(
        path=f"blocks/{file.name}", stream="FLIGHTS", key="EWR", interval=0, first=min(sequences), last=max(sequences),
        count=ROWS, bytes=file.stat().st_size, sha256=hashlib.sha256(file.read_bytes()).hexdigest(), format="parquet",
        sequences=Sequences.from_iterable(sequences).to_text(),
    )  # fmt: skip


def in_arrow(root: Path, inputs: list[Stored]) -> Took:
    with measured(own_cpu) as took:
        rows = pa.concat_tables(pq.read_table(root / block.path, partitioning=None) for block in inputs)
        rows = rows.sort_by("sequence").combine_chunks()
        steps = pc.pairwise_diff(rows["sequence"].combine_chunks())
        distinct = rows.filter(pc.fill_null(pc.not_equal(steps, 0), True))
        pq.write_table(
            distinct, root / "arrow.parquet", compression="zstd", compression_level=1,
            use_dictionary=["stream", "subject", "error"], write_page_index=True, write_page_checksum=True,
        )  # fmt: skip
        assert len(distinct) == len(Sequences.union_of(Sequences.from_text(block.sequences) for block in inputs))
    return took


async def on_spark(root: Path, inputs: list[Stored]) -> tuple[Took, Took]:
    async with SparkDriver(SparkOptions(master="local[1]")) as driver:
        await driver.ping()
        rounds = []
        for number in range(1 + ROUNDS):
            group = Group(stream="FLIGHTS", key="EWR", interval=0, inputs=inputs, output=f"table/{number}.parquet")
            with measured(lambda: session_cpu(driver.session)) as took:
                [merged] = await driver.merge(root.as_uri(), [group])
            assert merged.rows_in == BLOCKS * ROWS
            rounds.append(took)
        return rounds[0], min(rounds[1:], key=lambda took: took.cpu)


@contextmanager
def measured(cpu: Callable[[], float]) -> Iterator[Took]:
    took = Took()
    wall, busy = time.perf_counter(), cpu()
    yield took
    took.wall, took.cpu = time.perf_counter() - wall, cpu() - busy


def own_cpu() -> float:
    times = os.times()
    return times.user + times.system


def session_cpu(session: int | None) -> float:
    """CPU seconds of driver, JVM and workers, and of those of their children that have ended."""
    ticks = 0
    for process in members(session or 0):
        ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICKS


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("CPU times of other processes are read from /proc")
    main()
