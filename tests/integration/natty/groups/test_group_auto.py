import asyncio
import signal
from contextlib import AsyncExitStack

import pytest
from consuming import until
from group_members import make, publish, start_instance
from patient import PATIENCE, PATIENT

from natty import Natty
from natty.groups.roster import MEMBERS_BUCKET
from natty.groups.shares import count_moved

AUTO = {"ack_wait": 2.0, "ttl": 2.0, "dead_letters": False}


@pytest.fixture
async def group(natty, natty_name):
    return await make(natty, natty_name("AUTO"), partitions=6)


def shared(*memberships):
    """Whether these have all partitions, evenly."""
    counts = sorted(len(one.partitions) for one in memberships)
    return sum(counts) == 6 and counts[-1] - counts[0] <= 1


async def test_members_without_a_name_come_and_go_and_share_evenly(natty, group, notes):
    async with group.join(handler=notes.handler(), **AUTO) as a:
        await until(lambda: shared(a))
        await publish(natty, group.stream, range(3))
        async with AsyncExitStack() as stack:
            others = []
            for _ in range(3):
                before = (await group.read()).assignment()
                others.append(await stack.enter_async_context(group.join(handler=notes.handler(), **AUTO)))
                await until(lambda: shared(a, *others))
                after = (await group.read()).assignment()
                assert count_moved(before, after, before) == len(others[-1].partitions)  # only what it gets moves
            await publish(natty, group.stream, range(3, 6))
            await notes.have(48)
        await until(lambda: shared(a))
        await publish(natty, group.stream, range(6, 8))
        await notes.have(64)
        assert len(await natty.keys(MEMBERS_BUCKET, group.key)) == 1
    assert await natty.keys(MEMBERS_BUCKET, group.key) == []
    assert notes.ordered
    assert notes.together == 0


async def test_a_member_whose_ack_wait_is_much_longer_than_its_registration_handles_messages(natty, group, notes):
    await publish(natty, group.stream, range(2))
    async with group.join(handler=notes.handler(), **AUTO | {"ack_wait": 600.0}):
        await notes.have(16)


async def test_closing_a_client_gives_the_partitions_of_its_automatic_member_to_the_others_at_once(
    natty, group, notes, nats_server
):
    unhurried = AUTO | {"ttl": 600.0}  # so that nothing runs out
    async with Natty(**PATIENT | nats_server.connect_options()) as client:
        theirs = client.group(group.stream, group.name).join(handler=notes.handler(), **unhurried)
        async with theirs, group.join(handler=notes.handler(), **unhurried) as ours:
            await until(lambda: shared(theirs, ours))
            await client.close()
            assert client.connection.lifetime.running == []
            await until(lambda: shared(ours))
            assert len(await natty.keys(MEMBERS_BUCKET, group.key)) == 1
            await publish(natty, group.stream, range(2))
            await notes.have(16)
            assert all(job.done() for job in theirs._jobs)


@pytest.mark.long
@pytest.mark.parametrize("first", [True, False], ids=["the leader", "another one"])
async def test_the_partitions_of_one_that_is_killed_go_to_the_others(natty, group, notes, nats_server, tmp_path, first):
    async with AsyncExitStack() as stack:
        ours = [] if first else [await stack.enter_async_context(group.join(handler=notes.handler(), **AUTO))]
        log = tmp_path / "node.log"
        process = start_instance(nats_server, group.stream, "", log, AUTO, work=3600.0)
        try:
            await until(lambda: log.read_text())
            ours = ours or [await stack.enter_async_context(group.join(handler=notes.handler(), **AUTO))]
            await until(lambda: len(ours[0].partitions) == 3)
            await publish(natty, group.stream, range(2))
            await until(lambda: "S " in log.read_text())
            process.send_signal(signal.SIGKILL)
            await until(lambda: shared(*ours))
            await notes.have(16)
        finally:
            process.kill()
            process.wait()
    assert notes.ordered


async def test_a_named_member_beside_automatic_ones_keeps_its_share(natty, group, notes):
    await group.add("go1")
    async with (
        group.join(handler=notes.handler(), **AUTO) as a,
        group.join("go1", notes.handler(), **AUTO_NAMED) as go1,
    ):
        await until(lambda: shared(a, go1))
        async with group.join(handler=notes.handler(), **AUTO) as b:
            await until(lambda: shared(a, b, go1))
            await publish(natty, group.stream, range(2))
            await notes.have(16)
        await until(lambda: shared(a, go1))
    assert notes.ordered


AUTO_NAMED = {"ack_wait": 2.0, "dead_letters": False}


async def test_a_registration_that_is_lost_is_made_again(natty, group, notes):
    async with group.join(handler=notes.handler(), **AUTO) as a:
        await until(lambda: shared(a))
        await natty.delete(MEMBERS_BUCKET, f"{group.key}.{a.member}")
        await until(lambda: not a.partitions or shared(a))
        await publish(natty, group.stream, range(2))
        await notes.have(16)
        async with asyncio.timeout(PATIENCE):
            while len(await natty.keys(MEMBERS_BUCKET, group.key)) != 1:
                await asyncio.sleep(0.05)
