"""Members of groups whose server forgets messages that they hold, as it does at a purge by subject or a roll-up."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

import pytest
from consuming import until
from forgetting import TRIES, messages_in
from group_members import LONG, QUICK, Notes, consumer, has_state, make, partitioned, publish
from patient import PATIENT

from natty import ConsumerNotFoundError, DeadLetterOptions, Natty
from natty.groups import forgotten
from natty.testing import NatsServer, ServerOptions

KEYS = 8
OPTIONS = QUICK | {"ordered_by": "subject", "shutdown_timeout": 0.1}


async def elastic(natty, natty_name, **settings):
    """Create an elastic group, which has a work queue of its own."""
    return await make(natty, natty_name("ELASTIC"), members=["m1"], **settings)


async def static(natty, natty_name):
    """Create a static group of a work queue."""
    name = natty_name("STATIC")
    await natty.create_stream(name, retention="workqueue", **partitioned(name, 4))
    group = natty.static_group(name, "g")
    await group.create(4, members=["m1"])
    return group


class DisturbedError(Exception):
    """The server removed the consumer, as it does an ack wait after the last request, or took the pin away.

    All messages of a consumer that was removed are delivered again without our help.
    """


async def undisturbed(attempt):
    """Make an attempt, which creates a group of its own, until a pause of the machine does not disturb it."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(DisturbedError):
            return await attempt()
    return await attempt()


async def created(natty, group, member):
    """Return when the member's consumer was created; None without one."""
    try:
        return (await consumer(natty, group, member))["created"]
    except ConsumerNotFoundError:
        return None


async def hold(natty, group, notes, rounds):
    """Publish some rounds of keys, and hold their handlers up."""
    notes.gate.clear()
    notes.gates[f"{group.stream}.k7"] = asyncio.Event()
    await publish(natty, group.stream, range(rounds), keys=KEYS)


async def forget(natty, group, notes, member, rounds):
    """Purge k7 while all is held, and let what follows be acknowledged: the server forgets all that is before it.

    DisturbedError if another consumer holds the messages afterwards. Return when the consumer was created.
    """

    async def pending(count):
        try:
            found = await consumer(natty, group, member)
        except ConsumerNotFoundError:
            return False
        if began and found["created"] != began:
            raise DisturbedError
        return found["num_ack_pending"] == count

    began = None
    await until(lambda: pending(rounds * KEYS))
    began = await created(natty, group, member)
    subject = f"{group.stream}.k7"
    answer = await natty.jetstream.request(f"STREAM.INFO.{group.consumed_stream}", {"subjects_filter": f"*.{subject}"})
    ((in_partition, count),) = answer["state"]["subjects"].items()
    assert await natty.purge_stream(group.consumed_stream, subject=in_partition, allow_pending=True) == count
    await natty.publish(subject, b"%d" % rounds)
    notes.gates[subject].set()
    await until(lambda: pending(0))
    assert await messages_in(natty, group.consumed_stream) == rounds * (KEYS - 1)
    return began


async def emptied(natty, group):
    """Wait until all is acknowledged."""

    async def empty():
        return await messages_in(natty, group.consumed_stream) == 0

    await until(empty)


def all_handled(group, notes, rounds, later):
    """Whether each key was handled whole and in order; k7 had one message more, and the others so many later."""
    expected = {f"{group.stream}.k{key}": list(range(rounds + later)) for key in range(KEYS - 1)}
    expected[f"{group.stream}.k7"] = list(range(rounds + 1))
    return {key: [*dict.fromkeys(numbers)] for key, numbers in notes.done.items()} == expected and not notes.together


async def taken_over(natty, group):
    """Have a member forget what it holds and leave, and its standby take over."""
    notes = Notes()
    await hold(natty, group, notes, 3)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(group.join("m1", notes.handler(), **OPTIONS))
        began = await forget(natty, group, notes, "m1", 3)
        await publish(natty, group.stream, range(3, 5), keys=KEYS - 1)
        standby = await stack.enter_async_context(group.join("m1", notes.handler(), **OPTIONS))
        await has_state(standby, "standby")
        first.leave()
        await first.wait_until_ended()
        notes.gate.set()
        await emptied(natty, group)
        if standby.handed_over != 1 and await created(natty, group, "m1") != began:
            raise DisturbedError
        assert standby.handed_over == 1  # it took the consumer away, and made it again
        assert all_handled(group, notes, 3, later=2)
        await has_state(standby, "active")


@pytest.mark.parametrize("create", [static, elastic])
async def test_a_standby_handles_what_the_server_forgot_before_what_came_later_of_its_key(
    natty, natty_name, create, monkeypatch, caplog
):
    async def attempt():
        caplog.clear()
        group = await create(natty, natty_name)
        await taken_over(natty, group)
        return group

    monkeypatch.setattr(forgotten, "PROVEN_AFTER", 0.2)
    group = await undisturbed(attempt)
    (told,) = [text for text in caplog.messages if "nats-server forgot" in text]
    assert f"forgot 21 unacknowledged messages of work queue {group.consumed_stream}" in told
    assert "the consumer is created again, and they are delivered again" in told


