from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from natty.consuming.dead_letters.letter import (
    MAX_HEADER_BYTES,
    Original,
    headers_of,
    identity_of,
    prefix_of,
    subject_of,
)
from natty.consuming.dead_letters.streams import DeadLetterOptions, ensure_streams
from natty.consuming.dead_letters.watch import Watch
from natty.errors import WrongLastSequenceError
from natty.jetstream import JetStream
from natty.streams import check_name
from natty.wire.message import Message, encode_headers

_TRIES = 3  # of a conditional write that somebody else's came before


class DeadLetters:
    """Buries messages: stores a letter about each in a stream of its own. `natty.dead_letters()` reads and retries it.

    A letter is the payload as it was, the original's headers under `Natty-Original-`, and under `Natty-Dead-` where it
    comes from and why it died. Streams of the work-queue and interest kinds delete a message that is terminated: bury
    it first, then `message.term(BURIED)` (the reason keeps `watch` from a second letter).
    """

    def __init__(self, jetstream: JetStream, options: DeadLetterOptions | None = None) -> None:
        self.options = options or DeadLetterOptions()
        self._jetstream = jetstream
        self._prefix = prefix_of(check_name("stream", self.options.letters))

    def __repr__(self) -> str:
        return f"DeadLetters({self.options.letters})"

    async def ensure(self) -> None:
        """Make the letters' and the advisories' stream if they are missing. StreamExistsError if one can't serve."""
        await ensure_streams(self._jetstream, self.options)

    async def bury(self, message: Message, *, consumer: str, reason: str, error: BaseException | None = None) -> int:
        """Store a letter about the message and return its sequence; it is durable then.

        Burying the same message of the same consumer again returns the same letter. Headers that the server has no room
        for are left out, the traceback first. StreamNotFoundError: `ensure` was not called; PublishError: the stream is
        full; RequestTimeoutError, NotConnectedError: in doubt, bury it again.
        """
        return await self.store(Original.of(message), check_name("consumer", consumer), reason, error)

    def watch(
        self, stream: str, consumer: str, *, advised: str = "", strip: int = 0
    ) -> AbstractAsyncContextManager[None]:
        """Return a context that buries, while it is open, what the server gave up on for this consumer.

        That is: messages delivered `max_deliver` times, and terminated ones. Advisories that came while nobody watched
        are held in their stream. Several processes may watch the same consumer: each advisory goes to one of them.
        With `advised`, the letters name `consumer` and are about another one, or `*` for all of the stream's; `strip`
        is how many tokens a group's stream has put before each subject.
        """
        return Watch(self._jetstream, self, stream, consumer, advised, strip).open()

    async def buried(self, stream: str, sequence: int, consumer: str) -> int | None:
        """Return the sequence of the last letter about this message, None if there is none."""
        subject = f"{self._prefix}.{stream}.{consumer}.{sequence}"
        found = await self._jetstream.read(self.options.letters, subject=f"{subject}.>")
        found = found or await self._jetstream.read(self.options.letters, subject=subject)
        return found.sequence if found else None

    async def store(self, original: Original, consumer: str, reason: str, error: BaseException | None = None) -> int:
        """Store a letter about an original; as `bury`."""
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
        """Store a letter without any header: the payload fills the message, and the subject says what it is about."""
        last = await self._jetstream.read(self.options.letters, subject=subject)
        if last is not None and last.data == data:
            return last.sequence
        return (await self._jetstream.publish(subject, data, stream=self.options.letters)).seq
