"""The engine under `consume` and groups: no server, and what it sends goes into a list."""

import asyncio

import pytest
from patient import PATIENCE, until
from working import Leased, engine, raw, reply

from natty.consuming.work import Stint


async def test_what_a_handler_returned_from_is_acknowledged_and_its_credit_given_back():
    seen = []

    async def handle(message):
        seen.append(message.sequence)

    work, stint, sent = engine(handle)
    work.add(stint, [raw(1), raw(2)])
    await until(lambda: sent.finished_messages == 2)
    assert seen == [1, 2]
    assert sent.acks == [reply(1), reply(2)]
    await work.close(PATIENCE)


async def test_a_redelivery_of_what_is_held_is_dropped_and_that_of_another_is_not():
    seen, go_on = [], asyncio.Event()

    async def handle(message):
        seen.append(message.sequence)
        await go_on.wait()

    work, stint, sent = engine(handle)
    work.add(stint, [raw(1), raw(2)])
    await until(lambda: seen)
    work.add(stint, [raw(1, delivery=2), raw(2, delivery=2), raw(3, delivery=2)])
    await until(lambda: sent.finished_messages == 2)
    go_on.set()
    await until(lambda: sent.finished_messages == 5)
    assert sorted(seen) == [1, 2, 3]
    assert sorted(sent.acks) == [reply(1), reply(2), reply(3, 2)]
    await work.close(PATIENCE)


async def test_a_letter_of_another_consumer_is_acknowledged_and_not_handled():
    seen = []

    async def handle(message):
        seen.append(message.sequence)

    work, stint, sent = engine(handle)
    head = b"NATS/1.0\r\nNatty-Retry-For: %s\r\n\r\n"
    work.add(stint, [raw(1, headers=head % b"other"), raw(2, headers=head % b"d"), raw(3)])
    await until(lambda: len(sent.acks) == 3)
    assert seen == [2, 3]
    assert work.handled == 2
    await work.close(PATIENCE)


@pytest.mark.parametrize("fault", [KeyError, asyncio.CancelledError])
async def test_a_message_whose_key_can_not_be_told_fails_and_its_batch_does_not(fault):
    lots = []

    async def handle(messages: list):
        lots.append([message.sequence for message in messages])

    def key(message):
        if message.sequence == 2:
            raise fault
        return {1: "a", 3: "a", 4: None}[message.sequence]

    work, stint, sent = engine(handle, batch=2, batch_wait=0.0, ordered_by=key, retries=(1000.0,))
    work.add(stint, [raw(1), raw(2), raw(3), raw(4)])
    await until(lambda: work.failures.failed == 1 and work.handled == 3)
    assert sorted(lots) == [[1, 3], [4]]
    await until(lambda: sent.finished_messages == 4)
    assert sorted(sent.acks) == [reply(1), reply(3), reply(4)]
    await work.close(PATIENCE)


async def test_release_hands_back_what_waits_and_lets_the_running_handler_finish():
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message):
        began.set()
        await go_on.wait()

    work, stint, sent = engine(handle)
    work.add(stint, [raw(1), raw(2), raw(3)])
    await began.wait()
    work.release(stint)
    assert sent.handed_back == [reply(2), reply(3)]
    go_on.set()
    await work.close(PATIENCE)
    await until(lambda: sent.acks == [reply(1)])
    assert work.handled == 1


async def test_what_failed_while_its_stint_ended_is_handed_back_if_its_key_waits_for_it():
    async def handle(message):
        work.release(stint)
        raise RuntimeError("no")

    work, stint, sent = engine(handle, ordered_by="subject")
    work.add(stint, [raw(1)])
    await until(lambda: sent.handed_back == [reply(1)])
    assert (work.failures.failed, work.failures.retried) == (1, 0)
    await work.close(PATIENCE)


async def test_a_handler_that_is_fenced_is_called_again_while_the_stint_goes_on():
    calls, go_on = [], asyncio.Event()

    async def handle(message):
        calls.append(message.sequence)
        await go_on.wait()

    work, stint, sent = engine(handle, stint=Leased, ordered_by="subject")
    work.add(stint, [raw(1)])
    await until(lambda: calls)
    assert work.fence(stint) == 1
    assert work.fence(stint) == 0
    await until(lambda: calls == [1, 1])
    go_on.set()
    await until(lambda: sent.acks == [reply(1)])
    assert (work.handled, work.cut_short, work.overran) == (1, 1, 0)
    await work.close(PATIENCE)


