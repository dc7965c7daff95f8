"""The usual work of a session, on a few rows: the run that records the archive of classes."""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import PARQUET
from capture.formats.envelope import to_table
from capture.ingest.record import Records
from capture.maintenance.engine import FileGroup
from capture.maintenance.merge.inputs import Columns
from capture.spark.frames import load, map_in_arrow, with_payload
from capture.spark.merge_job import Merger
from capture.spark.merge_task import StoreAccess

_NUMBERS = list(range(1, 9))
_RECORDS: Records[None] = Records(
    stream="EXERCISE",
    sequences=_NUMBERS,
    times_ns=_NUMBERS,
    subjects=[b"exercise"] * len(_NUMBERS),
    header_blocks=[b""] * len(_NUMBERS),
    payloads=[b'{"n": 1}'] * len(_NUMBERS),
    deliveries=[1] * len(_NUMBERS),
)
_COUNTED = "SELECT subject, COUNT(*) AS messages, SUM(n) AS n FROM exercise GROUP BY subject ORDER BY subject"


def exercise(spark: SparkSession) -> None:
    """Merge a block; read it, sort it, pass it through a Python worker; then query it with SQL."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "block.parquet"
        pq.write_table(to_table(_RECORDS), file, compression="zstd")
        group = FileGroup(stream="EXERCISE", key="", interval=0, inputs=[_describe(file)], output="merged.parquet")
        Merger(spark, StoreAccess(Path(folder).as_uri()), Columns(pa.schema([]))).merge(group)
        messages = load(spark, Path(folder).as_uri(), [_describe(file)], Columns(pa.schema([])))
        rows = messages.coalesce(1).sortWithinPartitions("sequence", "deliveries")
        map_in_arrow(rows, _pass_through, messages.schema).collect()
        with_payload(messages, "n INT").createOrReplaceTempView("exercise")
        spark.sql(_COUNTED).collect()


def _describe(file: Path) -> Stored:
    data = file.read_bytes()
    return Stored(
        path=file.name,
        stream="EXERCISE",
        key="",
        interval=0,
        first=1,
        last=8,
        count=8,
        sequences=Sequences.from_range(1, 8).to_bytes(),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format=PARQUET.name,
    )


def _pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
