"""One session with one server: what is read from the socket, and what is written to it.

`Parser` splits what is read; messages go straight to the connection's sinks. A session ends once, and `Connection`
replaces it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from natty.config.settings import Config
from natty.errors import UNREADABLE, AuthorizationError, SessionEndedError
from natty.names import decode
from natty.wire.message import Outgoing, Sink
from natty.wire.parser import Deliver, Parser, ProtocolError

if TYPE_CHECKING:
    from natty.wire.nats_py import OpeningClient

READ_BYTES = 256 * 1024


class Subscription:
    """Passes the messages of a subject to a sink, in this session and in those that follow."""

    def __init__(
        self,
        unsubscribe: Callable[[Subscription, Sink | None], None],
        sid: int,
        subject: bytes,
        sink: Sink,
        queue: bytes,
    ) -> None:
        self._unsubscribe = unsubscribe
        self.sid, self.subject, self.sink, self.queue = sid, subject, sink, queue

    def __repr__(self) -> str:
        return f"Subscription({decode(self.subject)!r})"

    def close(self, *, last: Sink | None = None) -> None:
        """Unsubscribe. Idempotent. Messages that the server sent before it knew still go to `last`, if given."""
        self._unsubscribe(self, last)


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
    ) -> None:
        self._config = config
        self._parser = Parser(on_messages, self._control)
        self._on_end, self._on_notice = on_end, on_notice
        self._client: OpeningClient | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: deque[asyncio.Future[None]] = deque()
        self._over = False
        self._fault: Exception | None = None
        self._write: Callable[[bytes], None] = lambda data: None
        self._drain: Callable[[], Awaitable[None]]
        self.info: dict[str, Any] = {}
        self.discovered: list[str] = []  # host:port of others in the cluster; with TLS, only those named over it
        self.certificate: dict[str, Any] = {}  # the server's, as `ssl` shows it; empty without TLS

    def __repr__(self) -> str:
        return f"Session({'over' if self._over else 'up' if self._reading else 'new'})"

    async def open(self, url: str) -> None:
        """Connect to one server, TLS and authentication included. Raises what went wrong; nothing stays open then.

        SessionEndedError, rather than what the socket says, if it ended the connection before TLS was up.
        """
        from natty.wire.nats_py import OpeningClient  # here: a program that opens no connection need not import nats-py

        client = self._client = OpeningClient(self._config)
        try:
            async with asyncio.timeout(self._config.connect_timeout):
                await client.open(url)
                self._take_over(client)
                await self.ping()  # a refused client certificate shows only with the first bytes read
                if self._fault is not None:  # it ended together with that answer
                    raise self._fault
        except TimeoutError as error:
            waits_for = client.waits_for
            self.abort()
            raise TimeoutError(waits_for) from error
        except (ConnectionResetError, BrokenPipeError) as error:
            over_tls = client.over_tls
            self.abort()
            if over_tls or not self._config.tls_required:
                raise
            raise SessionEndedError(
                "it closed the connection before TLS was up: it is starting, or shutting down"
            ) from error
        except BaseException:
            self.abort()
            raise

    def _take_over(self, client: OpeningClient) -> None:
        """Take the socket from nats-py and begin to read."""
        self.info, writer = client.server_info, client.writer
        assert writer is not None, "open() has made it"
        if self._config.tls_first or not self._config.tls_required:
            self._discover()  # otherwise it came without TLS: the server sends it again over TLS
        if secured := writer.get_extra_info("ssl_object"):
            self.certificate = secured.getpeercert() or {}
        self._write, self._drain = writer.transport.write, writer.drain
        self._reading = asyncio.create_task(self._read(client.reader), name="natty session")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                self._parser.feed(data)
            self._end(ConnectionResetError("the server closed the connection"))
        except OSError as error:
            self._end(error)
        except Exception as error:  # if the loop just ended, the connection would wait forever
            self._end(ConnectionResetError(f"the server's data could not be read: {error}"))

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
        self._write(
            b"".join(
                [
                    b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(head), len(head) + len(data), head, data)
                    if head
                    else b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)
                    for subject, reply, head, data in messages
                ]
            )
        )

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

    async def ping(self) -> None:
        """Return when the server has answered. Cancelling it is safe: the answer is then skipped when it comes."""
        if self._over:
            raise ConnectionResetError("the session is over")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._write(b"PING\r\n")
        await answer

    async def drain(self) -> None:
        """Return when the socket can take more."""
        await self._drain()

    def abort(self) -> None:
        """End now, without waiting for the other side. Idempotent; `on_end` is not called."""
        self._over = True
        self._fail_answers(ConnectionResetError("the session is over"))
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        if self._client is not None:
            self._client.abort()


def decode_info(text: bytes) -> dict[str, Any]:
    """Return the server's INFO. ProtocolError if it is not a JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE as error:
        raise ProtocolError(f"INFO that is not JSON: {text[:80]!r}") from error
