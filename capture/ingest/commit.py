"""The commit of a block: durable, then visible, then acknowledged. No other code in capture acknowledges."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_hex
from traceback import walk_tb
from typing import Any, NamedTuple, Protocol

from capture.archive.manifest import Partition, Stored, block_path, encode, entry_path
from capture.archive.picture import GRACE
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import ending_of
from capture.errors import AlreadyStoredError, ConfigError, StoreError, WriterError
from capture.ingest.block import INTERVAL, SealedBlock, Writer
from capture.ingest.hooks import Completion
from capture.ingest.layout import Layout
from capture.ingest.record import Delivered, Records
from capture.stores.contract import Store
from natty.config.units import write_count
from natty.wire.repeated import MOST_STATES, Repeated

ATTEMPTS = 5  # to store one object
BACKOFF = 0.5  # seconds before the second attempt; doubled for each further one
MAX_BACKOFF = 15.0  # seconds
GIVE_UP = GRACE / 2
"""Maximum seconds from a block to its durable entry: half of the sweep's grace.

The sweep deletes a block without an entry that is older than its grace: its writer is dead.
"""

REDELIVER_AFTER = (1.0, 5.0, 15.0, 60.0)
"""Seconds until messages that could not be stored are delivered again, by the number of their deliveries so far."""

log = logging.getLogger("capture.commit")


class Acknowledger(Protocol):
    """Settles messages: a source, or a list in a test."""

    def ack(self, messages: Delivered) -> None:
        """Acknowledge these messages."""
        ...

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        """Request these messages again, after `delay` seconds."""
        ...


class Written(NamedTuple):
    """A written block: the object's bytes, their format, and their size before compression and encryption."""

    data: bytes
    format: str
    plain_bytes: int


class ObjectWriter(Writer, Protocol):
    """Makes the objects that a commit stores; `capture.formats.writer` returns one."""

    @property
    def retain(self) -> Callable[[Records[Any]], None] | None:
        """Replaces the payloads of decoded records by what is stored in their place; None: they are stored."""
        ...

    def write_sized(self, block: SealedBlock) -> Written:
        """Return the object of a block. Raises the errors of `write`."""
        ...


class Unlayered:
    """The part of an `ObjectWriter` that stores payloads, without compression and encryption around its format."""

    retain: Callable[[Records[Any]], None] | None = None

    def write_sized(self: Writer, block: SealedBlock) -> Written:
        """Return the object of a block."""
        data = self.write(block)
        return Written(data, self.format, len(data))


@dataclass(frozen=True, kw_only=True)
class CommitOptions:
    """How blocks are stored. `node` is written into entries, `interval` is the length of the blocks' intervals.

    Storing an object is tried `attempts` times, with pauses that grow from `backoff` to `max_backoff` seconds; an entry
    must be durable `give_up` seconds after its block. Messages that could not be stored are delivered again after
    `redeliver_after` seconds: the first number is for messages that were delivered once, the second for those that were
    delivered twice, and so on; the last one is for all others. Without any number they are delivered again at once.
    """

    node: str = ""
    interval: float = INTERVAL
    attempts: int = ATTEMPTS
    backoff: float = BACKOFF
    max_backoff: float = MAX_BACKOFF
    give_up: float = GIVE_UP
    redeliver_after: Sequence[float] = REDELIVER_AFTER

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"attempts must be at least 1, not {self.attempts}")
        if not 0 <= self.backoff <= self.max_backoff:
            raise ConfigError(f"backoff {self.backoff} s must be between 0 and max_backoff {self.max_backoff} s")
        if self.give_up <= 0:
            raise ConfigError(f"give_up must be greater than 0 s, not {self.give_up}")
        if any(delay < 0 for delay in self.redeliver_after):
            raise ConfigError(f"redeliver_after must not contain a negative number of seconds: {self.redeliver_after}")


