"""The only file that imports nats-py. It opens a session: TCP, INFO, TLS, authentication.

`session.py` imports this file when it opens the first connection. What this file uses of nats-py is private to nats-py
and may change with every minor version: pyproject.toml names the version for which
`tests/unit/natty/wire/test_nats_py.py` passes.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from errno import EACCES, EPERM
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from natty.config import tls
from natty.config.secret_files import exposure
from natty.config.settings import Config
from natty.errors import (
    AuthorizationError,
    ConfigError,
    ConnectError,
    NattyError,
    SessionEndedError,
    TLSRequiredError,
    how_to_install,
)
from natty.wire.background import is_cancellation

T = TypeVar("T")


class Receiver(Protocol):
    """A protocol that takes over an open socket."""

    def take(self, data: bytes) -> None:
        """Take bytes that came before."""
        ...

    def finish(self, error: Exception | None) -> None:
        """Take note that the socket has ended before."""
        ...


class _OnDemand(ModuleType):
    """Stands for a module until one of its names is used, and imports the module then."""

    def __getattr__(self, name: str) -> Any:
        self.withdraw()
        return getattr(import_module(self.__name__), name)

    def withdraw(self) -> None:
        """Let the next import find the module itself."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


@contextmanager
def _on_demand(name: str) -> Iterator[None]:
    """Within this block, an import of the module gets a stand-in, which loads it on first use; a loaded one stays."""
    if name in sys.modules or find_spec(name) is None:
        yield
        return
    late = sys.modules[name] = _OnDemand(name)
    try:
        yield
    finally:
        late.withdraw()


with _on_demand("aiohttp"):  # nats-py needs it for WebSockets alone; it takes three times as long to import
    from nats.aio.client import Client
    from nats.aio.transport import TcpTransport
    from nats.errors import Error


class OpeningClient(Client):
    """nats-py's client, used to open one session. From then on `Session` reads and writes the socket."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config
        self._signature = b""
        self._called = ""  # the callback that has not returned yet

    @property
    def server_info(self) -> dict[str, Any]:
        """The INFO that the server sent first."""
        return self._server_info

    @property
    def writer(self) -> asyncio.StreamWriter | None:
        """The stream writer of the socket, TLS included; None before there is a socket."""
        return self._transport._io_writer if isinstance(self._transport, TcpTransport) else None

    @property
    def waits_for(self) -> str:
        """What has not ended yet, as a sentence for when the time is up."""
        if self._called:
            return f"the function given as {self._called} did not return in time"
        if self.writer is None:
            return "the look-up of its name, or the connection to it, did not end in time; check the address and DNS"
        return "connected, but no answer in time; check that both sides expect TLS at the same moment (tls_first)"

    @property
    def over_tls(self) -> bool:
        """Whether TLS is up."""
        return self.writer is not None and self.writer.get_extra_info("ssl_object") is not None

    async def open(self, url: str) -> None:
        """Connect to one server, TLS and authentication included.

        Raises the operating system's and `ssl`'s errors as they are, but SessionEndedError if the server ended the
        connection before TLS was up; AuthorizationError or ConnectError with the server's words where it refuses the
        session; ConfigError, TLSError: a file can't be used. ConnectError, too, if a callback of the configuration
        fails.
        """
        try:
            options = connect_options(self._config, url) | await self._ask_login()
            await _finish(self.connect(**options))
        except (ConnectionResetError, BrokenPipeError) as error:
            if self.over_tls or not self._config.tls_required:
                raise
            text = "it closed the connection before TLS was up: it is starting, or shutting down"
            raise SessionEndedError(text) from error
        except TimeoutError:  # nats-py's is one of its `Error`s, too
            raise
        except Error as error:
            raise _translate(error) from error
        if self.over_tls:
            self._tell_asyncio_of_tls()

    async def _ask_login(self) -> dict[str, Any]:
        """Return nats-py's options for what callbacks say."""
        config, options = self._config, dict[str, Any]()
        if callable(config.token):
            options["token"] = await self._ask("token", config.token, str)
        if config.user_jwt is not None:
            jwt = (await self._ask("user_jwt", config.user_jwt, str)).encode()
            options["user_jwt_cb"], options["signature_cb"] = lambda: jwt, lambda nonce: self._signature
        return options

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Sign the nonce of the server's first INFO: nats-py itself knows no `async def` that signs."""
        await super()._process_info(info, initial_connection)
        if self._config.sign_nonce is not None and "nonce" in info:
            sign = partial(self._config.sign_nonce, str(info["nonce"]).encode())
            self._signature = b64encode(await self._ask("sign_nonce", sign, bytes))

    async def _ask(self, name: str, callback: Callable[[], Any], kind: type[T]) -> T:
        """Return what a callback of the configuration returns. ConnectError if it fails, ConfigError for another type.

        The error names only the kind of what it raised, whose text may have a secret and would be in the log.
        """
        self._called = name
        try:
            value = callback()
            if inspect.isawaitable(value):
                value = await value
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error):
                raise
            raise ConnectError(f"the function given as {name} failed: {type(error).__name__}") from error
        self._called = ""
        if not isinstance(value, kind):
            raise ConfigError(
                f"the function given as {name} must return {kind.__name__} and returned {type(value).__name__}"
            )
        return value

    async def hand_over(self, make_receiver: Callable[[asyncio.StreamReaderProtocol], Receiver]) -> None:
        """Give what the socket brings to a receiver from now on, at first what was not read before."""
        assert isinstance(self._transport, TcpTransport), "open() has made it"
        reader: Any = self._transport._io_reader
        writer: Any = self._transport._io_writer
        receiver = make_receiver(writer._protocol)
        is_open = not (reader._eof or writer.transport.is_closing())
        if is_open:
            writer.transport.pause_reading()
            writer.transport.set_protocol(receiver)
            reader.feed_eof()
        if unread := await reader.read():
            receiver.take(unread)
        if is_open:
            writer.transport.resume_reading()
        else:
            receiver.finish(None)

    def _tell_asyncio_of_tls(self) -> None:
        """Do what nats-py leaves out: asyncio would warn of a TLS session that the server ends."""
        assert self.writer is not None, "TLS is up"
        protocol: Any = self.writer.transport.get_protocol()
        if protocol is not None:  # the server has not ended it already
            protocol._over_ssl = True

    async def _select_next_server(self) -> None:
        """Try the one server we were given, once: nats-py's own loop would hide why it failed."""
        self._current_server = self._server_pool[0]
        await self._connect_to_server(self._current_server)

    async def _connect_to_server(self, *server: Any) -> None:
        """Go no further with a socket that has ended: asyncio would wait for its TLS handshake until the time is up."""
        await super()._connect_to_server(*server)
        if self.writer is not None and self.writer.is_closing():
            raise ConnectionResetError("the server closed the connection at once")

    def _connect_command(self) -> bytes:
        """Send nothing, and no credentials above all, before TLS is up. nats-py calls this for the CONNECT line."""
        if self._config.tls_required and not self.over_tls:
            raise TLSRequiredError("the server does not offer TLS and TLS is required; nothing was sent in plain text")
        return super()._connect_command()

    async def _read_loop(self) -> None:
        """Read nothing: the session does."""

    async def _ping_interval(self) -> None:
        """Send nothing: the connection watches its session."""

    async def _flusher(self) -> None:
        """Write nothing: the session does."""

    def abort(self) -> None:
        """Drop the socket now: a half-open one would keep a polite close waiting for minutes. Idempotent."""
        if self.writer is not None:
            self.writer.transport.abort()


