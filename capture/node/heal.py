"""Stores messages that the server counts as acknowledged and that no node has stored: the sweep's leader reads them.

When a purge by subject or a rollup removes a message that was delivered and not acknowledged, nats-server may move the
consumer's ack floor past other messages that were delivered and not acknowledged. The server never delivers these
again. The stream still has them, and the archive records exactly which sequences it holds.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from itertools import islice

from capture.archive.coverage import Coverage
from capture.archive.sequences import Sequences
from capture.config.consumers import Position
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.ingest.board import Board, StreamState
from capture.ingest.commit import Acknowledger
from capture.ingest.durable import EXPLICIT
from capture.ingest.record import Delivered
from capture.node.filtered import Search, is_wanted
from capture.node.status.progress import Missing, Progress
from capture.reading.remaining import Remaining
from capture.reading.stream_times import Deletions
from natty import Batch, LeadershipLostError, Natty, NattyError, NotConnectedError
from natty.config.units import parse_time
from natty.jetstream import StoredMessage
from natty.streams.listing import all_consumers
from natty.wire.ack import ACK, ack_subject
from natty.wire.background import map_concurrently
from natty.wire.message import RawMessage

PORTION = 5000  # messages that one sweep stores, at most
PORTION_BYTES = 32 << 20  # a sweep stops after this many bytes and leaves the rest to the next sweep
AT_ONCE = 32  # messages that are read concurrently
DELIVERED = 0  # delivery count of a healed message: the consumer has not delivered it to the node that stores it
REPLACED = "\ufffd"  # the server's replacement for bytes of a subject that are not UTF-8

log = logging.getLogger("capture.heal")

StoreMessages = Callable[[AsyncIterable[Batch], Acknowledger], Awaitable[None]]
"""Stores messages as a node stores delivered ones, and then settles them. Raises StoreError."""


class Unstored:
    """Tracks the acknowledged messages of a stream that are not stored. Pure: times are arguments, in seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, Sequences]] = []

    def __repr__(self) -> str:
        return f"Unstored({self.all!r})"

    @property
    def all(self) -> Sequences:
        """All unstored sequences."""
        return Sequences.union_of(some for _, some in self._seen)

    def update(self, found: Sequences, now: float) -> None:
        """Record the sequences that are unstored at `now`, and forget those that are not in `found` any more."""
        kept = [(since, some & found) for since, some in self._seen]
        kept.append((now, found - Sequences.union_of(some for _, some in kept)))
        self._seen = [(since, some) for since, some in kept if some]

    def due(self, now: float, wait: float, held_since: float) -> Sequences:
        """Return the sequences that no node is going to store: seen for `wait` seconds, and before `held_since`.

        `held_since` is the time since which some node holds its oldest unstored message. A message that the server
        counts as acknowledged was delivered before it was first seen here, so a node that may have it already held
        messages then.
        """
        return Sequences.union_of(some for since, some in self._seen if since <= now - wait and since < held_since)


