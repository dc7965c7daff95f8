"""The pull loop of a durable consumer: it keeps requests for messages open at the server and bounds their memory."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

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
from natty.names import check_name
from natty.pulling.kept_acks import KeptAcks
from natty.pulling.pin import Pin
from natty.pulling.requests import PullCounts, PullOptions, Request, Requests, hand_back, read_status, split_statuses
from natty.wire.ack import ACK, IN_PROGRESS, line_of_first_deliveries, nak
from natty.wire.background import wait_until_set
from natty.wire.counters import PULL
from natty.wire.message import Batch, RawMessage

logger = logging.getLogger("natty.pull")

SHARES = 3  # requests that overlap, so that the server can serve one while the next is being sent
RECENT = 8  # batches over which the typical size of a message is averaged
RETRY_DELAY, RETRY_DELAY_MAX = 0.1, 1.0  # seconds until the next request if the server did not answer; they double
LOOK_TIMEOUT = 2.0  # seconds that the server has to answer CONSUMER.INFO
GONE_AFTER = 1.0  # seconds that other clients have to create a deleted consumer again
DRAIN_TIMEOUT = 1.0  # seconds to wait for requested messages when no more are wanted
DRAIN_QUIET = 0.02  # seconds without a message after which no more are expected
PULL_ONLY = "natty reads from pull consumers; create one, or subscribe to that subject"

Deliver = Callable[[list[RawMessage], int], None]
"""Receives messages as they arrive, and how many of them had been delivered before. It must not block."""


def size_of(messages: Iterable[RawMessage]) -> int:
    """Return the bytes of messages as the server counts them: subject, ack subject, headers and payload."""
    return sum([len(subject) + len(reply) + len(head) + len(data) for subject, reply, head, data in messages])


class Credit:
    """Messages and bytes that may be requested: the bounds minus those requested (asked) or unfinished (held).

    Both together never exceed the bounds, at any speed of the reader, with two exceptions: a message larger than
    `max_bytes` is requested alone, when no other is requested or held; and see `request`. Pure: no clock, no socket.
    Protocol: ADR-37 and ADR-13. If the server has no more messages for a request, or the next message doesn't fit, it
    ends the request with the messages and bytes left of it. If the bytes are used up exactly, it sends no status.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.asked_messages = 0
        self.asked_bytes: float = 0  # infinite while a request without a limit of bytes is open
        self.held_messages = self.held_bytes = 0
        self._request_messages = self._request_bytes = math.inf  # the consumer's own limits of one request
        self._alone = False  # whether only one request may be open
        self._lots: deque[tuple[int, int]] = deque()  # (messages, bytes) held, oldest first
        self._typical = self._last = 0.0  # average bytes of a message, and of the last ones
        self._refused = 0  # bytes that were too few for the next message

    def __repr__(self) -> str:
        asked = f"{self.asked_messages} ({self.asked_bytes} bytes) asked"
        return f"Credit({asked}, {self.held_messages} ({self.held_bytes} bytes) unfinished)"

    def limit(self, messages: int, size_bytes: int, open_requests: int = 0) -> None:
        """Set the consumer's limits of requests, `max_batch`, `max_bytes`, `max_waiting`; 0 or less: no limit."""
        self._alone = 0 < open_requests < SHARES  # the server drops requests beyond `max_waiting` without a status
        self._request_messages = messages if messages > 0 else math.inf
        self._request_bytes = size_bytes if size_bytes > 0 else math.inf

    def request(self, required: int = 0) -> Request | None:
        """Return the next request and count it as asked; None if there is no room, or too little for a request.

        `required` is how many messages must come before others can be finished. If there is no room for them, they are
        requested beyond the bounds, once nothing else is requested.
        """
        at_once = min(self.max_messages, SHARES * self._request_messages)
        messages = int(min(self.max_messages - self.held_messages, at_once) - self.asked_messages)
        size = self.max_bytes - self.asked_bytes - self.held_bytes
        enough = messages > 0 and self._refused < min(self.max_bytes, self._request_bytes)
        enough = enough and self._last <= self._request_bytes and not (self._alone and self.asked_messages)
        if self.asked_messages or self.held_messages:
            enough_bytes = max(self.max_bytes // SHARES, min(2 * self._refused, self.max_bytes), 1)
            enough = enough and messages >= at_once // SHARES and size >= enough_bytes
        else:
            required = required or 1
        if enough:
            return self._size_request(messages, size)
        if self.asked_messages or not required:
            return None
        self.asked_messages, self.asked_bytes = int(min(required, self._request_messages)), math.inf
        return Request(self.asked_messages, 0)

    def _size_request(self, messages: int, size: float) -> Request:
        """Return a request for a share of the bytes, and for no more messages than fill it if bytes are scarce."""
        if not self._refused:
            size = min(size, max(self.max_bytes // SHARES, int(2 * self._typical), 1))
        size = int(min(size, self._request_bytes))
        if self._typical:
            messages = min(messages, max(1, int(2 * size / self._typical)))
        batch = int(min(messages, self._request_messages))
        self.asked_messages += batch
        self.asked_bytes += size
        return Request(batch, size)

    def fits(self, messages: int, size_bytes: int) -> bool:
        """Return whether this much more can be held beside everything asked and held."""
        messages += self.asked_messages + self.held_messages
        return messages <= self.max_messages and self.asked_bytes + self.held_bytes + size_bytes <= self.max_bytes

    def hold(self, messages: int, size_bytes: int, *, asked: bool = True) -> None:
        """Hold messages; `asked` is False for messages of forgotten requests."""
        if asked:
            self._return_credit(messages, size_bytes)
        self._refused = 0
        self._last = size_bytes / messages
        self._typical += (self._last - self._typical) / (RECENT if self._typical else 1)
        self.held_messages += messages
        self.held_bytes += size_bytes
        self._lots.append((messages, size_bytes))

    def end_request(self, messages: int, size_bytes: int, *, too_small: bool = False) -> None:
        """End a request with this much of it left; `too_small` if the next message is larger than the bytes left."""
        if too_small:
            self._refused = max(self._refused, size_bytes, 1)
        if messages or not self._alone:  # a complete one was counted when its last message came; the next may be open
            self._return_credit(messages, size_bytes)

    def forget(self) -> None:
        """Forget all requests."""
        self.asked_messages = self.asked_bytes = 0

    def finish(self, messages: int, size_bytes: int | None = None) -> None:
        """Free the room of held messages. Without their size it takes the oldest's, exact if finished in order."""
        self.held_messages -= messages
        oldest = self._take(messages)
        self.held_bytes -= oldest if size_bytes is None else size_bytes
        if self.held_messages <= 0:
            self.held_messages = self.held_bytes = 0
            self._lots.clear()

    def _take(self, messages: int) -> int:
        """Remove the oldest held messages; return their bytes, those of a part of a lot by proportion."""
        size = 0
        while messages > 0 and self._lots:
            count, lot = self._lots.popleft()
            part = lot if count <= messages else lot * messages // count
            if count > messages:
                self._lots.appendleft((count - messages, lot - part))
            size += part
            messages -= count
        return size

    def _return_credit(self, messages: int, size_bytes: int) -> None:
        self.asked_messages -= messages
        self.asked_bytes -= size_bytes
        if self.asked_messages <= 0 or self.asked_bytes <= 0:  # one without the other requests nothing
            self.asked_messages = self.asked_bytes = 0


class _Session:
    """One inbox. Messages that arrive in an older inbox are delivered if there is room, and have no other effect."""

    def __init__(self) -> None:
        self.first = b""  # a line break and the prefix of ack subjects of first deliveries
        self.requests: Requests | None = None


class Pull:
    """The pull loop of a durable consumer: `async for batch in pull`, then `finish(...)` for finished messages.

    Requests overlap, so the server never waits for us while there is credit. After a lost session, a server restart or
    missed heartbeats it uses a new inbox and new requests, independently of the reader; lost messages are delivered
    again after `ack_wait`. Closing the connection stops it, after messages that were not yielded are handed back. If
    `deliver` is set, messages go there as they arrive, and `run` replaces iteration.
    BadNameError for a name that no stream or consumer can have.
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
        pin: Pin | None = None,
    ) -> None:
        self.stream, self.durable = check_name("stream", stream), check_name("consumer", durable)
        self.options = options = options or PullOptions()
        self.counts = PullCounts()
        self._credit = Credit(options.max_messages, options.max_bytes)
        self._name = f"consumer {stream}/{durable}"
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self.kept_acks = KeptAcks(jetstream, stream, durable, lambda: self._sign)
        self._recreate, self._on_stop, self._pin = recreate, on_stop, pin
        self.deliver: Deliver | None = None
        self._fault: Exception | None = None  # of `deliver`
        self._arrived: list[Batch] = []
        self._wake = asyncio.Event()
        self._begun = self._stopping = False  # when it stops, messages that still arrive are handed back
        self._expires, self._heartbeat = options.expires, options.heartbeat
        self._changed = asyncio.Event()
        self._session = _Session()
        self._inboxes: set[Requests] = set()  # open ones: the session's, and for a while those of earlier sessions
        self._owed = False  # whether the server has to send messages or heartbeats
        self._sign = self._heard = 0.0  # when it sent the last one, or (the second) began to owe one; monotonic clock
        self._renewed = self._gone_since = 0.0
        self._retry_at = 0.0  # no requests before this time; 0: no wait; infinite: look at the consumer first
        self._retry_delay = RETRY_DELAY

    def __repr__(self) -> str:
        state = "stopping" if self._stopping else "stalled" if self.stalled else "running"
        return f"Pull({self.stream}/{self.durable}, {state}, {self._credit!r})"

    async def __aiter__(self) -> AsyncGenerator[Batch, None]:
        """Yield batches until `stop`, or until the connection is closed. Once.

        ConsumerNotFoundError, StreamNotFoundError: it was deleted. ConnectionClosedError: closed before it began;
        NotConnectedError: the client was not opened. RuntimeError: iterated over a second time.
        """
        self.check_unused()
        self._begun = True
        if not self._connection.supervised:
            raise self._connection.no_session()
        self.kept_acks.begin()  # before the next line: acks are sent before requests
        self._connection.listeners.append(self._on_event)
        self._connection.leaving.append(self._leave)
        self._connection.observed.add(self, PULL, self.stream, self.durable)
        healing = asyncio.create_task(self._heal(), name=f"natty pull {self.stream}/{self.durable}")
        healing.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._stopping:
                await self._wait_for_arrival(healing)
                if self._stopping:
                    break
                if self._fault is not None:
                    raise self._fault
                if healing.done() and not self._arrived:
                    await healing  # raises the error that ended it
                if self._arrived or self.options.tick is not None:
                    batches, self._arrived = self._arrived, []
                    yield Batch.join(batches, self.kept_acks.sender())
        finally:
            healing.cancel()
            await self._end()
            await asyncio.gather(healing, return_exceptions=True)

    async def run(self) -> None:
        """Deliver until `stop`. Raises as iteration does, and errors of `deliver`."""
        async with aclosing(self.__aiter__()) as nothing:
            async for _ in nothing:
                pass

    def check_unused(self) -> None:
        """RuntimeError if an iteration has begun before, since only one is possible."""
        if self._begun:
            raise RuntimeError(f"{self!r} can be used only once: call consume() or pull() again")

    @property
    def stopping(self) -> bool:
        """Whether it has been stopped."""
        return self._stopping

    @property
    def stalled(self) -> bool:
        """Whether the server has sent nothing for two heartbeats: silent, unreachable, or the consumer is missing.

        It is also updated while the reader holds a batch. False if the credit is used up, so that nothing is expected.
        """
        return self.stalled_since is not None

    @property
    def stalled_since(self) -> float | None:
        """Unix time in seconds when the server was heard last; None while not `stalled`."""
        silence = time.monotonic() - self._heard
        return time.time() - silence if self._owed and not self._stopping and silence >= 2 * self._heartbeat else None

    def stop(self) -> None:
        """End the iteration after the current batch, and hand back at once what was not yielded. From any thread."""
        self._connection.call_on_loop(self._stop)

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._wake.set()
            self._changed.set()
            self._on_stop()

    def finish(self, messages: int, size_bytes: int | None = None) -> None:
        """Give credit back: this many messages no longer need memory.

        `size_bytes` is their size as `size_of` counts it. Without it, the size of the messages that came first is used:
        exact if the caller finishes in order; otherwise `max_bytes` may be exceeded while the first ones take long.
        """
        self._connection.check_thread()
        self._credit.finish(messages, size_bytes)
        self._ask()

    def require(self, messages: int) -> None:
        """Request messages that must come before others can be finished: beyond the bounds if there is no room."""
        self._connection.check_thread()
        self._ask(messages)

    def ack(self, replies: list[bytes], valid: Callable[[], bool] | None = None) -> None:
        """Acknowledge messages, joined into one write.

        Without a connection the acks are kept, and sent when it is back: if `valid` returns True then, or, without it,
        if the consumer was not made anew meanwhile. Others, and those of a pull that has ended, are dropped with a
        warning: the server delivers these messages again.
        """
        try:
            self._connection.send_to_each(replies, ACK)
        except NotConnectedError:
            self.kept_acks.keep(replies, valid)

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        """Hand messages back, to be delivered again after `delay` seconds."""
        self._connection.send_to_each(replies, nak(delay))

    def hand_back(self, replies: Iterable[bytes]) -> None:
        """Request another delivery of messages that this client no longer handles; see `requests.hand_back`."""
        hand_back(self._connection, replies)

    def in_progress(self, replies: list[bytes]) -> None:
        """Restart `ack_wait` of messages that are still being handled."""
        self._connection.send_to_each(replies, IN_PROGRESS)

    def keep_waiting(self) -> None:
        """Restart `ack_wait` of messages that are not yielded yet."""
        self.in_progress([reply for batch in self._arrived for reply in batch.replies])

    async def _wait_for_arrival(self, healing: asyncio.Task[None]) -> None:
        """Wait for messages, a tick, a stop or a fault, or the end of `healing`."""
        while not (self._arrived or self._stopping or self._fault or healing.done()):
            self._wake.clear()
            if not await wait_until_set(self._wake, self.options.tick):
                return

    def _on_event(self, event: str) -> None:
        if event == "closed":
            self.stop()
        elif event == "connected":
            self.renew()
        elif event == "disconnected":
            self._close_inboxes()  # in the next session the server would serve the requests of an open one again
            self._expect()
        self._changed.set()

    async def _leave(self) -> None:
        """Stop, hand back messages that were not yielded, and wait until requested ones are handed back, too."""
        self.stop()
        batches, self._arrived = self._arrived, []
        self._hand_back(Batch.join(batches))
        await self._drain()

    async def _end(self) -> None:
        self._connection.listeners.remove(self._on_event)
        self._connection.leaving.remove(self._leave)
        try:
            await self._leave()
        finally:
            self._close_inboxes()
            self.kept_acks.end()
            self._connection.observed.retire(self)

    def _close_inboxes(self) -> None:
        while self._inboxes:
            self._close_inbox(next(iter(self._inboxes)))

    def _close_inbox(self, requests: Requests) -> None:
        self._inboxes.discard(requests)
        requests.close(last=self._hand_back)

    def _hand_back(self, batch: Batch) -> None:
        self.hand_back(batch.replies)

    async def _heal(self) -> None:
        """Keep requests open until `stop`. ConsumerNotFoundError, StreamNotFoundError: it was deleted."""
        self.renew()
        while True:
            self._changed.clear()
            await wait_until_set(self._changed, self._next_look(time.monotonic()))
            if self._stopping:
                return
            if self._retry_at == math.inf:
                await self._look_at_consumer()
            elif self._connection.connected:
                self._look_after(time.monotonic())

    def _next_look(self, now: float) -> float | None:
        """Return the seconds until the next check; None: not before an event."""
        if self._retry_at == math.inf:
            return 0.0
        if not self._connection.connected or not (self._retry_at or self._credit.asked_messages):
            return None
        return max(0.001, (self._retry_at or self._silent_at) - now)

    @property
    def _silent_at(self) -> float:
        """Time at which two heartbeats of this session count as missed."""
        return max(self._heard, self._renewed) + 2 * self._heartbeat

    def _look_after(self, now: float) -> None:
        if self._retry_at:
            if now >= self._retry_at:
                self.renew()
        elif self._credit.asked_messages and now >= self._silent_at:
            logger.warning("%s missed two heartbeats: sending a new request", self._name, extra={"action": "renew"})
            self.renew()

    def renew(self) -> None:
        """Begin a session with a new inbox and new requests. The previous inbox stays open for another heartbeat.

        After a lost connection it is closed already: messages would come to both inboxes, and out of order.
        """
        if self._stopping:
            return
        if self._session.requests is not None:
            self.counts.renewals += 1
            if self._pin and self._pin.id:
                self._pin.on_renewed()
            asyncio.get_running_loop().call_later(self._heartbeat, self._close_inbox, self._session.requests)
        session = self._session = _Session()
        session.requests = Requests(
            self._jetstream, self.stream, self.durable, lambda batch: self._receive(session, batch)
        )
        self._inboxes.add(session.requests)
        self._renewed = time.monotonic()
        self._retry_at = 0.0
        self._credit.forget()
        self._ask()
        if self._connection.connected:
            self._owed = self._credit.asked_messages > 0
        else:
            self._expect()

    def _ask(self, required: int = 0) -> None:
        """Send the requests that the credit allows, if any; see `Credit.request`."""
        requests, pin = self._session.requests, self._pin
        if requests is None or self._stopping or self._retry_at or not self._connection.connected:
            return
        # one request until we are pinned: the server keeps those without our id waiting then
        while not (pin and not pin.id and self._credit.asked_messages) and (request := self._credit.request(required)):
            fields = pin.fields() if pin else None
            requests.ask(
                request.batch, self._expires, heartbeat=self._heartbeat, max_bytes=request.max_bytes, pin=fields
            )
            self.counts.requests += 1
            self._expect()

    def _expect(self) -> None:
        """Expect messages or heartbeats from the server from now on."""
        if not self._owed:
            self._owed, self._heard = True, time.monotonic()
            self._changed.set()

    def _hear(self) -> None:
        """Record that the server has sent something."""
        if since := self.stalled_since:
            logger.info("%s answers again after %.1f s", self._name, time.time() - since, extra={"action": "healed"})
        self._sign = self._heard = time.monotonic()
        self._owed = self._credit.asked_messages > 0
        self._retry_delay, self._gone_since = RETRY_DELAY, 0.0

    def _receive(self, session: _Session, batch: Batch) -> None:
        first = session.first = session.first or line_of_first_deliveries(batch.replies)
        firsts = b"\n".join([b"", *batch.replies]).count(first) if first else 0
        data, statuses = (batch, ()) if firsts == len(batch) else split_statuses(batch)
        current = session is self._session
        if data:
            if self._pin and current:
                self._pin.note_delivery(data.header_blocks[0])
            self._take(data, len(data) - firsts, current=current)
        for raw in statuses if current else ():
            if not raw[1]:
                self._read_status(raw)

    def _take(self, data: Batch, again: int, *, current: bool) -> None:
        if not current and not self._credit.fits(len(data), data.size):
            self._hand_back(data)
            return
        self._credit.hold(len(data), data.size, asked=current)
        if self._stopping:
            self._hand_back(data)
            return
        counts, pauses = self.counts, self._connection.read_pauses
        counts.delivered += len(data)
        counts.delivered_bytes += data.size
        counts.redelivered += again
        pauses.wanted = max(pauses.wanted, self.options.read_pause)
        self._hear()
        if self.deliver is None:
            self._arrived.append(data)
            self._wake.set()
            return
        try:
            self.deliver(data.raw, again)
        except Exception as fault:
            self._fault = fault
            self._wake.set()

    def _read_status(self, raw: RawMessage) -> None:
        """Handle a status: a heartbeat, the end of a request with the rest of it, or a fault."""
        status, pin = read_status(raw), self._pin
        if status.is_heartbeat:
            self._hear()
        elif pin and status.is_pin_refused:  # send new requests without the id, which is not ours any more
            pin.forget()
            self.renew()
        elif status.messages is not None:
            self._credit.end_request(status.messages, status.size_bytes, too_small=status.is_too_large)
            self._hear()
            self._ask()
        elif pin or self._retry_at != math.inf:
            if status.code != 503 and not self._stopping:
                level = logging.INFO if pin else logging.WARNING  # a group that changes deletes consumers
                logger.log(level, "%s: the server ended a request: %d %s", self._name, status.code, status.text)
            if pin:
                pin.on_refused()
            else:
                self._retry_at = math.inf
                self._changed.set()

    async def _look_at_consumer(self) -> None:
        """Find out why requests are refused (a missing consumer, lower limits), then try again after a pause."""
        session, info = self._session, f"CONSUMER.INFO.{self.stream}.{self.durable}"
        try:
            config = (await self._jetstream.request(info, timeout=LOOK_TIMEOUT))["config"]
            if target := config.get("deliver_subject"):
                raise ConfigError(f"{self._name} is a push consumer, it sends its messages to {target}: {PULL_ONLY}")
            self.respect(config)
        except ConfigError:
            raise
        except ConsumerNotFoundError as error:
            await self._recreate_consumer(error)
        except StreamNotFoundError as error:
            self._give_up_if_gone(error)
        except NattyError as error:  # no leader or no connection: try again later
            logger.warning("can't read the configuration of %s: %s", self._name, error)
        if session is self._session:  # otherwise a new connection has begun another one meanwhile
            self._retry_at = time.monotonic() + self._retry_delay
            self._retry_delay = min(2 * self._retry_delay, RETRY_DELAY_MAX)

    def respect(self, config: dict[str, int]) -> None:
        """Apply the consumer's limits of requests: with a pin, or a low `max_waiting`, before it begins to read."""
        self._credit.limit(*(config.get(name, 0) for name in ("max_batch", "max_bytes", "max_waiting")))
        longest = config.get("max_expires", 0) / NANOSECONDS or math.inf
        self._expires = min(self.options.expires, longest)
        self._heartbeat = min(self.options.heartbeat, self._expires / 2)

    async def _recreate_consumer(self, error: ConsumerNotFoundError) -> None:
        """Create the consumer again if we may; otherwise wait `GONE_AFTER` seconds for another client to do so."""
        if self._recreate is None:
            self._give_up_if_gone(error)
            return
        logger.warning("%s does not exist any more: creating it again", self._name)
        try:
            await self._recreate()
        except ConsumerExistsError:
            raise
        except (ConsumerNotFoundError, StreamNotFoundError) as gone:
            self._give_up_if_gone(gone)
        except NattyError as failed:
            logger.warning("can't create %s: %s", self._name, failed)

    def _give_up_if_gone(self, error: NattyError) -> None:
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since >= GONE_AFTER:
            raise error

    async def _drain(self) -> None:
        """Wait until the server sends no more requested messages: if no inbox receives them, they wait for `ack_wait`.

        With a pin, return at once: its owner has settled all messages, and other clients wait for it to leave.
        """
        if self._pin:
            return
        loop = asyncio.get_running_loop()
        deadline, before = loop.time() + DRAIN_TIMEOUT, -1
        while 0 < self._credit.asked_messages != before and self._connection.connected and loop.time() < deadline:
            before = self._credit.asked_messages
            await asyncio.sleep(DRAIN_QUIET)
            try:
                await self._connection.flush(max(0.001, deadline - loop.time()))
            except NattyError:
                return
