"""A service: orders come in, a handler works on ten at a time, one elected node reports how many there are."""

import asyncio

from natty import Message, Natty, Term


async def handle(message: Message) -> None:
    print("handled", message.subject, message.sequence, flush=True)


async def main(orders: int = 20) -> None:
    async with Natty() as natty:
        await natty.ensure_stream("EXAMPLE_ORDERS", subjects=["example.orders.>"])
        async with natty.publisher("EXAMPLE_ORDERS") as publisher:
            for number in range(orders):
                await publisher.publish(f"example.orders.{number}", b"{}", msg_id=f"order-{number}")

        @natty.as_leader("example-reporter", lease=5.0)  # returning leaves office, and the next node reports;
        async def report(term: Term) -> None:  # `every=60.0` would keep this node in office, and report each minute
            stream = await natty.jetstream.request("STREAM.INFO.EXAMPLE_ORDERS")
            print("leader", term.node, "counts", stream["state"]["messages"], flush=True)

        await report()
        await natty.consume("EXAMPLE_ORDERS", "worker", handle, concurrency=10)  # until SIGTERM or Ctrl-C
        print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
