"""Helpers for tests of publishing: streams, their payloads, and options of publishers that ignore stalls."""

from patient import PATIENCE

UNHURRIED = {"ack_timeout": PATIENCE, "give_up": 2 * PATIENCE}
"""Options of a publisher that waits for late acks, and does not send messages again because of them."""
LASTING = {"give_up": 2 * PATIENCE}
"""Options of a publisher whose acks get lost: it sends again when the test says so, and does not give up."""


async def make_stream(natty, name, **settings):
    """Create a stream with fast ingest, `<name>.>`."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_batched=True, **settings)
    return name


async def payloads(natty, stream):
    """Return every payload in the stream, in order."""
    await natty.ensure_consumer(stream, "reader", ack_policy="none")
    count = (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["messages"]
    found, pull = [], natty.pull(stream, "reader", max_messages=20_000)
    if count:
        async for batch in pull:
            found += batch.payloads
            pull.finish(len(batch))
            if len(found) == count:
                pull.stop()
    return found
