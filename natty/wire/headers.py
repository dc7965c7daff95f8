"""What a message to publish says besides its payload: where it belongs, and on what conditions it is stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import ceil

from natty.config.units import seconds_of
from natty.names import check_subject, covers
from natty.wire.message import Headers, encode_headers

MESSAGE_ID = "Nats-Msg-Id"
TTL = "Nats-TTL"
EXPECTED_STREAM = "Nats-Expected-Stream"

_HEADER_NAME = re.compile(r"[^\x00-\x20:\x7f]+")


def publish_headers(
    headers: Headers | None,
    *,
    msg_id: str = "",
    expect_last_sequence: int | None = None,
    expect_last_subject_sequence: int | None = None,
    ttl: float | str | None = None,
) -> dict[str, str | list[str]]:
    """Return the caller's headers with those of JetStream added (ADR-8, ADR-43); the caller's are not changed.

    `ttl` is in seconds, or text ("7d"), rounded up to whole seconds. ValueError if it is not positive, or if a
    header's name is empty or has a blank, a colon or a control character.
    """
    for name in headers or ():
        check_header_name(name)
    ttl = None if ttl is None else seconds_of("ttl", ttl)
    if ttl is not None and ttl <= 0:
        raise ValueError(f"ttl is {ttl:g} s: a message can't live for no time; leave it out to keep the message")
    conditions = {
        MESSAGE_ID: msg_id or None,
        "Nats-Expected-Last-Sequence": expect_last_sequence,
        "Nats-Expected-Last-Subject-Sequence": expect_last_subject_sequence,
        TTL: None if ttl is None else ceil(ttl),
    }
    return dict(headers or {}) | {name: str(value) for name, value in conditions.items() if value is not None}


@lru_cache(maxsize=1024)
def check_header_name(name: str) -> None:
    """ValueError if no header can have this name."""
    if isinstance(name, str) and not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header name {name!r} is empty, or has a blank, a colon or a control character")


def expecting(stream: str, block: bytes) -> bytes:
    """Return a raw header block that no other stream than this one accepts."""
    if f"{EXPECTED_STREAM}:".encode() in block:
        return block
    line = encode_headers({EXPECTED_STREAM: stream})
    return block[:-2] + line.partition(b"\r\n")[2] if block else line


def addresses(patterns: tuple[str, ...]) -> Callable[[str], tuple[bytes, bool]]:
    """Return what tells of a subject how it goes over the wire, and whether a stream's subjects cover it.

    It raises BadSubjectError, and remembers the last few thousand subjects.
    """
    return lru_cache(maxsize=4096)(lambda subject: (check_subject(subject), covers(patterns, subject)))
