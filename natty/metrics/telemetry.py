"""Metrics in Prometheus' format, and the probes whether the process is alive and ready. See docs/observability.md.

The extra `metrics` installs prometheus-client, for the figures, and aiohttp, to serve them; both are imported when
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from natty.client import Natty
from natty.elections import Term
from natty.errors import ConfigError, how_to_install
from natty.metrics.pages import Answer, Pages, guard_of
from natty.wire.counters import ELECTION, GROUP, HANDLER, LAG, PUBLISHER, PULL, Kind, Labels, Observed

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector


class _Total(NamedTuple):
    """A counter: the figures that it sums, by outcome if it has that label."""

    name: str
    text: str
    kind: Kind
    counts: dict[str, str]


class _Now(NamedTuple):
    """A gauge: a sum over the parts that run now."""

    name: str
    text: str
    kind: Kind
    read: Callable[[Any], float]


TOTALS = (
    _Total("natty_pull_messages", "Received messages.", PULL, {"": "counts.delivered"}),
    _Total("natty_pull_bytes", "Received bytes, as the server counts them.", PULL, {"": "counts.delivered_bytes"}),
    _Total(
        "natty_pull_redeliveries", "Received messages that had been delivered before.", PULL, {"": "counts.redelivered"}
    ),
    _Total("natty_pull_requests", "Requests for messages.", PULL, {"": "counts.requests"}),
    _Total("natty_pull_renewals", "Restarts of a pull.", PULL, {"": "counts.renewals"}),
    _Total(
        "natty_handler_messages",
        "Messages passed to a handler.",
        HANDLER,
        {"handled": "handled", "failed": "failures.failed"},
    ),
    _Total("natty_handler_retries", "Failed messages that are retried.", HANDLER, {"": "failures.retried"}),
    _Total("natty_handler_dead_letters", "Failed messages that became dead letters.", HANDLER, {"": "failures.buried"}),
    _Total(
        "natty_handler_given_up",
        "Dead letters of messages that the server gave up on.",
        HANDLER,
        {"": "failures.given_up"},
    ),
    _Total("natty_handler_timeouts", "Failures by a handler's time limit.", HANDLER, {"": "failures.timed_out"}),
    _Total("natty_handler_undecodable", "Failures by a body that does not fit.", HANDLER, {"": "failures.undecodable"}),
    _Total(
        "natty_handler_handed_back",
        "Failed or stopped messages, left to the server.",
        HANDLER,
        {"": "failures.handed_back"},
    ),
    _Total("natty_handler_unreported", "Errors that on_error failed to take.", HANDLER, {"": "failures.unreported"}),
    _Total("natty_publish_messages", "Published messages.", PUBLISHER, {"stored": "stored", "failed": "failed"}),
    _Total("natty_publish_duplicates", "Published messages that were already stored.", PUBLISHER, {"": "duplicates"}),
    _Total("natty_group_rebalances", "Changes of a member's partitions.", GROUP, {"": "rebalances"}),
    _Total("natty_group_hand_overs", "Consumers released for other partitions.", GROUP, {"": "handed_over"}),
    _Total("natty_group_hand_over_seconds", "Seconds spent releasing consumers.", GROUP, {"": "hand_over_seconds"}),
    _Total("natty_group_lost", "Consumers and leaders of consumers that were lost.", GROUP, {"": "lost"}),
    _Total("natty_group_cut_short", "Handlers stopped before their lease ended.", GROUP, {"": "work.cut_short"}),
    _Total("natty_group_overran", "Handlers still running after their lease ended.", GROUP, {"": "work.overran"}),
    _Total("natty_leader_terms", "Times that this node was elected.", ELECTION, {"": "elected"}),
    _Total(
        "natty_leader_runs",
        "Runs of the work that a leader repeats.",
        ELECTION,
        {"succeeded": "succeeded", "failed": "failed"},
    ),
)
NOW = (
    _Now("natty_pull_stalled", "Pulls that have received nothing for two heartbeats.", PULL, lambda p: p.stalled),
    _Now("natty_publish_waiting", "Accepted messages, neither stored nor failed yet.", PUBLISHER, lambda p: p.waiting),
    _Now("natty_group_pinned", "1 if this instance gets its member's messages.", GROUP, lambda m: m.pinned),
    _Now("natty_group_partitions", "Partitions of the member.", GROUP, lambda m: len(m.partitions)),
    _Now("natty_group_lag", "Unacknowledged messages of a partition.", LAG, lambda part: part.waiting),
    _Now("natty_leader", "1 while this node is the elected leader.", ELECTION, lambda election: _leads(election.term)),
)


def _leads(term: Term | None) -> bool:
    return term is not None and term.remaining() > 0


def _sum_up(observed: Observed, total: _Total) -> Iterator[tuple[Labels, int]]:
    for labels, counted in observed.totals(total.kind).items():
        for outcome, count in total.counts.items():
            yield (*labels, outcome) if outcome else labels, counted[count]


def _sum_now(observed: Observed, now: _Now) -> Iterator[tuple[Labels, float]]:
    """Yield the sums, 0 if all parts have ended."""
    sums = dict.fromkeys(observed.totals(now.kind), 0.0)
    for labels, part in observed.parts(now.kind):
        sums[labels] = sums.get(labels, 0.0) + now.read(part)
    yield from sums.items()


def collector(natty: Natty) -> Collector:
    """Return a collector of the client's figures: `registry.register(collector(natty))`.

    Any thread may scrape it. ConfigError without prometheus-client.
    """
    try:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise ConfigError(_say_needs()) from error

    connection, observed = natty.connection, natty.connection.observed

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            yield GaugeMetricFamily("natty_connected", "1 while a session is up.", value=float(connection.connected))
            yield CounterMetricFamily("natty_reconnects", "Sessions after the first.", value=connection.reconnects)
            for total in TOTALS:
                outcome = [] if "" in total.counts else ["outcome"]
                counter = CounterMetricFamily(total.name, total.text, labels=[*total.kind.labels, *outcome])
                for labels, count in _sum_up(observed, total):
                    counter.add_metric(labels, count)
                yield counter
            for now in NOW:
                gauge = GaugeMetricFamily(now.name, now.text, labels=now.kind.labels)
                for labels, value in _sum_now(observed, now):
                    gauge.add_metric(labels, value)
                yield gauge

    return Figures()


FLOW = '"$JS.ACK.', ".CONSUMER.MSG.NEXT."
"""A client that may not publish there gets no messages, or gets them repeatedly."""


def not_ready(natty: Natty) -> list[str]:
    """Return why the process can't do its work now, in sentences; an empty list if it is ready."""
    if not natty.connection.connected:
        return [f"not connected: the connection is {natty.connection.state}"]
    if natty.connection.gets_no_answers:
        return ["no answers arrive: the server refuses the subscription to our inbox"]
    refused = [one for one in natty.connection.refusals.recent() if any(word in one for word in FLOW)]
    stalled = [(*labels, pull.stalled_since) for labels, pull in natty.connection.observed.parts(PULL)]
    return [f"the server refused: {one}" for one in refused] + [
        f"pull of {stream}/{consumer} stalled since {datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for stream, consumer, since in stalled
        if since is not None
    ]


