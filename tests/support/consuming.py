"""What the tests of consuming share: streams with numbered messages, handlers that take notes, waiting for events."""

import asyncio

from natty import ConsumerNotFoundError

SOON = 25.0  # seconds; below the ack_wait of 30 s, so that what comes in time was handed over and did not run out


async def fill(natty, name, count, *, subject=lambda number: number, payload=lambda number: b"%d" % number, **settings):
    """Make a stream and publish so many messages in order; return its name."""
    await natty.create_stream(name, subjects=[f"{name}.>"], **settings)
    for number in range(count):
        await natty.publish(f"{name}.{subject(number)}", payload(number))
    return name


async def info(natty, stream, durable="d"):
    """Return the consumer's state."""
    return await natty.jetstream.request(f"CONSUMER.INFO.{stream}.{durable}")


async def until(condition, within=SOON):
    """Wait until a plain or a coroutine function says yes."""
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


class Handler:
    """Notes what it is given; `slow` seconds for each, and `gate` keeps it from ending."""

    def __init__(self, *, slow=0.0):
        self.got, self.done, self.running, self.most = [], [], 0, 0
        self.slow = slow
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message):
        self.got.append(int(message.data))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.slow)
            await self.gate.wait()
        finally:
            self.running -= 1
        self.done.append(int(message.data))
