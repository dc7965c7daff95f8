"""Names of streams and consumers, subjects, and patterns of subjects, by the rules of the server.

NATS does not require UTF-8. Python text holds every other byte as a lone surrogate, U+DC80 to U+DCFF (PEP 383), and
encodes it to the same byte. Strict encoders (a terminal, a file, JSON, OpenTelemetry) raise on surrogates, so they get
`errors.legible` text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from natty.errors import BadSubjectError, NattyError

MAX_LINE = 4096
"""Bytes of a protocol line without its verb that a server reads: its default `max_control_line`. A longer line ends the
session. A server does not announce its own value."""
_FORBIDDEN = set(" .*>/\\\t\r\n")
_TOKEN = re.compile(r"[^\s.\x00-\x1f]+")
_BREAK = re.compile(rb"[ \t\r\n]")  # ends a word of a protocol line, or the line


class BadNameError(NattyError):
    """A stream, consumer or bucket name holds a character that is not allowed."""


def check_text(what: str, value: object) -> None:
    """TypeError for a name or a subject that is not text."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r}, of type {type(value).__name__}; write text (str)")


def check_name(kind: str, name: str) -> str:
    """Return the name if it is valid (ADR-6); BadNameError names the character and its place."""
    check_text(f"the {kind}'s name", name)
    if not name:
        raise BadNameError(f"the {kind}'s name is empty")
    for place, character in enumerate(name, start=1):
        if character in _FORBIDDEN or not character.isprintable():
            raise BadNameError(f"{kind} name {name!r}: {character!r} at character {place} is not allowed")
    return name


def decode(raw: bytes) -> str:
    """Return the text of bytes; `encode` restores bytes that are not UTF-8. Never raises."""
    return raw.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Return the bytes from which `decode` made this text. UnicodeEncodeError for a surrogate that it never makes."""
    return text.encode("utf-8", "surrogateescape")


@lru_cache(maxsize=4096)
def check_subject(subject: str) -> bytes:
    """Return the subject's bytes on the wire if it can be published on; BadSubjectError names the problem.

    The protocol has lines of words: after a blank in a subject, the server would end the session.
    """
    check_text("the subject", subject)
    for token in subject.split("."):
        if not token:
            raise BadSubjectError(f"subject {subject!r} is empty, or has an empty token: two dots, or one at an end")
        if token in ("*", ">"):
            raise BadSubjectError(f"subject {subject!r} has the wildcard {token}: name one subject to publish on")
        if not _TOKEN.fullmatch(token):
            raise BadSubjectError(f"subject {subject!r} has a blank or a control character in {token!r}")
    word = wire_word(subject)
    check_line(word, b"", b"0")
    return word


def delivered_subject(subject: str) -> bytes:
    """Return the bytes of a subject that the server has delivered, to publish on it again.

    The server accepts more than `check_subject`: also control characters and wildcards. BadSubjectError for a subject
    that it can't have delivered.
    """
    if not all(subject.split(".")):
        raise BadSubjectError(f"subject {subject!r} has an empty token: no message can have been delivered on it")
    return wire_word(subject)


def wire_word(text: str | bytes) -> bytes:
    """Return a subject, with wildcards or without, or the name of a queue as one word of a protocol line.

    BadSubjectError if it is empty, or has a blank or a line break: it would begin another word or line.
    """
    try:
        word = encode(text) if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise BadSubjectError(f"{text!r} has a character that UTF-8 can't encode") from error
    if not word or _BREAK.search(word):
        raise BadSubjectError(f"{text!r} is empty, or has a blank or a line break: not allowed in a subject or queue")
    return word


def subject_word(subject: str | bytes) -> bytes:
    """Return a subject to send on as one word of a protocol line; bytes are one that the server has delivered.

    BadSubjectError as `wire_word`, and if text has an empty token.
    """
    if isinstance(subject, str) and not all(subject.split(".")):
        raise BadSubjectError(f"subject {subject!r} is empty, or has an empty token: two dots, or one at an end")
    return wire_word(subject)


def pattern_word(subject: str) -> bytes:
    """Return a subject to subscribe to, with wildcards or without, as one word of a protocol line. BadSubjectError."""
    word = subject_word(subject)
    if subject.startswith(">.") or ".>." in subject:
        raise BadSubjectError(f"subject {subject!r}: > stands for all that follows and must be the last token")
    return word


def check_line(*words: bytes, more: int = 0) -> None:
    """BadSubjectError if a server can't read a line of these words, their blanks and `more` bytes: see MAX_LINE."""
    length = sum(map(len, words)) + len(words) - 1 + more
    if length > MAX_LINE:
        text = f"{decode(words[0][:40])!r}… is too long: its line has {length} bytes, and a server reads {MAX_LINE}"
        raise BadSubjectError(f"subject {text}")


def check_pattern(pattern: str) -> str:
    """Return the pattern if a stream can have it; BadSubjectError names the character and its position."""
    check_text("the subject", pattern)
    for place, character in enumerate(pattern, start=1):
        if character.isspace() or not character.isprintable():
            raise BadSubjectError(f"subject {pattern!r}: {character!r} at character {place} is not allowed")
    tokens = pattern.split(".")
    if "" in tokens:
        place = sum(len(token) + 1 for token in tokens[: tokens.index("")]) + 1
        raise BadSubjectError(f"subject {pattern!r} has an empty token at character {place}")
    if ">" in tokens[:-1]:
        raise BadSubjectError(f"subject {pattern!r}: > stands for all that follows and must be the last token")
    return pattern


def covers(patterns: Iterable[str], subject: str) -> bool:
    """Return whether one of the patterns matches every subject that `subject`, which may be a pattern, matches."""
    tokens = subject.split(".")
    return any(_covers(pattern.split("."), tokens) for pattern in patterns)


def _covers(pattern: list[str], subject: list[str]) -> bool:
    for place, token in enumerate(pattern):
        if token == ">":
            return len(subject) > place
        if place >= len(subject) or subject[place] == ">" or token not in ("*", subject[place]):
            return False
    return len(pattern) == len(subject)


def overlap(one: str, other: str) -> bool:
    """Return whether there is a subject that both patterns match."""
    mine, theirs = one.split("."), other.split(".")
    for a, b in zip(mine, theirs, strict=False):
        if ">" in (a, b):
            return True
        if "*" not in (a, b) and a != b:
            return False
    return len(mine) == len(theirs)
