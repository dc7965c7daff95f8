"""Burying: stores a letter about a message that a handler failed with, or that the server gave up on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import replace

from natty.consuming.dead_letters.advisory import (
    RETRY_DELAY,
    Advisory,
    BadAdvisoryError,
    delay_of,
    durable_of,
    read_advisory,
)
from natty.consuming.dead_letters.letter import (
    MAX_HEADER_BYTES,
    REPLACED,
    Original,
    headers_of,
    identity_of,
    prefix_of,
    subject_of,
)
from natty.consuming.dead_letters.streams import ADVISORIES_AGE, GAVE_UP, TERMINATED, DeadLetterOptions, ensure_streams
from natty.errors import NattyError, NotConnectedError, StreamNotFoundError, WrongLastSequenceError
from natty.jetstream import JetStream, StoredMessage
from natty.names import check_name, decode
from natty.pulling.ordered import Ordered, OrderedOptions
from natty.pulling.pull import Pull
from natty.pulling.requests import PullOptions
from natty.streams import ConsumerConfig, ensure_consumer
from natty.wire.background import cancel_all
from natty.wire.message import Batch, Message, RawMessage, encode_headers

logger = logging.getLogger("natty.deadletter")

BURIED = "natty: buried"
"""The reason for `term` after `bury`: `watch` ignores the advisory with this reason, so there is no second letter."""
EXACT_WITHIN = 5.0  # seconds that it may take to read a subject that is not UTF-8
ALL = "*"  # all consumers of a stream
OnLetter = Callable[[RawMessage, Exception, int], Awaitable[None]]
"""Gets a message that the server gave up on, the reason as an error, and the sequence of its letter."""
_TRIES = 3  # of a conditional write that conflicts with another one


class DeadLetters:
    """Buries messages: stores a letter about each in a separate stream. `natty.dead_letters()` reads and retries them.

    A letter has the original payload, the original headers under `Natty-Original-`, and its origin and the reason of
    the failure under `Natty-Dead-`. Streams of the work-queue and interest kinds delete a terminated message: bury it
    first, then call `message.term(BURIED)` (the reason keeps `watch` from storing a second letter).
    """

    def __init__(self, jetstream: JetStream, options: DeadLetterOptions | None = None) -> None:
        self.options = options or DeadLetterOptions()
        self._jetstream = jetstream
        self._prefix = prefix_of(check_name("stream", self.options.letters))

    def __repr__(self) -> str:
        return f"DeadLetters({self.options.letters})"

    async def ensure(self) -> None:
        """Create the letters' and the advisories' stream if missing. StreamExistsError if one can't be used."""
        await ensure_streams(self._jetstream, self.options)

    async def bury(self, message: Message, *, consumer: str, reason: str, error: BaseException | None = None) -> int:
        """Store a letter about the message and return its sequence; the letter is then durable.

        Burying the same message of the same consumer again returns the same letter. Headers that exceed the server's
        limit are left out, the traceback first. StreamNotFoundError: `ensure` was not called; PublishError: the stream
        is full; RequestTimeoutError, NotConnectedError: the outcome is unknown, so bury it again.
        """
        return await self.store(Original.of(message), check_name("consumer", consumer), reason, error)

    def watch(
        self, stream: str, consumer: str, *, advised: str = "", strip: int = 0, on_letter: OnLetter | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Return a context that, while open, buries messages that the server gave up on for this consumer.

        These are messages delivered `max_deliver` times, and terminated ones. Advisories wait in their stream while no
        process watches. Several processes may watch the same consumer: each advisory goes to one of them.
        With `advised`, it watches that consumer, or all of the stream with `*`, and the letters name `consumer`;
        `strip` is the number of tokens that a group's stream has put before each subject. `on_letter` is awaited for
        each letter that this watch has stored.
        """
        return Watch(self._jetstream, self, stream, consumer, advised, strip, on_letter).open()

    async def find_letter(self, stream: str, sequence: int, consumer: str) -> int | None:
        """Return the sequence of the last letter about this message, None if there is none."""
        subject = f"{self._prefix}.{stream}.{consumer}.{sequence}"
        found = await self._jetstream.read(self.options.letters, subject=f"{subject}.>")
        found = found or await self._jetstream.read(self.options.letters, subject=subject)
        return found.sequence if found else None

    async def store(self, original: Original, consumer: str, reason: str, error: BaseException | None = None) -> int:
        """Store a letter about an original; see `bury`."""
        subject, identity = subject_of(self._prefix, original, consumer), identity_of(original, consumer)
        condition = {"Nats-Expected-Last-Subject-Sequence": "9" * 20, "Natty-Nonce": identity}
        room = self._room(original.data) - len(encode_headers(condition))
        if room < 0:
            return await self._store_bare(subject, original.data)
        headers = headers_of(original, consumer, reason, error, room)
        expected = 0
        for _ in range(_TRIES):
            try:
                return await self._jetstream.compare_and_set(
                    self.options.letters,
                    subject,
                    original.data,
                    expected=expected,
                    nonce=identity,
                    headers=headers,
                    timeout=self._jetstream.connection.config.timeout,
                )
            except WrongLastSequenceError as conflict:  # a letter of an older stream of the same name: keep both
                last = await self._jetstream.read(self.options.letters, subject=subject)
                expected, refused = last.sequence if last else 0, conflict
        raise refused

    def _room(self, data: bytes) -> int:
        largest = int(self._jetstream.connection.server_info["max_payload"])
        return min(largest - len(data), MAX_HEADER_BYTES)

    async def _store_bare(self, subject: str, data: bytes) -> int:
        """Store a letter without headers, since the payload fills the message; the subject names the original."""
        last = await self._jetstream.read(self.options.letters, subject=subject)
        if last is not None and last.data == data:
            return last.sequence
        return (await self._jetstream.publish(subject, data, stream=self.options.letters)).seq


class Watch:
    """Buries messages that the server gave up on for one consumer.

    The advisories wait in a work-queue stream, and are acknowledged when the letter is durable. `advised` is the
    consumer that they are about, `*` for all consumers of the stream; letters name `consumer`. `strip` is the number of
    first tokens to remove from a subject: a group's stream has put its partition there.
    """

    def __init__(
        self,
        jetstream: JetStream,
        letters: DeadLetters,
        stream: str,
        consumer: str,
        advised: str = "",
        strip: int = 0,
        on_letter: OnLetter | None = None,
    ) -> None:
        self.strip, self._on_letter = strip, on_letter
        self.stream, self.consumer = check_name("stream", stream), check_name("consumer", consumer)
        self.advised = ALL if advised == ALL else check_name("consumer", advised or consumer)
        self.durable = durable_of(stream, self.advised, consumer if advised == ALL else "")
        self._jetstream = jetstream
        self._letters = letters
        self._complete = False  # whether the streams and the consumer exist, as far as we know

    def __repr__(self) -> str:
        return f"Watch({self.stream}/{self.consumer})"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Watch until the block ends. Errors at the start are raised; after later ones it logs them and tries again."""
        await self._ensure()  # raises errors at the start
        task = asyncio.create_task(self._run(), name=repr(self))
        try:
            yield
        finally:
            await cancel_all([task])

    async def _ensure(self) -> None:
        await self._letters.ensure()
        settings: ConsumerConfig = {
            "filter_subjects": [f"{kind}.{self.stream}.{self.advised}" for kind in (GAVE_UP, TERMINATED)],
            "inactive_threshold": ADVISORIES_AGE,  # older advisories have expired, too
            "description": f"dead letters of consumer {self.consumer} of stream {self.stream}",
        }
        await ensure_consumer(self._jetstream, self._letters.options.advisories, self.durable, settings)
        self._complete = True

    async def _run(self) -> None:
        while self._jetstream.connection.state != "closed":
            try:
                await self._follow()
            except Exception as error:  # after any error: the advisories wait in their stream
                known = isinstance(error, NattyError)
                logger.warning("%r was interrupted; retry in %g s: %s", self, RETRY_DELAY, error, exc_info=not known)
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
                pull.finish(len(batch))

    async def _settle(self, message: Message) -> None:
        """Acknowledge the advisory when the letter is durable; otherwise the server delivers it again."""
        try:
            letter = await self._bury(read_advisory(message.data))
            message.ack()
            if letter is not None and self._on_letter is not None:
                await self._on_letter(*letter)
        except NotConnectedError as error:
            logger.info("%r: an advisory is processed again later: %s", self, error)
        except BadAdvisoryError as error:
            logger.warning("%r: an advisory can't be read: %s", self, error)
            message.ack()
        except Exception as error:  # after any error: continue with the other advisories
            known, delay = isinstance(error, NattyError), delay_of(message.deliveries)
            text = "%r: a letter could not be stored; retry in %g s: %s"
            logger.warning(text, self, delay, error, exc_info=not known)
            message.nak(delay)

    async def _bury(self, advisory: Advisory) -> tuple[RawMessage, Exception, int] | None:
        """Store a letter; return the message, why it was given up, and the letter. None if no letter is needed."""
        if advisory.stream != self.stream or self.advised not in (ALL, advisory.consumer):
            raise BadAdvisoryError(f"it names consumer {advisory.consumer!r} of stream {advisory.stream!r}")
        if advisory.reason == BURIED:
            return None
        stored = await self._find(advisory)
        if stored is None and await self._letters.find_letter(self.stream, advisory.stream_seq, self.consumer):
            return None  # buried with its payload before it was terminated
        original = advisory.original(stored)
        if REPLACED in original.subject:
            exact = await self._exact_subject(original.sequence)
            original = replace(original, subject=exact or original.subject, subject_known=bool(exact))
        raw = advisory.to_raw(original.subject, stored)
        original = replace(original, subject=original.subject.split(".", self.strip)[-1])
        sequence = await self._letters.store(original, self.consumer, advisory.letter_reason)
        what = "" if stored else ", without its payload: the stream no longer has it"
        logger.warning(
            "message %d of %s is dead letter %d%s: %s",
            advisory.stream_seq, advisory.stream, sequence, what, advisory.letter_reason,
            extra={"action": "dead letter"},
        )  # fmt: skip
        return raw, advisory.error, sequence

    async def _find(self, advisory: Advisory) -> StoredMessage | None:
        """Return the message that the server gave up on, None if its stream no longer has it."""
        try:
            stored = await self._jetstream.read(self.stream, sequence=advisory.stream_seq)
        except StreamNotFoundError:
            return None
        return stored if stored and advisory.is_about(stored) else None

    async def _exact_subject(self, sequence: int) -> str:
        """Return the exact bytes of a subject, which only a delivery has; "" if the stream allows no other consumer."""
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
