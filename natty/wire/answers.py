from __future__ import annotations

import asyncio

from natty.errors import AuthorizationError, NotConnectedError
from natty.wire.message import RawMessage


class Answers:
    """Requests that wait for their answers: each has a reply subject of its own below one inbox."""

    def __init__(self, inbox: bytes) -> None:
        self._inbox = inbox
        self._number = 0
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
        self._number += 1
        reply = b"%b.%x" % (self._inbox, self._number)
        future: asyncio.Future[RawMessage] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = (future, subject)
        return reply, future

    def forget(self, reply: bytes) -> None:
        """Wait for it no longer."""
        self._waiting.pop(reply, None)

    def deliver(self, messages: list[RawMessage]) -> None:
        """Give each answer to whom it is for. This is the sink of `subject`."""
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
        """Fail all of them: no answer will come any more."""
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(kind(text))
        self._waiting.clear()
