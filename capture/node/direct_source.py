"""The source of a node without a consumer: reads what the archive does not hold, by batched direct gets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import CaptureError, ConfigError
from capture.ingest.record import Delivered
from capture.ingest.source import TICK
from capture.reading.direct_answers import Mirrored, Unsuitable
from capture.reading.direct_get import DirectBatches
from capture.reading.live import check_unchanged
from capture.reading.remaining import ArchivePosition
from capture.reading.stream_range import StreamFacts
from natty import Batch, Natty, NattyError, StreamNotFoundError, UnsupportedError
from natty.errors import ConnectionClosedError
from natty.groups.roster import Roster
from natty.wire.background import cancel_all, wait_until_set
from natty.wire.repeated import Repeated
from natty.wire.servers import NEEDS, text_of

log = logging.getLogger("capture.direct")

CHUNK = 65_536  # consecutive sequences that one node reads
NEAR = 256  # sequences: two runs that are nearer to each other are read by one request
AHEAD = 2  # answers that wait for the pipeline
SHORTEST_PAUSE = 0.02  # seconds between two requests that find nothing new; doubled up to LONGEST_PAUSE
LONGEST_PAUSE = 0.25
LOOK = 30.0  # seconds after which the archive's set is read again
READ_FOR = 5.0  # or so many times the seconds that reading it took
RETRY = 1.0  # seconds after a failure
TTL = 5.0  # seconds after which a node without a sign of life counts as dead
TOGETHER = 0.05  # seconds in which all nodes that come or go cause only one change
HAND_OVER = 2.0  # seconds that the others have to store what they read of our chunks
NEED = NEEDS["several direct gets at once"]


def check_direct(natty: Natty, info: Mapping[str, Any]) -> StreamFacts:
    """Return the facts of a stream that can be captured without a consumer.

    `info` is the answer to `STREAM.INFO`. ConfigError if the stream's configuration does not allow it; UnsupportedError
    if the server is too old.
    """
    config = info["config"]
    name, retention = config["name"], config["retention"]
    if not NEED.is_met_by(version := natty.connection.server_version):
        raise UnsupportedError(
            f'source = "direct" needs nats-server {NEED.text_for(version)} or later, and this one is'
            f' {text_of(version)}: upgrade it, or write source = "consumer"'
        )
    if retention != "limits":
        raise ConfigError(
            f"stream {name} has retention {retention}, and messages leave it when consumers acknowledge them: direct"
            ' gets acknowledge nothing. Write source = "consumer", or give the stream retention limits'
        )
    if not config.get("allow_direct"):
        raise ConfigError(
            f"stream {name} does not allow direct gets: set allow_direct (natty stream edit {name} --allow-direct), or"
            ' write source = "consumer"'
        )
    return StreamFacts.of(info)


@dataclass(frozen=True)
class Reach:
    """The sequences to read. With `ends` the source ends when the archive holds all of them that the stream has."""

    first: int = 1
    last: int = MAXIMUM
    ends: bool = False


@dataclass(frozen=True)
class Share:
    """This node's part of the chunks: each `count`-th one, from `place` on."""

    place: int
    count: int

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a range that are this node's, in order."""
        if self.count == 1:
            yield first, last
            return
        number = first // CHUNK
        number += (self.place - number) % self.count
        while (start := max(first, number * CHUNK)) <= last:
            yield start, min(last, (number + 1) * CHUNK - 1)
            number += self.count


