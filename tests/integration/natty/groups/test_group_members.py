import asyncio
from contextlib import AsyncExitStack

import pytest
from consuming import until
from group_members import LONG, QUICK, Notes, consumer, has_state, publish
from patient import PATIENCE

from natty import JetStreamError, Message
from natty.errors import GroupNotFoundError

GIVES_UP = ("$JS.API.CONSUMER.DELETE.", "$JS.API.CONSUMER.UNPIN.")
AS_CG = {"ack_wait": 2.0, "max_ack_pending": 1, "dead_letters": False}


async def test_two_members_share_the_keys_and_keep_each_in_order(natty, group, notes):
    await publish(natty, group.stream, range(5))
    async with group.join("m1", notes.handler(), **LONG) as m1, group.join("m2", notes.handler(), **LONG) as m2:
        await notes.have(40)
        assert (m1.partitions, m2.partitions, m2.state) == ((0, 1, 2, 3), (), "outside")
        await group.add("m2")
        await publish(natty, group.stream, range(5, 10))
        await notes.have(80)
        assert (m1.partitions, m2.partitions) == ((0, 1), (2, 3))
        assert m1.pinned
        assert m2.pinned
        assert m1.work.handled + m2.work.handled == notes.count == 80
        assert m2.work.handled > 0
        assert f"{m2!r}" == f"Membership({group.stream}/g, m2, active, partitions [2, 3])"
    assert notes.ordered
    assert notes.together == 0
    assert set(notes.done) == {f"{group.stream}.k{key}" for key in range(8)}
    await until(lambda: empty(natty, group))


async def empty(natty, group):
    state = await natty.jetstream.request(f"STREAM.INFO.{group.consumed_stream}")
    return not state["state"]["messages"]


async def test_the_server_has_applied_our_acks_before_a_consumer_is_given_up(natty, group, notes, monkeypatch):
    """It is deleted, or its pin is given up if a slow server still counts our last request among those that wait."""
    said = []
    request = natty.connection.request

    async def heard(subject, data=b"", **options):
        said.append((subject, data))
        return await request(subject, data, **options)

    monkeypatch.setattr(natty.connection, "request", heard)
    await publish(natty, group.stream, range(5))
    async with group.join("m1", notes.handler(), **LONG):
        await notes.have(40)
    subjects = [subject for subject, _ in said]
    given_up = next(at for at, subject in enumerate(subjects) if subject.startswith(GIVES_UP))
    answered = [at for at, (subject, data) in enumerate(said) if subject.startswith("$JS.ACK.") and data == b"+WPI"]
    assert answered
    assert max(answered) < given_up


@pytest.mark.parametrize("fault", [None, ValueError, asyncio.CancelledError])
async def test_events_tell_what_becomes_of_an_instance(natty, group, notes, fault):
    seen = []

    def on_event(event):
        seen.append(event)
        if fault:
            raise fault

    async with group.join("m1", notes.handler(), on_event=on_event, **LONG) as m1:
        heard = asyncio.create_task(collect(m1.events()))
        await publish(natty, group.stream, range(1))
        await notes.have(8)
        await has_state(m1, "active")
        await group.drop("m1")
        await has_state(m1, "outside")
    kinds = [event.kind for event in seen]
    for kind in ("standby", "active", "partitions", "handing over", "outside", "ended"):
        assert kind in kinds
    assert (await heard)[-1].kind == "ended"


async def collect(events):
    return [event async for event in events]


async def test_a_hand_over_drains_first_and_the_next_owner_waits_for_it(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **LONG) as m1, group.join("m2", notes.handler(), **LONG) as m2:
        await until(lambda: notes.begun == 4)  # one of each partition that has a key
        await group.add("m2")
        await has_state(m1, "handing over")
        await has_state(m2, "waiting")
        await asyncio.sleep(0.5)
        assert (m1.state, m2.state, notes.begun) == ("handing over", "waiting", 4)
        notes.gate.set()
        await notes.have(16)
        assert notes.count == 16  # what ran was acknowledged before the consumer was given up
        assert m1.handed_over == 1
        assert m1.hand_over_seconds > 0
    assert notes.together == 0
    assert notes.ordered


