"""One session with one server: what is read from the socket, and what is written to it.

`Parser` splits the bytes into messages and control lines; messages go straight to the connection's sinks. A session
ends once, and `Connection` replaces it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from natty.config.settings import Config
from natty.errors import UNREADABLE, AuthorizationError, SessionEndedError
from natty.names import decode
from natty.wire.alike import LEAST_ALIKE, Deliver, Runs
from natty.wire.message import Batch, Numbered, Outgoing, RawMessage, Sink
from natty.wire.read_pauses import ReadPauses

if TYPE_CHECKING:
    from natty.wire.nats_py import OpeningClient

Control = Callable[[bytes], None]

READ_BYTES = 256 * 1024
MAX_LINE_BYTES = 256 * 1024  # of a line whose end has not come: INFO of a cluster of thousands of servers has less
MAX_MESSAGE_BYTES = 256 * 1024 * 1024  # headers and payload; a server's largest max_payload is its max_pending, 64 MiB
_MSG, _HMSG = ord("M"), ord("H")
_SHOWN = 120  # bytes of a line in an error


class ProtocolError(ValueError):
    """The server sent a line that is not part of the client protocol."""


class Parser:
    """Splits what the socket brings into messages and control lines.

    `feed` takes bytes as they come, cut anywhere. Messages go to `deliver(sid, batch)`, a few calls for each
    subscription and read; any other line goes to `control(line)`, after the messages before it, so that a PONG still
    says "all before me is delivered". Lines and announced sizes are bounded, and each byte is looked at a few times at
    most, however it is cut.
    Pure: no socket, no clock. Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol
    """

    def __init__(self, deliver: Deliver, control: Control) -> None:
        self._deliver, self._control = deliver, control
        self._chunks: list[bytes] = []
        self._have = self._need = 0
        self._runs = Runs(deliver, lambda buffer, position: self._split(buffer, position, position + 1)[0])

    def feed(self, data: bytes) -> None:
        """Take the next bytes. ProtocolError on a malformed message line, a line or a message that is too long."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:  # the rest of a large payload: wait for all of it
            return
        if not self._need and len(self._chunks) > 1 and not self._ends_a_line():
            self._check_line()
            return
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        taken = self._runs.take(buffer) if len(buffer) > LEAST_ALIKE else 0
        taken, self._need = self._split(buffer, taken, len(buffer))
        rest = buffer[taken:]
        self._chunks = [rest] if rest else []
        self._have = len(rest)
        self._check_line()

    def _ends_a_line(self) -> bool:
        """Whether the last chunk has the end of the line that the chunks before it began."""
        before, last = self._chunks[-2:]
        return b"\r\n" in last or (last.startswith(b"\n") and before.endswith(b"\r"))

    def _check_line(self) -> None:
        if not self._need and self._have > MAX_LINE_BYTES:
            start = b"".join(self._chunks)[:_SHOWN]
            raise ProtocolError(f"a line of over {MAX_LINE_BYTES} bytes without an end: {start!r}…")

    def _split(self, buffer: bytes, position: int, until: int) -> tuple[int, int]:
        """Handle whole operations that begin in a range; return (bytes taken, bytes needed before the next look)."""
        batches: dict[bytes, list[RawMessage]] = {}
        current: bytes | None = None
        append = list[RawMessage]().append  # replaced with the first message
        end, need, find = len(buffer), 0, buffer.find
        try:
            while position < until and (line_end := find(b"\r\n", position)) >= 0:
                kind = buffer[position]
                start = line_end + 2
                if kind != _MSG and kind != _HMSG:
                    self._flush(batches)
                    current = None
                    self._control(buffer[position:line_end])
                    position = start
                    continue
                words = buffer[position:line_end].split(b" ")  # a subject may have other blanks in it
                try:
                    body = start if kind == _MSG else start + int(words.pop(-2))
                    if len(words) == 5:
                        _, subject, sid, reply, size = words
                    else:
                        (_, subject, sid, size), reply = words, b""
                    stop = start + int(size)
                    if not start <= body <= stop:
                        raise ValueError("its sizes contradict each other")
                except (ValueError, IndexError) as error:
                    raise ProtocolError(f"malformed message line {buffer[position:line_end][:_SHOWN]!r}") from error
                if stop + 2 > end:
                    if stop - start > MAX_MESSAGE_BYTES:
                        line = buffer[position:line_end][:_SHOWN]
                        raise ProtocolError(f"a message of over {MAX_MESSAGE_BYTES} bytes is announced: {line!r}")
                    need = stop + 2 - position
                    break
                if sid != current:  # a read brings mostly one subscription's messages
                    current, append = sid, batches.setdefault(sid, []).append
                append((subject, reply, buffer[start:body], buffer[body:stop]))
                position = stop + 2
        finally:
            self._flush(batches)
        return position, need

    def _flush(self, batches: dict[bytes, list[RawMessage]]) -> None:
        for sid, raw in batches.items():
            self._deliver(sid, Batch(raw))
        batches.clear()


