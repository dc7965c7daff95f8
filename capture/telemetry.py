"""A node's figures in Prometheus' format. It needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from capture.errors import ConfigError
from capture.head import election_name
from capture.node import Node


class NodeCollector(Collector):
    """Reads a node's figures when it is asked: the hot path counts nothing for it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Yield what a scrape gets. Labels are the stream and the election, never a subject."""
        node, stream = self._node, self._node.config.stream
        for what, text in (
            ("messages", "Messages stored and acknowledged."),
            ("blocks", "Blocks stored."),
            ("bytes", "Bytes of the stored blocks."),
        ):
            counter = CounterMetricFamily(f"capture_{what}", text, labels=["stream"])
            counter.add_metric([stream], node.stored[what])
            yield counter
        leader = GaugeMetricFamily("natty_leader", "1 while this node is the elected leader.", labels=["election"])
        leader.add_metric([election_name(node.config.name)], float(node.leading))
        yield leader


def serve(node: Node, address: str) -> None:
    """Serve `/metrics` on "host:port" (":9100" is every address) from a thread. ConfigError if that can't be done."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"--metrics {address!r} is no address; write 127.0.0.1:9100, or :9100 for every address")
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    try:
        start_http_server(int(port), host or "0.0.0.0", registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"metrics can't be served on {address}: {error}") from error
