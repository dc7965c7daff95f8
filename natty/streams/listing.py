"""Lists all streams, or all consumers of a stream: reads every page of the server's lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from natty.jetstream import JetStream
from natty.streams.info import ConsumerInfo, StreamInfo

Info = TypeVar("Info", StreamInfo, ConsumerInfo)


@dataclass(frozen=True)
class Listing(Generic[Info]):
    """The servers' reports about streams or consumers; `missing` are names for which no server answers."""

    found: list[Info] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


async def all_streams(jetstream: JetStream, *, subject: str = "") -> Listing[StreamInfo]:
    """Return configuration and state of every stream, sorted by name; with `subject`, of those that overlap with it."""
    only = {"subject": subject} if subject else {}
    return await _all(jetstream, "STREAM.LIST", "streams", lambda one: one["config"]["name"], only)


async def all_consumers(jetstream: JetStream, stream: str) -> Listing[ConsumerInfo]:
    """Return configuration and state of every consumer of a stream, sorted by name. StreamNotFoundError."""
    return await _all(jetstream, f"CONSUMER.LIST.{stream}", "consumers", lambda one: one["name"], {})


async def stream_names(jetstream: JetStream, *, subject: str = "") -> list[str]:
    """Return the name of every stream, sorted; with `subject`, of those that overlap with it."""
    pages = await _pages(jetstream, "STREAM.NAMES", "streams", {"subject": subject} if subject else {})
    return sorted({name for page in pages for name in page.get("streams") or []})


async def consumer_names(jetstream: JetStream, stream: str) -> list[str]:
    """Return the name of every consumer of a stream, sorted. StreamNotFoundError."""
    pages = await _pages(jetstream, f"CONSUMER.NAMES.{stream}", "consumers", {})
    return sorted({name for page in pages for name in page.get("consumers") or []})


async def _all(
    jetstream: JetStream, subject: str, kind: str, name: Callable[[Info], str], only: dict[str, Any]
) -> Listing[Info]:
    pages = await _pages(jetstream, subject, kind, only)
    found: dict[str, Info] = {name(one): one for page in pages for one in page.get(kind) or []}  # one may be on two
    missing = {one for page in pages for one in page.get("missing") or []}
    return Listing([found[one] for one in sorted(found)], sorted(missing - set(found)))


async def _pages(jetstream: JetStream, subject: str, kind: str, only: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every page of a list: the first says how many there are, the others are requested at the same time.

    A page has 256 entries, or 1024 names. Streams and consumers that are created meanwhile may be missing.
    """
    first = await jetstream.request(subject, {"offset": 0} | only)
    size = len(first.get(kind) or []) + len(first.get("missing") or [])
    offsets = range(size, first["total"], size) if size else ()
    others = (jetstream.request(subject, {"offset": offset} | only) for offset in offsets)
    return [first, *await asyncio.gather(*others)]
