"""Compaction on Spark beside the same in DuckDB: `python tests/bench/bench_compaction.py [parquet ndjson growth keys]`.

CPU seconds are the figure to compare: those of driver, JVM and workers on one side, of DuckDB's threads on the other.
Both read the same blocks and write one sorted zstd Parquet file with each message once, and what each wrote is counted.
"""

import asyncio
import hashlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from bench_table import print_machine, print_table

from capture.block import SealedBlock
from capture.manifest import Stored
from capture.merging import Group
from capture.record import Records
from capture.sequences import Sequences
from capture.spark import SparkDriver, SparkOptions
from capture.writers import writer
from natty.leader.guard import members

ROWS = 10_000  # of a block
REDELIVERED = 0.02
WARM, ROUNDS = 5, 3  # the JVM compiles its hot code during the first ones
TICKS = os.sysconf("SC_CLK_TCK")
PAYLOAD_BYTES = 200
STARTED = 1_700_000_000_000_000_000
GROWTH = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
KEYS, BLOCKS_A_KEY, ROWS_A_SMALL_BLOCK = 1000, 10, 100
DUCK_TYPES = (
    "stream: 'VARCHAR', sequence: 'BIGINT', time_ns: 'BIGINT', subject: 'VARCHAR', headers: 'MAP(VARCHAR, VARCHAR[])', "
    "header_block_base64: 'VARCHAR', message_id: 'VARCHAR', deliveries: 'INTEGER', payload: 'VARCHAR', "
    "payload_base64: 'VARCHAR', error: 'VARCHAR'"
)
DUCK_COLUMNS = (
    "stream, sequence, time_ns, subject, headers, from_base64(header_block_base64) AS header_block, message_id, "
    "deliveries, coalesce(encode(payload), from_base64(payload_base64)) AS payload, error"
)


@dataclass
class Took:
    wall: float = 0.0
    cpu: float = 0.0
    peak: float = 0.0  # MiB


def main(wanted: Sequence[str]) -> None:
    print_machine(f"{PAYLOAD_BYTES}-byte payloads, {REDELIVERED:.0%} delivered twice")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if "parquet" in wanted:
            beside_duckdb(root / "parquet", "parquet", "", 200)
        if "ndjson" in wanted:
            beside_duckdb(root / "ndjson", "ndjson", "gzip", 200)
        if "growth" in wanted:
            growth(root)
        if "keys" in wanted:
            many_keys(root / "keys")


def beside_duckdb(root: Path, name: str, compression: str, blocks: int) -> None:
    inputs = [write_block(root, number, name, compression) for number in range(blocks)]
    size = sum(one.bytes for one in inputs) / 2**20
    duck = [in_duckdb(root, inputs, name) for _ in range(ROUNDS)]
    start, first, *warm = asyncio.run(on_spark(root, [inputs] * (WARM + ROUNDS)))
    spark = warm[WARM - 1 :]
    rows = [[label, *figures(rounds, blocks * ROWS)] for label, rounds in (("DuckDB", duck), ("Spark, warm", spark))]
    rows.insert(1, ["Spark, first", *figures([first], blocks * ROWS)])
    title = f"{blocks} blocks of {ROWS:,} messages, {name} {compression}, {size:.0f} MiB"
    print_table(title, ["", "s", "CPU s", "µs of CPU a message", "peak MiB"], rows)
    ratio = statistics.median(took.cpu for took in spark) / statistics.median(took.cpu for took in duck)
    print(f"Spark / DuckDB: {ratio:.2f} × the CPU; session start {start.wall:.1f} s, with the first commit's merge "
          f"{start.wall + first.wall:.1f} s")  # fmt: skip