@pytest.mark.long
async def test_the_pin_is_kept_while_a_handler_takes_longer_than_the_ack_wait(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **QUICK) as m1, group.join("m1", notes.handler(), **QUICK) as standby:
        await until(lambda: m1.pinned or standby.pinned)
        owner = m1 if m1.pinned else standby
        await until(lambda: notes.begun == 4)
        pin = (await consumer(natty, group, "m1"))["priority_groups"][0]["pinned_client_id"]
        await asyncio.sleep(3 * QUICK["ack_wait"])
        if owner.work.cut_short == 0:  # else this machine stood still, and the lease ended
            assert (await consumer(natty, group, "m1"))["priority_groups"][0]["pinned_client_id"] == pin
            assert notes.begun == 4
        notes.gate.set()
        await notes.have(16)
    assert notes.together == 0


@pytest.mark.parametrize("refuse", [True, False])
async def test_a_message_that_fails_keeps_its_place(natty, group, refuse):
    got, fails = [], [2 if refuse else 10**6]

    async def handle(message):
        if message.data == b"3" and fails[0]:
            fails[0] -= 1
            raise RuntimeError("not now")
        got.append((message.subject, int(message.data)))

    await publish(natty, group.stream, range(6), keys=1)
    letters = {} if refuse else {"dead_letters": True}
    async with group.join("m1", handle, **{**LONG, **letters}, retries=(0.05, 0.05)) as m1:
        await until(lambda: len(got) == (6 if refuse else 5))
        assert (m1.counts["failed"], m1.counts["buried"]) == ((2, 0) if refuse else (3, 1))
    assert [number for _, number in got] == [0, 1, 2, *([3] if refuse else []), 4, 5]
    if not refuse:
        (letter,) = [one async for one in natty.dead_letters().ls() if one.stream == group.consumed_stream]
        assert letter.subject == f"{group.stream}.k0"  # where a retry publishes it


async def test_a_plain_function_runs_in_a_thread_and_settles_what_it_wants(natty, group):
    got = []

    def handle(message):
        got.append(message.data)
        message.ack()

    await publish(natty, group.stream, range(3), keys=1)
    async with group.join("m1", handle, **LONG):
        await until(lambda: got == [b"0", b"1", b"2"])
    await until(lambda: empty(natty, group))


async def test_joining_what_is_not_there_says_so(natty, natty_name, notes):
    await natty.create_stream(name := natty_name("S"), subjects=[f"{name}.>"])
    with pytest.raises(GroupNotFoundError):
        await natty.group(name, "g").join("m1", notes.handler()).__aenter__()
    with pytest.raises(ValueError, match="order"):
        natty.group(name, "g").join("m1", notes.handler(), ordered_by=None)
    with pytest.raises(TypeError, match="handler"):
        natty.group(name, "g").join("m1")


async def test_mappings_and_members_can_be_switched_while_members_run(natty, group, notes):
    async with group.join("m1", notes.handler(), **LONG) as m1, group.join("m2", notes.handler(), **LONG) as m2:
        await publish(natty, group.stream, range(2))
        await notes.have(16)
        await group.set_mappings({"m1": [3], "m2": [0, 1, 2]})
        await publish(natty, group.stream, range(2, 4))
        await notes.have(32)
        assert (m1.partitions, m2.partitions) == ((3,), (0, 1, 2))
        await group.delete_mappings()
        await has_state(m1, "outside")
        await has_state(m2, "outside")
        await group.add("m2")
        await publish(natty, group.stream, range(4, 6))
        await notes.have(48)
    assert notes.ordered
    assert notes.together == 0


