"""Operations on stored dead letters: list, show, retry, purge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from natty.consuming.dead_letters.letter import (
    MESSAGE_ID,
    BadLetterError,
    Letter,
    LetterFilter,
    fit,
    prefix_of,
    read_letter,
)
from natty.consuming.dead_letters.streams import LETTERS
from natty.errors import (
    BadSubjectError,
    JetStreamError,
    NattyError,
    PayloadTooLargeError,
    PublishError,
    StreamNotFoundError,
    UnsupportedError,
)
from natty.jetstream import JetStream, StoredMessage
from natty.names import check_name
from natty.streams import PurgeRefusedError, StreamState, stream_state
from natty.streams.contents import check_purge

logger = logging.getLogger("natty.deadletter")

RETRY_FOR = "Natty-Retry-For"
"""Header of a retried message: the consumer that failed with it. Other consumers that know the header may skip it."""
RETRIED_ID = "Natty-Retried-Msg-Id"
"""Header of a retried message: its first message id."""
KEPT = "Nats-TTL"  # other headers that begin with `Nats-` were instructions for one write
DELETE_FAILED = 10057
ALL = LetterFilter()
REFUSED = PublishError, JetStreamError, BadSubjectError, PayloadTooLargeError, UnsupportedError, ValueError
"""Errors of one letter, whatever happens to the others."""
_WINDOW = 100  # sequences looked at together when reading backwards


class LetterNotFoundError(NattyError):
    """The dead letter does not exist."""


@dataclass(slots=True)
class Retried:
    """The result of a retry."""

    published: int = 0
    refused: dict[int, str] = field(default_factory=dict)  # letter's sequence → why its message was not published


class LetterBox:
    """The dead letters of an account: list, show, retry and purge them.

    Reads come from the stream's leader, one letter per request. Each method raises StreamNotFoundError if the letters'
    stream is missing.
    """

    def __init__(self, jetstream: JetStream, letters: str = LETTERS) -> None:
        self.stream = check_name("stream", letters)
        self._jetstream = jetstream
        self._prefix = prefix_of(letters)

    def __repr__(self) -> str:
        return f"LetterBox({self.stream})"

    async def ls(
        self, wanted: LetterFilter = ALL, *, newest_first: bool = False, limit: int | None = None
    ) -> AsyncIterator[Letter]:
        """Yield the letters that exist now, the oldest first; letters that arrive meanwhile are not included.

        It skips and logs messages that are not letters.
        """
        state = await self._state()
        first, last = state["first_seq"], state["last_seq"]
        letters = self._backward(wanted, first, last) if newest_first else self._forward(wanted, first, last)
        found = 0
        async for letter in letters:
            if limit is not None and found >= limit:
                return
            found += 1
            yield letter

    async def show(self, sequence: int) -> Letter:
        """Return the letter. LetterNotFoundError."""
        await self._state()
        stored = await self._jetstream.read(self.stream, sequence=sequence) if sequence > 0 else None
        if stored is None:
            raise LetterNotFoundError(f"there is no dead letter {sequence} in {self.stream}; `natty dlq ls` lists them")
        return read_letter(stored)

    async def retry(
        self, wanted: LetterFilter = ALL, *, rate: float | None = None, limit: int | None = None
    ) -> Retried:
        """Publish the originals again on their own subjects, at most `rate` per second, and remove their letters.

        A letter is removed only after its message is stored. If a retry is interrupted in between, or two run at the
        same time, the message is stored once as long as its stream remembers message ids (`duplicate_window`). Letters
        whose message the stream refuses, and letters without payload, are kept and named in the result.
        The message has its original headers without the server's (except `Nats-TTL`), a new message id, and the first
        id under `Natty-Retried-Msg-Id`. All consumers of its subject get it; `Natty-Retry-For` names the one that
        failed.
        """
        if rate is not None and rate <= 0:
            raise ValueError(f"a rate of {rate:g} messages a second never ends; name more than 0, or None for no limit")
        result, loop = Retried(), asyncio.get_running_loop()
        due = loop.time()
        async for letter in self.ls(wanted, limit=limit):
            if rate is not None:
                await asyncio.sleep(due - loop.time())
                due = max(due, loop.time()) + 1 / rate
            try:
                await self._publish(letter)
            except REFUSED as error:
                result.refused[letter.sequence] = str(error)
                continue
            await self._remove(letter.sequence)
            result.published += 1
        return result

    async def purge(self, wanted: LetterFilter = ALL, *, limit: int | None = None, up_to: int | None = None) -> int:
        """Delete letters, the oldest first, and return how many. With `up_to`, none after this sequence."""
        if not wanted.reason and limit is None and await self._may_purge(wanted):
            body: dict[str, Any] = {"filter": wanted.subject(self._prefix)}
            if up_to is not None:
                body["seq"] = up_to + 1
            return int((await self._jetstream.request(f"STREAM.PURGE.{self.stream}", body))["purged"])
        purged = 0
        async for letter in self.ls(wanted, limit=limit):
            if up_to is not None and letter.sequence > up_to:
                break
            purged += await self._remove(letter.sequence)
        return purged

    async def _may_purge(self, wanted: LetterFilter) -> bool:
        """Return whether a purge is safe for readers of the letters; single deletions always are."""
        await self._state()
        try:
            await check_purge(self._jetstream, self.stream, wanted.subject(self._prefix))
        except PurgeRefusedError:
            return False
        return True

    async def _state(self) -> StreamState:
        try:
            return await stream_state(self._jetstream, self.stream)
        except StreamNotFoundError as error:
            raise StreamNotFoundError(
                f"there is no stream {self.stream}: no dead letter was stored yet"
                " in this account, or the stream has another name",
                code=error.code,
                err_code=error.err_code,
            ) from error

    async def _forward(self, wanted: LetterFilter, first: int, last: int) -> AsyncIterator[Letter]:
        while first <= last and (stored := await self._next(wanted, first)) and stored.sequence <= last:
            first = stored.sequence + 1
            try:
                letter = read_letter(stored)
            except BadLetterError as error:
                logger.warning("%s", error)
                continue
            if wanted.takes(letter):
                yield letter

    async def _backward(self, wanted: LetterFilter, first: int, last: int) -> AsyncIterator[Letter]:
        """Yield letters, the newest first: read windows forward, since the server can't read backward."""
        while last >= first:
            window = [letter async for letter in self._forward(wanted, max(first, last - _WINDOW + 1), last)]
            for letter in reversed(window):
                yield letter
            last -= _WINDOW

    async def _next(self, wanted: LetterFilter, sequence: int) -> StoredMessage | None:
        """Return the first message from a sequence on whose subject matches."""
        return await self._jetstream.read(self.stream, sequence=sequence, subject=wanted.subject(self._prefix))

    async def _publish(self, letter: Letter) -> None:
        if not letter.has_payload:
            raise PublishError("it was stored without its payload, which was not in the stream any more")
        if not letter.subject:
            raise PublishError("its subject did not fit into the letter")
        if not letter.subject_known:
            raise PublishError("its subject is not UTF-8, and the server reports only that: read it and publish it")
        room = int(self._jetstream.connection.server_info["max_payload"]) - len(letter.data)
        headers = fit(headers_again(letter), room)
        await self._jetstream.publish(letter.subject, letter.data, headers=headers, stream=letter.stream, verbatim=True)

    async def _remove(self, sequence: int) -> bool:
        """Delete a letter; return whether it existed."""
        try:
            await self._jetstream.request(f"STREAM.MSG.DELETE.{self.stream}", {"seq": sequence, "no_erase": True})
        except JetStreamError as error:
            if error.err_code != DELETE_FAILED or await self._jetstream.read(self.stream, sequence=sequence):
                raise
            return False
        return True


def headers_again(letter: Letter) -> dict[str, str | list[str]]:
    """Return the headers for publishing a letter's original again; always the same for the same letter."""
    origin = f"{letter.stream}.{letter.consumer}.{letter.original_sequence}"
    headers: dict[str, str | list[str]] = {
        MESSAGE_ID: f"natty-retry.{origin}.{letter.sequence}.{letter.buried}",
        RETRY_FOR: letter.consumer,
    }
    if first := letter.headers.get(RETRIED_ID) or letter.headers.get(MESSAGE_ID):
        headers[RETRIED_ID] = first
    kept = {name: values for name, values in letter.headers.items() if name == KEPT or not name.startswith("Nats-")}
    return headers | {name: values for name, values in kept.items() if name not in headers}