def serve(
    natty: Natty,
    address: str,
    *,
    cert: str | Path = "",
    key: str | Path = "",
    tokens: Iterable[str] = (),
    hosts: Iterable[str] = (),
) -> AbstractAsyncContextManager[int]:
    """Serve `/metrics`, `/livez` and `/readyz` on "host:port": `async with serve(natty, "127.0.0.1:8190")`.

    ":8190" is every address, port 0 a free one; the block gets the port. `cert` and `key` are PEM files for TLS, read
    again after a change. With `tokens`, `/metrics` requires one, as a bearer token or a password. Without tokens, a
    loopback address answers to its own names and to `hosts`. ConfigError if the address is malformed or serving on it
    fails, if a file or token can't be used, or without aiohttp. Without prometheus-client, `/metrics` answers 501 and
    says what to install.
    """
    try:
        from natty.metrics.http import serve_pages
    except ModuleNotFoundError as error:
        raise ConfigError(f"the pages need {error.name}; {how_to_install('metrics')}") from error
    try:
        figures = [collector(natty)]
    except ConfigError:
        figures = []
    guard = guard_of(address, cert=cert, key=key, tokens=tokens, hosts=hosts)
    return serve_pages(address, pages(lambda: not_ready(natty), *figures), guard)


def pages(reasons: Callable[[], list[str]], *collectors: Collector) -> Pages:
    """Return the three pages: `/readyz` answers 503 if there are `reasons`, `/metrics` the collectors' figures."""

    def readyz() -> Answer:
        told = reasons()
        body = msgspec.json.encode({"ready": not told, "reasons": told})
        return Answer(body, HTTPStatus.SERVICE_UNAVAILABLE if told else HTTPStatus.OK, "application/json")

    return {"/metrics": _metrics(*collectors), "/livez": lambda: Answer(b"alive\n"), "/readyz": readyz}


def _metrics(*collectors: Collector) -> Callable[[], Answer]:
    if not collectors:
        return lambda: Answer(f"{_say_needs()}\n".encode(), HTTPStatus.NOT_IMPLEMENTED)
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)
    return lambda: Answer(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _say_needs() -> str:
    return f"metrics need prometheus-client; {how_to_install('metrics')}"
