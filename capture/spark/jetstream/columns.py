from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from capture.errors import ConfigError
from capture.formats.envelope import SCHEMA
from capture.spark.jetstream.options import nearest

ENVELOPE = from_arrow_schema(SCHEMA)
"""The columns of the archive's envelope, in Spark's types."""


def known_columns(schema: StructType) -> list[str]:
    """Return the names of the columns that are wanted. ConfigError: one is not there, or of another type."""
    known = {field.name: field.dataType for field in ENVELOPE.fields}
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(f"there is no column {field.name}; {nearest(field.name, known)}")
        if field.dataType != known[field.name]:
            raise ConfigError(
                f"column {field.name} is {known[field.name].simpleString()}, not {field.dataType.simpleString()}:"
                " read it as it is, and cast it"
            )
    return schema.fieldNames()
