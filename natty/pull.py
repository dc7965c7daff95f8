from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import msgspec

from natty.connection import Subscription
from natty.errors import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    NattyError,
    NotConnectedError,
    StreamNotFoundError,
    UnsupportedError,
)
from natty.jetstream import JetStream
from natty.message import Batch, RawMessage, parse_headers, status_of

logger = logging.getLogger("natty.pull")

RETRY_DELAY = 0.25  # seconds before asking again where nobody answered; doubles up to the next line
RETRY_DELAY_MAX = 2.0
DRAIN_TIMEOUT = 1.0  # seconds that a stopped pull stays to hand back what is on its way
DRAIN_QUIET = 0.02  # seconds without a message after which nothing is on its way
HAND_BACK_DELAY = 0.1  # seconds before a message that was handed back goes to somebody else: we have left by then


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    """How much to ask for. Credit is what was asked for and is not finished: it bounds memory."""

    max_messages: int = 4096
    max_bytes: int = 32 * 1024 * 1024  # of one request; at most three are under way
    expires: float = 30.0  # seconds that the server keeps a request
    heartbeat: float = 5.0  # seconds; the server says so when it has nothing to deliver
    tick: float | None = None  # seconds; yield an empty batch when nothing came for that long

    def __post_init__(self) -> None:
        if self.heartbeat * 2 > self.expires:
            raise UnsupportedError(
                f"a heartbeat of {self.heartbeat:g} s is over half of expires, {self.expires:g} s; servers refuse that"
            )


class _Session:
    """One inbox. What an older one still brings is delivered, and counts for nothing else."""

    def __init__(self, inbox: bytes) -> None:
        self.inbox = inbox
        self.requested = 0
        self.subscription: Subscription | None = None


