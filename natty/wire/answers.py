"""Requests that wait for their answers."""

from __future__ import annotations

import asyncio
import os

from natty.errors import AuthorizationError, NotConnectedError
from natty.wire.message import RawMessage

TOKENS = 256  # that are drawn at a time
TOKEN_LENGTH = 24  # hexadecimal digits: 96 random bits


class Answers:
    """Requests that wait for their answers.

    Each has its own reply subject below one inbox. Nobody can guess it: who gets a request can answer only that one.
    """

    def __init__(self, inbox: bytes) -> None:
        self._inbox = inbox
        self._tokens: list[bytes] = []
        self._waiting: dict[bytes, tuple[asyncio.Future[RawMessage], bytes]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"Answers({len(self)} awaited)"

    @property
    def subject(self) -> str:
        """The subject of all answers."""
        return f"{self._inbox.decode()}.*"

    def expect(self, subject: bytes) -> tuple[bytes, asyncio.Future[RawMessage]]:
        """Return the reply subject for a request on `subject`, and the future of its answer."""
        reply = b"%b.%b" % (self._inbox, (self._tokens or self._draw()).pop())
        future: asyncio.Future[RawMessage] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = (future, subject)
        return reply, future

    def _draw(self) -> list[bytes]:
        """Draw tokens for the next requests: one read of random bytes for many is much faster."""
        drawn = os.urandom(TOKENS * TOKEN_LENGTH // 2).hex().encode()
        self._tokens = [drawn[at : at + TOKEN_LENGTH] for at in range(0, len(drawn), TOKEN_LENGTH)]
        return self._tokens

    def forget(self, reply: bytes) -> None:
        """Stop waiting for this answer."""
        self._waiting.pop(reply, None)

    def deliver(self, messages: list[RawMessage]) -> None:
        """Give each answer to the request that it belongs to. This is the sink of `subject`."""
        for raw in messages:
            waiting = self._waiting.pop(raw[0], None)
            if waiting is not None and not waiting[0].done():
                waiting[0].set_result(raw)

    def refuse(self, text: str) -> None:
        """Fail the requests on a subject that the server does not permit, in its words: AuthorizationError."""
        for future, subject in list(self._waiting.values()):
            if b'"%b"' % subject in text.encode() and not future.done():
                future.set_exception(AuthorizationError(f"not permitted: {text}"))

    def fail(self, kind: type[NotConnectedError], text: str = "") -> None:
        """Fail all of them: no more answers will come."""
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(kind(text))
        self._waiting.clear()
