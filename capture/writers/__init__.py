from capture.writers.choose import writer
from capture.writers.contract import Writer, check_writer

__all__ = ["Writer", "check_writer", "writer"]
