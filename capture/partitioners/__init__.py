"""Partitioners: they give each record the key of its blocks."""

from capture.decoders.contract import by_batch
from capture.ingest.keys import UNDECODABLE
from capture.partitioners.choose import partitioner
from capture.partitioners.contract import Partitioner, per_record

__all__ = ["UNDECODABLE", "Partitioner", "by_batch", "partitioner", "per_record"]
