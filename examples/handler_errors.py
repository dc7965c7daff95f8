"""A service that reports the errors of its handler: an order without a customer fails twice, then is a dead letter."""

import asyncio

from natty import Message, Natty, NextStep


async def handle(message: Message) -> None:
    if not message.data:
        raise ValueError("an order without a customer")


async def on_error(message: Message, error: Exception, step: NextStep) -> None:
    if step.action == "dead_letter":
        print(f"{message.subject} is dead letter {step.letter}: {error}", flush=True)
    elif step.action == "retry":
        print(f"{message.subject} failed and is retried in {step.delay} s: {error}", flush=True)


async def main() -> None:
    async with Natty() as client:
        await client.ensure_stream("EXAMPLE_ERRORS", subjects=["example.errors.>"])
        await client.publish("example.errors.1", b"bob")
        await client.publish("example.errors.2", b"")
        consumption = client.consume("EXAMPLE_ERRORS", "worker", handle, on_error=on_error, retries=[0.5])
        await consumption  # until SIGTERM or Ctrl-C
        print(consumption.counts)
        print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