class Committer:
    """Stores sealed blocks and acknowledges their messages. Several commits may run at once."""

    def __init__(
        self,
        store: Store,
        writer: ObjectWriter,
        acknowledger: Acknowledger,
        options: CommitOptions | None = None,
        *,
        layout: Layout = Partition.hive,
        on_complete: Callable[[Completion], None] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.options = options or CommitOptions()
        self._store = store
        self._writer = writer
        self._acknowledger = acknowledger
        self._layout = layout
        self._on_complete = on_complete
        self._clock = clock
        self._sleep = sleep
        self._repeated = Repeated(log)
        self._faults: set[object] = set()  # of the writer: a type, and the line that raised it

    def __repr__(self) -> str:
        return f"Committer({self._store.url}, {self._writer.format}, node={self.options.node!r})"

    async def commit(self, block: SealedBlock) -> Stored:
        """Store the block, make it visible with its entry, acknowledge its messages; return what was stored.

        Each call uses its own names, so a block or entry that already exists was written by an earlier attempt of this
        call. Nothing is acknowledged before block and entry are durable, even if the call is cancelled.

        Raises WriterError if a user's writer failed, StoreError if the store failed `attempts` times, or if it was so
        slow that the sweep may delete the block; the messages are then handed back to the server.
        """
        began, stored, failure = time.monotonic(), None, None
        try:
            with self._hand_back_if_failing(block):
                data, stored = await self._write(block)
            block.note_written(len(data))
            await self._store_and_settle(block, data, stored)
            return stored
        except BaseException as error:
            failure = error
            raise
        finally:
            if self._on_complete:
                self._on_complete(_completion(block, stored, failure, time.monotonic() - began))

    async def _store_and_settle(self, block: SealedBlock, data: bytes, stored: Stored) -> None:
        with self._hand_back_if_failing(block):
            since = await self._put_block(stored.path, data)  # durable
            self._check_age(since)
            await self._put_entry(stored, since)  # visible
        self._acknowledger.ack(block.records)
        log.debug("stored %s", stored.path, extra={"action": "stored", "count": stored.count, "reason": block.reason})

    @contextmanager
    def _hand_back_if_failing(self, block: SealedBlock) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._hand_back(block)
            raise _describe(error, block, self._store.url) from error

    def _hand_back(self, block: SealedBlock) -> None:
        """Request the block's messages again, each after a delay that grows with its deliveries."""
        ladder = self.options.redeliver_after or (0.0,)
        by_delay: dict[float, list[int]] = defaultdict(list)
        for index, deliveries in enumerate(block.records.deliveries):
            by_delay[ladder[min(deliveries, len(ladder)) - 1]].append(index)
        for delay, indices in by_delay.items():
            self._acknowledger.nak(block.records.select(indices), delay)

    async def _write(self, block: SealedBlock) -> tuple[bytes, Stored]:
        """Return the object of the block, and its entry. WriterError; the traceback is logged once for each fault."""
        try:
            return await asyncio.to_thread(self._serialise, block)
        except StoreError as error:
            self._log_traceback(error)
            raise WriterError(str(error)) from error

    def _log_traceback(self, error: StoreError) -> None:
        if (fault := error.__cause__) is None:  # what the user's code raised
            return
        lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(fault.__traceback__)]
        kind = (type(fault), *lines[-1:])
        if kind not in self._faults and len(self._faults) < MOST_STATES:
            self._faults.add(kind)
            log.error("%s", error, exc_info=fault, extra={"action": "writer_failed"})

    def _serialise(self, block: SealedBlock) -> tuple[bytes, Stored]:
        data, format, plain_bytes = self._writer.write_sized(block)
        digest = sha256(data).hexdigest()
        partition = Partition(block.stream, block.key, block.interval, int(self.options.interval))
        path = block_path(
            partition,
            block.first,
            block.last,
            block.count,
            digest,
            f".{ending_of(format)}",
            unique=token_hex(4),
            folder=self._layout(partition),
        )
        return data, Stored(
            path=path,
            stream=block.stream,
            key=block.key,
            interval=block.interval,
            first=block.first,
            last=block.last,
            count=block.count,
            bytes=len(data),
            sha256=digest,
            format=format,
            sequences=Sequences.from_iterable(block.records.sequences).to_bytes(),
            node=self.options.node,
            stored_ns=int(self._clock() * 1e9),
            min_ns=min(block.records.times_ns),
            max_ns=max(block.records.times_ns),
            plain_bytes=plain_bytes,
        )

    async def _put_block(self, path: str, data: bytes) -> float:
        """Store the block, and return the earliest time at which it can have existed."""
        began = self._clock()
        if not await self._put(path, data) and all(one.path != path for one in await self._store.list(path)):
            raise StoreError("the sweep took the block for a leftover and removed it before its entry was written")
        return began

    async def _put_entry(self, stored: Stored, since: float) -> None:
        """Make the block visible. Delete the entry if it was too late: the sweep may have deleted the block."""
        path = entry_path(stored.path)
        await self._put(path, encode(stored))
        try:
            self._check_age(since)
        except StoreError:
            await self._store.delete(path)
            raise

    def _check_age(self, since: float) -> None:
        if (age := self._clock() - since) > self.options.give_up:
            raise StoreError(
                f"the block existed for {age:.0f} s without a durable entry, more than {self.options.give_up:g} s, "
                f"half of the sweep's grace: the store is too slow, or the grace too short"
            )

    async def _put(self, path: str, data: bytes) -> bool:
        """Store an object; return False if it already exists."""
        for attempt in range(1, self.options.attempts + 1):
            try:
                await self._store.put(path, data, if_absent=True)
                return True
            except AlreadyStoredError:
                return False
            except StoreError as error:
                if attempt == self.options.attempts:
                    raise _count_attempts(attempt, error) from error
                pause = self._pause(attempt)
                state = f"{self._store.url} refused an object ({type(error).__name__}), retrying"
                said = f"{error}; retrying in {pause:.1f} s"
                self._repeated.warning(state, said, extra={"action": "store_retry", "path": path})
            await self._sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, attempt: int) -> float:
        """Return the seconds to wait after this attempt, with jitter, so that not all nodes retry at the same time."""
        longest = min(self.options.backoff * 2.0 ** (attempt - 1), self.options.max_backoff)
        return longest * random.uniform(0.5, 1.0)


def _completion(block: SealedBlock, stored: Stored | None, error: BaseException | None, duration: float) -> Completion:
    return Completion(
        stream=block.stream,
        key=block.key,
        path=stored.path if stored else "",
        first=block.first,
        last=block.last,
        count=block.count,
        bytes=stored.bytes if stored else 0,
        duration=duration,
        error=error,
    )


def _count_attempts(attempts: int, error: StoreError) -> StoreError:
    return type(error)(f"{error} (tried {attempts} times)" if attempts > 1 else str(error))


def _describe(error: StoreError, block: SealedBlock, url: str) -> StoreError:
    where = "" if isinstance(error, WriterError) else f" in {url}"
    return type(error)(
        f"{write_count(block.count, 'message')} of {block.stream} ({block.first}–{block.last}, key {block.key!r})"
        f" could not be stored{where}: {error}. None of them was acknowledged; the server will deliver them again"
    )
