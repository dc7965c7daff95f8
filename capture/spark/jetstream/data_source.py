from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from capture.spark.jetstream.source_options import ReadOptions, WriteOptions

if TYPE_CHECKING:
    from capture.spark.jetstream.readers import JetStreamReader, JetStreamStreamReader
    from capture.spark.jetstream.writers import JetStreamStreamWriter, JetStreamWriter


class DefaultSource(DataSource):
    """JetStream streams as tables: `spark.read.format("jetstream").option("stream", "ORDERS")`. See docs/spark.md.

    Spark finds it by itself, through the module `pyspark_jetstream`, and imports it for every data source that it looks
    for: what reads and writes is imported when that is to be done.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "jetstream"

    def schema(self) -> StructType:
        """Return the columns: those of the archive's envelope. ConfigError."""
        from capture.spark.jetstream.readers import ENVELOPE

        ReadOptions.of(self.options)
        return ENVELOPE

    def reader(self, schema: StructType) -> JetStreamReader:
        """Return what reads a batch. ConfigError."""
        from capture.spark.jetstream.readers import JetStreamReader

        return JetStreamReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> JetStreamStreamReader:
        """Return what reads micro-batches. ConfigError."""
        from capture.spark.jetstream.readers import JetStreamStreamReader

        return JetStreamStreamReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> JetStreamWriter:
        """Return what publishes a batch. ConfigError."""
        from capture.spark.jetstream.writers import JetStreamWriter

        return JetStreamWriter(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> JetStreamStreamWriter:
        """Return what publishes micro-batches. ConfigError."""
        from capture.spark.jetstream.writers import JetStreamStreamWriter

        return JetStreamStreamWriter(WriteOptions.of(self.options), schema, overwrite)
