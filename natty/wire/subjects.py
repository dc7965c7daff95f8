"""Subjects and the patterns that stand for many of them: `*` is one token, a last `>` is one or more."""

from __future__ import annotations

from collections.abc import Iterable

from natty.errors import BadSubjectError


def check_pattern(pattern: str) -> str:
    """Return the pattern if a stream can have it; BadSubjectError names the character and its place."""
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
    """Return whether one of the patterns takes every subject that `subject`, perhaps a pattern too, stands for."""
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
    """Return whether there is a subject that both patterns stand for."""
    mine, theirs = one.split("."), other.split(".")
    for a, b in zip(mine, theirs, strict=False):
        if ">" in (a, b):
            return True
        if "*" not in (a, b) and a != b:
            return False
    return len(mine) == len(theirs)
