"""How a client is closed: what handles its messages ends first, then what it publishes, then the connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import Context, ContextVar, copy_context
from typing import Any, Self, TypeVar

from natty.connection import Connection
from natty.outbox import Outbox

logger = logging.getLogger("natty.closing")

SPARE = 5.0  # seconds beyond the handlers' own that it may take to hand back the rest and to send the last acks

T = TypeVar("T")


class Running:
    """Something that handles a connection's messages until it is stopped; `with` it, as long as that takes.

    Closing the client calls `stop`, and waits for the end of the block: for `shutdown_timeout` and `SPARE` seconds.
    """

    def __init__(
        self,
        connection: Connection,
        stop: Callable[[], None],
        shutdown_timeout: float,
        *,
        reader: asyncio.Task[Any] | None = None,
    ) -> None:
        self.connection, self.stop, self.shutdown_timeout = connection, stop, shutdown_timeout
        self.over = asyncio.get_running_loop().create_future()
        self._reader = reader  # the task in which it goes on, where its messages are iterated over

    def __repr__(self) -> str:
        return f"Running({'over' if self.over.done() else 'on'}, {self.connection!r})"

    def __enter__(self) -> Self:
        _running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """End it. Idempotent."""
        if not self.over.done():
            _running.remove(self)
            self.over.set_result(None)

    def around(self, make: Callable[[], T]) -> T:
        """Return what `make` makes: tasks that start in the context of that call are known to be its handlers."""
        context = copy_context()
        context.run(_handled_by.set, (*_handled_by.get(), self))
        return context.run(make)

    @property
    def waits_for_caller(self) -> bool:
        """Whether it can't end before the caller goes on: who calls is a handler of it, or iterates over it."""
        return self in _handled_by.get() or (self._reader is not None and self._reader is asyncio.current_task())


_running: list[Running] = []
_handled_by: ContextVar[tuple[Running, ...]] = ContextVar("natty_handled_by", default=())
_later: set[asyncio.Task[None]] = set()


async def close(connection: Connection, outbox: Outbox, *, tell: bool) -> None:
    """Close a client, see `Natty.close`. Without `tell`, what could not be published is logged and not raised.

    Within a handler it returns at once, and the client is closed when the handler has returned: its own ack has to be
    sent before. Cancelled, it closes at once.
    """
    if any(one.connection is connection for one in _handled_by.get() if not one.over.done()):
        task = asyncio.create_task(_close(connection, outbox, tell=False), name="natty close", context=Context())
        _later.add(task)
        task.add_done_callback(_later.discard)
    else:
        await _close(connection, outbox, tell=tell)


async def _close(connection: Connection, outbox: Outbox, *, tell: bool) -> None:
    async with AsyncExitStack() as last:
        last.push_async_callback(connection.close)
        try:
            await _stop_all(connection)
        except BaseException:
            outbox.abandon()
            raise
        await outbox.close(tell=tell)


async def _stop_all(connection: Connection) -> None:
    """Stop what runs on a connection, and return when it has ended, the last acks sent, or has had its time."""
    running = [one for one in _running if one.connection is connection]
    for one in running:
        one.stop()
    if waited_for := [one for one in running if not one.waits_for_caller]:
        timeout = max(one.shutdown_timeout for one in waited_for) + SPARE
        _, late = await asyncio.wait([one.over for one in waited_for], timeout=timeout)
        if late:
            logger.warning("closing although %d consumptions have not ended within %g s", len(late), timeout)
