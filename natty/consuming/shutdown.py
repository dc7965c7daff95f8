"""Graceful stop at SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec

P = ParamSpec("P")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_stops: list[tuple[asyncio.AbstractEventLoop, Callable[[], object]]] = []
_before: dict[signal.Signals, Any] = {}  # the handlers that ours replace


@contextmanager
def stop_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Within the block, SIGTERM and SIGINT call `stop` in this event loop.

    It replaces only default handlers: an application's own handlers stay as they are. The first signal restores the
    default handlers, so a second one ends the process as usual. In threads other than the main one it does nothing.
    """
    here = (asyncio.get_running_loop(), stop)
    _stops.append(here)
    try:
        _take()
        yield
    finally:
        _stops.remove(here)
        if not _stops:
            _give_back()


def until_signal(work: Callable[P, Coroutine[Any, Any, object]]) -> Callable[P, Coroutine[Any, Any, None]]:
    """Decorate `async def` work: SIGTERM and SIGINT cancel it, and the call then returns None.

    A cancellation that no signal caused is raised.
    """

    @wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        task, signalled = asyncio.create_task(work(*args, **kwargs)), asyncio.Event()

        def stop() -> None:
            signalled.set()
            task.cancel()

        with stop_on_signals(stop):
            try:
                await task
            except asyncio.CancelledError:
                me = asyncio.current_task()
                if not signalled.is_set() or me is None or me.cancelling():  # the last: the caller was cancelled, too
                    raise

    return run


def _take() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if _is_free(handler := signal.getsignal(number)):
                _before[number] = handler
                signal.signal(number, _stop_all)


def _is_free(handler: Any) -> bool:
    """Whether a handler is the default one, or the one with which `asyncio.run` turns SIGINT into a cancellation."""
    bound_to = getattr(getattr(handler, "func", handler), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(bound_to, asyncio.Runner)


def _give_back() -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in _before.items():
            if signal.getsignal(number) is _stop_all:
                signal.signal(number, handler)
        _before.clear()


def _stop_all(number: int, frame: FrameType | None) -> None:
    _give_back()
    for loop, stop in _stops:
        loop.call_soon_threadsafe(stop)
