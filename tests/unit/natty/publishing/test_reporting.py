"""Errors of publishing on their way to the program's callback: each is given to it or kept, and never both."""

import asyncio
from contextvars import ContextVar

import pytest
from patient import jump, until

from natty import PublishError
from natty.publishing import reporting
from natty.publishing.outbox import PublishErrors


class Callback:
    """An `async def` callback that waits until it is let go, or hangs for the numbers in `hangs`."""

    def __init__(self, *hangs):
        self.begun, self.ended, self.hangs, self.gate = [], [], {str(number) for number in hangs}, asyncio.Event()

    async def __call__(self, error):
        self.begun.append(str(error))
        if str(error) in self.hangs:
            await asyncio.Event().wait()
        await self.gate.wait()
        self.ended.append(str(error))


def fill(errors, count):
    for number in range(count):
        errors.add(PublishError(str(number)))
    return [str(number) for number in range(count)]


def unread(errors):
    return [str(error) for error in errors._unread]


async def test_a_slow_callback_is_called_with_one_error_at_a_time_and_the_others_count_as_unread():
    errors, callback, before = PublishErrors(), Callback(), len(asyncio.all_tasks())
    errors.call(callback)
    everything = fill(errors, 1000)
    await until(lambda: callback.begun)
    assert (callback.begun, len(errors)) == (["0"], 999)
    assert len(asyncio.all_tasks()) == before + 1
    callback.gate.set()
    await errors.settle()
    assert callback.ended == everything
    assert len(errors) == 0


async def test_the_time_limit_of_a_call_begins_with_the_call():
    errors, callback = PublishErrors(), Callback(0)
    errors.call(callback)
    fill(errors, 3)
    await until(lambda: callback.begun)
    jump(reporting.CALL_TIMEOUT)
    callback.gate.set()
    await until(lambda: callback.ended == ["1", "2"])
    assert unread(errors) == ["0"]


async def test_whoever_waits_for_the_callback_does_not_wait_for_many_calls_that_take_too_long(caplog):
    errors, callback = PublishErrors(), Callback(0, 1, 2, 3)
    errors.call(callback)
    everything = fill(errors, 4)
    settled = asyncio.create_task(errors.settle())
    await until(lambda: callback.begun)
    jump(reporting.CALL_TIMEOUT)
    await until(settled.done)
    assert (callback.begun, unread(errors)) == (["0"], everything)
    assert "on_publish_error was not called with 3 more errors; they are kept for publish_errors(); the first: 1" in (
        caplog.text
    )


async def test_settle_waits_for_the_errors_so_far_and_not_for_later_ones():
    errors, callback = PublishErrors(), Callback(1)
    errors.call(callback)
    errors.add(PublishError("0"))
    settled = asyncio.create_task(errors.settle())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not settled.done()
    errors.add(PublishError("1"))
    callback.gate.set()
    await until(settled.done)
    assert (callback.ended, unread(errors)) == (["0"], [])


async def test_the_callback_runs_in_the_context_in_which_it_was_given():
    errors, seen, place = PublishErrors(), [], ContextVar("place")
    place.set("at the start")

    @errors.call
    async def note(error):
        seen.append(place.get())
        place.set("in a call")

    place.set("where the error came up")
    fill(errors, 2)
    await errors.settle()
    assert seen == ["at the start"] * 2


async def test_another_callback_gets_the_errors_that_come_after_it():
    errors, first, second = PublishErrors(), Callback(), []
    errors.call(first)
    fill(errors, 2)
    errors.call(second.append)
    errors.add(PublishError("2"))
    first.gate.set()
    await errors.settle()
    assert (first.ended, [str(error) for error in second]) == (["0", "1"], ["2"])


def test_the_end_of_the_event_loop_keeps_what_the_callback_has_not_taken(caplog):
    errors = PublishErrors()

    async def main(begins):
        errors.call(Callback())
        fill(errors, 3)
        if begins:
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    for begins in (True, False):  # the first call is cancelled while it runs; before it runs
        asyncio.run(main(begins))
        assert unread(errors) == ["0", "1", "2"]
        errors.close(raises=False)
    assert caplog.text.count("on_publish_error was not called with 2 more errors") == 2


@pytest.mark.parametrize("raises", [asyncio.CancelledError, ZeroDivisionError, TimeoutError])
async def test_a_callback_that_raises_has_its_error_kept_and_is_called_with_the_next(raises, caplog):
    errors, ended = PublishErrors(), []

    @errors.call
    async def note(error):
        if str(error) == "0":
            raise raises
        ended.append(str(error))

    fill(errors, 3)
    await until(lambda: ended == ["1", "2"])
    assert unread(errors) == ["0"]
    assert caplog.text.count("the error is kept for publish_errors(): 0") == 1
    assert raises.__name__ in caplog.text


@pytest.mark.parametrize("aside", [False, True], ids=["by itself", "in a task"])
async def test_the_callback_and_its_tasks_do_not_wait_for_itself_and_others_do(aside):
    errors, told, gate = PublishErrors(), [], asyncio.Event()

    @errors.call
    async def note(error):
        await (asyncio.gather(errors.settle()) if aside else errors.settle())
        await gate.wait()
        told.append(str(error))

    fill(errors, 2)
    other = asyncio.create_task(errors.settle())
    gate.set()
    await until(other.done)
    assert told == ["0", "1"]
    assert not errors.is_called_by_its_own