@pytest.mark.long
async def test_a_standby_handles_what_three_replicas_forgot(nats_cluster, natty_name):
    async def attempt():
        await taken_over(natty, await elastic(natty, natty_name, num_replicas=3))

    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        await undisturbed(attempt)


async def test_what_a_handler_puts_back_and_the_server_forgot_comes_again_to_an_automatic_member(
    natty, natty_name, monkeypatch
):
    async def attempt():
        group, notes = await make(natty, natty_name("ELASTIC")), Notes()
        await hold(natty, group, notes, 2)
        put_back, handle = set(), notes.handler()

        async def put_each_back_once(message):
            await handle(message)
            if message.sequence not in put_back and not message.subject.endswith("k7"):
                put_back.add(message.sequence)
                message.nak()

        async with group.join(handler=put_each_back_once, **OPTIONS) as membership:
            began = await forget(natty, group, notes, membership.member, 2)
            notes.gate.set()
            await emptied(natty, group)
            if membership.handed_over != 1 and await created(natty, group, membership.member) != began:
                raise DisturbedError
            assert membership.handed_over == 1
            assert len(put_back) == 2 * (KEYS - 1)
            assert all_handled(group, notes, 2, later=0)

    monkeypatch.setattr(forgotten, "LOOK_EVERY", 0.1)
    await undisturbed(attempt)


async def test_a_handler_that_succeeds_notices_nothing(natty, natty_name):
    async def attempt():
        group, notes = await elastic(natty, natty_name), Notes()
        await hold(natty, group, notes, 2)
        async with group.join("m1", notes.handler(), **OPTIONS) as membership:
            began = await forget(natty, group, notes, "m1", 2)
            notes.gate.set()
            await emptied(natty, group)
            assert membership.handed_over == 0
            if await created(natty, group, "m1") != began:
                raise DisturbedError
            assert membership.counts["repeated"] == 0
            assert all_handled(group, notes, 2, later=0)

    await undisturbed(attempt)


async def test_dead_messages_in_the_queue_keep_nobody_from_beginning(
    natty, natty_name, notes, monkeypatch, natty_commands, caplog
):
    monkeypatch.setattr(forgotten, "PROVEN_AFTER", 0.2)
    group = await static(natty, natty_name)
    options = LONG | {"consumer": {"max_deliver": 1}, "dead_letters": DeadLetterOptions(letters=f"L_{group.stream}")}
    box = natty.dead_letters(f"L_{group.stream}")

    async def refuse(message):
        if message.data == b"0":
            message.nak()

    async def buried():
        return [letter.original_sequence async for letter in box.ls()] == [1]

    async def settled():
        state = await consumer(natty, group, "m1")
        return state["ack_floor"]["stream_seq"] == 3 and await messages_in(natty, group.stream) == 1

    async with group.join("m1", refuse, **options):
        await publish(natty, group.stream, range(2), keys=1)
        await until(buried)
        await publish(natty, group.stream, range(2, 3), keys=1)  # its ack moves the floor past the dead one
        await until(settled)
    async with group.join("m1", notes.handler(), **options) as membership:
        await publish(natty, group.stream, range(3, 4), keys=1)
        await notes.have(1)
        assert membership.handed_over == 0
    assert notes.done == {f"{group.stream}.k0": [3]}
    command = f"natty stream rm-msg {group.stream} 1 --force"
    assert f"`{command}`" in caplog.text
    assert (await asyncio.to_thread(natty_commands, *command.split()[1:])).status == 0
    assert await messages_in(natty, group.stream) == 0


async def test_a_member_that_may_not_look_begins_all_the_same(natty_tls, nats_server_binary, tmp_path, notes, caplog):
    denied = 'permissions: {publish: {deny: ["$JS.API.STREAM.INFO.QUEUE"]}}'
    users = f"authorization {{ users: [{{user: root, password: x}}, {{user: blind, password: x, {denied}}}] }}"
    options = ServerOptions(authorization=users)
    with NatsServer(options, folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with AsyncExitStack() as stack:
            root, blind = [
                await stack.enter_async_context(Natty(**server.connect_options(), **PATIENT, user=user, password="x"))
                for user in ("root", "blind")
            ]
            await root.create_stream("QUEUE", retention="workqueue", **partitioned("QUEUE", 2))
            await root.static_group("QUEUE", "g").create(2, members=["m1"])
            await publish(root, "QUEUE", range(1))
            with caplog.at_level("INFO", "natty.groups"):
                await stack.enter_async_context(blind.static_group("QUEUE", "g").join("m1", notes.handler(), **LONG))
                await notes.have(8)
    (told,) = [text for text in caplog.messages if "does not look for" in text]
    assert "natty does not look for forgotten messages of QUEUE" in told
