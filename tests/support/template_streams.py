"""The payloads of a template's streams, once its intake is empty."""

import asyncio

from patient import PATIENCE

from natty.errors import NattyError
from natty.templates.maker import count_waiting, streams_of


async def drained(natty, name, within=2 * PATIENCE):
    """Wait until a template's intake is empty; return the payloads of each of its streams, in order."""
    template = await natty.stream_templates().get(name)
    async with asyncio.timeout(within):
        while await _waiting(natty, template):
            await asyncio.sleep(0.1)
    streams = await streams_of(natty.jetstream, template)
    return {stream: await payloads_of(natty, stream) for stream in streams}


async def _waiting(natty, template):
    try:
        return await count_waiting(natty.jetstream, template)
    except NattyError:  # the server is away
        return True


async def payloads_of(natty, stream):
    """Return the payloads in a stream, in order."""
    state = (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]
    sequences = range(max(1, state["first_seq"]), state["last_seq"] + 1)
    found = await asyncio.gather(*(natty.jetstream.read(stream, sequence=sequence) for sequence in sequences))
    return [message.data for message in found if message]
