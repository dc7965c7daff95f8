from capture.formats.choose import read_object, reader, writer
from capture.formats.contract import Format, Writer, check_format
from capture.maintenance.merge.schema_evolution import combined

__all__ = ["Format", "Writer", "check_format", "combined", "read_object", "reader", "writer"]
