"""A node's figures in Prometheus' format. It needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from capture.node import Node
from capture.partitioners import UNDECODABLE
from natty import httpd, telemetry


class NodeCollector(Collector):
    """Reads a node's figures when it is asked: the hot path counts nothing for it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield what a scrape gets: the node's figures, then those of its client. No label is a subject."""
        node, stream = self._node, self._node.config.stream
        for what, text in (
            ("messages", "Messages stored and acknowledged."),
            ("blocks", "Blocks stored."),
            ("bytes", "Bytes of the stored blocks."),
            (UNDECODABLE, "Messages among them that were stored raw, since they could not be decoded."),
        ):
            counter = CounterMetricFamily(f"capture_{what.strip('_')}", text, labels=["stream"])
            counter.add_metric([stream], node.stored[what])
            yield counter
        unfit = CounterMetricFamily("capture_unfit", "Values that fitted no column.", labels=["stream", "column"])
        for column, count in list(node.writer.unfit.items()):
            unfit.add_metric([stream, column], count)
        yield unfit
        if node.natty is not None:
            yield from telemetry.collector(node.natty).collect()


def serve(node: Node, address: str) -> AbstractAsyncContextManager[int]:
    """Meanwhile, serve `/metrics`, `/livez` and `/readyz` on "host:port" (":9100" is every address).

    natty's ConfigError if the address is none, or can't be had.
    """
    return httpd.serving(address, telemetry.pages(lambda: _not_ready(node), NodeCollector(node)))


def _not_ready(node: Node) -> list[str]:
    return ["not connected yet"] if node.natty is None else telemetry.not_ready(node.natty)
