r"""Standard output for foreign text: subjects, keys, headers, reasons, payloads.

A terminal interprets the control characters in it (ESC sequences, C1, carriage returns), so they are escaped there. A
pipe or a file gets every byte unchanged. Both command lines print through this file, or through `natty.cli.tables`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from natty.errors import legible
from natty.names import decode, encode


def printable(text: str, also: str = "") -> str:
    r"""Return the text with every character that is not printable escaped (\x1b, \u202e), except those in `also`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in also else _escape(one) for one in text)


def say(*lines: str) -> None:
    """Print lines of text on standard output; on a terminal, a line break inside a line is escaped."""
    if not lines:
        return
    if sys.stdout.isatty():
        print(*(printable(line, also="\t") for line in lines), sep="\n", flush=True)
    else:
        write(b"".join(_bytes(line) + b"\n" for line in lines))


def write(data: bytes) -> None:
    """Write bytes to standard output: unchanged, but on a terminal as text that it can't interpret."""
    if sys.stdout.isatty():
        print(escape(data).decode(), end="", flush=True)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def escape(data: bytes) -> bytes:
    """Return bytes as UTF-8 that a terminal can't interpret; line breaks and tabs stay."""
    return printable(decode(data), also="\n\t").encode()


def json_text(data: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return JSON that any output accepts: in ASCII if it would contain lone surrogates or control characters."""
    text = json.dumps(data, indent=indent, default=default, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return json.dumps(data, indent=indent, default=default).replace("\x7f", "\\u007f")


def _bytes(line: str) -> bytes:
    try:
        return encode(line)
    except UnicodeEncodeError:  # a surrogate that does not stand for a byte
        return legible(line).encode()


def _escape(character: str) -> str:
    shown = legible(character)
    return shown if shown != character else character.encode("unicode_escape").decode()
