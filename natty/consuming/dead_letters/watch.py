"""The server's advisories about messages it gave up on, turned into letters."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from natty.config.units import parse_time
from natty.consuming.dead_letters.letter import REPLACED, Original
from natty.consuming.dead_letters.streams import ADVISORIES_AGE, GAVE_UP, TERMINATED
from natty.errors import NattyError, NotConnectedError, StreamNotFoundError
from natty.jetstream import JetStream, StoredMessage
from natty.pulling.ordered import Ordered, OrderedOptions
from natty.pulling.pull import Pull, PullOptions
from natty.streams import NANOSECONDS, check_name, ensure_consumer
from natty.text import decode
from natty.wire.message import Batch, Message

if TYPE_CHECKING:
    from natty.consuming.dead_letters.bury import DeadLetters

logger = logging.getLogger("natty.deadletter")

BURIED = "natty: buried"
"""The reason to `term` a message with after `bury`: an advisory that carries it makes no second letter."""
RETRY_DELAY = 1.0  # seconds before the watch begins anew; doubled for each look at the same advisory
RETRY_DELAY_MAX = 300.0
EXACT_WITHIN = 5.0  # seconds that it may take to read a subject that is not UTF-8
ALL = "*"  # the consumers of a stream
CLOCKS_APART = 60  # seconds at most between the clocks of two servers of a cluster


class BadAdvisoryError(NattyError):
    """A message among the advisories is none of this consumer's."""


class Advisory(msgspec.Struct, frozen=True):
    """What the server says when it gives up on a message: `max_deliver` or `terminated`."""

    type: str
    stream: str
    consumer: str
    stream_seq: int
    timestamp: datetime
    deliveries: int = 0
    reason: str = ""

    @property
    def letter_reason(self) -> str:
        """Why the message died, in the letter's words."""
        if self.type.endswith(".terminated"):
            return f"terminated: {self.reason}" if self.reason else "terminated"
        return f"max deliveries: the server gave up after {self.deliveries}"

    def is_about(self, stored: StoredMessage) -> bool:
        """Return whether this can be the message: not if its stream was deleted and made again meanwhile."""
        return parse_time(stored.time) / NANOSECONDS <= self.timestamp.timestamp() + CLOCKS_APART

    def original(self, stored: StoredMessage | None) -> Original:
        """Return what is known of the message; `stored` is None where its stream has it no more."""
        if stored is None:
            return Original(self.stream, self.stream_seq, deliveries=self.deliveries)
        return Original(
            stream=self.stream,
            sequence=self.stream_seq,
            subject=stored.subject,
            headers=stored.headers,
            data=stored.data,
            time_ns=parse_time(stored.time),
            deliveries=self.deliveries,
        )


