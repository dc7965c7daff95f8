"""Streams with schedules, and what the server has published from them."""

import asyncio

from patient import PATIENCE


async def make_scheduling(natty, name, **settings):
    """Make a stream, `<name>.>`, that holds schedules; return its name."""
    subjects = [f"{name}.>", f"schedules.{name}.>"]
    await natty.create_stream(name, subjects=subjects, allow_msg_schedules=True, **settings)
    return name


async def published(natty, stream, count, subjects=""):
    """Wait until so many messages were published, by default on `<stream>.>`, and return them."""
    found = []
    async with asyncio.timeout(2 * PATIENCE):
        async for message in natty.read(stream, subjects=subjects or f"{stream}.>", follow=True):
            found.append(message)
            if len(found) == count:
                break
    return found


async def passed(natty, stream, subject=""):
    """Wait until the server has published what was due before this call: another message comes after it."""
    marker = f"{subject or stream}.marker"
    await natty.publish(marker, b"", after=0)
    await published(natty, stream, 1, marker)


async def waiting(natty, stream, subjects=""):
    """Return the names of the schedules that wait."""
    return [one.name async for one in natty.scheduler.list(stream, subjects)]
