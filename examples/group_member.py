"""One message of a key at a time, members in parallel, members that come and go: a partitioned consumer group.

    python examples/group_member.py

Connection settings come from the environment, as for every `Natty()`. Start it as often as you like: each process gets
its share of the partitions, and what a process leaves behind goes to the others.
"""

import asyncio

from natty import Message, Natty
from natty.groups import PartitioningFilter

CUSTOMERS, ORDERS = 5, 4


async def main() -> None:
    async with Natty() as natty:
        await natty.create_stream("EXAMPLE_BILLING", subjects=["billing.*"])
        group = natty.group("EXAMPLE_BILLING", "example")
        await group.create(10, [PartitioningFilter("billing.*", (1,))])  # the customer is the key
        done: dict[str, list[int]] = {}

        all_done = asyncio.Event()

        async def bill(message: Message) -> None:
            done.setdefault(message.subject, []).append(int(message.data))
            if sum(map(len, done.values())) == CUSTOMERS * ORDERS:
                all_done.set()

        async with group.join(handler=bill) as membership:
            for order in range(ORDERS):
                for customer in range(CUSTOMERS):
                    await natty.publish(f"billing.customer{customer}", b"%d" % order)
            await all_done.wait()
            for customer, orders in sorted(done.items()):
                print(f"{customer} {orders}")
            print(f"{len(membership.partitions)} partitions, {membership.state}")
        await group.delete()
        await natty.delete_stream("EXAMPLE_BILLING")
    print("stopped")


if __name__ == "__main__":
    asyncio.run(main())
