"""The leader's loop, with a term that lasts: a cancellation ends it, whatever the work does with that."""

import asyncio
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from natty import StaleTokenError
from natty.elections import ElectionOptions
from natty.elections.work_loop import WorkLoop


class Node(NamedTuple):
    """A candidate that counts no run: to count one ends the loop with AttributeError."""

    options: ElectionOptions
    succeeded: int = 0
    failed: int = 0


class LetOut:
    """Work that waits until it is cancelled, and does not handle that."""

    def __init__(self):
        self.began, self.runs = asyncio.Event(), 0

    async def __call__(self, term):
        self.runs += 1
        if self.runs > 1:
            raise StaleTokenError("a loop that continues ends here")
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.handle_cancellation()

    def handle_cancellation(self):
        raise


class Swallowed(LetOut):
    def handle_cancellation(self):
        pass


class Replaced(LetOut):
    def handle_cancellation(self):
        raise RuntimeError("cancelled")


@pytest.mark.parametrize("kind", [LetOut, Swallowed, Replaced])
async def test_a_cancelled_loop_ends_and_its_run_has_neither_succeeded_nor_failed(kind):
    work = kind()
    node = Node(ElectionOptions(name="job", every=1e-9))
    running = asyncio.create_task(WorkLoop(node, work)(SimpleNamespace(check=lambda: None)))
    await work.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.runs == 1


async def test_a_loop_that_is_cancelled_while_it_reads_the_last_success_ends():
    reading, reads = asyncio.Event(), 0

    async def read(commit):
        nonlocal reads
        reads += 1
        if reads > 1:
            raise StaleTokenError("a loop that continues ends here")
        reading.set()
        await asyncio.Event().wait()

    node = Node(ElectionOptions(name="job", cron="@daily"))
    running = asyncio.create_task(WorkLoop(node, None)(SimpleNamespace(check=lambda: None, read=read)))
    await reading.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert reads == 1
