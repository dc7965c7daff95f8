"""Blocks for tests of Spark: rows of the envelope, written with pyarrow directly, and their records."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.formats.envelope import SCHEMA
from capture.maintenance.engine import FileGroup
from capture.spark import SparkDriver, SparkOptions

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}  # starts in half the time
HOUR = 1_795_230_000
STARTED = 1_700_000_000_123_456_789


def quick_driver(folder):
    """Return a Spark that logs into a folder and has a secret among its properties."""
    options = SparkOptions(properties={**QUICK, "spark.capture.secret": "do-not-show-me"})
    return SparkDriver(options, log=folder / "driver.log")


def row(sequence, *, stream="FLIGHTS", payload=None, headers=None, **more):
    block = None if headers is None else b"NATS/1.0\r\n%d\r\n\r\n" % sequence
    return {
        "stream": stream,
        "sequence": sequence,
        "time_ns": STARTED + sequence,
        "subject": f"flights.{sequence}",
        "headers": headers,
        "header_block": block,
        "message_id": None if headers is None else f"id-{sequence}",
        "deliveries": 1,
        "payload": b"message %d" % sequence if payload is None else payload,
        "error": None,
        "subject_raw": None,
        "origin_stream": None,
        "origin_sequence": None,
        **more,
    }


def parquet_block(store, name, rows):
    path = f"blocks/stream={rows[0]['stream']}/key=a%2Fb/{name}.parquet"
    return stored(store, path, rows, lambda file: write_parquet(rows, file))


def write_parquet(rows, file):
    pq.write_table(
        pa.Table.from_pylist(rows, SCHEMA), file, compression="zstd", write_page_checksum=True, use_dictionary=False
    )


def stored(store, path, rows, write):
    file = store / path
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file)
    numbers = [row["sequence"] for row in rows]
    return Stored(
        path=path,
        stream=rows[0]["stream"],
        key="a/b",
        interval=HOUR,
        first=min(numbers),
        last=max(numbers),
        count=len(numbers),
        bytes=file.stat().st_size,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        format=file.suffix[1:],
        sequences=Sequences.from_iterable(numbers).to_bytes(),
    )


def group(*inputs, output="table/stream=FLIGHTS/key=a%2Fb/c-1.parquet", exclude=()):
    return FileGroup(
        stream=inputs[0].stream,
        key="a/b",
        interval=HOUR,
        inputs=list(inputs),
        output=output,
        exclude=Sequences.from_iterable(exclude).to_text(),
    )


def rows_of(store, path):
    return pq.read_table(store / path, partitioning=None).select(SCHEMA.names).to_pylist()
