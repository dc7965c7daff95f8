"""What several commands ask and read: a yes before destruction, durations, headers, the lines of standard input."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import AsyncIterator

import typer

from natty.errors import ConfigError

_READ_BYTES = 64 * 1024
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AHEAD = 4  # reads that wait to be published


def confirm(question: str, *, force: bool) -> None:
    """Return if the answer is yes, or with `force`. Aborts on no; ConfigError where there is no terminal to ask on."""
    if force:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask on: give --force")
    typer.confirm(question, abort=True)


def seconds(text: str) -> float:
    """Return the seconds of a duration as people write it: 500ms, 30s, 1h30m, 7d. Usage error if it is none."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", f"{text}s" if re.fullmatch(r"[\d.]+", text) else text)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) not in (text, f"{text}s") or total <= 0:
        raise typer.BadParameter(f"{text!r} is no duration; write 30s, 1h30m or 7d")
    return total


def headers_of(given: list[str]) -> dict[str, str | list[str]]:
    """Return headers given as `Name: value`; a repeated name keeps every value. Usage error if one is none."""
    headers: dict[str, list[str]] = {}
    for one in given:
        name, colon, value = one.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{one!r} is no header; write it as 'Name: value'", param_hint="--header")
        if "\n" in one or "\r" in one:
            raise typer.BadParameter(f"{one!r} has a line break in it", param_hint="--header")
        headers.setdefault(name.strip(), []).append(value.strip())
    return dict(headers)


async def lines_of_stdin() -> AsyncIterator[bytes]:
    """Yield the lines of standard input without their ends, as they come.

    Read by a thread that nobody waits for: a command that is interrupted must end, whatever the other side does.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(_AHEAD)

    def read() -> None:
        while True:
            chunk = os.read(0, _READ_BYTES)
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            if not chunk:
                return

    threading.Thread(target=read, name="natty stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
