from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from patient import PATIENCE

from capture.errors import ConfigError
from capture.ingest import hooks
from capture.ingest.hooks import Completion, Hook, hook


def completion(first: int, error: BaseException | None = None) -> Completion:
    path = f"blocks/{first}"
    return Completion(
        stream="S", key="k", path=path, first=first, last=first, count=1, bytes=9, duration=0.1, error=error
    )


async def told(function: Callable[[Completion], object], *completions: Completion) -> Hook:
    """Tell a hook of these, and end it."""
    async with asyncio.timeout(PATIENCE), Hook(function) as telling:
        for one in completions:
            telling(one)
    return telling


async def test_a_function_is_called_in_a_thread_with_each_completion_in_order() -> None:
    calls: list[tuple[int, bool]] = []
    here = threading.current_thread()

    def tell(one: Completion) -> None:
        calls.append((one.first, threading.current_thread() is here))

    await told(tell, *map(completion, range(50)))
    assert calls == [(number, False) for number in range(50)]


async def test_a_coroutine_function_is_awaited_in_the_loop_one_call_after_the_other() -> None:
    calls: list[object] = []

    async def tell(one: Completion) -> None:
        calls.append(one.first)
        await asyncio.sleep(0)
        calls.append(one.error)

    failure = OSError("away")
    await told(tell, completion(1), completion(2, failure))
    assert calls == [1, None, 2, failure]


async def test_a_function_that_returns_something_to_await_is_awaited() -> None:
    calls: list[int] = []

    async def later(number: int) -> None:
        calls.append(number)

    await told(lambda one: later(one.first), completion(7))
    assert calls == [7]


@pytest.mark.parametrize("error", [RuntimeError("no luck"), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_hook_that_raises_is_logged_and_called_again(
    error: BaseException, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def tell(one: Completion) -> None:
        calls.append(one.first)
        raise error

    async def tell_later(one: Completion) -> None:
        tell(one)

    await told(tell_later if asynchronous else tell, completion(1), completion(2))
    assert calls == [1, 2]
    assert caplog.text.count("failed\nTraceback") == 2


async def test_telling_a_hook_that_hangs_takes_no_time_and_its_end_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "END_WITHIN", 0.0)
    monkeypatch.setattr(hooks, "LONGEST_QUEUE", 3)
    hangs = asyncio.Event()

    async def hang(_: Completion) -> None:
        hangs.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE), Hook(hang) as telling:
        telling(completion(0))
        await hangs.wait()
        for number in range(1, 6):
            telling(completion(number))
    assert (telling.dropped, len(telling._waiting)) == (2, 3)
    assert "it is not called for every block" in caplog.text
    assert "was not called for all" in caplog.text


def test_a_hook_is_named_by_module_and_function() -> None:
    assert hook(f"{__name__}:completion") is completion
    assert hook("") is None
    with pytest.raises(ConfigError, match="on_store_complete 'nowhere:told' can't be loaded"):
        hook("nowhere:told")
