from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from natty.config.units import NANOSECONDS
from natty.errors import (
    ConfigError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    NattyError,
    NotConnectedError,
    StreamNotFoundError,
)
from natty.jetstream import JetStream
from natty.pulling.credit import Credit, size_of
from natty.pulling.pin import PIN_REFUSED, Pin
from natty.pulling.requests import PullOptions
from natty.wire.connection import Subscription
from natty.wire.message import ACKS, RawMessage, parse_headers, status_of

logger = logging.getLogger("natty.pull")

RETRY_DELAY = 0.1  # seconds before asking again where nobody answered; doubles up to the next line
RETRY_DELAY_MAX = 1.0
LOOK_TIMEOUT = 2.0  # seconds that the server has to tell about the consumer
GONE_AFTER = 1.0  # seconds that somebody else has to make a deleted consumer again
DRAIN_TIMEOUT = 1.0  # seconds to wait for what is on its way when no more is wanted
DRAIN_QUIET = 0.02  # seconds without a message after which nothing is on its way
HAND_BACK_DELAY = 0.1  # seconds before a message that was handed back goes to somebody else: we have left by then
PULL_ONLY = "messages are taken from pull consumers; make one, or subscribe to that subject"
TOO_LARGE = "message size exceeds maxbytes"  # a status has no other mark than its text (ADR-37)


@dataclass
class PullCounts:
    """What happened since the start."""

    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0  # of the delivered ones, those that had been delivered before
    requests: int = 0
    renewals: int = 0  # sessions after the first


class _Session:
    """One inbox. What an older one still brings is delivered if there is room, and counts for nothing else."""

    def __init__(self, inbox: bytes) -> None:
        self.inbox = inbox
        self.first = b""  # how the ack subject of a first delivery begins, behind a line's end
        self.subscription: Subscription | None = None


