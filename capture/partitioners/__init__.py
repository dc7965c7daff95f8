from capture.partitioners.choose import partitioner
from capture.partitioners.contract import Partitioner, by_batch, per_record
from capture.partitioners.group import UNDECODABLE, grouped

__all__ = ["UNDECODABLE", "Partitioner", "by_batch", "grouped", "partitioner", "per_record"]
