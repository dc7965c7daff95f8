from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import pytest
from patient import NEVER, PATIENCE, jump, until

from capture.node.shutdown import Stopping, reloading


class Run:
    """A process's run: it starts, captures until its source ends, and closes."""

    def __init__(self, *, drain: float = NEVER) -> None:
        self.stopping = Stopping()
        self.steps: list[str] = []
        self.goes_on = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self._drain = drain

    async def run(self) -> None:
        async with self.stopping.scope(()):
            try:
                await self._step("starts")
                with self.stopping.draining(self._begin):
                    await self._step("captures")
            finally:
                self.steps.append("closes")
                await self.may_close.wait()
                self.steps.append("has closed")

    def _begin(self) -> float:
        self.steps.append("drains")
        return self._drain

    async def _step(self, name: str) -> None:
        self.steps.append(name)
        await self.goes_on.wait()
        self.goes_on.clear()

    @contextlib.asynccontextmanager
    async def at(self, step: str):
        """Run it up to this step; after the body it must end by itself."""
        running = asyncio.create_task(self.run())
        while step not in self.steps:
            if self.steps:
                self.goes_on.set()
            await asyncio.sleep(0)
        yield
        async with asyncio.timeout(PATIENCE):
            await running


async def test_told_while_it_starts_it_closes_at_once() -> None:
    run = Run()
    async with run.at("starts"):
        run.stopping.request()
    assert run.steps == ["starts", "closes", "has closed"]
    assert run.stopping.requested


async def test_told_before_it_starts_it_does_not_get_far() -> None:
    run = Run()
    run.stopping.request()
    async with asyncio.timeout(PATIENCE):
        await run.run()
    assert run.steps in ([], ["starts", "closes", "has closed"])


async def test_told_while_it_captures_it_has_the_time_to_finish() -> None:
    run = Run()
    async with run.at("captures"):
        run.stopping.request()
        run.stopping.request()  # idempotent
        jump(NEVER / 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert run.steps[-1] == "drains"
        run.goes_on.set()
    assert run.steps == ["starts", "captures", "drains", "closes", "has closed"]


async def test_what_is_not_finished_in_time_is_cancelled_and_closed() -> None:
    run = Run(drain=10.0)
    async with run.at("captures"):
        run.stopping.request()
        jump(11.0)
    assert run.steps == ["starts", "captures", "drains", "closes", "has closed"]


async def test_what_follows_the_drain_is_not_timed() -> None:
    run = Run(drain=10.0)
    run.may_close.clear()
    async with run.at("captures"):
        run.stopping.request()
        run.goes_on.set()
        await until(lambda: "closes" in run.steps)
        jump(11.0)
        for _ in range(5):
            await asyncio.sleep(0)
        run.may_close.set()
    assert run.steps[-1] == "has closed"


async def test_told_while_it_closes_it_is_not_disturbed() -> None:
    run = Run()
    async with run.at("closes"):
        run.stopping.request()
    assert run.steps == ["starts", "captures", "closes", "has closed"]


@pytest.mark.parametrize("error", [TimeoutError("its own"), ValueError("a fault")])
async def test_an_error_of_the_run_is_its_end(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        async with Stopping().scope(()):
            raise error


async def test_signals_are_what_they_were_when_it_has_ended() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before: list[Callable[..., object] | int | None] = [signal.getsignal(number) for number in numbers]
    with reloading(lambda: None):
        async with Stopping().scope():
            assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before


async def test_the_first_signal_tells_and_gives_the_next_one_back_to_the_system() -> None:
    stopping = Stopping()
    before = signal.getsignal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE), stopping.scope():
        os.kill(os.getpid(), signal.SIGTERM)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert stopping.requested
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == [signal.SIG_DFL] * 2
    assert signal.getsignal(signal.SIGINT) == before


async def test_every_hangup_reloads() -> None:
    reloaded: list[None] = []
    with reloading(lambda: reloaded.append(None)):
        for times in (1, 2):
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda times=times: len(reloaded) == times)  # type: ignore[misc]
