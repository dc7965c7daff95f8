"""A call that a signal ends returns; another cancellation is raised."""

import asyncio
import inspect
import os
import signal

import pytest

from natty import as_leader
from natty.consuming.shutdown import until_signal


@until_signal
async def wait(entered: asyncio.Event) -> None:
    entered.set()
    await asyncio.Event().wait()


async def started():
    entered = asyncio.Event()
    task = asyncio.create_task(wait(entered))
    await entered.wait()
    return task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_call(number):
    task = await started()
    os.kill(os.getpid(), number)
    assert await task is None


async def test_a_cancelled_call_is_cancelled():
    task = await started()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_no_signal_caused_is_raised():
    @until_signal
    async def broken() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await broken()


@pytest.mark.parametrize("options", [{}, {"every": 60.0}])
def test_a_decorated_leader_is_a_coroutine_function_with_the_name_and_signature_of_the_work(options):
    async def work(term, a: int, b: int = 1) -> None:
        """Do it."""

    leader = as_leader("x", **options)(work)
    assert inspect.iscoroutinefunction(leader)
    assert (leader.__name__, leader.__doc__) == ("work", "Do it.")
    assert inspect.signature(leader) == inspect.signature(work)
