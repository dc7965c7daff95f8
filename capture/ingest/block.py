"""Blocks: the messages of one key and interval that become one object. Decides when a block is sealed."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from capture.errors import ConfigError
from capture.ingest.record import Records
from capture.ingest.spill import Spill, Spilled

MAX_MESSAGES = 50_000  # messages in a block
MAX_BYTES = 16 << 20  # bytes of a block: subjects, headers and payloads
MAX_AGE = 30.0  # seconds from the first message of a block until it is sealed
MAX_OPEN = 10_000  # open blocks
MAX_OPEN_BYTES = 256 << 20  # memory of all blocks together, both open and in flight
MAX_PENDING = 200_000  # messages in open blocks, none of them acknowledged yet
INTERVAL = 3600.0  # seconds of message time that one block may cover
NEARLY_FULL = 0.75  # of max_pending: the rest is for blocks in flight
OPEN_SHARE = 0.5  # of max_open_bytes and of the disk: the rest is for blocks in flight
LARGEST_BLOCK = 1 << 30  # bytes; the limit of Arrow's columns of text and binary is 2 GiB
RECORD_MEMORY = 500  # bytes that Python needs for a message besides its content: eight list entries, the ack subject
SPILLED_MEMORY = 200  # bytes for a message on disk: its position there, and its ack subject, which the source keeps
BLOCK_MEMORY = 1200  # bytes for an open block besides its messages
DAY = 86_400  # seconds

AGE, MESSAGES, BYTES, STOP = "age", "messages", "bytes", "stop"
MEMORY, PENDING, KEYS, DISK = "memory", "pending", "keys", "disk"

Groups = list[tuple[str, int, Records[Any]]]
"""(key, start of the interval in Unix seconds, the records of both)."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a block is sealed. Raises ConfigError if the limits contradict each other."""

    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    max_age: float = MAX_AGE
    max_open: int = MAX_OPEN
    max_open_bytes: int = MAX_OPEN_BYTES
    max_pending: int = MAX_PENDING
    max_behind: int = 0  # messages added since the first one of an open block, including it; 0: no limit
    interval: float = INTERVAL

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_bytes", "max_age", "max_open", "max_open_bytes", "max_pending", "interval"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be greater than 0, not {getattr(self, name)}")
        if self.max_bytes > LARGEST_BLOCK:
            raise ConfigError(f"max_bytes {self.max_bytes} is more than a block can hold, {LARGEST_BLOCK}")
        if self.max_bytes > self.max_open_bytes:
            raise ConfigError(f"max_bytes {self.max_bytes} of one block exceeds max_open_bytes {self.max_open_bytes}")
        if self.interval % 60 or DAY % self.interval:
            raise ConfigError(f"interval {self.interval} s must be whole minutes, and a day a multiple of it")

    def check_consumer(self, *, ack_wait: float, max_ack_pending: int) -> None:
        """Raise ConfigError if a consumer with these settings would redeliver or stall on messages of an open block."""
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


class SealedBlock:
    """The records of one stream, key and interval, in order of their sequences. It does not change any more.

    `interval` is the start of the interval, in Unix seconds. `reason` says why the block was sealed: "age", "messages",
    "bytes", "stop"; or early, because all blocks together came near a limit: "memory", "pending", "keys", "disk".
    """

    __slots__ = ("_content", "content_bytes", "interval", "key", "object_bytes", "on_written", "reason", "stream")

    def __init__(
        self,
        stream: str,
        key: str,
        interval: int,
        content: Records[Any] | Spilled,
        reason: str,
        content_bytes: int = 0,
    ) -> None:
        self.stream = stream
        self.key = key
        self.interval = interval
        self.reason = reason
        self.content_bytes = content_bytes
        self.object_bytes: int | None = None  # None: it is not written yet
        self.on_written: Callable[[], None] | None = None
        self._content = content

    def note_written(self, object_bytes: int) -> None:
        """Note that the object has been made, and its size; call `on_written`."""
        self.object_bytes = object_bytes
        if self.on_written:
            self.on_written()

    @property
    def records(self) -> Records[Any]:
        """The messages. The first use reads messages that are on disk, so do that in a thread. Raises SpillError."""
        if isinstance(self._content, Spilled):
            self._content = _sort(self._content.load())
        return self._content

    @property
    def first(self) -> int:
        """The lowest sequence."""
        return self._content.first if isinstance(self._content, Spilled) else self._content.sequences[0]

    @property
    def last(self) -> int:
        """The highest sequence."""
        return self._content.last if isinstance(self._content, Spilled) else self._content.sequences[-1]

    @property
    def count(self) -> int:
        """The number of messages. A message that was delivered twice counts twice."""
        return len(self._content)

    @property
    def memory(self) -> int:
        """The estimated bytes of memory that the block takes while it is stored, without those of its object."""
        return self.content_bytes + RECORD_MEMORY * self.count

    def __repr__(self) -> str:
        where = f"{self.stream!r}, key={self.key!r}, interval={self.interval}"
        return f"SealedBlock({where}, {self.count} messages {self.first}–{self.last}, sealed by {self.reason})"