class Subscription:
    """Passes the messages of a subject to a sink, in this session and in those that follow."""

    def __init__(
        self, close: Callable[[Subscription, Sink | None], None], sid: int, subject: bytes, sink: Sink, queue: bytes
    ) -> None:
        self._close, self.sid, self.subject, self.sink, self.queue = close, sid, subject, sink, queue

    def __repr__(self) -> str:
        return f"Subscription({decode(self.subject)!r})"

    def close(self, *, last: Sink | None = None) -> None:
        """Unsubscribe. Idempotent. Messages that the server sent before it knew still go to `last`, if given."""
        self._close(self, last)


class Receiver(asyncio.BufferedProtocol):
    """The protocol of an open socket. `feed` takes bytes, `end` the error that ended the connection, once.

    `opener` is the protocol that the socket was opened with: the stream writer that belongs to it still learns when to
    pause.
    """

    def __init__(
        self, opener: asyncio.StreamReaderProtocol, feed: Callable[[bytes], None], end: Callable[[Exception], None]
    ) -> None:
        self._opener, self._feed, self._end = opener, feed, end
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._ended = False

    def __repr__(self) -> str:
        return f"Receiver({'ended' if self._ended else 'open'})"

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over the bytes that came."""
        self.take(bytes(self._buffer[:nbytes]))

    def take(self, data: bytes) -> None:
        """Hand over bytes. What can't be read ends the connection: otherwise it would wait for ever."""
        if self._ended:
            return
        try:
            self._feed(data)
        except OSError as error:
            self.finish(error)
        except Exception as error:
            self.finish(ConnectionResetError(f"the server's data could not be read: {error}"))

    def eof_received(self) -> None:
        """The server sends nothing more: the socket is closed."""
        self.finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._opener.connection_lost(exc)
        self.finish(exc)

    def finish(self, error: Exception | None) -> None:
        """End with this error; None if the server closed the connection. Only the first call does anything."""
        if not self._ended:
            self._ended = True
            self._end(error if isinstance(error, OSError) else ConnectionResetError("the server closed the connection"))

    def pause_writing(self) -> None:
        """Have the writer wait."""
        self._opener.pause_writing()

    def resume_writing(self) -> None:
        """Let the writer continue."""
        self._opener.resume_writing()


