"""The table as an Apache Iceberg table: the only folder that imports pyiceberg, besides the demo."""

from capture.iceberg.exposer import Exposer
from capture.iceberg.reading import ArchiveCatalog, StoreFiles

__all__ = ["Exposer", "ArchiveCatalog", "StoreFiles"]