class Healer:
    """Heals the streams of an archive during one leader's term; `check` raises when the term is over.

    `held_since` returns since when, by `elapsed`, nodes may have held messages that they have not stored; -inf if that
    is unknown.
    """

    def __init__(
        self,
        natty: Natty,
        config: CaptureConfig,
        store: StoreMessages | None,
        *,
        check: Callable[[], None],
        held_since: Callable[[], Awaitable[float]],
        elapsed: Callable[[], float],
    ) -> None:
        self._natty, self._config, self._store = natty, config, store
        self._check, self._held_since, self._elapsed = check, held_since, elapsed
        self._unstored: dict[str, Unstored] = defaultdict(Unstored)
        self._stranded: dict[str, Unstored] = defaultdict(Unstored)
        self._left: dict[str, Unstored] = defaultdict(Unstored)  # messages that left the stream unstored
        self._gone: dict[str, Sequences] = defaultdict(Sequences)
        self._acknowledged: dict[str, Sequences] = defaultdict(Sequences)  # acknowledged again, in interest streams
        self._acks = config.ack == EXPLICIT and not config.group
        self._healed: Counter[str] = Counter()
        self._passed: dict[str, int] = {}  # the last sequences of streams without a consumer
        self._search = Search(natty)
        self._deletions = Deletions(natty)

    def __repr__(self) -> str:
        return f"Healer({dict(self._unstored)}, {dict(self._healed)})"

    async def state(self, progress: Progress, found: Coverage) -> StreamState:
        """Store messages that no node has stored; return how far a stream is captured. `found` is what objects hold."""
        if progress.backlog.remaining is not None:
            return await self._state_without_consumer(progress, found, progress.backlog.remaining)
        gaps, missing = progress.gaps(found), None
        present: Sequences | None = Sequences()
        doubted = gaps.within(progress.first, progress.last) - self._deletions.known(progress.extent)
        if doubted or progress.work_queue or progress.interest:
            present = await progress.present(self._deletions)
        if present is not None:
            await self._account_gone(progress, found, present)
            if progress.work_queue:
                await self.release(progress, present & found.held)
            elif progress.interest and self._acks:
                await self._acknowledge(progress, present & found.held)
            unstored: Sequences | None = gaps & present - progress.before_scope
            if not progress.whole:
                unstored = await self._search.find_unstored(progress, found, present)
            if unstored is not None:
                missing = await self.tend(progress, unstored)
        return progress.state(found, missing, self._gone[progress.stream])

    async def _state_without_consumer(self, progress: Progress, found: Coverage, remaining: Remaining) -> StreamState:
        """Return how far a stream is captured: the nodes read all that is missing, so only what has left it counts."""
        stream = progress.stream
        came = Sequences.from_range(self._passed.get(stream, remaining.last) + 1, remaining.last)
        self._passed[stream] = remaining.last
        came = (self._unstored[stream].all | came) - found.held - progress.before_scope  # some may have left again
        self._unstored[stream].update(came, self._elapsed())
        await self._account_gone(progress, found, remaining.present)
        self._unstored[stream].update(remaining.unread - found.held, self._elapsed())
        return progress.state(found, Missing(), self._gone[stream])

    async def tend(self, progress: Progress, unstored: Sequences) -> Missing:
        """Store a portion of the messages that no node will store. `unstored` is in the stream and in no object."""
        due = await self._due(self._unstored[progress.stream], unstored, progress.backlog.ack_wait)
        if not due:
            return Missing(awaited=unstored, healed=self._healed[progress.stream])
        reading, reason = await self._heal(progress, due)
        return Missing(
            awaited=unstored - due,
            missing=due - reading.settled,
            remedy=reason,
            healed=self._healed[progress.stream],
            stored=reading.stored,
        )

    async def _account_gone(self, progress: Progress, found: Coverage, present: Sequences) -> None:
        """Count the messages that were seen unstored, have left the stream, and that no node is going to store."""
        stream = progress.stream
        self._gone[stream] -= found.held  # a node that was stopped for a while has stored some of them after all
        left = self._unstored[stream].all | self._left[stream].all
        left -= present | found.held | found.removed | self._gone[stream]
        gone = await self._due(self._left[stream], left, progress.backlog.ack_wait)
        if gone:
            self._gone[stream] |= gone
            text = "%d messages of %s left it before a node stored them (%s), and are not in the archive: %s"
            extra = {"action": "gone", "count": len(gone)}
            log.error(text, len(gone), stream, gone.describe(), progress.removal, extra=extra)

    async def release(self, progress: Progress, stranded: Sequences) -> None:
        """Delete from a work queue, as an ack would, messages that committed objects hold and the consumer forgot."""
        stream, deleted = progress.stream, list[int]()

        async def delete(sequence: int) -> None:
            self._check()
            await self._natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
            deleted.append(sequence)

        due = await self._due(self._stranded[stream], stranded, progress.backlog.ack_wait)
        try:
            await map_concurrently(islice(due, PORTION), delete, at_once=AT_ONCE)
        except LeadershipLostError:
            raise
        except NattyError as error:
            text = "stored messages stay in the work queue %s, and its consumer has forgotten them: %s"
            log.error(text, stream, error, extra={"action": "release_failed"})
        if deleted:
            log.warning(
                "deleted %d messages from the work queue %s that are stored, and that the server did not delete when"
                " they were (%s)",
                len(deleted),
                stream,
                Sequences.from_iterable(deleted).describe(),
                extra={"action": "released", "count": len(deleted)},
            )

    async def _acknowledge(self, progress: Progress, kept: Sequences) -> None:
        """Acknowledge again, once, the messages that an interest stream keeps although all its consumers are past them.

        Committed objects hold these messages. The node that stored them died before it acknowledged them, and the
        server has forgotten that it delivered them.
        """
        stream = progress.stream
        try:
            floor = await _all_are_beyond(self._natty, stream) if (kept := kept - self._acknowledged[stream]) else 0
        except NattyError as error:
            log.info("the consumers of %s are not known: %s", stream, error, extra={"action": "no_progress"})
            return
        due = await self._due(self._stranded[stream], kept.within(1, floor), progress.backlog.ack_wait)
        if not due:
            return
        some = Sequences.from_iterable(islice(due, PORTION))
        self._check()
        with contextlib.suppress(NotConnectedError):
            replies = [ack_subject(stream, self._config.durable, one, deliveries=DELIVERED) for one in some]
            self._natty.connection.send_to_each(replies, ACK)
            self._acknowledged[stream] |= some
            log.warning(
                "acknowledged %d messages of %s again that are stored and that no consumer needs (%s)",
                len(some),
                stream,
                some.describe(),
                extra={"action": "released", "count": len(some)},
            )

    async def _due(self, known: Unstored, found: Sequences, wait: float) -> Sequences:
        now = self._elapsed()
        known.update(found, now)
        if not known.due(now, wait, math.inf):
            return Sequences()
        return known.due(now, wait, await self._held_since())

    async def _heal(self, progress: Progress, due: Sequences) -> tuple[Reading, str]:
        """Store a portion; return the reading, and why some messages are not settled."""
        reading = Reading(self._natty, self._config, progress, due, self._check)
        if self._store is None:
            return reading, "this node stores nothing"
        try:
            await self._store(reading, reading)
        except LeadershipLostError:
            raise
        except (CaptureError, NattyError) as error:
            reading.trouble = str(error)
        if reading.stored:
            self._healed[progress.stream] += len(reading.stored)
            log.warning(
                "stored %d messages of %s that the server counts as acknowledged and no node has stored (%s):"
                " another client acknowledged them, or nats-server forgot them at a purge by subject or a rollup",
                len(reading.stored),
                progress.stream,
                reading.stored.describe(),
                extra={"action": "healed", "count": len(reading.stored)},
            )
        rest = len(due) - len(reading.settled)
        return reading, reading.trouble or (f"the sweep stores {PORTION:,} at a time" if rest else "")