def growth(root: Path) -> None:
    rows = []
    for messages in GROWTH:
        folder = root / str(messages)
        inputs = [write_block(folder, number, "parquet", "") for number in range(messages // ROWS)]
        _, *rounds = asyncio.run(on_spark(folder, [inputs] * 3))
        rows.append([f"{messages:,}", *figures(rounds[1:], messages)])
    print_table("one bin of so many messages", ["", "s", "CPU s", "µs of CPU a message", "peak MiB"], rows)


def many_keys(root: Path) -> None:
    groups = []
    for key in range(KEYS):
        firsts = (1 + (key * BLOCKS_A_KEY + number) * ROWS_A_SMALL_BLOCK for number in range(BLOCKS_A_KEY))
        blocks = [
            store(root, range(first, first + ROWS_A_SMALL_BLOCK), "parquet", "", random.Random(first), f"k{key}")
            for first in firsts
        ]
        groups.append(blocks)

    async def run() -> Took:
        async with SparkDriver() as driver:
            await driver.merge(
                root.as_uri(), [group(blocks, f"table/w{n}.parquet") for n, blocks in enumerate(groups[:8])]
            )
            with measured(driver) as took:
                wanted = [group(blocks, f"table/{number}.parquet") for number, blocks in enumerate(groups)]
                merged = await driver.merge(root.as_uri(), wanted)
            assert all(one.outputs[0].count == BLOCKS_A_KEY * ROWS_A_SMALL_BLOCK for one in merged)
            return took

    took = asyncio.run(run())
    print(f"\n{KEYS:,} keys with {BLOCKS_A_KEY} blocks of {ROWS_A_SMALL_BLOCK} messages in one run: {took.wall:.1f} s, "
          f"{took.cpu:.1f} CPU s; a key takes {took.wall / KEYS * 1e3:.1f} ms, {took.cpu / KEYS * 1e3:.1f} ms of CPU; "
          f"peak {took.peak:.0f} MiB", flush=True)  # fmt: skip


def figures(rounds: Sequence[Took], messages: int) -> list[str]:
    wall, cpu, peak = (statistics.median(getattr(one, name) for one in rounds) for name in ("wall", "cpu", "peak"))
    return [f"{wall:.2f}", f"{cpu:.2f}", f"{cpu / messages * 1e6:.2f}", f"{peak:,.0f}"]


def write_block(root: Path, number: int, name: str, compression: str) -> Stored:
    """A block of messages, some of which an earlier block holds too."""
    chance = random.Random(number)
    first = 1 + number * ROWS
    again = int(ROWS * REDELIVERED) if number else 0
    fresh = range(first + again, first + ROWS)
    return store(root, sorted({*fresh, *chance.sample(range(1, first), again)}), name, compression, chance, "EWR")


def store(root: Path, sequences: Sequence[int], name: str, compression: str, chance: random.Random, key: str) -> Stored:
    count, filler = len(sequences), PAYLOAD_BYTES - 60
    records: Records[None] = Records(
        stream="FLIGHTS",
        sequences=list(sequences),
        times_ns=[STARTED + sequence for sequence in sequences],
        subjects=[b"flights.EWR.%d" % (sequence % 20) for sequence in sequences],
        header_blocks=[b""] * count,
        payloads=[
            b'{"year":2013,"carrier":"UA","number":%012d,"tail":"%s"}'
            % (sequence, chance.randbytes(filler // 2).hex().encode())
            for sequence in sequences
        ],
        deliveries=[1] * count,
        replies=[b""] * count,
        values=[None] * count,
    )
    wanted = writer(name, compression=compression)
    data = wanted.write(SealedBlock("FLIGHTS", key, 0, records, "stop"))
    path = f"blocks/{key}/{sequences[0]}-{sequences[-1]}{wanted.suffix}"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)
    return Stored(
        path=path, stream="FLIGHTS", key=key, interval=0, first=sequences[0], last=sequences[-1], count=count,
        bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), format=wanted.format,
        sequences=Sequences.from_iterable(sequences).to_text(),
    )  # fmt: skip


def group(inputs: list[Stored], output: str) -> Group:
    return Group(stream="FLIGHTS", key=inputs[0].key, interval=0, inputs=inputs, output=output)


def in_duckdb(root: Path, inputs: list[Stored], name: str) -> Took:
    files = [str(root / one.path) for one in inputs]
    source, columns = f"read_parquet({files}, hive_partitioning=false)", "*"
    if name == "ndjson":
        source, columns = (
            f"read_json({files}, format='newline_delimited', compression='gzip', columns={{{DUCK_TYPES}}})",
            DUCK_COLUMNS,
        )
    query = f"SELECT DISTINCT ON (sequence) {columns} FROM {source} ORDER BY sequence, deliveries"
    output = root / "duck.parquet"
    with duckdb.connect() as connection, measured() as took:
        connection.execute(f"COPY ({query}) TO '{output}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)")
    check(output, inputs)
    return took


async def on_spark(root: Path, rounds: Sequence[list[Stored]]) -> list[Took]:
    """What the start of a session takes, and then each merge."""
    async with SparkDriver(SparkOptions()) as driver:
        with measured() as started:
            await driver.ping()
        took = [started]
        for number, inputs in enumerate(rounds):
            with measured(driver) as one:
                [merged] = await driver.merge(root.as_uri(), [group(inputs, f"table/{number}.parquet")])
            assert not merged.failed, merged.failed
            took.append(one)
            check(root / merged.outputs[0].path, inputs)
            (root / merged.outputs[0].path).unlink()
        return took


def check(output: Path, inputs: list[Stored]) -> None:
    held = Sequences.union_of(Sequences.from_text(one.sequences) for one in inputs)
    sequences = pq.read_table(output, columns=["sequence"], partitioning=None)["sequence"].to_pylist()
    assert sequences == list(held)


@contextmanager
def measured(driver: SparkDriver | None = None) -> Iterator[Took]:
    """Time, CPU and memory of a session of Spark, or of this process."""
    took, cpu = Took(), own_cpu if driver is None else lambda: session_cpu(driver.session)
    processes: Callable[[], list[int]] = (
        (lambda: [os.getpid()]) if driver is None else lambda: members(driver.session or 0)
    )
    for one in processes():
        Path(f"/proc/{one}/clear_refs").write_text("5")  # the peak of memory begins anew
    wall, busy = time.perf_counter(), cpu()
    yield took
    took.wall, took.cpu = time.perf_counter() - wall, cpu() - busy
    took.peak = sum(map(peak, processes())) / 1024


def own_cpu() -> float:
    times = os.times()
    return times.user + times.system


def session_cpu(session: int | None) -> float:
    """CPU seconds of driver, JVM and workers, and of those of their children that have ended."""
    ticks = 0
    for process in members(session or 0):
        ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICKS


def peak(process: int) -> int:
    """The most KiB of memory that a process has had."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("CPU times of other processes are read from /proc")
    main(sys.argv[1:] or ("parquet", "ndjson", "growth", "keys"))
