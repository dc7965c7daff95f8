"""Compaction on Spark beside the same in DuckDB: `python tests/bench/bench_compaction.py [parquet ndjson …]`.

Compare CPU seconds: those of driver, JVM and workers on one side, of DuckDB's threads on the other. Both read the same
blocks and write one sorted zstd Parquet file with each message once, and the bench counts what each wrote.
Further parts are `growth`, `keys`, `start` (to the first commit, by phases) and `memory` (inputs far larger than it).
"""

import asyncio
import hashlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from bench_compaction_start import DRIVER, JVM, KINDS, TICKS, WORKERS, start
from bench_table import print_machine, print_table

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from capture.maintenance.engine import FileGroup
from capture.spark import SparkDriver, SparkOptions
from natty.elections.guard import members

ROWS = 10_000  # of a block
REDELIVERED = 0.02
WARM, ROUNDS = 1, 3  # the workers import what they need during the first ones
SHOWN = (JVM, DRIVER, WORKERS)
PAYLOAD_BYTES = 200
STARTED = 1_700_000_000_000_000_000
GROWTH = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
LIMIT = 512 << 20  # of the driver's JVM, in the part `memory`
TIMES = (4, 8, 16)  # the limit: so large are the inputs
LARGE_BYTES, LARGE_ROWS = 4000, 5000  # of a message, a tenth of which is noise, and of a block of them
SPLIT_BYTES = 256 << 20  # in the part `memory`; the plan has 2 GiB
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
    peaks: dict[str, float] = field(default_factory=dict)
    """By kind of process."""


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
        if "start" in wanted:
            start(root / "start")
        if "memory" in wanted:
            memory(root / "memory")


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
        _, _, took = asyncio.run(on_spark(folder, [inputs[:20], inputs]))
        rows.append([f"{messages:,}", *figures([took], messages)])
        shutil.rmtree(folder)
    print_table("one bin of so many messages", ["", "s", "CPU s", "µs of CPU a message", "peak MiB"], rows)


def many_keys(root: Path) -> None:
    groups = []
    for key in range(KEYS):
        firsts = (1 + (key * BLOCKS_A_KEY + number) * ROWS_A_SMALL_BLOCK for number in range(BLOCKS_A_KEY))
        ranges = [range(first, first + ROWS_A_SMALL_BLOCK) for first in firsts]
        groups.append([
            store(root, mine, "parquet", "", f"k{key}", small_payloads(mine, random.Random(mine[0]))) for mine in ranges
        ])  # fmt: skip

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


