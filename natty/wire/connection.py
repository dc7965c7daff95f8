"""The supervised connection: one session at a time, subscriptions, requests, and what is sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import lru_cache
from threading import get_ident
from typing import Any

from natty.config.settings import Config, beside, redact
from natty.config.units import check_seconds
from natty.errors import (
    AuthorizationError,
    ConnectionClosedError,
    NattyError,
    NoRespondersError,
    NotConnectedError,
    PayloadTooLargeError,
    RequestTimeoutError,
    WrongLoopError,
)
from natty.names import check_line, decode, pattern_word, subject_word, wire_word
from natty.wire.background import keep_up, wait_until_set
from natty.wire.connect_errors import connect_error
from natty.wire.counters import Observed
from natty.wire.lifetime import Lifetime
from natty.wire.message import Batch, Numbered, Outgoing, RawMessage, Sink, as_payload, check, status_of
from natty.wire.read_pauses import ReadPauses
from natty.wire.refused_subscriptions import RefusedSubscriptions
from natty.wire.repeated import Refusals, Repeated
from natty.wire.servers import version_of
from natty.wire.session import Session, Subscription

logger = logging.getLogger("natty.connection")

DEFAULT_MAX_PAYLOAD = 1024 * 1024  # bytes
RECONNECT_DELAY = 0.1  # seconds before the second round over the servers; doubles up to the next line
RECONNECT_DELAY_MAX = 2.0
SETTLED = 5.0  # seconds after which a session counts as one that works; after a shorter one there is a pause
TOKENS = 256  # of reply subjects, that are drawn at a time
TOKEN_LENGTH = 24  # hexadecimal digits: 96 random bits
_request_word = lru_cache(maxsize=4096, typed=True)(subject_word)  # most requests go to a few subjects
CLOSE_TIMEOUT = 2.0  # seconds that closing waits for those who leave, and for the server to have taken what was sent


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

    def deliver(self, batch: Batch) -> None:
        """Give each answer to the request that it belongs to. This is the sink of `subject`."""
        for raw in batch.raw:
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


class Connection:
    """A supervised connection to a NATS cluster.

    It has one session at a time. When a session ends (server gone, half-open socket, any `-ERR`), it opens another one
    and subscribes again. Requests in flight fail at once; `listeners` are called with "disconnected", "connected" and
    "closed". If the configuration requires TLS, it sends nothing in plain text.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.state = "new"  # new, opening, connected, disconnected, closed
        self.lifetime = Lifetime()
        self.listeners: list[Callable[[str], None]] = []
        self.leaving: list[Callable[[], Awaitable[None]]] = []  # awaited together before the connection is closed
        self.refusals, self._repeated = Refusals(logger), Repeated(logger)
        self.observed = Observed()  # what pulls, publishers and elections have counted
        self.read_pauses = ReadPauses()
        self.reconnects = 0
        self._session: Session | None = None
        self._servers, self._url = list(config.servers), ""
        self.max_payload = DEFAULT_MAX_PAYLOAD  # bytes of headers and data that the server takes in one message
        self._subscriptions: dict[bytes, Subscription] = {}
        self._last_of: dict[bytes, Subscription] = {}  # closed ones, until the server knows
        self._refused = RefusedSubscriptions(self._subscriptions, self._flush, config.timeout)
        self._repair: asyncio.Task[None] | None = None  # sends them again
        self._tasks: set[asyncio.Task[None]] = set()  # that end with the connection
        self._next_sid, self._answers_sid = 1, b""  # the second is that of the subscription to our inbox
        self._out: list[Outgoing] = []
        self._alert, self._connected = asyncio.Event(), asyncio.Event()  # the first wakes `_watch`
        self._supervisor: asyncio.Task[None] | None = None
        self._last_error: Exception | None = None
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that it was opened on
        self._thread = 0  # the thread of that loop while there is a session, otherwise 0: one check for `put`
        self._confirming: set[asyncio.Task[RawMessage]] = set()
        self._requests = Answers(self.new_inbox())
        self.refusals.listeners.append(self._requests.refuse)

    def __repr__(self) -> str:
        return f"Connection({self.state}, {redact(self._url) or 'no server'}, {len(self._subscriptions)} subscriptions)"

    @property
    def connected(self) -> bool:
        """Whether a session is up."""
        return self.state == "connected"

    @property
    def supervised(self) -> bool:
        """Whether there is a session or will be one: the connection is open or being opened, and not closed."""
        return self.state not in ("new", "closed")

    @property
    def gets_no_answers(self) -> bool:
        """Whether the server refuses the subscription to our inbox: requests are sent, and no answer can arrive."""
        return self._answers_sid in self._refused.ids

    def is_refused(self, subscription: Subscription) -> bool:
        """Return whether the server does not permit it now, as far as it has answered: `flush` before."""
        return b"%d" % subscription.sid in self._refused.ids

    @property
    def server_info(self) -> dict[str, Any]:
        """The server's INFO: version, max_payload, jetstream, …"""
        return self._session.info if self._session else {}

    @property
    def server_certificate(self) -> dict[str, Any]:
        """The server's TLS certificate as `ssl` shows it; empty without TLS."""
        return self._session.certificate if self._session else {}

    @property
    def server_version(self) -> tuple[int, ...]:
        """The server's version, for instance (2, 15, 1)."""
        return version_of(str(self.server_info.get("version", "0")))

    def new_inbox(self) -> bytes:
        """Return a subject that no other client uses or can guess, without a trailing dot."""
        return b"%b.%b" % (self.config.inbox_prefix.encode(), secrets.token_hex(16).encode())

    def is_inbox(self, subject: bytes) -> bool:
        """Return whether this is below our inbox prefix: check it before you send to a subject that others named."""
        return subject.startswith(self.config.inbox_prefix.encode() + b".")

    async def open(self) -> Connection:
        """Connect to the first server that answers, and stay connected from then on. Does nothing if it is open.

        Each server is tried once. ConnectError names each one and what was wrong with it; AuthorizationError,
        ConfigError, TLSRequiredError or TLSHandshakeError if that was the reason. ConnectionClosedError after `close`.
        """
        self.check_loop()
        async with self._opening:
            if self.state == "closed":
                raise ConnectionClosedError("this client was closed and can't be opened again: create another one")
            if self._supervisor is None:
                self.state, self._loop = "opening", asyncio.get_running_loop()
                await self._connect_any()
                self._answers_sid = b"%d" % self.subscribe(self._requests.subject, self._requests.deliver).sid
                supervision = keep_up("the supervision of a connection", self._supervise)
                self._supervisor = asyncio.create_task(supervision, name="natty connection")
        return self

    async def _connect_any(self) -> None:
        failures: list[tuple[str, Exception]] = []
        for url in list(self._servers):
            try:
                await self._connect(url)
                return
            except ConnectionClosedError:
                raise
            except Exception as error:  # of any kind: connect_errors translates it
                failures.append((url, error))
                self._servers.append(self._servers.pop(self._servers.index(url)))
        self._last_error = connect_error(failures, self.config)
        raise self._last_error from failures[0][1]

    async def _connect(self, url: str) -> None:
        session = Session(self.config, self._dispatch, self._on_session_end, self._on_notice, self.read_pauses)
        await session.open(url)
        if self.state == "closed":  # meanwhile
            session.abort()
            raise ConnectionClosedError("the client was closed while it connected")
        self.refusals.begin()
        self._session, self._url, self.state, self._thread = session, url, "connected", get_ident()
        self.max_payload = int(session.info.get("max_payload", DEFAULT_MAX_PAYLOAD))
        self._discover()
        self._refused.ids.clear()
        for subscription in self._subscriptions.values():
            session.subscribe(subscription.sid, subscription.subject, subscription.queue)
        self._connected.set()

    def _discover(self) -> None:
        """Add the servers that this session has named to the list of those to connect to."""
        if self._session is not None and not self.config.ignore_discovered_servers:
            others = (beside(self._url, address) for address in self._session.discovered)
            self._servers += [other for other in dict.fromkeys(others) if other not in self._servers]

    def _on_session_end(self, error: Exception) -> None:
        if self.state != "connected":
            return
        self.state, self._thread, self._last_error = "disconnected", 0, error
        self._connected.clear()
        self._alert.set()
        self._out.clear()
        self._requests.fail(NotConnectedError, f"the connection was lost before the answer came: {error}")
        logger.warning("connection to %s lost: %s", redact(self._url), error, extra={"action": "disconnected"})
        self._report("disconnected")

    def _on_notice(self, text: str) -> None:
        """Take into account what the server does not permit, in its words."""
        self.refusals.add(text)
        if self._refused.add(text) and (self._repair is None or self._repair.done()):
            self._repair = self._start(keep_up("subscribing again", self._refused.subscribe_again))

    async def _supervise(self) -> None:
        loop, delay = asyncio.get_running_loop(), RECONNECT_DELAY
        while True:
            began = loop.time()
            await self._watch()
            self._discover()  # what it has said since it began
            if loop.time() - began > SETTLED:
                delay = RECONNECT_DELAY
            else:  # the next one may end in the same way
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(2 * delay, RECONNECT_DELAY_MAX)
            while not self.connected:
                try:
                    await self._connect_any()
                except NattyError as error:
                    text = f"still not connected: {error}"
                    self._repeated.warning(text, text, extra={"action": "reconnect"})
                    await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                    delay = min(2 * delay, RECONNECT_DELAY_MAX)
            self._repeated.finish()
            self.reconnects += 1
            logger.info("reconnected to %s", redact(self._url), extra={"action": "reconnected"})
            self._report("connected")

    def set_ping_interval(self, seconds: float) -> None:
        """Change the `ping_interval` at once: also of the session that is up. WrongLoopError."""
        self.check_loop()
        self.config = replace(self.config, ping_interval=seconds)
        self._alert.set()

    async def _watch(self) -> None:
        """Return when the session has ended; end it when the server stops answering."""
        heard = (clock := asyncio.get_running_loop().time)()
        while self.connected and (session := self._session):
            self._alert.clear()
            if await wait_until_set(self._alert, max(0.0, heard + self.config.ping_interval - clock())):
                continue
            try:
                await session.ping(self.config.ping_interval)
                heard = clock()
            except (OSError, NattyError) as error:  # a time-out is an OSError
                session.abort()
                self._on_session_end(error if str(error) else ConnectionResetError("the server does not answer"))

    def _report(self, event: str) -> None:
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed on %r", event, extra={"action": "listener_failed"})

    def _dispatch(self, sid: bytes, batch: Batch) -> None:
        subscription = self._subscriptions.get(sid) or self._last_of.get(sid)
        if subscription is not None:
            try:
                subscription.sink(batch)
            except Exception:
                text = "the receiver of %s failed; its %d messages are dropped"
                logger.exception(text, subscription, len(batch), extra={"action": "sink_failed"})

    async def ready(self, timeout: float | None = None) -> None:
        """Return when a session is up. NotConnectedError after `timeout` seconds (default: the configured one)."""
        self.check_loop()
        if self.supervised and not self.connected:
            try:
                async with asyncio.timeout(self.config.timeout if timeout is None else timeout):
                    await self._connected.wait()
            except TimeoutError:
                reason = self._last_error or "the first attempt has not ended yet"
                raise NotConnectedError(f"no server answers: {reason}") from self._last_error
        if not self.connected:
            raise self.no_session()

    def check_loop(self) -> None:
        """WrongLoopError in another thread, or on another event loop, than the one that the connection lives on."""
        if self._loop is not None and asyncio._get_running_loop() is not self._loop:
            raise self.wrong_loop()

    def check_thread(self) -> None:
        """WrongLoopError in another thread: cheaper than `check_loop` while there is a session."""
        if get_ident() != self._thread:
            self.check_loop()

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Call a function at once; from another thread or event loop, on the connection's own loop, without waiting."""
        if self._loop is None or self._loop.is_closed() or asyncio._get_running_loop() is self._loop:
            function()
        else:
            self._loop.call_soon_threadsafe(function)

    def wrong_loop(self) -> WrongLoopError:
        """Return the error for a use from another thread or event loop."""
        return WrongLoopError(
            "this client was used from another thread or event loop than the one that opened it: use natty.blocking, or"
            " hand the call to its loop with asyncio.run_coroutine_threadsafe(…, loop)"
        )

    def no_session(self) -> NotConnectedError:
        """Return the error for what needs a session while there is none."""
        if self.state == "new":
            return NotConnectedError(
                "this client was not opened: use `async with Natty(...)` or `await Natty.connect()`"
            )
        return ConnectionClosedError() if self.state == "closed" else NotConnectedError()

    def send(self, subject: str | bytes, data: bytes = b"", *, reply: bytes = b"", headers: bytes = b"") -> None:
        """Publish, joined with all that is sent in this turn of the loop. `headers` is a raw block.

        NotConnectedError without a session: nothing is buffered. If it must be stored, publish it and await the ack.
        TypeError, BadSubjectError, PayloadTooLargeError: this message can't be sent; others are not affected.
        """
        word = wire_word(subject) if type(subject) is bytes else subject_word(subject)
        self.put(check((word, reply and wire_word(reply), headers, data)))

    def put(self, message: Outgoing) -> None:
        """Publish one message in the form that `check` returns; otherwise as `send`.

        This is the hot path and checks no types: a message that is not bytes is dropped and logged when it is written.
        """
        if get_ident() != self._thread:  # cheaper than the loop, which is compared once a turn
            raise self.wrong_loop() if self.state == "connected" else self.no_session()
        if len(message[2]) + len(message[3]) > self.max_payload:
            self._check_size(message)
        if not self._out:
            self.check_loop()
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(message)

    def _check_size(self, message: Outgoing) -> None:
        if (size := len(message[2]) + len(message[3])) > self.max_payload:
            text = f"a message of {size} bytes on {decode(message[0])} is over the server's max_payload of"
            raise PayloadTooLargeError(f"{text} {self.max_payload}")

    def send_many(self, messages: list[Outgoing]) -> None:
        """Publish several, in order; as `send`. If one of them is too large or of a wrong type, none is sent."""
        if self.state != "connected":
            raise self.no_session()
        self.check_loop()
        for message in (messages := [check(message) for message in messages]):
            self._check_size(message)
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += messages

    def send_to_each(self, subjects: list[bytes], data: bytes) -> None:
        """Publish the same few bytes on many subjects, in order and at once: acks. As `send`."""
        session = self._write_waiting()
        if subjects:
            session.publish_to_each(subjects, as_payload(data))

    def send_numbered(self, messages: Sequence[Numbered], reply: bytes, first: int) -> None:
        """Publish messages at once; their reply subjects are `reply`, with a number from `first` on for its "%d".

        They are in the form that `check` returns, and not larger than `max_payload`. Otherwise as `send`.
        """
        self._write_waiting().publish_numbered(messages, reply, first)

    def _write_waiting(self) -> Session:
        """Write what waits, and return the session that it went to. NotConnectedError without one."""
        self.check_loop()
        if (session := self._flush()) is None:
            raise self.no_session()
        return session

    def _flush(self) -> Session | None:
        """Write what waits and return the session it went to. Without a session it is lost, and the result is None."""
        out, self._out = self._out, []
        session = self._session if self.connected else None
        if out and session is not None:
            try:
                session.publish(out)
            except TypeError:  # nothing is written yet
                self._write_each(out, session)
            except Exception as error:
                session.abort()
                self._on_session_end(error)
                return None
        return session

    def _write_each(self, out: list[Outgoing], session: Session) -> None:
        for message in out:
            try:
                session.publish([message])
            except TypeError:
                text = "a message on %r is dropped: its subject, header and data must be bytes"
                logger.exception(text, message[0], extra={"action": "not_bytes"})

    async def drain(self) -> None:
        """Return when the socket can take more: await it between large sends. NotConnectedError."""
        session = self._write_waiting()
        try:
            await session.drain()
        except OSError as error:
            raise NotConnectedError(f"the connection was lost: {error}") from error

    async def flush(self, timeout: float | None = None) -> None:
        """Return when the server has taken all that was sent. RequestTimeoutError; may be cancelled at any moment."""
        await self.ready(timeout)
        session = self._write_waiting()
        try:
            await session.ping(self.config.timeout if timeout is None else timeout)
        except TimeoutError:
            raise RequestTimeoutError("the server did not answer a ping in time") from None
        except (OSError, NattyError) as error:
            raise NotConnectedError(f"the connection was lost: {error}") from error

    def subscribe(self, subject: str, sink: Sink, *, queue: str = "") -> Subscription:
        """Hand every message of a subject to `sink`, in this session and the ones that follow, until closed.

        While the server refuses it, it is sent again every few seconds. BadSubjectError if the subject or the queue is
        not valid, or longer than a server reads.
        """
        self.check_loop()
        subject_bytes, queue_bytes = pattern_word(subject), wire_word(queue) if queue else b""
        check_line(subject_bytes, queue_bytes, b"%d" % self._next_sid)
        subscription = Subscription(self._unsubscribe, self._next_sid, subject_bytes, sink, queue_bytes)
        self._next_sid += 1
        self._subscriptions[b"%d" % subscription.sid] = subscription
        if (session := self._flush()) is not None:
            session.subscribe(subscription.sid, subscription.subject, subscription.queue)
        return subscription

    def _unsubscribe(self, subscription: Subscription, last: Sink | None) -> None:
        self.check_loop()
        known = self._subscriptions.pop(b"%d" % subscription.sid, None)
        if known and (session := self._flush()) is not None:
            session.unsubscribe(subscription.sid)
            if last is not None:
                self._start(self._retire(subscription, last, session))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _retire(self, subscription: Subscription, last: Sink, session: Session) -> None:
        sid, subscription.sink = b"%d" % subscription.sid, last
        self._last_of[sid] = subscription
        try:
            with contextlib.suppress(OSError, NattyError):
                await session.ping(self.config.timeout)
        finally:
            del self._last_of[sid]

    async def request(
        self,
        subject: str | bytes,
        data: bytes = b"",
        *,
        headers: bytes = b"",
        timeout: float | None = None,
        again: float | None = None,
    ) -> RawMessage:
        """Publish and return the answer. With `again`, an unanswered request is sent again every so many seconds.

        RequestTimeoutError, NoRespondersError, NotConnectedError; AuthorizationError if the subject is not permitted;
        otherwise as `send`.
        """
        if timeout is not None and not (type(timeout) is float and timeout >= 0):
            check_seconds(timeout=timeout)
        word, loop = _request_word(subject), asyncio.get_running_loop()
        timeout = self.config.timeout if timeout is None else timeout
        deadline = loop.time() + timeout
        await self.ready(timeout)
        reply, future = self.expect_answer(word)
        try:
            message = check((word, reply, headers, data))
            self.put(message)
            while again is not None and loop.time() + again < deadline:
                if (await asyncio.wait({future}, timeout=again))[0]:
                    break
                self.put(message)
            async with asyncio.timeout_at(deadline):
                answer = await future
        except TimeoutError:
            why = ": the server refuses the subscription to our inbox" if self.gets_no_answers else ""
            raise RequestTimeoutError(f"no answer on {decode(word)} within {timeout:g} s{why}") from None
        finally:
            self._requests.forget(reply)
        if not answer[3] and status_of(answer[2])[0] == 503:
            raise NoRespondersError(f"no subscriber on {decode(word)}")
        return answer

    def confirm(self, subject: bytes, data: bytes) -> Awaitable[object]:
        """Send a request; the result waits for its answer, and raises as `request` does. It need not be awaited."""
        asking = asyncio.create_task(self.request(subject, data))
        self._confirming.add(asking)
        asking.add_done_callback(self._on_confirmed)
        return asking

    def _on_confirmed(self, asking: asyncio.Task[RawMessage]) -> None:
        self._confirming.discard(asking)
        if not asking.cancelled():
            asking.exception()  # seen: the caller need not wait

    def expect_answer(self, subject: bytes = b"") -> tuple[bytes, asyncio.Future[RawMessage]]:
        """Return a reply subject of our own and the future of the answer to it."""
        return self._requests.expect(subject)

    async def close(self) -> None:
        """Hand back messages that no handler took, wait until the server has read what was sent, and disconnect.

        That takes `CLOSE_TIMEOUT` seconds at most. Idempotent.
        """
        if self.supervised:
            self.check_loop()
        while self._supervisor is not None and not self._supervisor.done():
            self._supervisor.cancel()  # again: before Python 3.12 a `wait_for` on the way may swallow it
            await asyncio.wait({self._supervisor}, timeout=0.1)
        try:
            with contextlib.suppress(OSError, NattyError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await asyncio.gather(*(leave() for leave in self.leaving), return_exceptions=True)
                    await self._take_leave()
        finally:
            self._close_now()

    async def _take_leave(self) -> None:
        if (session := self._flush()) is not None:
            for subscription in self._subscriptions.values():
                session.unsubscribe(subscription.sid)
            await self.flush()
            await self.flush()  # what sinks have answered to the last messages

    def _close_now(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._requests.fail(ConnectionClosedError)
        self.state, self._thread = "closed", 0
        self._alert.set()
        self._connected.set()  # for those in `ready`
        if self._session is not None:
            self._session.abort()
        self._report("closed")