async def test_after_a_fence_a_handler_that_awaits_something_cancelled_has_failed_as_ever():
    calls = []

    async def handle(message):
        calls.append(message.sequence)
        if len(calls) == 1:
            await asyncio.Event().wait()
        if len(calls) == 2:
            raise asyncio.CancelledError

    work, stint, sent = engine(handle, stint=Leased, ordered_by="subject", retries=(0.001,))
    work.add(stint, [raw(1)])
    await until(lambda: calls)
    work.fence(stint)
    await until(lambda: sent.acks == [reply(1)])
    assert (calls, work.failures.failed, work.failures.retried) == ([1, 1, 1], 1, 1)
    await work.close(PATIENCE)


async def test_a_fence_leaves_what_its_stint_does_not_let_start():
    class Closed(Leased):
        def may_start(self):
            return False

        async def wait_for_change(self):
            waiting.set()
            await asyncio.Event().wait()

    waiting, calls = asyncio.Event(), []
    work, stint, _ = engine(calls.append, stint=Closed, ordered_by="subject")
    work.add(stint, [raw(1)])
    await waiting.wait()
    assert work.fence(stint) == 0
    assert (work.cut_short, calls) == (0, [])
    await work.close(0.0)


async def test_what_is_cancelled_under_a_lease_is_not_handed_back():
    """The server may have given it to another client by then."""
    began = asyncio.Event()

    async def handle(message):
        began.set()
        await asyncio.Event().wait()

    for kind, handed_back in ((Leased, []), (Stint, [reply(1)])):
        began.clear()
        work, stint, sent = engine(handle, stint=kind, ordered_by="subject")
        work.add(stint, [raw(1)])
        await began.wait()
        await work.close(0.0)
        assert sent.handed_back == handed_back


async def test_a_key_whose_retry_was_released_may_be_handled_again():
    seen = []

    async def handle(message):
        seen.append(message.sequence)
        if len(seen) == 1:
            raise RuntimeError("no")

    work, stint, sent = engine(handle, ordered_by=lambda message: "all", retries=(1000.0,))
    work.add(stint, [raw(1)])
    await until(lambda: work.failures.retried)
    work.release(stint)
    assert sent.handed_back == [reply(1)]
    work.add(Stint(sent, stint.first), [raw(2)])
    await until(lambda: seen == [1, 2])
    await work.close(PATIENCE)


async def test_a_fence_while_a_message_is_being_buried_loses_neither_it_nor_its_key():
    calls, burying = [], asyncio.Event()

    async def handle(message):
        calls.append(message.sequence)
        if len(calls) == 1:
            raise RuntimeError("no")

    class Letters:
        async def bury(self, *arguments, **more):
            burying.set()
            await asyncio.Event().wait()

    work, stint, sent = engine(handle, stint=Leased, ordered_by=lambda message: "all", retries=(), dead_letters=True)
    work.failures.letters = Letters()
    work.add(stint, [raw(1), raw(2)])
    await burying.wait()
    assert work.fence(stint) == 1
    await until(lambda: calls == [1, 1, 2])
    await until(lambda: sent.acks == [reply(1), reply(2)])
    await work.close(PATIENCE)


@pytest.mark.parametrize("kind", [Stint, Leased])
async def test_acks_of_handlers_are_kept_under_the_condition_of_their_stint(kind):
    async def handle(message):
        pass

    work, stint, sent = engine(handle, stint=kind)
    assert sent.sender_valid == (stint.lasts if kind is Leased else None)
    await work.close(PATIENCE)


@pytest.mark.parametrize("lasts", [True, False])
async def test_what_fails_after_the_lease_ended_is_left_to_the_next_client(lasts):
    async def handle(message):
        stint.held = lasts
        raise RuntimeError("no")

    work, stint, sent = engine(handle, stint=Leased, ordered_by="subject", retries=(1000.0,))
    work.add(stint, [raw(1)])
    await until(lambda: work.failures.failed == 1)
    await until(lambda: work.failures.retried == 1 if lasts else sent.finished_messages == 1)
    assert len(list(work.iterate_held())) == int(lasts)
    assert sent.acks == sent.handed_back == []
    await work.close(PATIENCE)


async def test_a_fault_that_is_no_exception_hands_its_message_back_and_is_reported():
    class Fatal(BaseException):
        pass

    async def handle(message):
        raise Fatal

    work, stint, sent = engine(handle)
    work.add(stint, [raw(1)])
    await until(lambda: work.fault)
    assert isinstance(work.fault, Fatal)
    assert sent.handed_back == [reply(1)]
    await work.close(PATIENCE)