def memory(root: Path) -> None:
    """Inputs of a multiple of what the driver may have, merged in parts; they overlap as others do."""
    rows = []
    for times in TIMES:
        blocks = times * LIMIT // (LARGE_BYTES * LARGE_ROWS)
        inputs = [write_large_block(root, number) for number in range(blocks)]
        count, size = blocks * LARGE_ROWS, sum(one.bytes for one in inputs)
        parts = max(2, -(-size // SPLIT_BYTES))  # so that either core has one
        bounds = [1 + count * number // parts for number in range(1, parts)]
        options = SparkOptions(driver_memory=f"{LIMIT >> 20}m")
        _, took = asyncio.run(on_spark(root, [inputs], options, bounds))
        took_by = [f"{took.peaks.get(kind, 0):,.0f}" for kind in SHOWN]
        rows.append([f"{times} ×", f"{size / 2**20:,.0f}", f"{parts}", *took_by, *figures([took], count)])
        shutil.rmtree(root)
    print_table(f"inputs that are, as rows, so many times the {LIMIT >> 20} MiB that the driver's JVM may have",
                ["", "stored MiB", "files", *(f"{kind} MiB" for kind in SHOWN),
                 "s", "CPU s", "µs of CPU a message", "peak MiB"], rows)  # fmt: skip


def figures(rounds: Sequence[Took], messages: int) -> list[str]:
    wall, cpu, peak = (statistics.median(getattr(one, name) for one in rounds) for name in ("wall", "cpu", "peak"))
    return [f"{wall:.2f}", f"{cpu:.2f}", f"{cpu / messages * 1e6:.2f}", f"{peak:,.0f}"]


def write_block(root: Path, number: int, name: str, compression: str) -> Stored:
    """A block of messages, some of which an earlier block holds too."""
    chance = random.Random(number)
    first = 1 + number * ROWS
    again = int(ROWS * REDELIVERED) if number else 0
    fresh = range(first + again, first + ROWS)
    sequences = sorted({*fresh, *chance.sample(range(1, first), again)})
    return store(root, sequences, name, compression, "EWR", small_payloads(sequences, chance))


def write_large_block(root: Path, number: int) -> Stored:
    """A block of large messages, some of which an earlier block holds too."""
    first, chance = 1 + number * LARGE_ROWS, random.Random(number)
    again = chance.sample(range(1, first), int(LARGE_ROWS * REDELIVERED) if number else 0)
    sequences = sorted([*again, *range(first, first + LARGE_ROWS)])
    return store(
        root,
        sequences,
        "parquet",
        "",
        "EWR",
        [chance.randbytes(LARGE_BYTES // 10) + bytes(LARGE_BYTES * 9 // 10) for _ in sequences],
    )


def small_payloads(sequences: Sequence[int], chance: random.Random) -> list[bytes]:
    filler = PAYLOAD_BYTES - 60
    return [
        b'{"year":2013,"carrier":"UA","number":%012d,"tail":"%s"}' % (one, chance.randbytes(filler // 2).hex().encode())
        for one in sequences
    ]


def store(root: Path, sequences: Sequence[int], name: str, compression: str, key: str, payloads: list[bytes]) -> Stored:
    count = len(sequences)
    records: Records[None] = Records(
        stream="FLIGHTS",
        sequences=list(sequences),
        times_ns=[STARTED + sequence for sequence in sequences],
        subjects=[b"flights.EWR.%d" % (sequence % 20) for sequence in sequences],
        header_blocks=[b""] * count,
        payloads=payloads,
        deliveries=[1] * count,
        replies=[b""] * count,
        values=[None] * count,
    )
    wanted = writer(name, compression=compression)
    data = wanted.write(SealedBlock("FLIGHTS", key, 0, records, "stop"))
    path = f"blocks/{key}/{sequences[0]}-{sequences[-1]}.{wanted.format}"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)
    return Stored(
        path=path, stream="FLIGHTS", key=key, interval=0, first=sequences[0], last=sequences[-1], count=count,
        bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), format=wanted.format,
        sequences=Sequences.from_iterable(sequences).to_bytes(),
    )  # fmt: skip


def group(inputs: list[Stored], output: str, bounds: Sequence[int] = ()) -> FileGroup:
    return FileGroup(
        stream="FLIGHTS", key=inputs[0].key, interval=0, inputs=inputs, output=output, bounds=list(bounds)
    )  # fmt: skip


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
    check([output], inputs)
    return took


async def on_spark(
    root: Path,
    rounds: Sequence[list[Stored]],
    options: SparkOptions = SparkOptions(),  # noqa: B008 # it is frozen
    bounds: Sequence[int] = (),
) -> list[Took]:
    """What the start of a session takes, and then each merge."""
    async with SparkDriver(options) as driver:
        with measured() as started:
            await driver.ping()
        took = [started]
        for number, inputs in enumerate(rounds):
            with measured(driver) as one:
                [merged] = await driver.merge(root.as_uri(), [group(inputs, f"table/{number}.parquet", bounds)])
            assert not merged.failed, merged.failed
            took.append(one)
            check([root / output.path for output in merged.outputs], inputs)
        return took


def check(outputs: list[Path], inputs: list[Stored]) -> None:
    """Each sequence is there once, in order; the files go."""
    held = Sequences.union_of(Sequences.from_bytes(one.sequences) for one in inputs)
    found = []
    for output in outputs:
        found += pq.read_table(output, columns=["sequence"], partitioning=None)["sequence"].to_pylist()
        output.unlink()
    assert found == list(held)


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
    for one in processes():
        kind = kind_of(one)
        took.peaks[kind] = took.peaks.get(kind, 0.0) + peak(one) / 1024
    took.peak = sum(took.peaks.values())


def own_cpu() -> float:
    times = os.times()
    return times.user + times.system


def session_cpu(session: int | None) -> float:
    """CPU seconds of driver, JVM and workers, and of those of their children that have ended."""
    ticks = 0
    for process in members(session or 0):
        ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / TICKS


def kind_of(process: int) -> str:
    line = Path(f"/proc/{process}/cmdline").read_text("utf-8", "replace")
    return next((kind for mark, kind in KINDS.items() if mark in line), "")


def peak(process: int) -> int:
    """The most KiB of memory that a process has had."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("CPU times of other processes are read from /proc")
    main(sys.argv[1:] or ("parquet", "ndjson", "growth", "keys"))
