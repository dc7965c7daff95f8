"""The tables of `natty stream report`, made from the answers to STREAM.LIST. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from natty.streams.info import ClusterInfo, SourceInfo, StreamInfo


class Order(StrEnum):
    """The key by which a report is sorted, lowest first."""

    BYTES = "bytes"
    CONSUMERS = "consumers"
    MESSAGES = "messages"
    NAME = "stream"
    STORAGE = "storage"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stream; `lost` are messages that a damaged store has lost, `deleted` those deleted between first and last."""

    stream: str
    storage: str = ""
    placement: str = ""
    consumers: int = 0
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    deleted: int = 0
    api_level: str = ""
    replicas: str = ""


@dataclass(frozen=True, kw_only=True)
class Replication:
    """An origin of a stream; `lag`: messages still to copy, `active`: nanoseconds since its last sign of life."""

    stream: str
    kind: str
    source: str
    domain: str
    filters: str
    active: int
    lag: int
    error: str


def rows_of(streams: Iterable[StreamInfo], order: Order = Order.BYTES, *, cluster: str = "") -> list[Row]:
    """Return a row for each stream, sorted by `order`, then by name; with `cluster`, only for streams in it."""
    chosen = [one for one in streams if not cluster or (one.get("cluster") or {}).get("name") == cluster]
    key: Callable[[Row], Any] = lambda row: (getattr(row, order), row.stream)  # noqa: E731 - typed
    return sorted(map(_row, chosen), key=key)


def total(rows: Iterable[Row]) -> Row:
    """Return the sums of the numbers."""
    every = list(rows)
    return Row(
        stream="total",
        consumers=sum(row.consumers for row in every),
        messages=sum(row.messages for row in every),
        bytes=sum(row.bytes for row in every),
        lost=sum(row.lost for row in every),
        deleted=sum(row.deleted for row in every),
    )


def replications_of(streams: Iterable[StreamInfo]) -> list[Replication]:
    """Return the mirrors and sources of the streams, and how far behind each is."""
    return [
        _replication(str(one["config"]["name"]), kind, source)
        for one in streams
        for kind, sources in (("mirror", [one.get("mirror")]), ("source", one.get("sources") or []))
        for source in sources
        if source
    ]


def leaders_of(streams: Iterable[StreamInfo]) -> list[tuple[str, int]]:
    """Return how many streams each server leads, the busiest first; empty without a cluster."""
    counted = Counter(str(leader) for one in streams if (leader := (one.get("cluster") or {}).get("leader")))
    return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))


def _row(info: StreamInfo) -> Row:
    config, state = info["config"], info["state"]
    placement = config.get("placement") or {}
    return Row(
        stream=config["name"],
        storage=config["storage"],
        placement=" ".join([placement.get("cluster", ""), *(placement.get("tags") or [])]).strip(),
        consumers=state["consumer_count"],
        messages=state["messages"],
        bytes=state["bytes"],
        lost=len((state.get("lost") or {}).get("msgs") or []),
        deleted=state.get("num_deleted", 0),
        api_level=str((config.get("metadata") or {}).get("_nats.req.level", "")),
        replicas=", ".join(sorted(mark_servers(info.get("cluster")))),
    )


def mark_servers(cluster: ClusterInfo | None) -> list[str]:
    """Return the leader with a star, then the replicas, with a mark for each that is behind or offline."""
    if cluster is None:
        return []
    names = [f"{leader}*"] if (leader := cluster.get("leader")) else []
    for one in cluster.get("replicas") or []:
        well = one.get("current") and not one.get("offline")
        names.append(one["name"] if well else f"{one['name']}!")
    return names


def _replication(stream: str, kind: str, source: SourceInfo) -> Replication:
    transforms = source.get("subject_transforms") or []
    renamed = [f"{one['src']} to {one['dest']}" if one.get("dest") else str(one["src"]) for one in transforms]
    return Replication(
        stream=stream,
        kind=kind,
        source=source["name"],
        domain=(source.get("external") or {}).get("api", ""),
        filters=", ".join(renamed) or source.get("filter_subject", ""),
        active=source.get("active", -1),
        lag=source.get("lag", 0),
        error=(source.get("error") or {}).get("description", ""),
    )
