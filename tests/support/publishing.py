"""What the tests of publishing share: streams, what they hold, and publishers that take a stall for nothing worse."""

from patient import PATIENCE

UNHURRIED = {"ack_timeout": PATIENCE, "give_up": 2 * PATIENCE}
"""Options of a publisher: what is sent gets its ack, however long that takes, and is not sent again for being late."""
LASTING = {"give_up": 2 * PATIENCE}
"""Options of a publisher whose acks get lost: it sends again as soon as the test says, and does not give up."""


async def make_stream(natty, name, **settings):
    """Make a stream that offers fast ingest, `<name>.>`."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_batched=True, **settings)
    return name


async def payloads(natty, stream):
    """Return every payload the stream holds, in order."""
    await natty.ensure_consumer(stream, "reader", ack_policy="none")
    count = (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["messages"]
    found, pull = [], natty.pull(stream, "reader", max_messages=20_000)
    if count:
        async for batch in pull:
            found += batch.payloads
            pull.finished(len(batch))
            if len(found) == count:
                pull.stop()
    return found
