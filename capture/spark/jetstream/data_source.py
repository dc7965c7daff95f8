"""The entry point of the data source: its name, columns, readers and writers."""

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

    Spark finds it through the module `pyspark_jetstream`, and imports it whenever it looks for any data source. So the
    readers and writers are imported only when they are used.
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
        """Return the reader of a batch. ConfigError."""
        from capture.spark.jetstream.readers import JetStreamReader

        return JetStreamReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> JetStreamStreamReader:
        """Return the reader of micro-batches. ConfigError."""
        from capture.spark.jetstream.readers import JetStreamStreamReader

        return JetStreamStreamReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> JetStreamWriter:
        """Return the publisher of a batch. ConfigError."""
        from capture.spark.jetstream.writers import JetStreamWriter

        return JetStreamWriter(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> JetStreamStreamWriter:
        """Return the publisher of micro-batches. ConfigError."""
        from capture.spark.jetstream.writers import JetStreamStreamWriter

        return JetStreamStreamWriter(WriteOptions.of(self.options), schema, overwrite)
