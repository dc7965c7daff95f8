"""Helpers that make tests independent of time: any process may be paused for seconds at any moment."""

import asyncio
from dataclasses import replace

PATIENCE = 60.0  # seconds until a test gives up waiting for what must happen
NEVER = 3600.0  # seconds: of a timer that must not fire before something else happens
PATIENT = {"connect_timeout": PATIENCE, "timeout": PATIENCE, "ping_interval": NEVER}
"""Settings of a client that ignores stalls; it does not notice a silent link."""
FILLING = {"ack_timeout": PATIENCE, "give_up": 2 * PATIENCE}
"""Options of a publisher of messages without an id: a stall of the server must not leave an unknown outcome."""


async def until(condition, within=PATIENCE):
    """Wait until a condition holds."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def reconfigure(natty, **settings):
    """Change settings of a client, from its next session on."""
    natty.connection.config = replace(natty.connection.config, **settings)


async def turns(seconds):
    """Return the iterations of the event loop in this many seconds: thousands if a task spins.

    Unlike clock time or processor time, this does not grow while the machine is paused.
    """
    loop = asyncio.get_running_loop()
    run_once, count = loop._run_once, 0

    def counted():
        nonlocal count
        count += 1
        run_once()

    loop._run_once = counted
    try:
        await asyncio.sleep(seconds)
    finally:
        del loop._run_once
    return count


def jump(seconds):
    """Advance the event loop's clock: every timer due by then fires at once, in order."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
