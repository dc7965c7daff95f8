"""Closing a client: first the work that runs on it, then its pending publishes, then the connection."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from contextvars import Context

from natty.publishing.outbox import Outbox
from natty.wire.connection import Connection
from natty.wire.lifetime import Lifetime

logger = logging.getLogger("natty.closing")

SPARE = 5.0  # seconds after the handlers' own timeout to hand back the rest and to send the last acks


async def close(connection: Connection, outbox: Outbox, *, raises: bool) -> None:
    """Close a client, see `Natty.close`. Without `raises`, it logs publishes that failed.

    Within a handler, or a leader's work, it returns at once and closes the client after that has returned: its ack has
    to be sent, or its lease released, before. If it is cancelled, it closes the client at once.
    """
    if connection.supervised:
        connection.check_loop()
    lifetime = connection.lifetime
    if lifetime.is_ended_by_its_own:
        task = asyncio.create_task(_close(connection, outbox, raises=False), name="natty close", context=Context())
        lifetime.closing.add(task)
        task.add_done_callback(lifetime.closing.discard)
    else:
        await _close(connection, outbox, raises=raises)


async def _close(connection: Connection, outbox: Outbox, *, raises: bool) -> None:
    async with AsyncExitStack() as last:
        last.push_async_callback(connection.close)
        try:
            await _stop_all(connection.lifetime)
        except BaseException:
            outbox.abandon()
            raise
        await outbox.close(raises=raises)


async def _stop_all(lifetime: Lifetime) -> None:
    """Stop the work on a connection; return when it has ended and sent its last acks, or after its timeout."""
    running = list(lifetime.running)
    for one in running:
        one.stop()
    if waited_for := [one for one in running if not one.waits_for_caller]:
        timeout = max(one.shutdown_timeout for one in waited_for) + SPARE
        _, late = await asyncio.wait([one.over for one in waited_for], timeout=timeout)
        if late:
            text = "closing although %d running parts of the client have not ended within %g s"
            logger.warning(text, len(late), timeout)
