"""A program for tests of the data source: runs Spark jobs on a stream, and prints the result of each as a JSON line.

    python spark_jetstream.py FOLDER OPTIONS JOB …

OPTIONS are the data source's as JSON, with those of SparkOptions under "spark".
"""

import asyncio
import json
import shutil
import sys
import time
import warnings
from pathlib import Path

import msgspec
import pyarrow as pa
from patient import PATIENCE
from pyspark import StorageLevel, TaskContext

from capture.spark.failure import sentence
from capture.spark.frames import map_in_arrow
from capture.spark.options import SparkOptions
from capture.spark.session import start
from natty import Natty

MICRO_BATCH = 400
FILES = {"tlsCa": "tls_ca", "tlsCert": "tls_cert", "tlsKey": "tls_key"}


class Jobs:
    """The jobs; each returns its result."""

    def __init__(self, spark, folder, options):
        self.spark, self.folder, self.options = spark, folder, options

    def reader(self, **more):
        return self.spark.read.format("jetstream").options(**self.options, **more).load()

    def micro_batches(self, **more):
        return self.spark.readStream.format("jetstream").options(**self.options, **more).load()

    def end(self, query):
        query.awaitTermination()
        return query.recentProgress

    def stream(self):
        """Read micro-batches into Parquet until no more messages are available, also after earlier kills."""
        rows = self.micro_batches(maxMessagesPerTrigger=MICRO_BATCH)
        checkpoint = {"path": str(self.folder / "rows"), "checkpointLocation": str(self.folder / "checkpoint")}
        writing = rows.writeStream.format("parquet").options(**checkpoint).trigger(availableNow=True)
        counts = [progress["numInputRows"] for progress in self.end(writing.start())]
        stored = self.spark.read.parquet(str(self.folder / "rows"))
        return {
            "micro_batches": counts,
            "rows": stored.count(),
            "sequences": sorted(row.sequence for row in stored.select("sequence").distinct().collect()),
        }

    def batch(self):
        """Read the stream as one batch, with its columns and plans."""
        rows = self.reader(partitions=4)
        plan = rows._jdf.queryExecution().toString()
        [first, *_] = rows.orderBy("sequence").select("subject", "payload", "headers", "message_id").head(1)
        two = (
            self.spark.read.format("jetstream").options(**self.options).schema("payload BINARY, sequence BIGINT").load()
        )
        return {
            "rows": rows.count(),
            "tasks": rows.rdd.getNumPartitions(),
            "distinct": rows.select("sequence").distinct().count(),
            "first": [first.subject, bytes(first.payload).decode(), first.headers, first.message_id],
            "columns": two.columns,
            "sum": two.selectExpr("sum(sequence)").head()[0],
            "plan": plan,
        }

    def union(self):
        """Read archive and stream as one batch."""
        rows = self.reader(archive=str(self.folder / "lake"))
        counted = rows.selectExpr("count(*)", "count(DISTINCT sequence)", "sum(sequence)").head()
        return {"counted": list(counted), "tasks": rows.rdd.getNumPartitions()}

    def refused(self):
        """Read with invalid options."""
        said = []
        for more in ({"startSequense": "1"}, {"password": "hunter2"}):
            try:
                self.reader(**more)
            except Exception as error:
                said.append(sentence(error))
        return {"said": said}

    def write(self):
        """Publish twice under the same name, then from a task that fails in its first attempt."""
        target = self.options | {"stream": self.options["stream"] + "_OUT"}
        subject = f"concat('{target['stream']}.', sequence % 3) AS subject"
        rows = self.reader(partitions=2).selectExpr(subject, "payload", "headers")
        for _ in range(2):
            rows.write.format("jetstream").options(**target, writeId="job-7").mode("append").save()
        once = self.count(target)
        failing = map_in_arrow(rows.coalesce(1), fail_half_way, rows.schema)
        failing.write.format("jetstream").options(**target).mode("append").save()
        out = self.spark.read.format("jetstream").options(**target).load()
        first = out.orderBy("sequence").select("message_id", "headers").head(1)[0]
        return {"once": once, "after": self.count(target), "first": [first.message_id, first.headers]}

    def write_stream(self):
        """Publish micro-batches; then again the last one, as after a crash before it was committed."""
        target = self.options | {"stream": self.options["stream"] + "_FLOW"}
        checkpoint = self.folder / "flow"
        subject = f"concat('{target['stream']}.', sequence % 3) AS subject"
        rows = self.micro_batches(maxMessagesPerTrigger=MICRO_BATCH).selectExpr(subject, "payload")
        writing = rows.writeStream.format("jetstream").options(**target).option("checkpointLocation", str(checkpoint))
        first = self.end(writing.trigger(availableNow=True).start())
        once = self.count(target)
        for name in (f"{len(first) - 1}", f".{len(first) - 1}.crc"):
            (checkpoint / "commits" / name).unlink()
        again = self.end(writing.trigger(availableNow=True).start())
        return {"once": once, "after": self.count(target), "again": [one["numInputRows"] for one in again]}

    def cluster(self):
        """Return which processes run where."""

        def where(batches):
            import os

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"python": [sys.executable], "pid": [os.getpid()]})

        ran = map_in_arrow(self.spark.range(0, 8, 1, 4), where, "python STRING, pid BIGINT").collect()
        conf = self.spark.sparkContext.getConf()
        kept = self.reader(partitions=4).persist(StorageLevel.DISK_ONLY).count()  # until this session ends
        return {"master": conf.get("spark.master"), "python": sorted({row.python for row in ran}), "kept": kept}

    def wait(self):
        """Stay until killed."""
        time.sleep(3600)

    def count(self, options):
        """Return the number of messages in a stream."""
        return asyncio.run(messages_in(options))


def fail_half_way(batches):
    """A step that fails in the middle of a task's first attempt. What it gave before that, Spark may still hold."""
    for number, batch in enumerate(batches):
        if number == 2 and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("failed on purpose")
        yield batch


def source_options(connection, stream):
    """Return the data source's options for a stream of a server with these `connect_options`."""
    files = {option: str(connection[keyword]) for option, keyword in FILES.items()}
    patient = {"timeout": str(PATIENCE), "connectTimeout": str(PATIENCE)}
    return {"stream": stream, "servers": connection["servers"][0], **patient, **files}


async def messages_in(options):
    settings = {keyword: options[option] for option, keyword in FILES.items()}
    async with Natty(options["servers"], **settings) as natty:
        return (await natty.jetstream.request(f"STREAM.INFO.{options['stream']}"))["state"]["messages"]


def main(folder, options, *jobs):
    warnings.filterwarnings("ignore", category=FutureWarning)
    options = json.loads(options)
    spark_options = msgspec.convert(options.pop("spark"), SparkOptions)
    with start(spark_options) as spark:
        todo = Jobs(spark, Path(folder), options)
        for job in jobs:
            print(json.dumps({"job": job, **getattr(todo, job)()}, default=str), flush=True)
    shutil.rmtree(Path(folder) / "spark-warehouse", ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
