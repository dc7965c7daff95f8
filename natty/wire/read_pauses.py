"""Pauses of reading. Fewer and larger reads take less CPU than many small ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

SMALL_BYTES = 32 * 1024  # of a read; after a larger one the next follows at once


class ReadPauses:
    """Pauses reading from a connection's socket after reads that brought little.

    What a read brings may ask for a pause after it: it sets `wanted`, in seconds.
    """

    def __init__(self) -> None:
        self.wanted = 0.0
        self._socket: Any = None
        self._limit: Callable[..., None] | None = None

    def __repr__(self) -> str:
        return f"ReadPauses({self.wanted:g} s wanted)"

    def attach(self, transport: Any) -> None:
        """Pause reading from this transport from now on: that of a new session."""
        self._socket, self.wanted = transport, 0.0
        self._limit = getattr(transport, "set_read_buffer_limits", None)

    def begin(self, nbytes: int) -> None:
        """Begin the pause that a read of so many bytes asked for, unless it brought enough."""
        seconds, self.wanted = self.wanted, 0.0
        transport = self._socket
        if nbytes < SMALL_BYTES and not transport.is_closing():
            transport.pause_reading()
            if self._limit is not None:  # while TLS is paused, asyncio and uvloop read on below it, up to a limit
                self._limit(high=1)
            asyncio.get_running_loop().call_later(seconds, self._end, transport)

    def _end(self, transport: Any) -> None:
        if not transport.is_closing():
            if self._limit is not None:
                self._limit()
            transport.resume_reading()
