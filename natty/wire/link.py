from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from natty.wire.message import RawMessage, as_payload

Sink = Callable[[list[RawMessage]], None]
"""Receives the messages of one subscription straight from the parser: never blocks, never raises."""

Outgoing = tuple[bytes, bytes, bytes, bytes]
"""(subject, reply, header block, payload) of a message to publish."""


def checked(message: Outgoing) -> Outgoing:
    """Return a message to publish with its payload as bytes. TypeError names what is of another type."""
    for what, value in zip(("subject", "reply", "header block"), message, strict=False):
        if not isinstance(value, bytes):
            raise TypeError(f"the {what} of a message on the wire must be bytes and is of type {type(value).__name__}")
    return *message[:3], as_payload(message[3])


class Link(Protocol):
    """One session with one server: what `Connection` needs of a driver. It ends once, and is then replaced."""

    info: dict[str, Any]
    discovered: list[str]  # host:port of the cluster's servers; with TLS asked for, none that was said without it
    certificate: dict[str, Any]  # the server's, as `ssl` shows it; empty where there is none to see
    on_messages: Callable[[bytes, list[RawMessage]], None]
    on_end: Callable[[Exception], None]
    on_notice: Callable[[str], None]

    async def open(self, url: str) -> None:
        """Connect, TLS and authentication included. Raises what went wrong; nothing stays open then."""
        ...

    def publish(self, messages: list[Outgoing]) -> None:
        """Send messages, in order."""
        ...

    def publish_to_each(self, subjects: list[bytes], data: bytes) -> None:
        """Send the same on each of these subjects, in order. There is one at least."""
        ...

    def subscribe(self, sid: int, subject: bytes, queue: bytes) -> None:
        """Subscribe under this id."""
        ...

    def unsubscribe(self, sid: int) -> None:
        """End a subscription."""
        ...

    async def ping(self) -> None:
        """Return when the server has answered: all that was sent before has arrived. May be cancelled."""
        ...

    async def drained(self) -> None:
        """Return when the socket can take more."""
        ...

    def abort(self) -> None:
        """End now, without waiting for the other side. Idempotent; `on_end` is not called."""
        ...
