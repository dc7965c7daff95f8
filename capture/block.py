from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from capture.errors import ConfigError
from capture.record import Records

MAX_MESSAGES = 50_000  # messages of a block
MAX_BYTES = 32 << 20  # bytes of a block: subjects, headers and payloads
MAX_AGE = 30.0  # seconds from a block's first message to its sealing
MAX_OPEN_BYTES = 256 << 20  # memory of all open blocks together
MAX_PENDING = 200_000  # messages in open blocks, all not yet acknowledged
INTERVAL = 3600.0  # seconds of message time that one block may cover
NEARLY_FULL = 0.75  # of max_open_bytes and max_pending: the rest is for the blocks whose commit is under way
LARGEST_BLOCK = 1 << 30  # bytes; Arrow's columns of text and binary end at 2 GiB
RECORD_MEMORY = 500  # bytes that Python needs for a message beside its content: nine list entries, the ack subject
DAY = 86_400  # seconds

AGE, MESSAGES, BYTES, MEMORY, PENDING, STOP = "age", "messages", "bytes", "memory", "pending", "stop"

Groups = list[tuple[str, int, Records[Any]]]
"""(key, start of the interval in Unix seconds, the records of both)."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a block is sealed. ConfigError where the limits contradict one another."""

    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    max_age: float = MAX_AGE
    max_open_bytes: int = MAX_OPEN_BYTES
    max_pending: int = MAX_PENDING
    interval: float = INTERVAL

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_bytes", "max_age", "max_open_bytes", "max_pending", "interval"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be greater than 0, not {getattr(self, name)}")
        if self.max_bytes > LARGEST_BLOCK:
            raise ConfigError(f"max_bytes {self.max_bytes} is more than a block can hold, {LARGEST_BLOCK}")
        if self.max_bytes > self.max_open_bytes:
            raise ConfigError(f"max_bytes {self.max_bytes} of one block exceeds max_open_bytes {self.max_open_bytes}")
        if self.interval % 60 or DAY % self.interval:
            raise ConfigError(f"interval {self.interval} s must be whole minutes, and a day a multiple of it")

    def check_consumer(self, *, ack_wait: float, max_ack_pending: int) -> None:
        """Raise ConfigError if a consumer of these settings would redeliver, or stall on, messages of an open block."""
        if self.max_age >= ack_wait:
            raise ConfigError(
                f"max_age {self.max_age} s must be below the consumer's ack_wait {ack_wait} s: "
                "every message would be delivered again while its block is still open"
            )
        if 0 < max_ack_pending < self.max_pending:
            raise ConfigError(
                f"max_pending {self.max_pending} exceeds the consumer's max_ack_pending {max_ack_pending}: "
                "the server would stop delivering before a block is sealed"
            )


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """Records of one stream, key and interval, in order of their sequences; nothing is added any more."""

    stream: str
    key: str
    interval: int
    """Its start, in Unix seconds."""
    records: Records[Any]
    reason: str
    """Why it was sealed: "age", "messages", "bytes", "memory", "pending" or "stop"."""

    @property
    def first(self) -> int:
        """The lowest sequence."""
        return self.records.sequences[0]

    @property
    def last(self) -> int:
        """The highest sequence."""
        return self.records.sequences[-1]

    @property
    def count(self) -> int:
        """The messages; one delivered twice counts twice."""
        return len(self.records)

    def __repr__(self) -> str:
        where = f"{self.stream!r}, key={self.key!r}, interval={self.interval}"
        return f"SealedBlock({where}, {self.count} messages {self.first}–{self.last}, sealed by {self.reason})"


class _OpenBlock:
    """A block that still grows."""

    __slots__ = ("bytes", "opened", "records")

    def __init__(self, opened: float) -> None:
        self.opened = opened
        self.records: Records[Any] = Records()
        self.bytes = 0

    @property
    def memory(self) -> int:
        return self.bytes + RECORD_MEMORY * len(self.records)


Where = tuple[str, str, int]  # stream, key, interval


