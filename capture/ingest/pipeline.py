"""How a message gets from the stream into the store. Read this file first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from capture.ingest.block import Groups, OpenBlocks, SealedBlock
from capture.ingest.in_flight import Commit, InFlight
from capture.ingest.keys import Reserved, key_text
from capture.ingest.record import Decoder, Records, V
from capture.ingest.spill import CHUNK_BYTES
from natty.wire.message import Batch

NANOSECONDS = 1_000_000_000

K = TypeVar("K", bound=Hashable)


async def capture(
    source: AsyncIterable[Batch],
    decode: Decoder[V],
    partition: Callable[[Records[V]], Sequence[Hashable]],
    blocks: OpenBlocks,
    commit: Commit,
    *,
    in_flight: InFlight | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Store every message of `source`, then acknowledge it. `partition` returns the key of each record.

    The end of `source` is the graceful stop: all open blocks are sealed, and every commit is waited for. A quiet source
    must yield an empty batch now and then, so that blocks are sealed when they reach `max_age`. A commit that fails
    ends the pipeline with its error, unless `in_flight` says otherwise. A cancellation ends it at once: the server
    delivers again what was not acknowledged by then.
    """
    in_flight = in_flight or InFlight(blocks)

    async def store(sealed: list[SealedBlock]) -> None:
        if blocks.spill and blocks.spill.unwritten_bytes >= (1 if sealed else CHUNK_BYTES):
            await asyncio.to_thread(blocks.spill.write)
        while sealed:  # a slow store holds back reading, and does not fill memory
            await in_flight.start(sealed.pop(0), commit, commits)

    try:
        async with asyncio.TaskGroup() as commits:
            async for batch in source:
                records = decode(batch)  # what can't be decoded is kept raw under its own key
                groups = group(records, partition(records), blocks.limits.interval)
                await store(blocks.add(groups, now=clock()))
                await store(blocks.due(clock()))
            await store(blocks.seal_all())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # the first to fail; the other commits were cancelled with it


def group(records: Records[V], keys: Sequence[Hashable], interval: float) -> Groups:
    """Return the records by key and by interval of their time: `keys` has one for each, `interval` is in seconds.

    Records that could not be decoded have a key of their own. Groups are in order of their first record, and the
    records of a group stay in order.
    """
    whole = int(interval)
    if records.errors:
        keys = [Reserved.UNDECODABLE if index in records.errors else key for index, key in enumerate(keys)]
    start = _common_start(records.times_ns, whole)
    if start is None:
        starts = [time_ns // (whole * NANOSECONDS) * whole for time_ns in records.times_ns]
        members = _members(zip(keys, starts, strict=True))
    elif keys.count(keys[0]) == len(keys):
        return [(key_text(keys[0]), start, records)]
    else:
        members = {(key, start): indices for key, indices in _members(keys).items()}
    return [(key, start, records.select(indices)) for (key, start), indices in _by_text(members).items()]


def _common_start(times_ns: list[int], interval: int) -> int | None:
    """Return the start of the interval that all of these times are in; None if they are in several, or in none."""
    if not times_ns:
        return None
    width = interval * NANOSECONDS
    first = min(times_ns) // width
    return first * interval if first == max(times_ns) // width else None


def _members(keys: Iterable[K]) -> dict[K, list[int]]:
    """Return the indices of each key, in order of the first ones."""
    members: dict[K, list[int]] = {}
    for index, key in enumerate(keys):
        if key in members:
            members[key].append(index)
        else:
            members[key] = [index]
    return members


def _by_text(members: dict[tuple[Hashable, int], list[int]]) -> dict[tuple[str, int], list[int]]:
    """Return the indices by the texts of their keys: 1 and "1" are one key."""
    by_text: dict[tuple[str, int], list[int]] = {}
    for (key, start), indices in members.items():
        where = key_text(key), start
        by_text[where] = sorted(by_text[where] + indices) if where in by_text else indices
    return by_text
