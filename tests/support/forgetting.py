"""Work queues whose server has forgotten messages, which happens after a purge by subject while they are held."""

import contextlib
from contextlib import aclosing

from consuming import ACK_WAIT, fill, info, until
from patient import NEVER, PATIENCE

TRIES = 4
HELD, FORGOTTEN = 20, 9  # messages 1 to 20 are held, 10 is purged, 11 to 20 are acknowledged: 1 to 9 are forgotten


async def hold(natty, stream, count, durable="d"):
    """Take messages like a process that will be killed: hand none back. Return them by sequence."""
    held = {}
    async with aclosing(natty.pull(stream, durable, max_messages=count).__aiter__()) as batches:
        async for batch in batches:
            held |= {message.sequence: message for message in batch}
            if len(held) == count:
                break
    return held


async def forgotten(natty, name, *, replicas=1, **consumer):
    """Create a work queue with consumer "d" whose server has forgotten messages 1 to 9; return its name.

    The server does not forget them in about one of some hundred queues; such a queue is created again.
    """
    for _ in range(TRIES - 1):
        with contextlib.suppress(TimeoutError):
            await _forgotten(natty, name, replicas, consumer)
            return name
        await natty.delete_stream(name)
    await _forgotten(natty, name, replicas, consumer)
    return name


async def _forgotten(natty, name, replicas, consumer):
    await fill(natty, name, HELD, retention="workqueue", num_replicas=replicas)
    await natty.ensure_consumer(name, "d", **{"ack_wait": NEVER, **consumer})  # nothing is due before it is forgotten
    held = await hold(natty, name, HELD)
    await natty.purge_stream(name, subject=f"{name}.{FORGOTTEN}", allow_pending=True)
    for sequence in range(FORGOTTEN + 2, HELD + 1):
        held[sequence].ack()
    await natty.connection.flush()
    await natty.ensure_consumer(name, "d", ack_wait=ACK_WAIT, allow_destructive=True)
    await until(lambda: _forgets(natty, name), within=PATIENCE / TRIES)


async def _forgets(natty, name):
    state = await info(natty, name)
    return not (state["num_ack_pending"] or state["num_pending"])


async def messages_in(natty, stream):
    """Return how many messages a stream holds."""
    return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["messages"]
