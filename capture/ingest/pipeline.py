"""How a message gets from the stream into the store. Read this file first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from capture.errors import StoreError
from capture.ingest.block import OPEN_SHARE, PENDING, Groups, OpenBlocks, SealedBlock
from capture.ingest.keys import Reserved, key_text
from capture.ingest.record import Decoder, Records, V
from capture.ingest.spill import CHUNK_BYTES
from natty.errors import legible
from natty.wire.message import Batch
from natty.wire.repeated import Repeated

SLOTS = 4  # blocks that are stored concurrently
WRITING = 3  # memory that a writer needs besides a block until its object is made, as a multiple of its content,
WRITING_MESSAGE = 500  # and bytes for each message; docs/buffers.md has what was measured
CALM = 0.5  # of max_pending: below it, the warning about late acknowledgements may be logged again
UNDECODABLE_EVERY = 300.0  # seconds between two lines about messages that could not be decoded
NANOSECONDS = 1_000_000_000

log = logging.getLogger("capture.slots")
failures = logging.getLogger("capture.commit")
decoding = logging.getLogger("capture.decoding")

K = TypeVar("K", bound=Hashable)

Commit = Callable[[SealedBlock], Coroutine[Any, Any, object]]
"""Stores a block and acknowledges its messages. Raises StoreError if it can't; its messages are then handed back."""


