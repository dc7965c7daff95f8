"""The next few messages of a durable consumer. Use `Pull` to read continuously."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from natty.config.units import NANOSECONDS, write_count
from natty.errors import AuthorizationError, JetStreamError, NattyError, NotConnectedError, RequestTimeoutError
from natty.jetstream import JetStream
from natty.pulling.requests import Requests, Status, hand_back, next_subject, read_status
from natty.wire.ack import ACKS
from natty.wire.message import Batch, RawMessage

LOT = 500  # messages of one request


async def take(
    jetstream: JetStream, stream: str, consumer: str, count: int, *, wait: float
) -> AsyncGenerator[Batch, None]:
    """Yield the next messages as they arrive, `count` at most; end early if none arrived for `wait` seconds.

    It sends only one request for each 500 messages (`$JS.API.CONSUMER.MSG.NEXT`, ADR-37). If the server refuses that,
    it finds out the reason and raises it: StreamNotFoundError, ConsumerNotFoundError, JetStreamError.
    AuthorizationError, NotConnectedError, RequestTimeoutError if the server is silent.
    """
    with _Inbox(jetstream, stream, consumer) as inbox:
        most, expires, refused, clock = LOT, wait, False, asyncio.get_running_loop().time
        quiet = 0.0  # seconds without a message until the end of the current request
        while count and (wait - quiet) * NANOSECONDS >= 1:
            lot, lives, asked = min(count, most), min(expires, wait - quiet), clock()
            inbox.ask(lot, lives)
            quiet += lives
            while lot:
                messages, status = await inbox.arrival(lives)
                if messages:
                    yield Batch(messages, jetstream.connection)
                    lot -= len(messages)
                    count -= len(messages)
                    quiet = max(0.0, asked + lives - clock())
                if status and not status.is_timeout:
                    limits = await _limits(jetstream, stream, consumer, status.text, again=refused)
                    most, expires, refused, quiet = min(most, limits[0]), min(expires, limits[1]), True, 0.0
                if status:
                    break
            else:
                quiet = 0.0


async def why_silent(jetstream: JetStream, stream: str, consumer: str) -> str:
    """Return why an existing consumer delivers nothing, as the end of a sentence; "" if the reason is unknown."""
    with suppress(NattyError):
        info = await jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}")
        if info.get("paused"):
            return f"; it is paused until {info['config']['pause_until']}"
        most, open_ = info["config"].get("max_ack_pending", 0), info["num_ack_pending"]
        if open_:
            unacked = f"; {write_count(open_, 'delivered message', 'is', 'are')} not acknowledged"
            return unacked + (f", and max_ack_pending is {most}" if 0 < most <= open_ else "")
    return ""


class _Inbox:
    """Requests and their answers. At exit, messages that were not taken are handed back."""

    def __init__(self, jetstream: JetStream, stream: str, consumer: str) -> None:
        self._jetstream, self._stream, self._consumer = jetstream, stream, consumer
        self._connection, self._subject = jetstream.connection, next_subject(jetstream, stream, consumer)
        self._arrived: list[RawMessage] = []
        self._owed = 0  # requested messages that have not arrived
        self._wake = asyncio.Event()
        self._error: NattyError | None = None

    def __enter__(self) -> _Inbox:
        self._requests = Requests(self._jetstream, self._stream, self._consumer, self._receive)
        self._connection.refusals.listeners.append(self._on_refusal)
        self._connection.listeners.append(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.refusals.listeners.remove(self._on_refusal)
        self._connection.listeners.remove(self._on_event)
        self._requests.close(last=self._hand_back if self._owed else None)
        self._hand_back(Batch(self._arrived))

    def ask(self, messages: int, expires: float) -> None:
        """Send a request."""
        self._owed = messages
        self._requests.ask(messages, expires)

    async def arrival(self, expires: float) -> tuple[list[RawMessage], Status | None]:
        """Wait for messages; return them, and the status that ended the request, or None while it continues."""
        patience = self._connection.config.timeout
        try:
            async with asyncio.timeout(expires + patience):
                await self._wake.wait()
        except TimeoutError:
            text = f"no answer on {self._subject} within {expires + patience:g} s"
            raise RequestTimeoutError(text) from None
        if self._error:
            raise self._error
        self._wake.clear()
        arrived, self._arrived = self._arrived, []
        messages = [raw for raw in arrived if raw[1].startswith(ACKS)]
        self._owed -= len(messages)
        for raw in arrived:
            if not raw[1] and not (status := read_status(raw)).is_heartbeat:
                self._owed = 0
                return messages, status
        return messages, None

    def _receive(self, batch: Batch) -> None:
        self._arrived += batch.raw
        self._wake.set()

    def _hand_back(self, batch: Batch) -> None:
        hand_back(self._connection, batch.replies, delay=0.0)

    def _on_refusal(self, text: str) -> None:
        if f'"{self._subject}"' in text:
            self._fail(AuthorizationError(f"not permitted: {text}"))

    def _on_event(self, event: str) -> None:
        if event == "disconnected":
            text = "the connection was lost; messages delivered meanwhile are redelivered after ack_wait"
            self._fail(NotConnectedError(text))

    def _fail(self, error: NattyError) -> None:
        self._error = error
        self._wake.set()


async def _limits(jetstream: JetStream, stream: str, consumer: str, text: str, *, again: bool) -> tuple[int, float]:
    """Find out why a request was refused: raise the reason, or return the messages and seconds that it may request."""
    config: dict[str, Any] = (await jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}"))["config"]
    name = f"consumer {consumer} of stream {stream}"
    if target := config.get("deliver_subject"):
        raise JetStreamError(f"{name} pushes its messages to {target}: it has no messages to pull; use `natty sub`")
    most, longest = max(0, config.get("max_batch", 0)), max(0, config.get("max_expires", 0)) / NANOSECONDS
    if again or not (most or longest):
        raise JetStreamError(f"{name} refused the request: {text or 'no server answers for it; try again'}")
    return most or LOT, longest or float("inf")