class Supply:
    """Requests of one consumer, kept open at the server through all that happens to it.

    `heal` runs beside the reader, however long that takes for a batch: lost sessions, restarted servers and missed
    heartbeats lead to a new inbox and new requests. Protocol: `$JS.API.CONSUMER.MSG.NEXT`, ADR-37.
    """

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        durable: str,
        options: PullOptions,
        deliver: Callable[[list[RawMessage]], None],
        recreate: Callable[[], Awaitable[object]] | None,
        pin: Pin | None = None,
    ) -> None:
        self.credit = Credit(options.max_messages, options.max_bytes)
        self.counts = PullCounts()
        self.ended = False  # whatever still arrives is handed back
        self._name = f"consumer {stream}/{durable}"
        self._info = f"CONSUMER.INFO.{stream}.{durable}"
        self._subject = f"{jetstream.prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}".encode()
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._options = options
        self._deliver = deliver
        self._recreate = recreate
        self._pin = pin
        self._expires, self._heartbeat = options.expires, options.heartbeat
        self._changed = asyncio.Event()
        self._session = _Session(b"")
        self._owed = False  # whether the server has to give signs of life
        self._heard = 0.0  # when it gave the last one, on the monotonic clock
        self._renewed = 0.0
        self._retry_at = 0.0  # nothing is asked for before; 0: it may be; infinite: look at the consumer first
        self._retry_delay = RETRY_DELAY
        self._gone_since = 0.0

    def __repr__(self) -> str:
        return f"Supply({self._name}, {self.credit!r})"

    @property
    def stalled_since(self) -> float | None:
        """When the server gave its last sign of life, in Unix seconds, if it owes us one since two heartbeats."""
        silence = time.monotonic() - self._heard
        return time.time() - silence if self._owed and not self.ended and silence >= 2 * self._heartbeat else None

    async def heal(self) -> None:
        """Keep asking until cancelled. ConsumerNotFoundError, StreamNotFoundError: gone for good."""
        self.renew()
        while True:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_look(time.monotonic())):
                    await self._changed.wait()
            if self._retry_at == math.inf:
                await self._look_at_consumer()
            elif self._connection.connected:
                self._look_after(time.monotonic())

    def _next_look(self, now: float) -> float | None:
        """Return the seconds until something may have to be done; None: not before an event."""
        if self._retry_at == math.inf:
            return 0.0
        if not self._connection.connected or not (self._retry_at or self.credit.asked_messages):
            return None
        return max(0.001, (self._retry_at or self._silent_at) - now)

    @property
    def _silent_at(self) -> float:
        """When two heartbeats will have been missed in this session."""
        return max(self._heard, self._renewed) + 2 * self._heartbeat

    def _look_after(self, now: float) -> None:
        if self._retry_at:
            if now >= self._retry_at:
                self.renew()
        elif self.credit.asked_messages and now >= self._silent_at:
            logger.warning("%s missed two heartbeats: asking anew", self._name, extra={"action": "renew"})
            self.renew()

    def renew(self) -> None:
        """Begin a session: a new inbox, nothing asked for yet. The previous inbox stays open for another heartbeat."""
        if self.ended:
            return
        if self._session.subscription is not None:
            self.counts.renewals += 1
            if self._pin and self._pin.id:
                self._pin.on_renewed()
            end = partial(self._session.subscription.close, last=self.hand_back)
            asyncio.get_running_loop().call_later(self._heartbeat, end)
        session = self._session = _Session(self._connection.new_inbox())
        session.subscription = self._connection.subscribe(
            session.inbox.decode(), lambda raw: self._receive(session, raw)
        )
        self._renewed = time.monotonic()
        self._retry_at = 0.0
        self.credit.forget()
        self.ask()
        if self._connection.connected:
            self._owed = self.credit.asked_messages > 0
        else:
            self._expect()

    def ask(self) -> None:
        """Send what requests the credit allows, if any."""
        if self.ended or self._retry_at or not self._connection.connected:
            return
        pin = self._pin
        while not (pin and not pin.id and self.credit.asked_messages) and (request := self.credit.request()):
            body: dict[str, int | str] = {
                "batch": request.batch,
                "expires": int(self._expires * NANOSECONDS),
                "idle_heartbeat": int(self._heartbeat * NANOSECONDS),
            }
            if pin:  # one request until we are pinned: the server keeps those without our id waiting then
                body |= pin.fields()
            if request.max_bytes:
                body["max_bytes"] = request.max_bytes
            self._connection.send(self._subject, msgspec.json.encode(body), reply=self._session.inbox)
            self.counts.requests += 1
            self._expect()

    def _expect(self) -> None:
        """From now on the server owes us signs of life."""
        if not self._owed:
            self._owed, self._heard = True, time.monotonic()
            self._changed.set()

    def _hear(self) -> None:
        """Take note of a sign of life."""
        if since := self.stalled_since:
            silent = time.time() - since
            logger.info("%s is heard again after %.1f s", self._name, silent, extra={"action": "healed"})
        self._heard = time.monotonic()
        self._owed = self.credit.asked_messages > 0
        self._retry_delay, self._gone_since = RETRY_DELAY, 0.0

    def _receive(self, session: _Session, messages: list[RawMessage]) -> None:
        session.first = session.first or _first_delivery(messages)
        firsts = b"\n".join([b"", *[raw[1] for raw in messages]]).count(session.first) if session.first else 0
        data = messages if firsts == len(messages) else [raw for raw in messages if raw[1].startswith(ACKS)]
        current = session is self._session
        if data:
            if self._pin and current:
                self._pin.delivered(data[0])
            self._take(data, len(data) - firsts, current=current)
        if current and len(data) != len(messages):
            for raw in messages:
                if not raw[1]:
                    self._status(raw)

    def _take(self, data: list[RawMessage], again: int, *, current: bool) -> None:
        size = size_of(data)
        if not current and not self.credit.fits(len(data), size):
            self.hand_back(data)
            return
        self.credit.arrived(len(data), size, asked=current)
        if self.ended:
            self.hand_back(data)
            return
        counts = self.counts
        counts.delivered += len(data)
        counts.delivered_bytes += size
        counts.redelivered += again
        self._hear()
        self._deliver(data)

    def _status(self, raw: RawMessage) -> None:
        """Take a status into account: 100 heartbeat; 404, 408, 409 with what is left of a request; else trouble."""
        status, text = status_of(raw[2])
        left = parse_headers(raw[2])
        if status == 100:
            self._hear()
        elif self._pin and (status == PIN_REFUSED or "Nats-Pending-Messages" not in left):
            self._refused(status, self._pin)
        elif "Nats-Pending-Messages" in left:
            messages, size = (int(left[f"Nats-Pending-{what}"][0]) for what in ("Messages", "Bytes"))
            self.credit.ended(messages, size, too_small=status == 409 and text.lower() == TOO_LARGE)
            self._hear()
            self.ask()
        elif self._retry_at != math.inf:
            if status != 503:
                logger.warning("%s: the server ended a request: %d %s", self._name, status, text)
            self._retry_at = math.inf
            self._changed.set()

    def _refused(self, status: int, pin: Pin) -> None:
        """Ask anew without the id that is not ours any more; what else happened is for whoever holds the pin to see."""
        if status == PIN_REFUSED:
            pin.forget()
            self.renew()
        else:
            pin.on_refused()

    async def _look_at_consumer(self) -> None:
        """Find out why requests are refused: is it gone, has it narrower limits? Then try again, after a pause."""
        session = self._session
        try:
            config = (await self._jetstream.request(self._info, timeout=LOOK_TIMEOUT))["config"]
            if target := config.get("deliver_subject"):
                raise ConfigError(f"{self._name} is a push consumer, it sends its messages to {target}: {PULL_ONLY}")
            self._respect(config)
        except ConfigError:
            raise
        except ConsumerNotFoundError as error:
            await self._missing(error)
        except StreamNotFoundError as error:
            self._gone(error)
        except NattyError as error:  # no leader, no connection: ask again later
            logger.warning("can't see %s: %s", self._name, error)
        if session is self._session:  # else a new connection has begun another one meanwhile
            self._retry_at = time.monotonic() + self._retry_delay
            self._retry_delay = min(2 * self._retry_delay, RETRY_DELAY_MAX)

    def _respect(self, config: dict[str, int]) -> None:
        """Stay within the consumer's limits of one request."""
        self.credit.limit(config.get("max_batch", 0), config.get("max_bytes", 0))
        longest = config.get("max_expires", 0) / NANOSECONDS or math.inf
        self._expires = min(self._options.expires, longest)
        self._heartbeat = min(self._options.heartbeat, self._expires / 2)

    async def _missing(self, error: ConsumerNotFoundError) -> None:
        """Make the consumer again if we may; else give somebody `GONE_AFTER` seconds to do so."""
        if self._recreate is None:
            self._gone(error)
            return
        logger.warning("%s is gone: making it again", self._name)
        try:
            await self._recreate()
        except ConsumerExistsError:
            raise
        except (ConsumerNotFoundError, StreamNotFoundError) as gone:
            self._gone(gone)
        except NattyError as failed:
            logger.warning("can't make %s: %s", self._name, failed)

    def _gone(self, error: NattyError) -> None:
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since >= GONE_AFTER:
            raise error

    def on_event(self, event: str) -> None:
        """Take note of what the connection tells."""
        if event == "connected":
            self.renew()
        elif event == "disconnected":
            self._expect()
        self._changed.set()

    def hand_back(self, messages: list[RawMessage]) -> None:
        """Have messages that nobody will see here delivered again, when we no longer wait for any ourselves."""
        answer = b'-NAK {"delay": %d}' % int(HAND_BACK_DELAY * NANOSECONDS)
        replies = [raw[1] for raw in messages if raw[1].startswith(ACKS)]
        try:
            if replies:
                self._connection.send_to_each(replies, answer)
        except NotConnectedError:
            logger.info("%d messages were not handed back: no connection; they come after ack_wait", len(replies))

    async def drain(self) -> None:
        """Stay until the server sends no more of what was asked for: what it sends to nobody waits for `ack_wait`.

        Not with a pin: its owner settles what is open before it lets go, and others wait for that meanwhile.
        """
        if self._pin:
            return
        loop = asyncio.get_running_loop()
        deadline, before = loop.time() + DRAIN_TIMEOUT, -1
        while 0 < self.credit.asked_messages != before and self._connection.connected and loop.time() < deadline:
            before = self.credit.asked_messages
            await asyncio.sleep(DRAIN_QUIET)
            try:
                await self._connection.flush(max(0.001, deadline - loop.time()))
            except NattyError:
                return

    def close(self) -> None:
        """End the session. What is on its way is handed back when it comes."""
        self.ended = True
        if self._session.subscription is not None:
            self._session.subscription.close(last=self.hand_back)


def _first_delivery(messages: list[RawMessage]) -> bytes:
    """Return how the ack subject of a message begins that is delivered for the first time; b"" if none is there.

    The count of deliveries is the fifth token, or the seventh behind a domain and an account (ADR-15). A line's end
    stands before it, as between subjects that are joined for counting: it can't be the middle of a forged one.
    """
    for _, reply, _, _ in messages:
        if reply.startswith(ACKS):
            tokens = reply.split(b".")
            return b"\n" + b".".join([*tokens[: 4 if len(tokens) < 11 else 6], b"1", b""])
    return b""
