"""The only file that knows nats-py's inside.

nats-py opens the session (TCP, INFO, TLS, authentication); from there on bytes go through our own parser straight to
sinks. nats-py's own reconnect, flusher, pings and queues are not used: `Connection` replaces a session that ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser as StockParser

from natty import tls
from natty.config.secret_files import exposure
from natty.config.settings import Config
from natty.errors import UNREADABLE, AuthorizationError, ConfigError, SessionEndedError, TLSRequiredError
from natty.wire.link import Outgoing
from natty.wire.message import RawMessage
from natty.wire.parser import Parser, ProtocolError

READ_BYTES = 256 * 1024


class OpeningClient(Client):
    """nats-py's client, which goes no further with a socket that has ended already.

    asyncio waits for the TLS handshake on such a socket until the time is up, though no answer can come. Where a later
    nats-py has no such step, this is its client and no more.
    """

    async def _connect_to_server(self, *server: Any) -> None:
        await super()._connect_to_server(*server)
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.is_closing():
            raise ConnectionResetError("the server closed the connection at once")


class _Session(OpeningClient):
    """nats-py's client, used to open a session and for nothing else; what it reads goes to `read`."""

    def __init__(self, config: Config, read: Callable[[bytes], None], ended: Callable[[Exception], None]) -> None:
        super().__init__()
        self._config = config
        self._read = read
        self._ended = ended

    @property
    def wire(self) -> TcpTransport:
        """The transport under nats-py."""
        assert isinstance(self._transport, TcpTransport), "connect() has made it"
        return self._transport

    @property
    def writer(self) -> asyncio.StreamWriter:
        """The stream writer of the socket, TLS included."""
        writer = self.wire._io_writer
        assert writer is not None, "connect() has made it"
        return writer

    @property
    def over_tls(self) -> bool:
        """Whether TLS is up."""
        writer = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    def is_over_tls(self) -> None:
        """Tell asyncio, as nats-py does not: it would warn of a TLS session that the server ends."""
        protocol: Any = self.writer.transport.get_protocol()
        if protocol is not None:  # the server has not ended it already
            protocol._over_ssl = True

    async def _select_next_server(self) -> None:
        """Try the one server we were given, once: nats-py's own loop would hide why it failed."""
        self._current_server = self._server_pool[0]
        await self._connect_to_server(self._current_server)

    def _connect_command(self) -> bytes:
        """Refuse to say anything, credentials above all, before TLS is up. nats-py calls this for the CONNECT line."""
        if self._config.tls_required and not self.over_tls:
            raise TLSRequiredError("the server offers no TLS and TLS was asked for; nothing was sent in plain text")
        return super()._connect_command()

    async def _read_loop(self) -> None:
        try:
            while data := await self.wire.read(READ_BYTES):
                self._read(data)
            self._ended(ConnectionResetError("the server closed the connection"))
        except OSError as error:
            self._ended(error)
        except Exception as error:  # a loop that ends without a word would leave a connection that hears nothing
            self._ended(ConnectionResetError(f"what the server sent could not be read: {error}"))

    async def _ping_interval(self) -> None:
        """Not used: `Connection` watches the link."""

    async def _flusher(self) -> None:
        """Not used: sends go straight to the transport."""

    def abort(self) -> None:
        """Drop the socket now: a half-open one would keep a polite close waiting for minutes."""
        self._status = Client.CLOSED
        if self._reading_task is not None and self._reading_task is not asyncio.current_task():
            self._reading_task.cancel()
        if isinstance(self._transport, TcpTransport) and self._transport._io_writer is not None:
            self._transport._io_writer.transport.abort()


async def _cancellable(work: Coroutine[Any, Any, None]) -> None:
    """Await it, and end it when cancelled: its `wait_for` may swallow a cancellation, before Python 3.12, and go on."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        if not task.cancelled():
            task.exception()  # of what nobody waits for any more
        raise
    task.result()


class SinkLink:
    """One session whose bytes go through `natty.wire.parser` straight to sinks."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._session = _Session(config, self._feed, self._end)
        self._parser = Parser(self._messages, self._control)
        self._answers: deque[asyncio.Future[None]] = deque()
        self._over = False
        self._fault: Exception | None = None
        self._write: Callable[[bytes], None] = lambda data: None
        self.info: dict[str, Any] = {}
        self.discovered: list[str] = []
        self.certificate: dict[str, Any] = {}
        self.on_messages: Callable[[bytes, list[RawMessage]], None] = lambda sid, messages: None
        self.on_end: Callable[[Exception], None] = lambda error: None
        self.on_notice: Callable[[str], None] = lambda text: None

    async def open(self, url: str) -> None:
        """Connect to one server, TLS and authentication included.

        SessionEndedError, rather than what the socket says, if it ended the connection before TLS was up.
        """
        try:
            async with asyncio.timeout(self._config.connect_timeout):
                await _cancellable(self._session.connect(**stock_options(self._config, url)))
                self.info = self.info or self._session._server_info  # the server may have said it again meanwhile
                if self._config.tls_first or not self._config.tls_required:
                    self._discover()  # else nobody knows who said it: the server says it again, over TLS
                if secured := self._session.writer.get_extra_info("ssl_object"):
                    self.certificate = secured.getpeercert() or {}
                    self._session.is_over_tls()
                self._write = self._session.writer.transport.write
                await self.ping()  # a refused client certificate shows only with the first bytes read
                if self._fault is not None:  # it ended together with that answer
                    raise self._fault
        except (ConnectionResetError, BrokenPipeError) as error:
            over_tls = self._session.over_tls
            self.abort()
            if over_tls or not self._config.tls_required:
                raise
            raise SessionEndedError("it closed the connection before TLS was up: it is starting, or ending") from error
        except BaseException:
            self.abort()
            raise

    def _feed(self, data: bytes) -> None:
        self._parser.feed(data)

    def _messages(self, sid: bytes, messages: list[RawMessage]) -> None:
        self.on_messages(sid, messages)

    def _control(self, line: bytes) -> None:
        verb = line[:4].upper()
        if verb == b"PING":
            self._write(b"PONG\r\n")
        elif verb == b"PONG":
            if self._answers and not (answer := self._answers.popleft()).done():
                answer.set_result(None)
        elif verb == b"-ERR":
            self._refused(line[4:].decode("utf-8", "replace").strip().strip("'"))
        elif verb == b"INFO":
            self.info = decode_info(line[4:])
            self._discover()
            if self.info.get("ldm"):
                self._end(SessionEndedError("the server is shutting down (lame duck)"))

    def _discover(self) -> None:
        named = self.info.get("connect_urls")
        self.discovered = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []

    def _refused(self, text: str) -> None:
        if text.lower().startswith("permissions violation"):
            self.on_notice(text)
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
        self.on_end(error)

    def _fail_answers(self, error: Exception) -> None:
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # seen: nobody may be waiting any more

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

    async def drained(self) -> None:
        """Return when the socket can take more."""
        await self._session.writer.drain()

    def abort(self) -> None:
        """End now, without waiting for the other side. Idempotent."""
        self._over = True
        self._fail_answers(ConnectionResetError("the session is over"))
        self._session.abort()


