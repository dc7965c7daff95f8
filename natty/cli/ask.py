"""Input of several commands: confirmations, missing values, durations, sizes, headers, lines."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Annotated, TypeVar

import typer

from natty.config.units import check_ttl, datetime_of, parse_duration, parse_size, parse_time
from natty.errors import ConfigError, NattyError
from natty.wire.message import check_header_name

T = TypeVar("T")
Force = Annotated[bool, typer.Option("--force", "-f", help="Do not ask.")]

_READ_BYTES = 64 * 1024
_A_MOMENT = 1.0  # seconds
_AHEAD = 4  # reads that may wait until they are published


class MissingFlagError(typer.BadParameter):
    """A required value was not given; exit status 2."""

    def format_message(self) -> str:
        """Return the sentence unchanged: it names the flag."""
        return self.message


def confirm(question: str, *, force: bool) -> None:
    """Return if the answer is yes, or with `force`. Aborts on no; raises ConfigError without a terminal to ask on."""
    if force:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask on: give --force")
    typer.confirm(question, abort=True)


def on_terminal() -> bool:
    """Return whether standard input is a terminal, so that questions can be asked."""
    return sys.stdin.isatty()


def ask_if_missing(given: T | None, flag: str, question: str, parse: Callable[[str], T]) -> T:
    """Return the given value, or ask for it. Without a terminal, raises a usage error that names the flag."""
    if given is not None:
        return given
    if not on_terminal():
        raise MissingFlagError(f"{flag} is missing, and there is no terminal to ask on: give it")
    return ask(question, parse)


def ask(question: str, parse: Callable[[str], T], *, default: str = "", choices: Sequence[str] = ()) -> T:
    """Ask on the terminal until `parse` accepts the answer. The question is written to standard error.

    An empty answer is the default. Choices are shown with numbers; the number is an answer, too. Aborts at the end of
    input.
    """
    for place, choice in enumerate(choices, start=1):
        print(f"{place:3}  {choice}", file=sys.stderr)
    hint = f" [{default}]" if default else ""
    while True:
        print(f"{question}{hint}: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise typer.Abort
        if not (answer := line.strip() or default):
            continue
        try:
            return parse(_resolve_choice(answer, choices))
        except (typer.BadParameter, NattyError, ValueError) as error:
            print(error, file=sys.stderr)


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts only these words, in either case."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(choices)}")
        return text.lower()

    return parse


def number(text: str) -> int:
    """Return a whole number above zero. Raises a usage error if it is not one."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text!r} is not a whole number above 0")
    return int(text)


def _resolve_choice(answer: str, choices: Sequence[str]) -> str:
    if not choices or answer in choices:
        return answer
    if answer.isdecimal() and 1 <= int(answer) <= len(choices):
        return choices[int(answer) - 1]
    raise typer.BadParameter(f"{answer!r} is not one of them; type a number from 1 to {len(choices)}, or a name")


def usage(parse: Callable[[], T]) -> T:
    """Return what `parse` returns; its ValueError becomes a usage error."""
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def seconds(text: str) -> float:
    """Return the seconds of a duration such as 500ms, 30s, 1h30m, 7d. Raises a usage error if it is not one."""
    return usage(lambda: parse_duration(text))


def lifetime(text: str) -> float:
    """Return the seconds of a time to live. Raises a usage error if it is no duration, or too long."""
    found = seconds(text)
    usage(lambda: check_ttl(found))
    return found


def moment(text: str) -> datetime:
    """Return a time, as typer's parser of a flag."""
    try:
        return datetime_of(parse_time(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time as 2026-11-23T18:00:00Z: {error}") from error


def size(text: str) -> int:
    """Return the bytes of a size such as 512, 64KB, 1GiB; powers of 1024. Raises a usage error if it is not one."""
    return usage(lambda: parse_size(text))


def headers_of(given: list[str]) -> dict[str, str | list[str]]:
    """Return headers given as `Name: value`; a repeated name keeps every value. Usage error if one is invalid."""
    headers: dict[str, list[str]] = {}
    for one in given:
        name, colon, value = one.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"{one!r} is not a header; write it as 'Name: value'", param_hint="--header")
        if "\n" in one or "\r" in one:
            raise typer.BadParameter(f"{one!r} contains a line break", param_hint="--header")
        try:
            check_header_name(name.strip())
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--header") from error
        headers.setdefault(name.strip(), []).append(value.strip())
    return dict(headers)


def body_of(given: str | None) -> bytes:
    """Return the message of a command: what was given, or else what a pipe or a file holds, unchanged; or nothing.

    If a pipe gives nothing for a moment, it says what it waits for: scripts may inherit a pipe that nobody closes.
    """
    if given is not None:
        return given.encode()
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:  # no file is behind it
        return b""
    if stat.S_ISFIFO(mode) and not select.select([sys.stdin], [], [], _A_MOMENT)[0]:
        typer.echo("natty: reading the message from standard input; '' is an empty one", err=True)
    return sys.stdin.buffer.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) else b""


async def lines_of_stdin() -> AsyncIterator[bytes]:
    """Yield the lines of standard input without their ends, as they arrive.

    A thread reads them that is never joined: an interrupted command must end, whatever the other side does.
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