class Session:
    """One session with one server. It ends once.

    `on_messages(sid, batch)` gets the messages that one read brought for a subscription; `on_end(error)` is called
    when the session ends without `abort`; `on_notice(text)` gets what the server does not permit, in its words.
    """

    def __init__(
        self,
        config: Config,
        on_messages: Deliver,
        on_end: Callable[[Exception], None],
        on_notice: Callable[[str], None],
        pauses: ReadPauses,
    ) -> None:
        self._config, self._pauses = config, pauses
        self._parser = Parser(on_messages, self._control)
        self._on_end, self._on_notice = on_end, on_notice
        self._client: OpeningClient | None = None
        self._is_up = self._over = False
        self._answers: deque[asyncio.Future[None]] = deque()
        self._fault: Exception | None = None
        self._write: Callable[[bytes], None] = lambda data: None
        self._drain: Callable[[], Awaitable[None]]
        self.info: dict[str, Any] = {}
        self.discovered: list[str] = []  # host:port of others in the cluster; with TLS, only those named over it
        self.certificate: dict[str, Any] = {}  # the server's, as `ssl` shows it; empty without TLS

    def __repr__(self) -> str:
        return f"Session({'over' if self._over else 'up' if self._is_up else 'new'})"

    async def open(self, url: str) -> None:
        """Connect to one server, TLS and authentication included. Raises what went wrong; nothing stays open then."""
        from natty.wire.nats_py import OpeningClient  # here: a program that opens no connection need not import nats-py

        client = self._client = OpeningClient(self._config)
        try:
            async with asyncio.timeout(self._config.connect_timeout):
                await client.open(url)
                await self._take_over(client)
                await self.ping()  # a refused client certificate shows only with the first bytes read
                if self._fault is not None:  # it ended together with that answer
                    raise self._fault
        except BaseException as error:
            waits_for = client.waits_for
            self.abort()
            if isinstance(error, TimeoutError):
                raise TimeoutError(waits_for) from error
            raise

    async def _take_over(self, client: OpeningClient) -> None:
        """Take the socket from nats-py and begin to read."""
        self.info, writer = client.server_info, client.writer
        assert writer is not None, "open() has made it"
        if self._config.tls_first or not self._config.tls_required:
            self._discover()  # otherwise it came without TLS: the server sends it again over TLS
        if secured := writer.get_extra_info("ssl_object"):
            self.certificate = secured.getpeercert() or {}
        self._write, self._drain = writer.transport.write, writer.drain
        self._is_up = True
        self._pauses.attach(writer.transport)
        await client.hand_over(lambda opener: Receiver(opener, self._feed, self._end))

    def _feed(self, data: bytes) -> None:
        self._parser.feed(data)
        if self._pauses.wanted:
            self._pauses.begin(len(data))

    def _control(self, line: bytes) -> None:
        verb = line[:4].upper()
        if verb == b"PING":
            self._write(b"PONG\r\n")
        elif verb == b"PONG":
            if self._answers and not (answer := self._answers.popleft()).done():
                answer.set_result(None)
        elif verb == b"-ERR":
            self._refuse(line[4:].decode("utf-8", "replace").strip().strip("'"))
        elif verb == b"INFO":
            self.info = decode_info(line[4:])
            self._discover()
            if self.info.get("ldm"):
                self._end(SessionEndedError("the server is shutting down (lame duck)"))

    def _discover(self) -> None:
        named = self.info.get("connect_urls")
        self.discovered = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []

    def _refuse(self, text: str) -> None:
        if text.lower().startswith("permissions violation"):
            self._on_notice(text)
        elif "auth" in text.lower():
            self._end(AuthorizationError(f"the server ended the session: {text}"))
        else:
            self._end(SessionEndedError(f"the server ended the session: {text}"))

    def _end(self, error: Exception) -> None:
        if self._over:
            return
        self._fault = error
        self._fail_answers(error)
        self.abort()
        self._on_end(error)

    def _fail_answers(self, error: Exception) -> None:
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # retrieved: asyncio would warn if no task waits for it

    def publish(self, messages: list[Outgoing]) -> None:
        """Write messages, joined."""
        starts = [
            b"\r\nHPUB %b %b %d %d\r\n%b" % (subject, reply, len(head), len(head) + len(data), head)
            if head
            else b"\r\nPUB %b %b %d\r\n" % (subject, reply, len(data))
            for subject, reply, head, data in messages
        ]
        self._write_joined(starts, [message[3] for message in messages])

    def publish_numbered(self, messages: Sequence[Numbered], reply: bytes, first: int) -> None:
        """Write messages, joined; `reply` has a "%d" in place of the number that counts them from `first` on."""
        with_headers, plain = b"\r\nHPUB %%b %b %%d %%d\r\n%%b" % reply, b"\r\nPUB %%b %b %%d\r\n" % reply
        starts = [
            with_headers % (one.subject, number, len(one.headers), len(one.headers) + len(one.data), one.headers)
            if one.headers
            else plain % (one.subject, number, len(one.data))
            for number, one in enumerate(messages, first)
        ]
        self._write_joined(starts, [one.data for one in messages])

    def _write_joined(self, starts: list[bytes], payloads: list[bytes]) -> None:
        """Write messages; what stands before a payload begins with the line break of the message before it."""
        parts = [b"\r\n"] * (2 * len(starts) + 1)
        parts[:-1:2], parts[1::2], parts[0] = starts, payloads, starts[0][2:]
        self._write(b"".join(parts))  # copies a payload once

    def publish_to_each(self, subjects: list[bytes], data: bytes) -> None:
        """Write the same on each subject: joined without a step of Python's for each."""
        end = b" %d\r\n%b\r\n" % (len(data), data)
        self._write(b"PUB " + (end + b"PUB ").join(subjects) + end)

    def subscribe(self, sid: int, subject: bytes, queue: bytes) -> None:
        """Subscribe under this id."""
        self._write(b"SUB %b %b %d\r\n" % (subject, queue, sid))

    def unsubscribe(self, sid: int) -> None:
        """End a subscription."""
        self._write(b"UNSUB %d\r\n" % sid)

    async def ping(self, timeout: float | None = None) -> None:
        """Return when the server has answered; TimeoutError after `timeout` seconds. It may be cancelled."""
        if self._over:
            raise self._fault or ConnectionResetError("the session is over")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._write(b"PING\r\n")
        async with asyncio.timeout(timeout):
            await answer

    async def drain(self) -> None:
        """Return when the socket can take more."""
        await self._drain()

    def abort(self) -> None:
        """End now, without waiting for the other side. Idempotent; `on_end` is not called."""
        self._over = True
        self._fail_answers(ConnectionResetError("the session is over"))
        if self._client is not None:
            self._client.abort()


def decode_info(text: bytes) -> dict[str, Any]:
    """Return the server's INFO. ProtocolError if it is not a JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE as error:
        raise ProtocolError(f"INFO that is not JSON: {text[:80]!r}") from error
