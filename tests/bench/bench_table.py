"""Shared by the benches: a stopwatch for time and CPU, a choice of event loops, and a table."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

PAYLOAD = bytes(range(32, 127)) + b"." * 33
assert len(PAYLOAD) == 128

Loop = Callable[[], asyncio.AbstractEventLoop]


@dataclass
class Took:
    """What a number of messages took, in seconds. A stopwatch fills it in."""

    messages: int
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        return self.messages / self.wall

    @property
    def micros(self) -> float:
        """Microseconds of CPU a message."""
        return self.cpu / self.messages * 1e6


@contextmanager
def stopwatch(messages: int) -> Iterator[Took]:
    """Measure a piece of work on this many messages; CPU is that of this process, all threads."""
    gc.collect()
    took = Took(messages)
    wall, cpu = time.perf_counter(), time.process_time()
    yield took
    took.wall, took.cpu = time.perf_counter() - wall, time.process_time() - cpu


def middle(rounds: Sequence[Took]) -> tuple[float, float]:
    """Return the medians of messages a second and of CPU microseconds a message."""
    return median(took.rate for took in rounds), median(took.micros for took in rounds)


def loops() -> dict[str, Loop]:
    """Return the event loops of this installation by name: asyncio's own, and uvloop's if it is importable."""
    found: dict[str, Loop] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        return found
    return found | {"uvloop": uvloop.new_event_loop}


def print_machine(*more: str) -> None:
    """Print what the figures depend on."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load}", *more, sep=", ", flush=True)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}" if title else "")
    for row in (header, ["─" * width for width in widths], *rows):
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]).rstrip(), flush=True)
