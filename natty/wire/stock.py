from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from nats.aio.msg import Msg

from natty.config.settings import Config
from natty.errors import AuthorizationError, TLSRequiredError
from natty.wire.link import Outgoing
from natty.wire.message import RawMessage, parse_headers
from natty.wire.session import OpeningClient, stock_options

logger = logging.getLogger("natty.stock")

CLOSE_TIMEOUT = 2.0  # seconds for the driver to say good-bye in; the socket is closed by then in any case


class StockLink:
    """The fall-back of `SinkLink`: the same port on nats-py's public calls only; several times slower.

    Repeated headers collapse to the last value, as nats-py has it. TLS is enforced by shaking hands first, the only way
    that the stock client has.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._client = OpeningClient()
        self._commands: asyncio.Queue[Callable[[], Any]] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._subscriptions: dict[int, Any] = {}
        self._errors: list[Exception] = []
        self._over = False
        self.info: dict[str, Any] = {}
        self.discovered: list[str] = []  # nats-py keeps them to itself
        self.certificate: dict[str, Any] = {}
        self.on_messages: Callable[[bytes, list[RawMessage]], None] = lambda sid, messages: None
        self.on_end: Callable[[Exception], None] = lambda error: None
        self.on_notice: Callable[[str], None] = lambda text: None

    async def open(self, url: str) -> None:
        """Connect to one server; the last error the driver reported is raised, not its summary.

        Nothing stays open then: the driver would leave the socket as it is.
        """
        options = stock_options(self._config, url) | {
            "error_cb": self._error,
            "closed_cb": self._closed,
            "max_reconnect_attempts": 1,
        }
        if self._config.tls_required and not self._config.tls_first:
            raise TLSRequiredError(
                "this nats-py is another than natty knows, and its own path can enforce TLS only with tls_first (and"
                " handshake_first on the server): install nats-py 2.16, or use tls_first"
            )
        try:
            async with asyncio.timeout(self._config.connect_timeout):
                await self._client.connect(**options)
        except Exception as error:
            self.abort()
            raise (self._errors[-1] if self._errors else error) from error
        except asyncio.CancelledError:
            self.abort()
            raise
        version = self._client.connected_server_version
        self.info = {
            "version": f"{version.major}.{version.minor}.{version.patch}",
            "max_payload": self._client.max_payload,
        }
        self.info["headers"] = self.info["jetstream"] = True
        self._writer = asyncio.create_task(self._write(), name="natty stock writer")

    async def _error(self, error: Exception) -> None:
        self._errors.append(error)
        if "permissions violation" in str(error):
            self.on_notice(str(error))

    async def _closed(self) -> None:
        if not self._over:
            self.abort()
            text = str(self._errors[-1]) if self._errors else "the server closed the connection"
            self.on_end(AuthorizationError(text) if "auth" in text else ConnectionResetError(text))

    async def _write(self) -> None:
        while True:
            command = await self._commands.get()
            try:
                await command()
            except Exception as error:  # what nats-py refuses is lost alone
                text = "nats-py refused what it was given, which is dropped: %s: %s"
                logger.error(text, type(error).__name__, error, extra={"action": "stock_refused"})

    def publish(self, messages: list[Outgoing]) -> None:
        """Send messages, in order."""
        for message in messages:
            self._commands.put_nowait(partial(self._publish, *message))

    def publish_to_each(self, subjects: list[bytes], data: bytes) -> None:
        """Send the same on each subject."""
        self.publish([(subject, b"", b"", data) for subject in subjects])

    async def _publish(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        headers = {name: values[-1] for name, values in parse_headers(head).items()} if head else None
        await self._client.publish(subject.decode(), data, reply=reply.decode(), headers=headers)

    def subscribe(self, sid: int, subject: bytes, queue: bytes) -> None:
        """Subscribe under this id."""

        async def deliver(message: Msg) -> None:
            self.on_messages(b"%d" % sid, [_raw(message)])

        async def run() -> None:
            self._subscriptions[sid] = await self._client.subscribe(
                subject.decode(), queue.decode(), cb=deliver, pending_msgs_limit=0, pending_bytes_limit=0
            )

        self._commands.put_nowait(run)

    def unsubscribe(self, sid: int) -> None:
        """End a subscription."""

        async def run() -> None:
            await self._subscriptions.pop(sid).unsubscribe()

        self._commands.put_nowait(run)

    async def ping(self) -> None:
        """Return when the server has answered. Shielded: a cancelled flush would kill nats-py's read loop."""
        done = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                await self._client.flush()
            except Exception as error:
                if not done.done():
                    done.set_exception(ConnectionResetError(f"nats-py could not ask the server: {error}"))
            if not done.done():
                done.set_result(None)

        self._commands.put_nowait(run)
        await done

    async def drained(self) -> None:
        """Return when what was queued has been taken by the server."""
        await self.ping()

    def abort(self) -> None:
        """End now; the driver closes in the background. Idempotent."""
        if not self._over:
            self._over = True
            if self._writer is not None:
                self._writer.cancel()
            self._closing = asyncio.create_task(self._close(), name="natty stock close")

    async def _close(self) -> None:
        with contextlib.suppress(Exception):  # of a driver that has come no further than its options
            async with asyncio.timeout(CLOSE_TIMEOUT):  # the driver waits for ever for a socket that is closed already
                await self._client.close()


def _raw(message: Msg) -> RawMessage:
    lines = [b"NATS/1.0"]
    for name, value in (message.headers or {}).items():
        if name == "Status":
            lines[0] = b"NATS/1.0 " + value.encode()
        elif name == "Description":
            lines[0] += b" " + value.encode()
        else:
            lines.append(f"{name}: {value}".encode())
    block = b"\r\n".join(lines) + b"\r\n\r\n" if message.headers else b""
    return message.subject.encode(), message.reply.encode(), block, message.data