class _OpenBlock:
    """A block that takes more messages."""

    __slots__ = ("bytes", "content", "count", "memory", "opened", "preceded")

    def __init__(self, opened: float, preceded: int, content: Records[Any] | Spilled) -> None:
        self.opened = opened
        self.preceded = preceded  # the number of messages, in all blocks, that were added before
        self.content = content
        self.count = 0
        self.bytes = 0
        self.memory = BLOCK_MEMORY


Where = tuple[str, str, int]  # stream, key, interval


class OpenBlocks:
    """The blocks that are being filled. It decides which are sealed, and returns them; the caller stores them.

    With a `spill` the content of the blocks is on disk: the caller writes it before it stores a block. If the limits
    change, all open blocks are sealed, so that each block was filled under one set of limits.
    """

    def __init__(self, limits: Limits | None = None, spill: Spill | None = None) -> None:
        self.limits = limits or Limits()
        self._spill = spill
        self._open: dict[Where, _OpenBlock] = {}  # a new block is added at the end: the first is the oldest
        self._used: OrderedDict[Where, None] = OrderedDict()  # the same blocks, the least recently used first
        self._sealed: list[SealedBlock] = []  # by `seal`, not returned yet
        self._added = 0
        self._pending = 0
        self._memory = 0

    def __repr__(self) -> str:
        return f"OpenBlocks({len(self)} open, {self.pending} messages, {self.memory} bytes of memory)"

    def __len__(self) -> int:
        return len(self._open)

    @property
    def pending(self) -> int:
        """The number of messages in open blocks."""
        return self._pending

    @property
    def lowest(self) -> int | None:
        """The lowest sequence in open blocks; None if none is open."""
        found = (one.content for one in self._open.values() if one.count)
        return min((one.first if isinstance(one, Spilled) else min(one.sequences) for one in found), default=None)

    @property
    def memory(self) -> int:
        """The estimated bytes of memory that open blocks take."""
        return self._memory

    @property
    def spill(self) -> Spill | None:
        """The log with the blocks' content; None: it is in memory. Write what was added before you read a block."""
        return self._spill

    def add(self, groups: Groups, *, now: float) -> list[SealedBlock]:
        """Put each group into the block of its key and interval; return the blocks that are full.

        A group that does not fit is split. A block does not exceed `max_messages`, and exceeds `max_bytes` only if a
        single message does. If open blocks together come near `max_pending` or `max_open_bytes`, the largest ones are
        sealed; if there are more than `max_open`, the least recently used ones; if they take too much of the disk, the
        oldest ones.
        """
        sealed = self._take_sealed()
        max_messages, max_bytes = self.limits.max_messages, self.limits.max_bytes
        for key, interval, records in groups:
            where = records.stream, key, interval
            count, size = len(records.sequences), _size(records)
            if not count:
                continue
            block = self._open.get(where) or self._begin(where, now)
            if block.count + count < max_messages and block.bytes + size < max_bytes:
                self._take(where, block, records, size)
            else:
                sealed += self._fill(where, records, now)
        return sealed + self._relieve()

    def due(self, now: float) -> list[SealedBlock]:
        """Return the blocks that are `max_age` seconds old at `now`. It seals the blocks of a quiet stream."""
        old: list[Where] = []
        for where, block in self._open.items():
            if now - block.opened < self.limits.max_age:
                break
            old.append(where)
        return self._take_sealed() + [self._seal(where, AGE) for where in old]

    def next_due(self, now: float) -> float | None:
        """Return the seconds from `now` until the next block is `max_age` old; None if no block is open."""
        for block in self._open.values():
            return max(0.0, block.opened + self.limits.max_age - now)
        return None

    def seal_all(self) -> list[SealedBlock]:
        """Seal every open block and return it, when capture stops."""
        self.seal()
        return self._take_sealed()

    def seal(self) -> None:
        """Seal every open block; the next call of `add`, `due` or `seal_all` returns it."""
        self._sealed += [self._seal(where, STOP) for where in list(self._open)]

    def change(self, limits: Limits) -> None:
        """Use other limits from now on."""
        if limits != self.limits:
            self.seal()
            self.limits = limits

    def _take_sealed(self) -> list[SealedBlock]:
        sealed, self._sealed = self._sealed, []
        return sealed

    def _fill(self, where: Where, records: Records[Any], now: float) -> Iterator[SealedBlock]:
        """Append the records to the block, and to new blocks when it is full; yield the full ones."""
        while len(records):
            block = self._open.get(where) or self._begin(where, now)
            fits, reason = self._fit(block, records)
            if fits:  # otherwise the block is full without any of them
                part = records.select(range(fits))
                self._take(where, block, part, _size(part))
                records = records.select(range(fits, len(records)))
            if reason:
                yield self._seal(where, reason)

    def _begin(self, where: Where, now: float) -> _OpenBlock:
        stream = where[0]
        content: Records[Any] | Spilled = Records(stream) if self._spill is None else Spilled(stream, self._spill)
        block = self._open[where] = _OpenBlock(now, self._added, content)
        self._used[where] = None
        self._memory += block.memory
        return block

    def _take(self, where: Where, block: _OpenBlock, records: Records[Any], size: int) -> None:
        block.content.take(records)
        count = len(records.sequences)
        memory = RECORD_MEMORY * count + size if self._spill is None else SPILLED_MEMORY * count
        block.count += count
        block.bytes += size
        block.memory += memory
        self._added += count
        self._pending += count
        self._memory += memory
        self._used.move_to_end(where)

    def _fit(self, block: _OpenBlock, records: Records[Any]) -> tuple[int, str]:
        """Return how many of the first records fit into the block, and why it is full with them ("" if it is not)."""
        fits, reason = len(records), ""
        if block.count + fits >= self.limits.max_messages:
            fits, reason = self.limits.max_messages - block.count, MESSAGES
        room = self.limits.max_bytes - block.bytes
        if _size(records) < room:
            return fits, reason
        within = bisect_right(list(accumulate(_sizes(records))), room)
        if not block.count:
            within = max(within, 1)  # a message larger than a block gets its own block
        return (within, BYTES) if within <= fits else (fits, reason)

    def _relieve(self) -> list[SealedBlock]:
        """Seal blocks early until the open ones together are below their limits."""
        limits = self.limits
        sealed = [self._seal(next(iter(self._used)), KEYS) for _ in range(len(self._open) - limits.max_open)]
        sealed += self._seal_largest(PENDING, NEARLY_FULL * limits.max_pending, lambda: self._pending, _count)
        sealed += self._seal_largest(MEMORY, OPEN_SHARE * limits.max_open_bytes, lambda: self._memory, _memory)
        return sealed + self._seal_spread() + self._seal_overtaken()

    def _seal_largest(
        self, reason: str, limit: float, total: Callable[[], int], size: Callable[[_OpenBlock], int]
    ) -> list[SealedBlock]:
        if total() <= limit:
            return []
        sealed = []
        for where in sorted(self._open, key=lambda where: size(self._open[where]), reverse=True):
            if total() <= limit:
                break
            sealed.append(self._seal(where, reason))
        return sealed

    def _seal_spread(self) -> list[SealedBlock]:
        """Seal the oldest blocks until the open ones take at most their share of the disk."""
        sealed: list[SealedBlock] = []
        while self._spill and self._open:
            where, block = next(iter(self._open.items()))
            if not isinstance(block.content, Spilled) or block.content.span <= OPEN_SHARE * self._spill.max_bytes:
                break
            sealed.append(self._seal(where, DISK))
        return sealed

    def _seal_overtaken(self) -> list[SealedBlock]:
        """Seal the oldest blocks that more than `max_behind` messages followed: they delay all acks."""
        behind, sealed = self.limits.max_behind, []
        while behind and self._open:
            where, block = next(iter(self._open.items()))
            if self._added - block.preceded <= behind:
                break
            sealed.append(self._seal(where, PENDING))
        return sealed

    def _seal(self, where: Where, reason: str) -> SealedBlock:
        block = self._open.pop(where)
        del self._used[where]
        self._pending -= block.count
        self._memory -= block.memory
        content = block.content if isinstance(block.content, Spilled) else _sort(block.content)
        return SealedBlock(*where, content, reason, block.bytes)


def _count(block: _OpenBlock) -> int:
    return block.count


def _memory(block: _OpenBlock) -> int:
    return block.memory


def _size(records: Records[Any]) -> int:
    return sum(map(len, records.payloads)) + sum(map(len, records.header_blocks)) + sum(map(len, records.subjects))


def _sizes(records: Records[Any]) -> Iterator[int]:
    columns = zip(records.payloads, records.header_blocks, records.subjects, strict=True)
    return (len(payload) + len(headers) + len(subject) for payload, headers, subject in columns)


def _sort(records: Records[Any]) -> Records[Any]:
    """Return the records in order of their sequences, without values: a writer that needs values decodes again."""
    records.values = [None] * len(records)
    if records.sequences == sorted(records.sequences):
        return records
    return records.select(sorted(range(len(records)), key=records.sequences.__getitem__))


class Writer(Protocol):
    """Turns a sealed block into the bytes of one object. It runs in threads, several at a time."""

    @property
    def format(self) -> str:
        """The name in the manifest. The object's name ends in a dot and this name."""
        ...

    def write(self, block: SealedBlock) -> bytes:
        """Return the object's bytes, never none of them. Every message can be written."""
        ...
