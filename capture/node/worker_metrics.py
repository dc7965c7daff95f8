"""The figures of all workers together, in Prometheus' format. It needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from capture.node.supervisor import Supervisor
from capture.node.worker_reports import Family
from natty.metrics import telemetry
from natty.metrics.http import serve_pages
from natty.metrics.pages import Answer, Guard


def serve_workers(supervisor: Supervisor, address: str, guard: Guard | None = None) -> AbstractAsyncContextManager[int]:
    """While the body runs, serve the pages of all workers together, as `serve` does those of one process.

    Each figure has the label `worker`, the worker's number. `/readyz` is 200 if every worker captures.
    """

    async def answer() -> Answer:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Gathered(supervisor, await supervisor.read_figures()))
        return Answer(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return serve_pages(address, {**telemetry.pages(supervisor.not_ready), "/metrics": answer}, guard)


class _Gathered(Collector):
    """The figures of all workers, and of their supervisor."""

    def __init__(self, supervisor: Supervisor, figures: Mapping[int, list[Family]]) -> None:
        self._supervisor, self._figures = supervisor, figures

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("capture_worker_up", "1 if the worker runs and answers.", labels=["worker"])
        restarts = CounterMetricFamily("capture_worker_restarts", "Restarts of the worker.", labels=["worker"])
        for number, count in self._supervisor.restarts.items():
            up.add_metric([str(number)], float(number in self._figures))
            restarts.add_metric([str(number)], count)
        yield from (up, restarts)
        merged: dict[str, Metric] = {}
        for number, families in self._figures.items():
            for family in families:
                metric = merged.setdefault(family.name, Metric(family.name, family.text, family.kind))
                for name, labels, value in family.samples:
                    metric.add_sample(name, {**labels, "worker": str(number)}, value)
        yield from merged.values()
