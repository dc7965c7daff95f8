from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from natty.config.units import NANOSECONDS
from natty.jetstream import JetStream
from natty.names import check_name
from natty.pulling.pin import Pin
from natty.pulling.requests import PullOptions
from natty.pulling.supply import PullCounts, Supply
from natty.wire.counters import PULL
from natty.wire.message import Batch, RawMessage


class Pull:
    """The pull loop of a durable consumer: `async for batch in pull`, then `finished(...)` for what is done with.

    Requests overlap, so that the server never waits for us while there is credit. Whatever happens to connection,
    server or consumer, asking goes on (see `Supply`); what got lost comes again after `ack_wait`. Closing the
    connection stops it: what arrived and was not yielded is handed back first.
    BadNameError for a stream or a consumer that none can be called.
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
        self.options = options or PullOptions()
        self._connection = jetstream.connection
        self._supply = Supply(jetstream, stream, durable, self.options, self._receive, recreate, pin)
        self._on_stop = on_stop
        self._arrived: list[RawMessage] = []
        self._wake = asyncio.Event()
        self._stopping = self._begun = False

    def __repr__(self) -> str:
        state = "stopping" if self._stopping else "stalled" if self.stalled else "running"
        return f"Pull({self.stream}/{self.durable}, {state}, {self._supply.credit!r})"

    async def __aiter__(self) -> AsyncGenerator[Batch, None]:
        """Yield what arrives until `stop`, or until the connection is closed. Once.

        ConsumerNotFoundError, StreamNotFoundError: gone for good. ConnectionClosedError: closed before it began;
        NotConnectedError: the client was not opened. RuntimeError: iterated over a second time.
        """
        self.check_unused()
        self._begun = True
        if not self._connection.supervised:
            raise self._connection.no_session()
        self._connection.listeners.append(self._on_event)
        self._connection.leaving.append(self._leave)
        self._connection.observed.add(self, PULL, self.stream, self.durable)
        healing = asyncio.create_task(self._supply.heal(), name=f"natty pull {self.stream}/{self.durable}")
        healing.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._stopping:
                await self._arrival(healing)
                if self._stopping:
                    break
                if healing.done() and not self._arrived:
                    await healing  # raises what ended it
                if self._arrived or self.options.tick is not None:
                    raw, self._arrived = self._arrived, []
                    yield Batch(raw, self._connection)
        finally:
            healing.cancel()
            await self._end()
            await asyncio.gather(healing, return_exceptions=True)

    def check_unused(self) -> None:
        """RuntimeError if it was iterated over, to its end or not: that is done once."""
        if self._begun:
            raise RuntimeError(f"{self!r} was used already, or is: consume() or pull() again makes another one")

    @property
    def stopping(self) -> bool:
        """Whether it has been stopped."""
        return self._stopping

    @property
    def stalled(self) -> bool:
        """Whether the server owes us a sign of life since two heartbeats: silent, unreachable, the consumer missing.

        Also while the reader holds a batch; False where nothing can be expected because the credit is used up.
        """
        return self._supply.stalled_since is not None

    @property
    def stalled_since(self) -> float | None:
        """When the server gave its last sign of life, in Unix seconds; None while it is not `stalled`."""
        return self._supply.stalled_since

    @property
    def counts(self) -> PullCounts:
        """What happened since the start."""
        return self._supply.counts

    def stop(self) -> None:
        """End the iteration after the current batch; what arrived and was not yielded is handed back at once."""
        if not self._stopping:
            self._stopping = True
            self._wake.set()
            self._on_stop()

    def renew(self) -> None:
        """Take back what was asked for and ask anew, as after a lost pin."""
        self._supply.renew()

    def finished(self, messages: int, size_bytes: int | None = None) -> None:
        """Give credit back: this many messages need no memory any more.

        `size_bytes` is their size as `credit.size_of` counts it. Without it the ones that came first are meant: exact
        for who finishes in order; for others `max_bytes` may be exceeded while the first ones take long.
        """
        self._supply.credit.finished(messages, size_bytes)
        if not self._stopping:
            self._supply.ask()

    def ack(self, replies: list[bytes]) -> None:
        """Acknowledge messages, joined into one write. NotConnectedError: they will come again."""
        self._connection.send_to_each(replies, b"+ACK")

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        """Hand messages back, to be delivered again after `delay` seconds."""
        answer = b'-NAK {"delay": %d}' % int(delay * NANOSECONDS) if delay > 0 else b"-NAK"
        self._connection.send_to_each(replies, answer)

    def in_progress(self, replies: list[bytes]) -> None:
        """Restart `ack_wait` of messages: work on them goes on."""
        self._connection.send_to_each(replies, b"+WPI")

    def keep_waiting(self) -> None:
        """Restart `ack_wait` of what arrived and was not yielded yet."""
        self.in_progress([raw[1] for raw in self._arrived])

    def _receive(self, messages: list[RawMessage]) -> None:
        self._arrived += messages
        self._wake.set()

    async def _arrival(self, healing: asyncio.Task[None]) -> None:
        """Return when something has arrived, at a tick, when stopped, or when nothing will come any more."""
        while not (self._arrived or self._stopping or healing.done()):
            self._wake.clear()
            try:
                async with asyncio.timeout(self.options.tick):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _on_event(self, event: str) -> None:
        if event == "closed":
            self.stop()
        self._supply.on_event(event)

    async def _leave(self) -> None:
        """Stop, hand back what was not yielded, and stay until what is on its way has been handed back, too."""
        self.stop()
        self._supply.ended = True
        messages, self._arrived = self._arrived, []
        self._supply.hand_back(messages)
        await self._supply.drain()

    async def _end(self) -> None:
        self._connection.listeners.remove(self._on_event)
        self._connection.leaving.remove(self._leave)
        try:
            await self._leave()
        finally:
            self._supply.close()
            self._connection.observed.retire(self)