class OpenBlocks:
    """The blocks being filled. It decides what is sealed and returns it; it awaits nothing and stores nothing."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._open: dict[Where, _OpenBlock] = {}  # a new block goes to the end: the oldest is always the first
        self._pending = 0
        self._memory = 0

    def __repr__(self) -> str:
        return f"OpenBlocks({len(self._open)} open, {self.pending} messages, {self.memory} bytes of memory)"

    @property
    def pending(self) -> int:
        """The messages in open blocks."""
        return self._pending

    @property
    def memory(self) -> int:
        """The bytes of memory that open blocks take, estimated."""
        return self._memory

    def add(self, groups: Groups, *, now: float) -> list[SealedBlock]:
        """Put each group into the block of its key and interval; return the blocks that this filled.

        A group that does not fit is cut, so no block exceeds `max_messages`, nor `max_bytes` unless a single message
        does. When open blocks together come near `max_pending` or `max_open_bytes`, the largest ones are sealed.
        """
        sealed: list[SealedBlock] = []
        for key, interval, records in groups:
            where = records.stream, key, interval
            rest = replace(records, values=[None] * len(records), keys=None)  # the payload is kept, its twin is not
            while len(rest):
                rest, reason = self._fill(where, rest, now)
                if reason:
                    sealed.append(self._seal(where, reason))
        return sealed + self._relieve()

    def due(self, now: float) -> list[SealedBlock]:
        """Return the blocks that are `max_age` seconds old at `now`; a quiet stream is sealed by this."""
        old = []
        for where, block in self._open.items():
            if now - block.opened < self.limits.max_age:
                break
            old.append(where)
        return [self._seal(where, AGE) for where in old]

    def next_due(self, now: float) -> float | None:
        """Return in how many seconds from `now` the next block comes of age; None if none is open."""
        for block in self._open.values():
            return max(0.0, block.opened + self.limits.max_age - now)
        return None

    def seal_all(self) -> list[SealedBlock]:
        """Return every open block: capture stops."""
        return [self._seal(where, STOP) for where in list(self._open)]

    def _fill(self, where: Where, records: Records[Any], now: float) -> tuple[Records[Any], str]:
        """Append what fits to the block; return what is left over, and why the block is full, or ""."""
        block = self._open.get(where)
        if block is None:
            block = self._open[where] = _OpenBlock(now)
        fits, reason = self._fitting(block, records)
        if fits < len(records):
            records, rest = records.select(range(fits)), records.select(range(fits, len(records)))
        else:
            rest = Records()
        size = _size(records)
        block.records.extend(records)
        block.bytes += size
        self._pending += len(records)
        self._memory += size + RECORD_MEMORY * len(records)
        return rest, reason

    def _fitting(self, block: _OpenBlock, records: Records[Any]) -> tuple[int, str]:
        """Return how many of the first records the block can take, and why it is full with them, or ""."""
        fits, reason = len(records), ""
        if len(block.records) + fits >= self.limits.max_messages:
            fits, reason = self.limits.max_messages - len(block.records), MESSAGES
        room = self.limits.max_bytes - block.bytes
        if _size(records) < room:
            return fits, reason
        within = bisect_right(list(accumulate(_sizes(records))), room)
        if not len(block.records):
            within = max(within, 1)  # a message larger than a block has one to itself
        return (within, BYTES) if within <= fits else (fits, reason)

    def _relieve(self) -> list[SealedBlock]:
        """Seal the largest blocks until open ones are clear of both common limits."""
        sealed = self._largest(PENDING, self.limits.max_pending, lambda: self._pending, _count)
        return sealed + self._largest(MEMORY, self.limits.max_open_bytes, lambda: self._memory, _memory)

    def _largest(
        self, reason: str, limit: int, total: Callable[[], int], size: Callable[[_OpenBlock], int]
    ) -> list[SealedBlock]:
        if total() <= NEARLY_FULL * limit:
            return []
        sealed = []
        for where in sorted(self._open, key=lambda where: size(self._open[where]), reverse=True):
            if total() <= NEARLY_FULL * limit:
                break
            sealed.append(self._seal(where, reason))
        return sealed

    def _seal(self, where: Where, reason: str) -> SealedBlock:
        block = self._open.pop(where)
        self._pending -= len(block.records)
        self._memory -= block.memory
        return SealedBlock(*where, records=_ordered(block.records), reason=reason)


def _count(block: _OpenBlock) -> int:
    return len(block.records)


def _memory(block: _OpenBlock) -> int:
    return block.memory


def _size(records: Records[Any]) -> int:
    columns = records.payloads, records.header_blocks, records.subjects
    return sum(sum(map(len, column)) for column in columns)


def _sizes(records: Records[Any]) -> Iterator[int]:
    columns = zip(records.payloads, records.header_blocks, records.subjects, strict=True)
    return (len(payload) + len(headers) + len(subject) for payload, headers, subject in columns)


def _ordered(records: Records[Any]) -> Records[Any]:
    if records.sequences == sorted(records.sequences):
        return records
    return records.select(sorted(range(len(records)), key=records.sequences.__getitem__))
