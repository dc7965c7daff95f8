"""Graceful stop at SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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


async def run_until_signal(work: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine until it ends, or until SIGTERM or SIGINT cancels it: that is not an error."""
    task = asyncio.create_task(work)
    with stop_on_signals(task.cancel):
        try:
            await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is None or me.cancelling():  # it is we who were cancelled
                raise


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
