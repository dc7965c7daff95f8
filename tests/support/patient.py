"""What tests need in order not to depend on time: any process may stand still for seconds at any moment."""

import asyncio
from dataclasses import replace

PATIENCE = 60.0  # seconds until a test gives up waiting for what must happen
NEVER = 3600.0  # seconds: of a timer that must not fire before something else happens
PATIENT = {"connect_timeout": PATIENCE, "timeout": PATIENCE, "ping_interval": NEVER}
"""Settings of a client that takes a stall for nothing worse; it does not notice a silent link."""
FILLING = {"ack_timeout": PATIENCE, "give_up": 2 * PATIENCE}
"""Options of a publisher of messages without an id: after a stall of the server, none may be in doubt."""


async def until(condition, within=PATIENCE):
    """Wait until a condition holds."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def reconfigure(natty, **settings):
    """Change settings of a client, from its next session on."""
    natty.connection.config = replace(natty.connection.config, **settings)


async def turns(seconds):
    """Return how often the event loop goes round in so many seconds: thousands of times if something spins.

    Unlike time on the clock or the processor, a machine that stands still adds nothing to it.
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
    """Put the event loop's clock forward: every timer due by then fires at once, in order."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