def decode_info(text: bytes) -> dict[str, Any]:
    """Return the server's INFO. ProtocolError if it is no JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE as error:
        raise ProtocolError(f"INFO that is no JSON: {text[:80]!r}") from error


def stock_options(config: Config, url: str) -> dict[str, Any]:
    """Return nats-py's `connect` options for one try at one server. ConfigError, TLSError: a file can't be used."""
    _check_login(config)
    options: dict[str, Any] = {
        "servers": [url],
        "name": config.name,
        "allow_reconnect": False,
        "connect_timeout": config.connect_timeout,
        "inbox_prefix": config.inbox_prefix,
        "error_cb": _ignore,
        "user": config.user or None,
        "password": config.password or None,
        "token": config.token or None,
        "user_credentials": config.creds or None,
        "nkeys_seed": config.nkey or None,
    }
    if config.tls_required:
        options["tls"] = tls.client_context(
            ca=config.tls_ca or None, cert=config.tls_cert or None, key=config.tls_key or None
        )
        options["tls_handshake_first"] = config.tls_first
        options["tls_hostname"] = config.tls_hostname or urlsplit(url).hostname
    return options


def _check_login(config: Config) -> None:
    for kind, path in (("credentials file", config.creds), ("nkey file", config.nkey)):
        if path and not Path(path).is_file():
            raise ConfigError(f"there is no {kind} {path}; check its path")
        if path and (exposed := exposure(path)):
            raise ConfigError(f"the {kind} {path} holds a secret, and {exposed}")
        if path and find_spec("nkeys") is None:
            raise ConfigError(f"the {kind} {path} needs the package nkeys: pip install 'natty-nats[nkeys]'")


async def _ignore(error: Exception) -> None:
    """Everything that matters is raised, or ends the link."""


_SELF_TEST = (
    b"MSG a.b 1 5\r\nhello\r\nMSG a.b 1 $JS.ACK.s.c.1.2.3.4.5 0\r\n\r\nPING\r\n"
    b"HMSG a.c 1 _INBOX.x 21 24\r\nNATS/1.0\r\nAb: c d\r\n\r\n\r\nxyzPONG\r\n"
    b"HMSG a.c 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\nMSG z 1 4\r\n\r\n\r\n\r\n+OK\r\n"
)


class _Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[int, bytes, bytes, bytes, bytes]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        self.seen.append((sid, subject, reply, header or b"", data))

    async def _process_ping(self) -> None: ...
    async def _process_pong(self) -> None: ...


_METHODS = (
    "_connect_command",
    "_select_next_server",
    "_connect_to_server",
    "_read_loop",
    "_ping_interval",
    "_flusher",
)
_ATTRIBUTES = ("_server_info", "_server_pool", "_current_server", "_transport", "_status", "_reading_task")


async def sink_path_fault() -> str:
    """Return why the sink path can't be trusted with the installed nats-py; "" if it agrees with the stock path.

    The same bytes, cut in odd places, go through the stock parser and through ours; what ours stands on must be there.
    """
    for name in _METHODS:
        if not callable(getattr(Client, name, None)):
            return f"nats-py's client has no {name}() any more"
    client, transport = Client(), TcpTransport()  # type: ignore[no-untyped-call]
    for owner, name in [(client, name) for name in _ATTRIBUTES] + [(transport, "_io_writer")]:
        if not hasattr(owner, name):
            return f"nats-py's {type(owner).__name__} has no {name} any more"
    stock, ours = _Recorder(), _Recorder()
    parser = Parser(lambda sid, batch: ours.seen.extend((int(sid), *raw) for raw in batch), lambda line: None)
    try:
        stock_parser = StockParser(stock)
        for start in range(0, len(_SELF_TEST), 7):
            await stock_parser.parse(_SELF_TEST[start : start + 7])
            parser.feed(_SELF_TEST[start : start + 7])
    except Exception as error:
        return f"the self-test failed: {error!r}"
    agree = stock.seen == ours.seen and len(ours.seen) == 5
    return "" if agree else "the sink path and nats-py's own read different messages"
