"""The source of a node in a group: reads the node's share of the consumers of the group's members."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence, Set
from types import TracebackType
from typing import Self

from capture.ingest.keys import quote_name
from capture.ingest.pinned_consumer import PinnedReader
from capture.ingest.record import Delivered, Part
from capture.ingest.source import ENOUGH, GATHER, READ_AHEAD, TICK
from natty import Batch, Natty
from natty.groups.partitions import balance
from natty.groups.roster import Roster
from natty.groups.settings import record_key
from natty.wire.ack import Acks
from natty.wire.background import cancel_all, wait_until_set

log = logging.getLogger("capture.grouped")

TTL = 5.0  # seconds after which a node without a sign of life counts as dead
TOGETHER = 0.05  # seconds in which all nodes that come or go cause only one change
LEAST_READ_AHEAD = 1024  # messages


class GroupSource:
    """Yields the messages of a group's consumers, batch by batch, and settles them. Use it with `async with`.

    The nodes of a group share its consumers evenly: each node registers in a bucket for some seconds at a time, and
    computes the same division from the registered nodes. The division decides which node waits for a consumer; the
    server's pin decides which node reads it. Before a consumer moves to another node, the messages that were read from
    it are sealed, stored and acknowledged. Without a `roster`, the key of the registrations, this node waits for all of
    these consumers.

    `seal` seals the open blocks, so that they are stored; `drain` is the number of seconds that a hand-over may take.
    """

    def __init__(
        self,
        natty: Natty,
        stream: str,
        consumers: Sequence[str],
        *,
        roster: str,
        ack_wait: float,
        drain: float,
        seal: Callable[[], None],
    ) -> None:
        self.read = 0
        self._natty, self._stream, self._consumers = natty, stream, sorted(consumers)
        self._ack_wait, self._drain, self._seal = ack_wait, drain, seal
        self._name = secrets.token_hex(6)
        self._roster = Roster(natty.jetstream, roster, self._name, TTL) if roster else None
        self._readers: dict[str, PinnedReader] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._live: set[str] = set()
        self._wanted: Set[str] = frozenset()
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"GroupSource({self._stream}, {self.read} read, {[*self._readers.values()]})"

    async def __aenter__(self) -> Self:
        if self._roster is None:
            self._share(set(self._consumers))
            return self
        await self._roster.prepare()
        await self._roster.register()
        jobs = (self._roster.stay(), self._roster.follow(self._live, self._changed), self._divide())
        self._tasks = [asyncio.create_task(job, name="capture group") for job in jobs]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._wake.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up all consumers: other nodes get the messages that are not acknowledged."""
        self.stop()
        await cancel_all(self._tasks)
        if self._roster is not None:
            await self._roster.leave()
        await cancel_all(self._leaving.values())
        await asyncio.gather(*(reader.close() for reader in self._readers.values()))

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Yield batches until `stop`, an empty one at least every `TICK` seconds.

        Raises ConsumerNotFoundError if one of the consumers is deleted.
        """
        while not self._stopping:
            self._raise_failure()
            if not self._count_waiting():
                self._wake.clear()
                await wait_until_set(self._wake, TICK)
            if 0 < self._count_waiting() < ENOUGH:
                await asyncio.sleep(GATHER)
            taken = [reader.take() for reader in self._readers.values()]
            batch = Batch([raw for raws, _ in taken for raw in raws])
            self.read += len(batch)
            yield batch
            for _, finished in taken:
                finished()

    def stop(self) -> None:
        """End after the current batch. Idempotent."""
        self._stopping = True
        self._wake.set()
        for reader in self._readers.values():
            reader.stop()

    def ack(self, messages: Delivered) -> None:
        """Acknowledge these messages. Only `commit.py` calls this."""
        for consumer, some in by_consumer(messages).items():
            if reader := self._readers.get(consumer):
                reader.ack(some)

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        """Request these messages again."""
        for consumer, some in by_consumer(messages).items():
            if reader := self._readers.get(consumer):
                reader.nak(some, delay)

    def _count_waiting(self) -> int:
        return sum(len(reader.arrived) for reader in self._readers.values())

    def _raise_failure(self) -> None:
        failures = [reader.failure for reader in self._readers.values()]
        failures += [
            task.exception() for task in (*self._tasks, *self._leaving.values()) if task.done() and not task.cancelled()
        ]
        if failure := next(filter(None, failures), None):
            raise failure

    async def _divide(self) -> None:
        """Take up and give up consumers whenever a node comes or goes."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(TOGETHER)
            self._changed.clear()
            places = balance(self._live, len(self._consumers)).get(self._name, ())
            self._share({self._consumers[place] for place in places})

    def _share(self, wanted: Set[str]) -> None:
        """Wait for these consumers, and give up all others."""
        if self._stopping:
            return
        if wanted != self._wanted:
            self._wanted = wanted
            log.info("this node's share of %s: %s", self._stream, ", ".join(sorted(wanted)) or "nothing")
        for consumer in wanted - self._readers.keys():
            self._readers[consumer] = PinnedReader(
                self._natty,
                self._stream,
                consumer,
                ack_wait=self._ack_wait,
                read_ahead=max(LEAST_READ_AHEAD, READ_AHEAD // len(self._consumers)),
                wake=self._wake.set,
            )
        for consumer in self._readers.keys() - wanted - self._leaving.keys():
            self._leaving[consumer] = asyncio.create_task(self._release(consumer))

    async def _release(self, consumer: str) -> None:
        await self._readers[consumer].release(self._drain, self._seal)
        del self._readers[consumer], self._leaving[consumer]
        self._changed.set()  # it may be in our share again


def roster_key(stream: str, group: str) -> str:
    """Return the key below which the nodes of a group register."""
    return f"capture.{record_key(stream, group)}"


def direct_roster_key(stream: str, archive: str, backfill: str = "") -> str:
    """Return the key below which nodes register that read a stream into an archive together, without a consumer.

    `backfill` names the sequences of a backfill: those with the same ones share the work.
    """
    names = f"{quote_name(stream)}.{quote_name(archive)}"
    return f"capture.backfill.{names}.{backfill}" if backfill else f"capture.direct.{names}"


def by_consumer(messages: Delivered) -> dict[str, Part]:
    """Return the messages of each consumer."""
    found: dict[bytes, Part] = defaultdict(lambda: Part([], []))
    names = Acks(messages.replies).column(3)
    for name, sequence, reply in zip(names, messages.sequences, messages.replies, strict=True):
        some = found[name]
        some.sequences.append(sequence)
        some.replies.append(reply)
    return {name.decode(): some for name, some in found.items()}
