"""Text that others wrote, which NATS does not require to be UTF-8: subjects, headers, reply subjects.

Python text holds every such byte as a lone surrogate, U+DC80 to U+DCFF (PEP 383), and gives the same bytes back. What
encodes strictly (a terminal, a file, JSON, OpenTelemetry) raises on these: it gets `legible` text.
"""

from __future__ import annotations

import re

_LONE = re.compile("[\ud800-\udfff]")


def decode(raw: bytes) -> str:
    """Return the text of bytes; those that are not UTF-8 survive in it. Never raises."""
    return raw.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Return the bytes that `decode` made this text of. UnicodeEncodeError for a surrogate that it never makes."""
    return text.encode("utf-8", "surrogateescape")


def legible(text: str) -> str:
    r"""Return text that everything can encode: a byte that is not UTF-8 reads \xff, another lone surrogate \ud800."""
    return text if text.isascii() else _LONE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    point = ord(match[0])
    return f"\\x{point - 0xDC00:02x}" if 0xDC80 <= point <= 0xDCFF else f"\\u{point:04x}"