async def capture(
    source: AsyncIterable[Batch],
    decode: Decoder[V],
    partition: Callable[[Records[V]], Sequence[Hashable]],
    blocks: OpenBlocks,
    commit: Commit,
    *,
    retain: Callable[[Records[V]], None] | None = None,
    in_flight: InFlight | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Store every message of `source`, then acknowledge it. `partition` returns the key of each record.

    `retain` replaces the payloads of records by what is stored in their place; see `capture.formats.values`.

    The end of `source` is the graceful stop: all open blocks are sealed, and all commits finish. A quiet source must
    yield an empty batch now and then, so that blocks are sealed when they reach `max_age`. A commit that fails ends the
    pipeline with its error, unless `in_flight` says otherwise. A cancellation ends it at once: the server delivers
    messages again that were not acknowledged by then.
    """
    in_flight = in_flight or InFlight(blocks)
    undecodable = Repeated(decoding, every=UNDECODABLE_EVERY)

    async def store(sealed: list[SealedBlock]) -> None:
        if blocks.spill and blocks.spill.unwritten_bytes >= (1 if sealed else CHUNK_BYTES):
            await asyncio.to_thread(blocks.spill.write)
        while sealed:  # a slow store delays reading, and does not fill memory
            await in_flight.start(sealed.pop(0), commit, commits)

    try:
        async with asyncio.TaskGroup() as commits:
            async for batch in source:
                records = decode(batch)  # undecodable messages are kept raw under their own key
                keys = partition(records)
                if retain:
                    retain(records)
                if records.errors:
                    _report_undecodable(undecodable, records)
                groups = group(records, keys, blocks.limits.interval)
                await store(blocks.add(groups, now=clock()))
                await store(blocks.due(clock()))
            await store(blocks.seal_all())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors  # the first to fail; the other commits were cancelled with it


def _report_undecodable(repeated: Repeated, records: Records[Any]) -> None:
    index, reason = next(iter(records.errors.items()))
    repeated.warning(
        f"undecodable messages of {records.stream}",
        f"{len(records.errors):,} of {len(records):,} messages of {records.stream} could not be decoded; they are"
        f" stored whole, with the reason, under the key {Reserved.UNDECODABLE.value}: the first is sequence"
        f" {records.sequences[index]:,}, {legible(reason)}",
        messages=len(records.errors),
        extra={"action": "undecodable"},
    )


def group(records: Records[V], keys: Sequence[Hashable], interval: float) -> Groups:
    """Return the records by key and by interval of their time: `keys` has one for each, `interval` is in seconds.

    Records that could not be decoded have their own key. Groups are in order of their first record, and the records of
    a group stay in order.
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
    """Return the start of the interval that contains all of these times; None if they are in several, or in none."""
    if not times_ns:
        return None
    width = interval * NANOSECONDS
    first = min(times_ns) // width
    return first * interval if first == max(times_ns) // width else None


def _members(keys: Iterable[K]) -> dict[K, list[int]]:
    """Return the indices of each key; keys are in order of their first index."""
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


class InFlight:
    """The commits that run at the moment.

    One half of `max_open_bytes` is for open blocks and blocks that wait for a slot, the other half is for blocks that
    are being stored; a larger block is stored alone. A block counts with what its writer needs until its object is
    made (`SealedBlock.note_written`), then with its object. Nothing is read while a block waits, so both together are
    bounded however slow the store is. The disk of the buffers is divided in the same way.

    A commit that fails ends the pipeline. Without `stop_on_failure`, a StoreError is logged and the pipeline continues.
    """

    def __init__(
        self,
        blocks: OpenBlocks,
        slots: int = SLOTS,
        *,
        stop_on_failure: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._slots = slots
        self._stop_on_failure = stop_on_failure
        self._clock = clock
        self._started: dict[SealedBlock, float] = {}
        self._released = asyncio.Event()
        self._has_warned = False
        self._repeated = Repeated(failures)

    def __repr__(self) -> str:
        return f"InFlight({len(self._started)} of {self._slots} slots, {self.messages} messages, {self.memory} bytes)"

    @property
    def messages(self) -> int:
        """The number of messages in these blocks."""
        return sum(block.count for block in self._started)

    @property
    def lowest(self) -> int | None:
        """The lowest sequence in these blocks; None if there are none."""
        return min((block.first for block in self._started), default=None)

    @property
    def memory(self) -> int:
        """The estimated bytes of memory that these blocks and their writers take."""
        return sum(map(_memory, self._started))

    @property
    def longest(self) -> float | None:
        """The seconds for which the first of these commits has run; None if none runs."""
        return self._clock() - min(self._started.values()) if self._started else None

    async def start(self, block: SealedBlock, commit: Commit, tasks: asyncio.TaskGroup) -> None:
        """Wait until there is a slot and memory for the block, then start its commit as one of `tasks`."""
        self._warn_if_late(block)
        while not self._has_room(block):
            self._released.clear()
            await self._released.wait()
        self._started[block] = self._clock()
        block.on_written = self._released.set
        tasks.create_task(self._run(block, commit)).add_done_callback(lambda _: self._release(block))

    async def _run(self, block: SealedBlock, commit: Commit) -> None:
        try:
            await commit(block)
        except StoreError as error:
            if self._stop_on_failure:
                raise
            state, failed = f"blocks could not be stored ({type(error).__name__})", {"action": "store_failed"}
            self._repeated.error(state, str(error), messages=block.count, extra=failed | {"count": block.count})

    def _release(self, block: SealedBlock) -> None:
        del self._started[block]
        self._released.set()

    def _has_room(self, block: SealedBlock) -> bool:
        if not self._started:
            return True
        spill, limit = self._blocks.spill, (1 - OPEN_SHARE) * self._blocks.limits.max_open_bytes
        disk_is_full = spill is not None and spill.disk_bytes > OPEN_SHARE * spill.max_bytes
        return len(self._started) < self._slots and self.memory + _memory(block) <= limit and not disk_is_full

    def _warn_if_late(self, block: SealedBlock) -> None:
        """Warn that so many messages wait for their ack that the server may stop delivering; once until it is over."""
        unacknowledged = self._blocks.pending + self.messages + block.count
        limit = self._blocks.limits.max_pending
        if unacknowledged < CALM * limit:
            self._has_warned = False
        elif not self._has_warned and (unacknowledged > limit or block.reason == PENDING):
            self._has_warned = True
            log.warning(
                "%d messages are not acknowledged yet, and max_pending is %d: blocks are sealed early, and "
                "the server stops delivering at the consumer's max_ack_pending. Raise both, lower max_age or "
                "max_messages, or use a faster store or more nodes",
                unacknowledged,
                limit,
                extra={"action": "ack_pending", "messages": unacknowledged, "limit": limit},
            )


def _memory(block: SealedBlock) -> int:
    if block.object_bytes is not None:
        return block.memory + block.object_bytes
    return block.memory + WRITING * block.content_bytes + WRITING_MESSAGE * block.count