class Pull:
    """The pull loop of a durable consumer: `async for batch in pull`, then `finished(...)` for what is done with.

    Requests overlap, so that the server never waits for us while there is credit. Lost sessions, restarted servers and
    missed heartbeats lead to a new inbox and new requests; what the old one lost comes again after `ack_wait`.
    Protocol: `$JS.API.CONSUMER.MSG.NEXT`, ADR-37.
    """

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        durable: str,
        options: PullOptions | None = None,
        *,
        recreate: Callable[[], Awaitable[object]] | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.stream, self.durable = stream, durable
        self.options = options or PullOptions()
        self.stalled = False
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._subject = f"{jetstream.prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}".encode()
        self._recreate = recreate
        self._on_stop = on_stop
        self._arrived: list[RawMessage] = []
        self._wake = asyncio.Event()
        self._session = _Session(b"")
        self._unfinished = 0
        self._max_bytes = self.options.max_bytes
        self._heard = 0.0
        self._retry_at = 0.0
        self._retry_delay = RETRY_DELAY
        self._missing = False
        self._stopping = False
        self._ended = False

    def __repr__(self) -> str:
        state = "stopping" if self._stopping else "stalled" if self.stalled else "running"
        counts = f"{self._session.requested} asked, {self._unfinished} unfinished"
        return f"Pull({self.stream}/{self.durable}, {state}, {counts})"

    async def __aiter__(self) -> AsyncGenerator[Batch, None]:
        """Yield what arrives until `stop`. ConsumerNotFoundError, StreamNotFoundError: gone for good."""
        self._connection.listeners.append(self._on_event)
        try:
            self._renew()
            while not self._stopping:
                await self._wait()
                if self._arrived or self.options.tick is not None:
                    raw, self._arrived = self._arrived, []
                    self._unfinished += len(raw)
                    yield Batch(raw, self._connection)
                if self._missing:
                    await self._find_consumer()
        finally:
            await self._end()

    @property
    def stopping(self) -> bool:
        """Whether it has been stopped."""
        return self._stopping

    def stop(self) -> None:
        """End the iteration after the current batch; what arrived and was not yielded is handed back at once."""
        self._stopping = True
        self._wake.set()
        self._on_stop()

    def finished(self, messages: int) -> None:
        """Give credit back: this many messages need no memory any more."""
        self._unfinished -= messages
        self._ask()

    def ack(self, replies: list[bytes]) -> None:
        """Acknowledge messages, joined into one write. NotConnectedError: they will come again."""
        self._connection.send_many([(reply, b"", b"", b"+ACK") for reply in replies])

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        """Hand messages back, to be delivered again after `delay` seconds."""
        answer = b'-NAK {"delay": %d}' % int(delay * 1e9) if delay > 0 else b"-NAK"
        self._connection.send_many([(reply, b"", b"", answer) for reply in replies])

    def in_progress(self, replies: list[bytes]) -> None:
        """Restart `ack_wait` of messages: work on them goes on."""
        self._connection.send_many([(reply, b"", b"", b"+WPI") for reply in replies])

    def keep_waiting(self) -> None:
        """Restart `ack_wait` of what arrived and was not yielded yet."""
        self.in_progress([raw[1] for raw in self._arrived])

    async def _wait(self) -> None:
        """Return when something has arrived, at a tick, or when stopped; keep the session alive meanwhile."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.options.tick if self.options.tick is not None else float("inf")
        while not (self._arrived or self._stopping or self._missing):
            now = loop.time()
            if now >= give_up:
                return
            self._look_after(now)
            self._wake.clear()
            try:
                async with asyncio.timeout(min(give_up - now, self._next_look(now))):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _next_look(self, now: float) -> float:
        if self._retry_at:
            return max(0.001, self._retry_at - now)
        if not self._session.requested:  # no credit, or no connection: what changes that wakes us
            return 2 * self.options.heartbeat
        return max(0.001, self._heard + 2 * self.options.heartbeat - now)

    def _look_after(self, now: float) -> None:
        if self._retry_at and now >= self._retry_at:
            self._renew()
        elif self._session.requested and now >= self._heard + 2 * self.options.heartbeat:
            logger.warning("%r missed two heartbeats: asking anew", self, extra={"action": "renew"})
            self.stalled = True
            self._renew()

    def _renew(self) -> None:
        """Begin a session: a new inbox, nothing asked for yet. The previous inbox stays open until the next renewal."""
        if self._session.subscription is not None:
            previous = self._session.subscription
            asyncio.get_running_loop().call_later(self.options.heartbeat, previous.close)
        session = self._session = _Session(self._connection.new_inbox())
        session.subscription = self._connection.subscribe(
            session.inbox.decode(), lambda raw: self._receive(session, raw)
        )
        self._retry_at = 0.0
        self._heard = asyncio.get_running_loop().time()
        self._ask()

    def _ask(self) -> None:
        session, options = self._session, self.options
        credit = options.max_messages - session.requested - self._unfinished - len(self._arrived)
        if (
            self._stopping
            or self._retry_at
            or credit < max(1, options.max_messages // 3)
            or not self._connection.connected
        ):
            return
        request = {
            "batch": credit,
            "expires": int(options.expires * 1e9),
            "idle_heartbeat": int(options.heartbeat * 1e9),
            "max_bytes": self._max_bytes,
        }
        session.requested += credit
        self._connection.send(self._subject, msgspec.json.encode(request), reply=session.inbox)

    def _receive(self, session: _Session, messages: list[RawMessage]) -> None:
        self._heard = asyncio.get_running_loop().time()
        data = [raw for raw in messages if raw[1].startswith(b"$JS.ACK.")]
        if data:
            session.requested -= len(data)
            if self._ended:
                self._hand_back(data)
                return
            self._arrived += data
            self._retry_delay = RETRY_DELAY
            self.stalled = False
            self._wake.set()
        if len(data) != len(messages):
            for raw in messages:
                if not raw[1].startswith(b"$JS.ACK."):
                    self._status(session, raw)

    def _status(self, session: _Session, raw: RawMessage) -> None:
        """Take a status into account: 100 heartbeat, 404/408/409 end of a request, 503 nobody there."""
        status, text = status_of(raw[2])
        if status == 100 or session is not self._session:
            return
        headers = parse_headers(raw[2])
        if status == 409 and "exceeds max" in text.lower():
            self._max_bytes *= 2
            logger.warning("a message is larger than a request may bring: asking for %d bytes", self._max_bytes)
        if status == 409 and "deleted" in text.lower():
            self._missing = True
            self._wake.set()
        elif "Nats-Pending-Messages" in headers:
            session.requested -= int(headers["Nats-Pending-Messages"][0])
            self._ask()
        else:
            if status != 503:
                logger.warning("%r: the server ended a request: %d %s", self, status, text)
            self._later(status)

    def _later(self, status: int) -> None:
        """Begin a new session after a pause: nobody answered, or the server ended our requests without a count."""
        now = asyncio.get_running_loop().time()
        if status == 503 and self._retry_delay >= RETRY_DELAY_MAX:
            self._missing = True
        self.stalled = status == 503
        self._retry_at = now + self._retry_delay
        self._retry_delay = min(2 * self._retry_delay, RETRY_DELAY_MAX)
        self._wake.set()

    async def _find_consumer(self) -> None:
        """Find out whether the consumer is really gone; make it again if we may."""
        self._missing = False
        try:
            try:
                await self._jetstream.request(f"CONSUMER.INFO.{self.stream}.{self.durable}", timeout=RETRY_DELAY_MAX)
            except ConsumerNotFoundError:
                if self._recreate is None:
                    raise
                logger.warning("consumer %s of %s is gone: making it again", self.durable, self.stream)
                await self._recreate()
        except (ConsumerNotFoundError, ConsumerExistsError, StreamNotFoundError):
            raise
        except NattyError as error:  # no leader, no connection: ask again later
            logger.warning("can't see consumer %s of %s: %s", self.durable, self.stream, error)
        self._later(0)

    def _on_event(self, event: str) -> None:
        if event == "connected":
            self._renew()
        elif event == "closed":
            self.stop()
        self._wake.set()

    async def _end(self) -> None:
        self._connection.listeners.remove(self._on_event)
        self._stopping = self._ended = True
        self._hand_back(self._arrived)
        self._arrived = []
        try:
            await self._drain(self._session)
        finally:
            if self._session.subscription is not None:
                self._session.subscription.close(last=self._hand_back)

    async def _drain(self, session: _Session) -> None:
        """Stay until the server sends no more of what was asked for: what it sends to nobody waits for `ack_wait`."""
        loop = asyncio.get_running_loop()
        deadline, before = loop.time() + DRAIN_TIMEOUT, -1
        while 0 < session.requested != before and self._connection.connected and loop.time() < deadline:
            before = session.requested
            await asyncio.sleep(DRAIN_QUIET)
            try:
                await self._connection.flush(max(0.001, deadline - loop.time()))
            except NattyError:
                return

    def _hand_back(self, messages: list[RawMessage]) -> None:
        """Have messages that nobody will see here delivered again, when we no longer wait for any ourselves."""
        replies = [raw[1] for raw in messages if raw[1].startswith(b"$JS.ACK.")]
        try:
            if replies:
                self.nak(replies, HAND_BACK_DELAY)
        except NotConnectedError:
            logger.info("%d messages were not handed back: no connection; they come after ack_wait", len(replies))