class Reading:
    """Messages of a stream by sequence, as batches to be stored; settles them after that.

    It acknowledges each message as if it had been delivered. A work queue then deletes the message, even if the
    consumer has forgotten it. If an acknowledgement would count for several messages, it sends none.
    """

    def __init__(
        self, natty: Natty, config: CaptureConfig, progress: Progress, wanted: Sequences, check: Callable[[], None]
    ) -> None:
        self.stored, self.settled, self.trouble = Sequences(), Sequences(), ""
        self._natty, self._progress, self._wanted, self._check = natty, progress, wanted, check
        self._consumer = config.durable
        self._acks = config.ack == EXPLICIT and not config.group

    def __repr__(self) -> str:
        return f"Reading({self._progress.stream}, {len(self._wanted)} wanted, {len(self.stored)} stored)"

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Yield a portion of the messages, in order. Settle those that left the stream or are not to be captured."""
        size, wanted = 0, islice(self._wanted, PORTION)
        while some := list(islice(wanted, AT_ONCE)):
            self._check()
            batch = [raw for raw in await map_concurrently(some, self._read, at_once=AT_ONCE) if raw]
            yield Batch(batch)
            size += sum(len(subject) + len(block) + len(payload) for subject, _, block, payload in batch)
            if size > PORTION_BYTES:
                return

    def ack(self, messages: Delivered) -> None:
        """Record stored messages, and acknowledge them. Only `commit.py` calls this."""
        done = Sequences.from_iterable(messages.sequences)
        self.stored |= done
        self.settled |= done
        with contextlib.suppress(NotConnectedError):  # a work queue deletes it later: see `Healer.release`
            if self._acks:
                self._natty.connection.send_to_each(messages.replies, ACK)

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        """Do nothing: the next sweep reads them again."""

    async def _read(self, sequence: int) -> RawMessage | None:
        stream = self._progress.stream
        message = await self._natty.jetstream.read(stream, sequence=sequence)
        if message is None or not is_wanted(self._progress, sequence, message.subject):
            self.settled |= Sequences.from_iterable([sequence])
            return None
        subject = await self._subject(message)
        if subject is None:
            return None
        reply = ack_subject(stream, self._consumer, sequence, parse_time(message.time), deliveries=DELIVERED)
        return subject, reply, message.header_block, message.data

    async def _subject(self, message: StoredMessage) -> bytes | None:
        """Return the subject's bytes. In its JSON the server replaces bytes that are not UTF-8."""
        if REPLACED not in message.subject:
            return message.subject.encode()
        api = f"{self._natty.jetstream.prefix}.DIRECT.GET.{self._progress.stream}"
        try:
            raw = await self._natty.connection.request(api, b'{"seq":%d}' % message.sequence)
        except NattyError as error:
            self.trouble = (
                f"message {message.sequence} has a subject that is not UTF-8, which requires allow_direct: {error}"
            )
            return None
        lines = raw[2].rpartition(b"Nats-Stream: ")[2].split(b"\r\n")  # of the server, also after malformed headers
        subject = next((line[14:] for line in lines if line.startswith(b"Nats-Subject: ")), None)
        if subject is None:
            status = raw[2].partition(b"\r\n")[0].removeprefix(b"NATS/1.0 ").decode("utf-8", "replace")
            which = f"message {message.sequence} has a subject that is not UTF-8"
            self.trouble = f"{which}, and a direct get does not return it: {status}"
        return subject


async def read_held_since(board: Board, elapsed: Callable[[], float]) -> float:
    """Return since when, by `elapsed`, running nodes may have held unstored messages; -inf if unknown."""
    try:
        return elapsed() - (await board.read()).held_for
    except (CaptureError, NattyError) as error:
        log.info("the messages that nodes hold are not known: %s", error, extra={"action": "no_progress"})
        return -math.inf


async def _all_are_beyond(natty: Natty, stream: str) -> int:
    """Return the sequence up to which all consumers of a stream have acknowledged their messages. Raises NattyError."""
    consumers = await all_consumers(natty.jetstream, stream)
    return min((Position.of([one]).floor for one in consumers.found), default=0) if not consumers.missing else 0
