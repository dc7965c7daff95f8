"""A node's figures in Prometheus' format. It needs the extra `metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from capture.node.node import Node
from capture.node.nodes import Several
from capture.node.pipeline_keeper import PipelineKeeper
from capture.node.readiness import find_client, list_nodes, not_ready
from capture.node.worker_reports import Family
from capture.partitioners import UNDECODABLE
from natty.metrics import telemetry
from natty.metrics.http import serve_pages
from natty.metrics.pages import Guard


class NodeCollector(Collector):
    """Reads the figures of a process's nodes at each scrape, so the hot path counts nothing for it."""

    def __init__(self, running: Node | Several) -> None:
        self._running = running

    def collect(self) -> Iterator[Metric]:
        """Yield the figures for each stream, then those of the client. No label is a subject."""
        nodes = list_nodes(self._running)
        for what, text in (
            ("messages", "Messages stored and acknowledged."),
            ("blocks", "Blocks stored."),
            ("bytes", "Bytes of the stored blocks."),
            ("failures", "Attempts to store a block that failed or that a stop ended."),
            ("handed_back", "Messages of these blocks; the server delivers them again."),
            ("healed", "Messages among them that this node stored as the sweep's leader, since no node had."),
            (UNDECODABLE, "Messages among them that were stored raw, since they could not be decoded."),
        ):
            counter = CounterMetricFamily(f"capture_{what.strip('_')}", text, labels=["stream"])
            for node in nodes:
                counter.add_metric([node.config.stream], node.stored[what])
            yield counter
        failing = GaugeMetricFamily("capture_store_failing", "1 while blocks can't be stored.", labels=["stream"])
        for node in nodes:
            failing.add_metric([node.config.stream], float(bool(node.store_trouble)))
        yield failing
        unfit = CounterMetricFamily("capture_unfit", "Values that fitted no column.", labels=["stream", "column"])
        for node in nodes:
            for column, count in list(node.writer.unfit.items()):
                unfit.add_metric([node.config.stream, column], count)
        yield unfit
        for keeper in _keepers(self._running):
            yield from _collect_pipelines(keeper)
        if natty := find_client(nodes):
            yield from telemetry.collector(natty).collect()


def _collect_pipelines(keeper: PipelineKeeper) -> Iterator[Metric]:
    """Yield what this process's runs of pipelines add up to, as their leader: 0 before the first run."""
    counted = {one.name: Counter[str]() for one in keeper.config.pipeline} | keeper.counts
    for what, text in (
        ("runs", "Runs of the pipeline by this node."),
        ("failed", "Runs among them that failed."),
        ("rows_in", "New rows that these runs read."),
        ("rows_out", "Rows that they wrote."),
        ("bytes_in", "Bytes of the objects with the new rows."),
        ("bytes_out", "Bytes that they wrote."),
        ("bytes_packed", "Bytes of small files that were merged after them."),
    ):
        counter = CounterMetricFamily(f"capture_pipeline_{what}", text, labels=["pipeline"])
        for name, counts in counted.items():
            counter.add_metric([name], counts[what])
        yield counter
    spent = CounterMetricFamily("capture_pipeline_run_seconds", "Seconds that these runs took.", labels=["pipeline"])
    for name, counts in counted.items():
        spent.add_metric([name], counts["milliseconds"] / 1000)
    yield spent


def serve(running: Node | Several, address: str, guard: Guard | None = None) -> AbstractAsyncContextManager[int]:
    """While the body runs, serve `/metrics`, `/livez` and `/readyz` on "host:port" (":8190" is every address).

    Raises natty's ConfigError if the address is malformed or can't be bound.
    """
    return serve_pages(address, telemetry.pages(lambda: not_ready(running), NodeCollector(running)), guard)


def read_figures(running: Node | Several) -> list[Family]:
    """Return the figures of this process, which is a worker, for its supervisor."""
    return [
        Family(one.name, one.documentation, one.type, [(each.name, each.labels, each.value) for each in one.samples])
        for one in NodeCollector(running).collect()
    ]


def _keepers(running: Node | Several) -> list[PipelineKeeper]:
    found = [running.keeper] if running.keeper else []
    return [one for one in found if one.config.pipeline]
