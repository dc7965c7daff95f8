"""A TCP proxy between a client and a server that causes faults on request; TLS passes through unchanged."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from natty.testing.spawner import free_ports
from natty.wire.background import cancel_all

CHUNK_BYTES = 64 * 1024
CLOSE_WITHIN = 20.0  # seconds to flush bytes that were read before a side ended
TURNS = 5  # of the loop, in which an accepted socket becomes a connection
CHUNKS_HELD = 64  # the maximum that a direction of a link holds; then the sender has to wait


class Target(Protocol):
    """The target of a proxy, for example a `NatsServer`."""

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        ...

    def connect_options(self) -> dict[str, Any]:
        """Return the keywords that connect to it directly."""
        ...


class Proxy:
    """Forwards every connection to `host`:`port`; an async context manager that closes all connections at its end.

    The faults affect existing and new connections: `cut()` and `restore()`, `half_open()` and `restore()`, `hold()`
    and `release()`, `delay(seconds)`. `mute()` affects only existing ones.
    """

    def __init__(
        self, host: str, port: int, *, scheme: str = "tls", connect_options: dict[str, Any] | None = None
    ) -> None:
        self.host = "127.0.0.1"
        self.port = free_ports(1)[0]
        self._target = (host, port)
        self._scheme = scheme
        self._options = connect_options or {}
        self._listener: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._links: set[_Link] = set()
        self._gate = _Gate()
        self._dead = False

    @classmethod
    def to(cls, server: Target) -> Self:
        """Return a proxy in front of `server`; its `options` connect through it."""
        parts = urlsplit(server.url)
        if not (parts.hostname and parts.port):
            raise ValueError(f"{server.url} names no host and port")
        return cls(parts.hostname, parts.port, scheme=parts.scheme, connect_options=server.connect_options())

    def __repr__(self) -> str:
        state = [
            name
            for name, on in (
                ("cut", self._listener is None),
                ("half-open", self._dead),
                ("held", not self._gate.flow.is_set()),
                (f"delay {self._gate.delay} s", self._gate.delay > 0),
            )
            if on
        ]
        return f"<Proxy {self.url} → {self._target[0]}:{self._target[1]} {', '.join(state) or 'open'}>"

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    @property
    def url(self) -> str:
        """The URL to connect to instead of the target's."""
        return f"{self._scheme}://{self.host}:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of `natty.Natty(...)` that connect through this proxy."""
        return {**self._options, "servers": [self.url]}

    @property
    def connections(self) -> int:
        """The number of current connections."""
        return len(self._links)

    async def cut(self) -> None:
        """Close every connection and refuse new ones, until `restore()`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            for _ in range(TURNS):
                await asyncio.sleep(0)
        await self._drop(list(self._links))
        if listener is not None:
            await listener.wait_closed()

    async def restore(self) -> None:
        """End `cut()` and `half_open()`; half-open connections are closed."""
        if self._dead:
            self._dead = False
            await self._drop([link for link in self._links if link.dead])
        await self._listen()

    def delay(self, seconds: float) -> None:
        """Deliver all bytes `seconds` later, in each direction; 0 ends the delay."""
        self._gate.delay = seconds

    def hold(self) -> None:
        """Hold all bytes in both directions until `release()` delivers them late; connections stay open."""
        self._gate.flow.clear()

    def release(self) -> None:
        """Deliver the bytes that `hold()` held."""
        self._gate.flow.set()

    def half_open(self) -> None:
        """Simulate a vanished peer: connections stay open, new ones are accepted, nothing is read or delivered.

        A sender fills its buffers and waits, as if the peer's machine had lost power. `restore()` ends it.
        """
        self._dead = True
        for link in self._links:
            link.dead = True

    def mute(self) -> None:
        """Drop the server's bytes on existing connections and deliver the client's, so that acks are lost.

        These connections stay mute; new connections are not.
        """
        for link in self._links:
            link.mute = True

    async def _listen(self) -> None:
        async with self._opening:  # `restore` may run twice at the same time
            if self._listener is None:
                self._listener = await asyncio.start_server(self._accept, self.host, self.port, limit=CHUNK_BYTES)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start a link. Not a coroutine function: cancelled before it begins, it would leave the connection open."""
        link = _Link(self._gate, reader, writer)
        link.dead = self._dead
        self._links.add(link)
        link.task = asyncio.ensure_future(self._run(link))

    async def _run(self, link: "_Link") -> None:
        try:
            with contextlib.suppress(OSError):
                await link.run(*self._target)
        finally:
            self._end(link)

    def _end(self, link: "_Link") -> None:
        link.abort()
        self._links.discard(link)

    async def _drop(self, links: "list[_Link]") -> None:
        tasks = [link.task for link in links if link.task is not None]
        await cancel_all(tasks)
        for link in links:
            self._end(link)


@dataclass
class _Gate:
    """The rules for every link of a proxy: when its bytes may pass."""

    flow: asyncio.Event = field(default_factory=asyncio.Event)
    delay: float = 0.0  # seconds

    def __post_init__(self) -> None:
        self.flow.set()


_Queue = asyncio.Queue[tuple[float, bytes]]  # (not before this loop time, these bytes); no bytes: the end


class _Link:
    """One connection through the proxy: a reader, a bounded queue and a deliverer for each direction."""

    def __init__(self, gate: _Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dead = False
        self.mute = False
        self.task: asyncio.Task[None] | None = None
        self._gate = gate
        self._reader = reader
        self._writers = [writer]

    async def run(self, host: str, port: int) -> None:
        """Forward until either side ends, then close both."""
        if self.dead:
            await _forever()
        reader, writer = await asyncio.open_connection(host, port, limit=CHUNK_BYTES)
        self._writers.append(writer)
        pumps = [
            asyncio.create_task(self._pump(self._reader, writer)),
            asyncio.create_task(self._pump(reader, self._writers[0], from_server=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(pumps)
        await self._close()

    def abort(self) -> None:
        """Close both sides at once; undelivered bytes are lost."""
        for writer in self._writers:
            writer.transport.abort()

    async def _close(self) -> None:
        for writer in self._writers:
            writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN):
                await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_server: bool = False
    ) -> None:
        queue: _Queue = asyncio.Queue(CHUNKS_HELD)
        reading = asyncio.create_task(self._read(reader, queue, from_server))
        try:
            await self._deliver(queue, writer)
        finally:
            await cancel_all([reading])

    async def _read(self, reader: asyncio.StreamReader, queue: _Queue, from_server: bool) -> None:
        loop = asyncio.get_running_loop()
        chunk = b"first"
        while chunk:
            try:
                chunk = await reader.read(CHUNK_BYTES)
            except OSError:
                chunk = b""  # a reset by the sender is also the end
            if self.dead:
                await _forever()
            if chunk and from_server and self.mute:
                continue
            await queue.put((loop.time() + self._gate.delay, chunk))

    async def _deliver(self, queue: _Queue, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            not_before, chunk = await queue.get()
            if (wait := not_before - loop.time()) > 0:
                await asyncio.sleep(wait)
            await self._gate.flow.wait()
            if self.dead:
                await _forever()
            if not chunk:
                return
            writer.write(chunk)
            await writer.drain()


async def _forever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()
