from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from natty.jetstream import JetStream


@dataclass(frozen=True)
class Listing:
    """What the servers told of streams, or of a stream's consumers; `missing` are names that nobody answered for."""

    found: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


async def all_streams(jetstream: JetStream) -> Listing:
    """Return configuration and state of every stream, sorted by name."""
    return await _all(jetstream, "STREAM.LIST", "streams", lambda one: one["config"]["name"])


async def all_consumers(jetstream: JetStream, stream: str) -> Listing:
    """Return configuration and state of every consumer of a stream, sorted by name. StreamNotFoundError."""
    return await _all(jetstream, f"CONSUMER.LIST.{stream}", "consumers", lambda one: one["name"])


async def _all(jetstream: JetStream, subject: str, kind: str, name: Callable[[dict[str, Any]], str]) -> Listing:
    """Read page by page: a server tells 256 at a time."""
    listing, total = Listing(), 1
    while len(listing.found) + len(listing.missing) < total:
        answer = await jetstream.request(subject, {"offset": len(listing.found) + len(listing.missing)})
        page, missing = answer.get(kind) or [], answer.get("missing") or []
        if not page and not missing:
            break
        listing.found.extend(page)
        listing.missing.extend(missing)
        total = answer["total"]
    listing.found.sort(key=name)
    return listing
