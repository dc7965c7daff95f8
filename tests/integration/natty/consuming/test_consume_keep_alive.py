"""Keep-alives of messages that a handler holds: how often, and what happens without them."""

import asyncio

from consuming import ACK_WAIT, Handler, fill, until


async def test_a_message_is_kept_alive_several_times_in_each_ack_wait_so_that_one_may_be_lost(natty, natty_name, start):
    stream, handler, other = await fill(natty, natty_name("KEPT"), 1), Handler(), Handler()
    handler.gate.clear()
    other.gate.clear()
    told = []
    async with natty.subscribe(f"$JS.ACK.{stream}.d.>") as answers:
        start(stream, handler, consumer={"ack_wait": ACK_WAIT}, dead_letters=False)
        clock, _ = start(
            stream, other, "clock", consumer={"ack_wait": ACK_WAIT}, keep_alive=False, dead_letters=False
        )  # each redelivery to it is an ack_wait later

        async def listen():
            async for answer in answers:
                told.append(answer.data)

        listening = asyncio.create_task(listen())

        async def tick():
            before = clock.redelivered
            await until(lambda: clock.redelivered > before)
            return len(told)

        async def often():
            return await tick() + 3 <= await tick()

        await until(often)
        listening.cancel()
    assert set(told) == {b"+WPI"}
    handler.gate.set()
    other.gate.set()


async def test_without_keep_alive_it_would_come_to_another_process(natty, natty_name, start):
    stream, first, second = await fill(natty, natty_name("SLOW"), 1), Handler(), Handler()
    first.gate.clear()
    start(stream, first, consumer={"ack_wait": ACK_WAIT}, keep_alive=False)
    await until(lambda: first.got)
    start(stream, second)
    await until(lambda: second.done)
