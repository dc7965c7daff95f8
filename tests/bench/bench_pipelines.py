"""What a pipeline's run costs: `python tests/bench/bench_pipelines.py [--messages N] [revenue latest]`.

`revenue`: sums by country and day of 2,000,000 messages, then of 20,000 more: by merging them into the table, by
computing everything again (`capture pipeline rerun`), and in DuckDB, which computes everything. `latest`: the last
message of 1,000,000 keys, then 10,000 more messages.

CPU seconds are those of this process, which plans and commits, and of Spark's driver, JVM and workers: medians. All
rows are compared with DuckDB's.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
from bench_compaction import measured, own_cpu, session_cpu
from bench_table import print_machine, print_table
from pyiceberg.table import StaticTable

from capture.config.settings import CaptureConfig
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.record import Delivered, Records
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.node.pipeline_keeper import PipelineKeeper
from capture.node.pipeline_requests import Request
from capture.pipelines.commits import PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.spark import SparkDriver, SparkOptions
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead

STREAM = "ORDERS"
BLOCK = 20_000  # messages
COUNTRIES, DAYS = 50, 40
STARTED = 1_790_000_000  # Unix seconds
ROUNDS, WARM_UP = 5, 40
"""Runs that are measured, and those before them: Java compiles what they run, for minutes."""
SCHEMA = "country STRING, day DATE, total BIGINT"
QUERY = "SELECT country, day, sum(total) AS revenue, count(*) AS orders FROM {} GROUP BY country, day"
REVENUE = Pipeline(
    name="revenue", schema=SCHEMA, sql=QUERY.format(STREAM), mode="upsert", key=["country", "day"], schedule="every 1s"
)
LATEST = Pipeline(
    name="latest", kind="latest", inputs=[STREAM], key="subject:2", schema=SCHEMA, buckets=64, schedule="every 1s"
)


class Ignored:
    def ack(self, messages: Delivered) -> None: ...

    def nak(self, messages: Delivered, delay: float = 0.0) -> None: ...


class Keeper(PipelineKeeper):
    """Without NATS."""

    requests: Mapping[str, Request]

    async def _read_requests(self) -> Mapping[str, Request]:
        return self.requests


class Bench:
    """An archive with one pipeline, and its leader."""

    def __init__(self, folder: Path, pipeline: Pipeline, spark: SparkDriver) -> None:
        self.folder, self.pipeline, self.spark = folder, pipeline, spark
        self.archive, home = open_store(str(folder)), open_store(f"{folder}/_pipelines")
        self.sweeper = Leading(self.archive, MemoryHead(1, HeadState()), HeadState().read)
        config = CaptureConfig(stream=STREAM, store=str(folder), pipeline=[pipeline])
        self.clock = float(STARTED)
        self.keeper = Keeper(None, config, "bench", clock=lambda: self.clock)  # type: ignore[arg-type]
        self.keeper.requests = {}
        pointer = MemoryHead(1, HeadState())
        self.leading: PipelineLeading = self.keeper.start_term(pointer, home)  # type: ignore[arg-type]
        self.stored = 0

    async def store(self, keys: Sequence[int]) -> None:
        """Store and adopt a message for each key."""
        committer = Committer(self.archive, writer("parquet"), Ignored(), CommitOptions(node="bench"))
        for start in range(0, len(keys), BLOCK):
            records = make(range(self.stored + 1, self.stored + 1 + len(keys[start : start + BLOCK])), keys[start:])
            await committer.commit(SealedBlock(STREAM, "", STARTED, records, "stop"))
            self.stored += len(records.sequences)
        self.clock += 10.0
        await sweep(self.sweeper, now=self.clock)

    async def run(self, *, anew: bool = False) -> list[float]:
        """Run the pipeline; return the seconds and the CPU seconds that it took."""
        self.clock += 10.0
        if anew:
            self.keeper.requests = {self.pipeline.name: Request(what="rerun", id=str(self.clock))}
        wall, own, theirs = time.perf_counter(), own_cpu(), session_cpu(self.spark.session)
        await self.keeper.run_due(self.leading, self.spark)
        assert not self.keeper.failing, self.keeper.failing
        return [time.perf_counter() - wall, own_cpu() - own + session_cpu(self.spark.session) - theirs]

    def read(self) -> pa.Table:
        return StaticTable.from_metadata(f"{self.folder}/_pipelines/iceberg/{self.pipeline.name}").scan().to_arrow()


def make(sequences: range, keys: Sequence[int]) -> Records[None]:
    count = len(sequences)
    dice = random.Random(sequences.start)
    day = [1 + one * DAYS // 2_100_000 for one in sequences]  # later messages are of later days
    return Records(
        stream=STREAM,
        sequences=list(sequences),
        times_ns=[STARTED * 10**9 + one for one in sequences],
        subjects=[b"orders.%d" % one for one in keys[:count]],
        header_blocks=[b""] * count,
        payloads=[
            b'{"country":"c%02d","day":"2026-%02d-%02d","total":%d,"note":"%060d"}'
            % (dice.randrange(COUNTRIES), 1 + one // 28, 1 + one % 28, dice.randrange(10_000), one)
            for one in day
        ],
        deliveries=[1] * count,
        replies=[b""] * count,
        values=[None] * count,
    )


def in_duckdb(folder: Path, query: str) -> tuple[list[float], list[tuple[object, ...]]]:
    source = (
        "(SELECT sequence, split_part(subject, '.', 2) AS key, decode(payload)->>'$.country' AS country,"
        " (decode(payload)->>'$.day')::DATE AS day, (decode(payload)->>'$.total')::BIGINT AS total"
        f" FROM read_parquet('{folder}/blocks/**/*.parquet', hive_partitioning=false))"
    )
    with duckdb.connect() as connection, measured() as took:
        found = connection.execute(query.format(source)).fetchall()
    return [took.wall, took.cpu], found


async def revenue(folder: Path, spark: SparkDriver, messages: int) -> None:
    bench = Bench(folder, REVENUE, spark)
    await bench.store([0] * messages)
    first, cold = await bench.run(), []
    for number in range(ROUNDS + WARM_UP):
        await bench.store([0] * (messages // (100 if number < ROUNDS else 1000)))
        cold.append(await bench.run())
    merged, again, duck = [], [], []
    for number in range(ROUNDS):
        await bench.store([0] * (messages // 100))
        merged.append(await bench.run())
        if number < 3:
            again.append(await bench.run(anew=True))
            figures, found = in_duckdb(folder, QUERY)
            duck.append(figures)
            rows = bench.read()
            assert sorted(zip(*(one.to_pylist() for one in rows.columns), strict=True)) == sorted(found)
    show(
        f"sums by country and day of {messages:,} messages, then of {messages // 100:,} more",
        {
            "first run": [first],
            "merge of the new ones": merged,
            "the first merges": cold[:ROUNDS],
            "everything again": again,
            "DuckDB, everything": duck,
        },
    )


async def latest(folder: Path, spark: SparkDriver, messages: int) -> None:
    bench, keys = Bench(folder, LATEST, spark), messages // 2
    await bench.store(range(keys))
    first, cold, dice = await bench.run(), [], random.Random(1)
    for _ in range(ROUNDS):
        await bench.store([dice.randrange(keys) for _ in range(keys // 100)])
        cold.append(await bench.run())
    merged, again = [], []
    for number in range(ROUNDS):
        await bench.store([dice.randrange(keys) for _ in range(keys // 100)])
        merged.append(await bench.run())
        if number < 2:
            again.append(await bench.run(anew=True))
            query = "SELECT key, max(sequence) FROM {} GROUP BY key"
            _, found = in_duckdb(folder, query)
            rows = bench.read().select(["key", "sequence"])
            assert sorted(zip(*(one.to_pylist() for one in rows.columns), strict=True)) == sorted(found)
    show(
        f"the last message of {keys:,} keys, then {keys // 100:,} more messages",
        {"first run": [first], "new ones": merged, "the first of these": cold, "everything again": again},
    )


def show(title: str, kinds: Mapping[str, Sequence[Sequence[float]]]) -> None:
    medians = {name: [statistics.median(one) for one in zip(*took, strict=True)] for name, took in kinds.items()}
    names = list(medians)
    rows = [
        [name, f"{wall:.2f}", f"{cpu:.2f}", f"{cpu / medians[names[1]][1]:.1f}"]
        for name, (wall, cpu) in medians.items()
    ]
    print_table(title, ["", "s", "CPU s", f"× {names[1]}"], rows)


async def main(messages: int, parts: Sequence[str]) -> None:
    print_machine(f"{messages:,} messages in Parquet blocks of {BLOCK:,}; local[2]")
    with tempfile.TemporaryDirectory() as folder:
        async with SparkDriver(SparkOptions(queries=True)) as spark:
            await spark.ping()
            if "revenue" in parts:
                await revenue(Path(folder) / "revenue", spark, messages)
            if "latest" in parts:
                await latest(Path(folder) / "latest", spark, messages)


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("CPU times of other processes are read from /proc")
    os.environ["TZ"] = "UTC"
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("parts", nargs="*", default=["revenue", "latest"])
    given = parser.parse_args()
    asyncio.run(main(given.messages, given.parts))
