"""Helpers for tests of consuming: streams with numbered messages, handlers that record messages, waits for events."""

import asyncio
import secrets

from patient import NEVER, PATIENCE

from natty import ConsumerNotFoundError
from natty.wire.counters import PULL

ACK_WAIT = 0.5  # seconds: messages without keep_alive are delivered again during a test
HANDED_BACK = {"ack_wait": NEVER}  # settings of a consumer: redelivered messages were handed back, not overdue


async def fill(natty, name, count, *, subject=lambda number: number, payload=lambda number: b"%d" % number, **settings):
    """Create a stream and publish `count` messages in order; return its name."""
    await natty.create_stream(name, subjects=[f"{name}.>"], **settings)
    for number in range(count):
        await natty.publish(f"{name}.{subject(number)}", payload(number))
    return name


async def info(natty, stream, durable="d"):
    """Return the consumer's state."""
    return await natty.jetstream.request(f"CONSUMER.INFO.{stream}.{durable}")


async def until(condition, within=PATIENCE):
    """Wait until a function or coroutine function returns true."""
    async with asyncio.timeout(within):
        while True:
            answer = condition()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            await asyncio.sleep(0.01)


async def until_settled(natty, stream, durable="d"):
    """Wait until every message of the stream is acknowledged or terminated."""

    async def settled():
        try:
            state = await info(natty, stream, durable)
        except ConsumerNotFoundError:  # about to be made
            return False
        return not (state["num_ack_pending"] or state["num_pending"])

    await until(settled)


async def outlast_ack_wait(stream, start):
    """Wait until another consumer, without keep_alive and with ACK_WAIT, has got a message twice again."""
    handler = Handler()
    handler.gate.clear()
    consumer = {"ack_wait": ACK_WAIT, "deliver_policy": "last"}
    options = {"consumer": consumer, "keep_alive": False, "dead_letters": False}
    other, task = start(stream, handler, secrets.token_hex(4), **options)
    await until(lambda: other.redelivered >= 2)
    handler.gate.set()
    other.stop()
    await task


async def until_outlived(consumption, stream, start):
    """Wait for a period without redeliveries to a consumption with ACK_WAIT and without `max_deliver`.

    A period lasts until messages without keep_alive are delivered again twice. If this process was paused, the
    consumption's messages are delivered again, too; then it waits for the next period.
    """

    async def outlived():
        before = consumption.redelivered
        await outlast_ack_wait(stream, start)
        return consumption.redelivered == before

    await until(outlived)


async def end_redeliveries(natty, stream):
    """Stop redeliveries to the consumer, and wait until those that are due have arrived."""
    await natty.ensure_consumer(stream, "d", ack_wait=NEVER)
    delivered = (await info(natty, stream))["delivered"]["consumer_seq"]
    await until(lambda: natty.connection.observed.totals(PULL)[stream, "d"]["counts.delivered"] >= delivered)


class Handler:
    """Records its messages; it returns only while `gate` is set."""

    def __init__(self):
        self.got, self.done, self.running, self.most = [], [], 0, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message):
        self.got.append(int(message.data))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        self.done.append(int(message.data))
