"""Reads one range of a stream in an executor, and accounts for each of its sequences."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from capture.errors import DataLossError, SparkError
from capture.ingest.record import Records
from capture.spark.jetstream.answers import Mirrored, count_bytes, take_until
from capture.spark.jetstream.direct import GIVE_UP, REQUEST_BYTES, REQUEST_MESSAGES, RETRY_DELAY, DirectGet
from capture.spark.jetstream.splits import LEAVE, Range, StreamFacts, Tally, describe_gone
from natty import Batch, Natty
from natty.errors import JetStreamError
from natty.jetstream import NO_MESSAGE
from natty.names import check_name
from natty.pulling.ordered import Began, CaughtUp, Ordered, OrderedOptions

log = logging.getLogger("capture.spark.jetstream")


async def stream_facts(natty: Natty, stream: str) -> StreamFacts:
    """Return the facts that the stream's leader reports. StreamNotFoundError."""
    return StreamFacts.of(await natty.jetstream.request(f"STREAM.INFO.{check_name('stream', stream)}"))


class RangeReader:
    """The messages of a range: `async for messages in reader`. `tally` counts its sequences by their fate.

    It reads by batched direct get if the stream allows that, otherwise by its own ordered consumer, which the server
    removes afterwards. It also uses the consumer if a mirror answers in the stream's place, since a mirror may hold
    less. DataLossError if the front of the stream has overtaken the reader; with `fail` False it logs that. Messages
    missing behind the front were removed one by one, which is not a loss; they are counted.
    """

    def __init__(self, natty: Natty, wanted: Range, *, subject: str = "", fail: bool = True) -> None:
        self.tally = Tally(wanted.first)
        self._natty, self._range = natty, wanted
        self._subject, self._fail = subject, fail

    def __repr__(self) -> str:
        return f"RangeReader({self._range}, {self.tally})"

    async def __aiter__(self) -> AsyncGenerator[Records[None], None]:
        """Yield the messages in order. DataLossError, SparkError, NattyError."""
        await self._front()
        direct = self._range.direct
        if direct:
            try:
                async with aclosing(self._by_direct_get()) as each:
                    async for messages in each:
                        yield messages
            except Mirrored:
                log.warning("a mirror answers for %s: from now on a consumer reads it", self._range.stream)
                direct = False
        if not direct and self.tally.position <= self._range.last:
            async with aclosing(self._by_consumer()) as each:
                async for messages in each:
                    yield messages
        await self._judge(self.tally.end(self._range.last))
        left_out = "not there" if not self._subject else "not there, or of other subjects"
        log.info(
            "%s: %d read, %d lost, %d %s", self._range, self.tally.read, self.tally.lost, self.tally.deleted, left_out
        )

    async def _by_direct_get(self) -> AsyncGenerator[Records[None], None]:
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while self.tally.position <= self._range.last:
            direct = DirectGet(
                self._natty, self._range.stream, self.tally.position, self._range.last, subject=self._subject
            )
            async with aclosing(aiter(direct)) as each:
                async for messages in each:
                    heard = loop.time()
                    if len(messages):
                        yield await self._take(messages)
            if direct.complete or not await self._leader_has_more():
                return
            if loop.time() - heard > GIVE_UP:
                raise SparkError(
                    f"the replicas of stream {self._range.stream} have been behind their leader for {GIVE_UP:g} s"
                )
            await asyncio.sleep(RETRY_DELAY)

    async def _leader_has_more(self) -> bool:
        """Ask the stream's leader: a server that answers a direct get may be behind it."""
        body = {"seq": self.tally.position, "next_by_subj": self._subject or ">"}
        try:
            answer = await self._natty.jetstream.request(f"STREAM.MSG.GET.{self._range.stream}", body)
        except JetStreamError as error:
            if error.err_code != NO_MESSAGE:
                raise
            return False
        return bool(answer["message"]["seq"] <= self._range.last)

    async def _by_consumer(self) -> AsyncGenerator[Records[None], None]:
        filters = (self._subject,) if self._subject else ()
        options = OrderedOptions(
            filters=filters, start=self.tally.position, max_messages=REQUEST_MESSAGES, max_bytes=REQUEST_BYTES
        )
        began = caught_up = False
        waiting = Records[None]()
        async with aclosing(aiter(Ordered(self._natty.jetstream, self._range.stream, options))) as steps:
            async for step in steps:
                match step:
                    case Batch():
                        waiting.extend(await self._take(Records.of(step)))
                    case CaughtUp():
                        caught_up = True
                    case Began() if not began:
                        began = True
                    case _:
                        raise self._recreated_error()
                if self.tally.position > self._range.last or (caught_up and not await self._leader_has_more()):
                    break
                if len(waiting) >= REQUEST_MESSAGES or count_bytes(waiting) >= REQUEST_BYTES:
                    yield waiting
                    waiting = Records[None]()
        if len(waiting):
            yield waiting

    async def _take(self, came: Records[None]) -> Records[None]:
        """Return the messages of this range, and account for them: `max_age` may move the front between any two."""
        messages = take_until(came, self._range.last)
        holes = self.tally.take(messages.sequences) if len(messages) else []
        if came.sequences[-1] > self._range.last:
            holes += self.tally.end(self._range.last)
        await self._judge(holes)
        return messages

    async def _judge(self, holes: list[tuple[int, int]]) -> None:
        """Report which of these gaps are lost. DataLossError."""
        front = await self._front() if holes else 0
        for hole in holes:
            if lost := self.tally.lose(hole, front):
                said = describe_gone(self._range.stream, *lost)
                if self._fail:
                    raise DataLossError(f"{said}; {LEAVE}")
                log.warning("%s", said, extra={"action": "data_loss"})

    async def _front(self) -> int:
        """Return the stream's first sequence now. DataLossError if it is another stream by now."""
        facts = await stream_facts(self._natty, self._range.stream)
        if facts.created != self._range.created:
            raise self._recreated_error()
        return facts.first

    def _recreated_error(self) -> DataLossError:
        return DataLossError(f"stream {self._range.stream} was deleted and created again while it was being read")
