from capture.writers.choose import read_object, reader, writer
from capture.writers.contract import Format, Writer, check_format
from capture.writers.evolution import combined

__all__ = ["Format", "Writer", "check_format", "combined", "read_object", "reader", "writer"]