def _translate(error: Error) -> NattyError:
    """Return our error for one of nats-py's. A refused login shows in the server's words alone."""
    text = str(error)
    return AuthorizationError(text) if "auth" in text.lower() else ConnectError(text)


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await it. If cancelled, cancel it until it ends: before Python 3.12 its `wait_for` may swallow a cancellation."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        if not task.cancelled():
            task.exception()  # retrieved: asyncio would warn of an error that no task waits for
        raise
    task.result()


def connect_options(config: Config, url: str) -> dict[str, Any]:
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
        "token": None if callable(config.token) else config.token or None,
        "user_credentials": config.creds or None,
        "nkeys_seed": config.nkey or None,
    }
    if config.tls_required:
        options["tls"] = config.ssl_context or tls.client_context(
            ca=config.tls_ca or None, cert=config.tls_cert or None, key=config.tls_key or None
        )
        options["tls_handshake_first"] = config.tls_first
        options["tls_hostname"] = config.tls_hostname or urlsplit(url).hostname
    return options


def _check_login(config: Config) -> None:
    for kind, path in (("credentials file", config.creds), ("nkey file", config.nkey)):
        if path and (exposed := _read_exposure(kind, path)):
            raise ConfigError(f"the {kind} {path} holds a secret, and {exposed}")
        if path and find_spec("nkeys") is None:
            raise ConfigError(f"the {kind} {path} needs the package nkeys; {how_to_install('nkeys')}")


def _read_exposure(kind: str, path: str) -> str:
    """Return what `exposure` says of a file that can be read. ConfigError for another."""
    try:
        exposed = exposure(path)
        if not Path(path).is_file():
            raise FileNotFoundError
        with Path(path).open("rb"):
            return exposed
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"there is no {kind} {path}; check its path") from None
    except OSError as error:
        check = "permissions" if error.errno in (EACCES, EPERM) else "path"
        raise ConfigError(f"the {kind} {path} can't be read: {error.strerror}; check its {check}") from error


async def _ignore(error: Exception) -> None:
    """Do nothing: `connect` raises the error, too."""