class DirectSource:
    """Yields the messages that the archive does not hold, batch by batch. Use it with `async with`.

    The position is the archive's exact set of sequences, without those that were read and are not settled. It is read
    at the start, every LOOK seconds, after messages could not be stored, after a server was behind the leader, and when
    nodes come or go. So holes are read, too, and what a killed node had read is read again. No state in the server says
    what was read.

    The nodes that have registered below the key `roster` each read other chunks. When they come or go, their open
    blocks are sealed (`seal`), and after a moment each reads its new chunks. Should two nodes read a message, both
    store it: readers see it once.
    """

    def __init__(
        self,
        natty: Natty,
        stream: StreamFacts,
        position: ArchivePosition,
        reach: Reach,
        *,
        roster: str,
        seal: Callable[[], None],
    ) -> None:
        self.read = 0
        self.trouble = ""  # why nothing is read at the moment
        self._natty, self._stream, self._position, self._reach, self._seal = natty, stream, position, reach, seal
        self._name = secrets.token_hex(6)
        self._roster = Roster(natty.jetstream, roster, self._name, TTL)
        self._live: set[str] = set()
        self._changed = asyncio.Event()
        self._share: Share | None = None  # that is read
        self._wanted: Share | None = None  # according to the registrations
        self._unsettled = Sequences()
        self._stored = Sequences()  # settled since the archive was last read
        self._look_at = -math.inf
        self._arrived: asyncio.Queue[Batch | None] = asyncio.Queue(AHEAD)
        self._stop = asyncio.Event()
        self._repeated = Repeated(log)
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"DirectSource({self._stream.name}, {self.read} read, {len(self._unsettled)} unsettled, {self._share})"

    async def __aenter__(self) -> Self:
        await self._roster.prepare()
        await self._roster.register()
        jobs = (
            self._read_ahead(),
            self._roster.stay(),
            self._roster.follow(self._live, self._changed),
            self._divide(),
        )
        self._tasks = [asyncio.create_task(job, name="capture direct") for job in jobs]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the chunks to other nodes."""
        self.stop()
        await cancel_all(self._tasks)
        await self._roster.leave()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Yield batches until `stop`, an empty one at least every `TICK` seconds.

        Raises StreamNotFoundError if the stream is deleted; CaptureError if it is created again or restored to an
        earlier state; ConfigError if it does not allow batched direct gets any more.
        """
        while not self._stop.is_set():
            if failed := next((task for task in self._tasks if task.done()), None):
                await failed  # raises its error
            try:
                batch = await asyncio.wait_for(self._arrived.get(), TICK)
            except TimeoutError:
                batch = Batch([])
            if batch is None:
                return
            self.read += len(batch)
            yield batch
            if len(batch):
                self._arrived.task_done()

    def stop(self) -> None:
        """End after the current batch. Idempotent."""
        self._stop.set()

    def ack(self, messages: Delivered) -> None:
        """Note stored messages. Only `commit.py` calls this."""
        done = Sequences.from_iterable(messages.sequences)
        self._unsettled -= done
        self._stored |= done

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        """Read these messages again after `delay` seconds, if no other node has stored them by then."""
        self._unsettled -= Sequences.from_iterable(messages.sequences)
        self._look_at = min(self._look_at, _now() + delay)

    async def _divide(self) -> None:
        """Compute this node's share whenever a node comes or goes."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(TOGETHER)
            self._changed.clear()
            names = sorted(self._live)
            self._wanted = Share(names.index(self._name), len(names)) if self._name in names else None

    async def _read_ahead(self) -> None:
        while not self._stop.is_set():
            try:
                await self._take_over()
                await self._read_and_follow()
            except (StreamNotFoundError, ConnectionClosedError):
                raise
            except Mirrored:
                text = f"a mirror of stream {self._stream.name} answers direct gets, and may hold less than the stream"
                await self._rest(text, f"{text}: set mirror_direct of the mirror to false")
            except Unsuitable as error:
                raise ConfigError(
                    f"stream {self._stream.name} can't be read by direct gets any more: {error}"
                ) from error
            except (CaptureError, NattyError) as error:
                if isinstance(error, _Final):
                    raise
                text = f"can't read what remains of stream {self._stream.name}"
                await self._rest(f"{text} ({type(error).__name__})", f"{text}, trying again: {error}")

    async def _rest(self, state: str, trouble: str) -> None:
        """Report a failure until something is read again, and wait for a moment."""
        self.trouble = trouble
        self._repeated.warning(state, trouble)
        await wait_until_set(self._stop, RETRY)

    async def _take_over(self) -> None:
        """Wait for a share. At a change, store what was read, and leave the other nodes time for the same."""
        while not self._stop.is_set():
            wanted = self._wanted
            if wanted is not None and wanted == self._share:
                return
            if wanted is not None:
                if self._share is not None or wanted.count > 1:
                    await self._store_open()
                if wanted == self._wanted:
                    self._share = wanted
                    text = "this node reads part %d of %d of stream %s"
                    log.info(text, wanted.place + 1, wanted.count, self._stream.name)
            else:
                self.trouble = ""  # nothing is for this node to read
                await wait_until_set(self._stop, TICK)

    async def _store_open(self) -> None:
        """Have the pipeline take what has arrived, and store it; give the other nodes time for the same."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.join(), HAND_OVER)
        self._seal()
        await wait_until_set(self._stop, HAND_OVER)

    async def _read_and_follow(self) -> None:
        """Read what the archive does not hold, then new messages, until the archive is to be read again."""
        self._look_at, began = math.inf, _now()
        before = self._stored
        remaining = await self._position.read(self._reach.first, self._reach.last)
        took = _now() - began
        self._look_at = min(self._look_at, _now() + max(LOOK, READ_FOR * took))
        self._stored -= before  # the archive holds these, or has lost them
        if self._reach.ends and not remaining.unread:
            self.trouble = ""
            await self._arrived.put(None)
            await self._stop.wait()
        await self._read_holes(remaining.unread - self._unsettled - self._stored, max(RETRY, READ_FOR * took))
        if not self._reach.ends:
            await self._follow(max(remaining.last + 1, self._reach.first))
        elif not self._is_to_look():
            self.trouble = ""
            self._seal()  # nothing more comes for these blocks
            await wait_until_set(self._stop, RETRY)

    async def _read_holes(self, wanted: Sequences, rest: float) -> None:
        """Read these. If a server had only some of them, it is behind the leader: look again after `rest` seconds."""
        assert self._share is not None
        for first, last in await asyncio.to_thread(list, join_runs(wanted)):
            for start, end in self._share.pieces(first, last):
                if self._is_to_look():
                    return
                after = await self._read_range(start, end, wanted)
                if after <= end and wanted.within(after, end):
                    self._look_at = min(self._look_at, _now() + rest)

    async def _follow(self, position: int) -> None:
        """Read new messages from this sequence on. Ask more rarely while there are none."""
        assert self._share is not None
        pause = SHORTEST_PAUSE
        for start, end in self._share.pieces(position, MAXIMUM):
            at = start
            while at <= end:
                if self._is_to_look():
                    return
                after = await self._read_range(at, end)
                if after == at:
                    await wait_until_set(self._stop, pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    at, pause = after, SHORTEST_PAUSE
                    if at <= end:
                        await wait_until_set(self._stop, pause)

    async def _read_range(self, first: int, last: int, wanted: Sequences | None = None) -> int:
        """Hand over what the stream has of a range, or the wanted part of it; return the first sequence not read.

        A server that has no more may be behind the leader. The stream is checked before its messages are handed over.
        """
        direct, position = DirectBatches(self._natty, self._stream.name, first, last), first
        async with aclosing(aiter(direct)) as answers:
            async for batch in answers:
                if not len(batch):
                    continue
                await self._check()
                self.trouble = ""
                position = batch.sequences[-1] + 1
                await self._hand_over(batch if wanted is None else select_wanted(batch, wanted))
                if self._stop.is_set() or self._wanted != self._share:
                    return position
        self.trouble = ""
        return last + 1 if direct.complete else position

    async def _hand_over(self, batch: Batch) -> None:
        if len(batch):
            self._unsettled |= Sequences.from_iterable(batch.sequences)
            await self._arrived.put(batch)

    async def _check(self) -> None:
        """Raise an error that ends the node if the stream was created again or restored to an earlier state."""
        try:
            await check_unchanged(self._natty, self._stream)
        except CaptureError as error:
            raise _Final(str(error)) from error

    def _is_to_look(self) -> bool:
        return self._stop.is_set() or self._wanted != self._share or _now() >= self._look_at


class _Final(CaptureError):
    """The node can't continue: the stream is another one now."""


def join_runs(wanted: Sequences) -> Iterator[tuple[int, int]]:
    """Yield the runs of a set; runs that are near to each other as one."""
    begin = end = 0
    for first, last in wanted.runs():
        if begin and first - end > NEAR:
            yield begin, end
            begin = first
        begin, end = begin or first, last
    if begin:
        yield begin, end


def select_wanted(batch: Batch, wanted: Sequences) -> Batch:
    """Return those messages of a batch that are wanted."""
    if not Sequences.from_iterable(batch.sequences) - wanted:
        return batch
    return Batch([raw for raw, one in zip(batch.raw, batch.sequences, strict=True) if one in wanted])


def _now() -> float:
    return asyncio.get_running_loop().time()