class Watch:
    """Buries what the server gave up on for one consumer.

    The advisories wait in a work-queue stream, and are acknowledged when the letter is durable. `advised` are the
    consumers that they are about, `*` for all of the stream's; letters name `consumer`, and leave so many of a
    subject's first tokens out (`strip`): a group's stream has put its partition there.
    """

    def __init__(
        self, jetstream: JetStream, letters: DeadLetters, stream: str, consumer: str, advised: str = "", strip: int = 0
    ) -> None:
        self.strip = strip
        self.stream, self.consumer = check_name("stream", stream), check_name("consumer", consumer)
        self.advised = ALL if advised == ALL else check_name("consumer", advised or consumer)
        self.durable = durable_of(stream, self.advised, consumer if advised == ALL else "")
        self._jetstream = jetstream
        self._letters = letters
        self._complete = False  # whether the streams and the consumer are there, as far as we know

    def __repr__(self) -> str:
        return f"Watch({self.stream}/{self.consumer})"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Watch until the block is left. Errors of the beginning are raised; later ones are logged and tried again."""
        await self._ensure()  # whatever is wrong now is raised here
        task = asyncio.create_task(self._run(), name=repr(self))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ensure(self) -> None:
        await self._letters.ensure()
        settings = {
            "filter_subjects": [f"{kind}.{self.stream}.{self.advised}" for kind in (GAVE_UP, TERMINATED)],
            "inactive_threshold": ADVISORIES_AGE,  # what it has not seen by then is gone as well
            "description": f"dead letters of consumer {self.consumer} of stream {self.stream}",
        }
        await ensure_consumer(self._jetstream, self._letters.options.advisories, self.durable, settings)
        self._complete = True

    async def _run(self) -> None:
        while self._jetstream.connection.state != "closed":
            try:
                await self._follow()
            except Exception as error:  # whatever it was: the advisories wait in their stream
                known = isinstance(error, NattyError)
                logger.warning("%r was interrupted, again in %g s: %s", self, RETRY_DELAY, error, exc_info=not known)
                self._complete = False
                await asyncio.sleep(RETRY_DELAY)

    async def _follow(self) -> None:
        if not self._complete:
            await self._ensure()
        advisories, options = self._letters.options.advisories, PullOptions(max_messages=100)
        pull = Pull(self._jetstream, advisories, self.durable, options, recreate=self._ensure)
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                for message in batch:
                    await self._settle(message)
                pull.finished(len(batch))

    async def _settle(self, message: Message) -> None:
        """Acknowledge the advisory when the letter is durable; otherwise it comes again."""
        try:
            await self._bury(read_advisory(message.data))
            message.ack()
        except NotConnectedError as error:
            logger.info("%r: an advisory is looked at again later: %s", self, error)
        except BadAdvisoryError as error:
            logger.warning("%r: an advisory can't be read: %s", self, error)
            message.ack()
        except Exception as error:  # whatever it is, the other advisories are looked at
            known, delay = isinstance(error, NattyError), delay_of(message.deliveries)
            text = "%r: a letter could not be stored, again in %g s: %s"
            logger.warning(text, self, delay, error, exc_info=not known)
            message.nak(delay)

    async def _bury(self, advisory: Advisory) -> None:
        if advisory.stream != self.stream or self.advised not in (ALL, advisory.consumer):
            raise BadAdvisoryError(f"it names consumer {advisory.consumer!r} of stream {advisory.stream!r}")
        if advisory.reason == BURIED:
            return
        stored = await self._find(advisory)
        if stored is None and await self._letters.buried(self.stream, advisory.stream_seq, self.consumer):
            return  # buried with its payload before it was terminated
        original = advisory.original(stored)
        if REPLACED in original.subject:
            exact = await self._exact_subject(original.sequence)
            original = replace(original, subject=exact or original.subject, subject_known=bool(exact))
        original = replace(original, subject=original.subject.split(".", self.strip)[-1])
        sequence = await self._letters.store(original, self.consumer, advisory.letter_reason)
        what = "" if stored else ", without its payload: the stream has it no more"
        logger.warning(
            "message %d of %s is dead letter %d%s: %s",
            advisory.stream_seq, advisory.stream, sequence, what, advisory.letter_reason,
            extra={"action": "dead letter"},
        )  # fmt: skip

    async def _find(self, advisory: Advisory) -> StoredMessage | None:
        """Return the message that the server gave up on, None if its stream has it no more."""
        try:
            stored = await self._jetstream.read(self.stream, sequence=advisory.stream_seq)
        except StreamNotFoundError:
            return None
        return stored if stored and advisory.is_about(stored) else None

    async def _exact_subject(self, sequence: int) -> str:
        """Return a subject byte for byte, as only a delivery tells it; "" where the stream allows none beside ours."""
        options = OrderedOptions(start=sequence, max_messages=1, headers_only=True)
        with suppress(NattyError, TimeoutError):
            async with (
                asyncio.timeout(EXACT_WITHIN),
                aclosing(Ordered(self._jetstream, self.stream, options).__aiter__()) as steps,
            ):
                async for step in steps:
                    if isinstance(step, Batch):
                        return decode(step.subjects[0]) if step.sequences[0] == sequence else ""
        return ""


def read_advisory(data: bytes) -> Advisory:
    """Return an advisory. BadAdvisoryError: everybody who may publish on its subject can have written it."""
    try:
        return msgspec.json.decode(data, type=Advisory)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadAdvisoryError(str(error)) from error


def delay_of(deliveries: int) -> float:
    """Return the seconds before the next look at an advisory that was delivered so often."""
    return min(RETRY_DELAY * 2.0 ** min(deliveries, 30), RETRY_DELAY_MAX)


def durable_of(stream: str, consumer: str, shown: str = "") -> str:
    """Return the name of the advisories' consumer: readable, and no other stream and consumer have it."""
    digest = hashlib.blake2b(f"{stream}.{consumer}".encode(), digest_size=6).hexdigest()
    return f"{stream[:64]}-{(shown or consumer)[:64]}-{digest}"