async def test_stepping_down_gives_the_pin_to_a_standby_that_waits_for_what_runs(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **LONG) as m1, AsyncExitStack() as stack:
        await until(lambda: notes.begun == 4)
        standby = await stack.enter_async_context(group.join("m1", notes.handler(), **LONG))
        await has_state(standby, "standby")
        await asyncio.sleep(0.1)  # until its request waits at the server
        await group.step_down("m1")
        await has_state(standby, "taking over")
        await has_state(m1, "standby")
        await asyncio.sleep(0.3)
        assert notes.begun == 4
        notes.gate.set()
        await notes.have(16)
        assert notes.count == 16
        assert standby.work.handled == 12
    assert notes.together == 0
    assert notes.ordered


async def test_an_instance_whose_settings_differ_uses_the_consumer_that_is_there(natty, group, notes, caplog):
    async with group.join("m1", notes.handler(), **LONG), AsyncExitStack() as stack:
        await until(lambda: exists(natty, group))
        created = (await consumer(natty, group, "m1"))["created"]
        other = await stack.enter_async_context(group.join("m1", notes.handler(), **AS_CG))
        await has_state(other, "standby")
        assert (await consumer(natty, group, "m1"))["created"] == created
    assert "was made with ack_wait 60 s" in caplog.text


async def exists(natty, group):
    try:
        return bool(await consumer(natty, group, "m1"))
    except JetStreamError:
        return False


@pytest.mark.parametrize("limits", [{"max_batch": 2}, {"max_bytes": 500}, {"max_expires": 1.0}])
async def test_a_members_requests_are_within_the_limits_of_its_consumer(natty, group, notes, limits):
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), consumer=limits, **LONG) as m1:
        await notes.have(16)
        assert m1.lost == 0
    assert notes.ordered


async def test_a_member_has_batches_of_one_key_in_order(natty, group):
    lots = []

    async def handle(messages: list[Message]):
        assert len({message.partition for message in messages}) == 1
        lots.append([(message.subject, int(message.data)) for message in messages])

    await publish(natty, group.stream, range(10))
    async with group.join("m1", handle, batch=7, batch_wait=0.2, **LONG) as m1:
        await until(lambda: m1.work.handled == 80)
    assert max(map(len, lots)) == 7
    done = [one for lot in lots for one in lot]
    for key in {subject for subject, _ in done}:
        assert [number for subject, number in done if subject == key] == list(range(10))


async def test_of_a_members_batch_that_fails_each_message_is_tried_alone_in_order(natty, group):
    lots = []

    async def handle(messages: list[Message]):
        lots.append([int(message.data) for message in messages])
        if len(lots) == 1:
            raise RuntimeError("once")

    for number in range(5):
        await natty.publish(f"{group.stream}.k1", b"%d" % number)
    async with group.join("m1", handle, batch=5, batch_wait=PATIENCE, retries=(0.01,), **LONG) as m1:
        await until(lambda: m1.work.handled == 5)
        assert m1.counts["retried"] == m1.counts["failed"] == 5
    assert lots == [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]


async def test_a_members_handler_that_takes_too_long_is_cancelled_and_has_failed(natty, group):
    tries = []

    async def handle(message):
        tries.append(int(message.data))
        if len(tries) == 1:
            await asyncio.Event().wait()

    await natty.publish(f"{group.stream}.k1", b"1")
    await natty.publish(f"{group.stream}.k1", b"2")
    async with group.join("m1", handle, timeout=0.05, retries=(0.01,), **LONG) as m1:
        await until(lambda: m1.work.handled == 2)
        assert m1.counts["failed"] == 1
    assert tries == [1, 1, 2]


def test_members_options_that_can_not_work_are_refused_as_those_of_consume_are(group):
    for options, words in (
        ({"batch": 600}, "batch 600 is over max_ack_pending 500"),
        ({"concurrency": 0}, "concurrency is 0; write a whole number, 1 or more"),
        ({"retries": (), "dead_letters": False}, "retries is"),
        ({"timeout": 1.0}, "a thread can't be cancelled"),
    ):
        with pytest.raises(ValueError, match=words):
            group.join("m1", print if "timeout" in options else Notes().handler(), **options)
