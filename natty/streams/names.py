from __future__ import annotations

from natty.errors import NattyError

_FORBIDDEN = set(" .*>/\\\t\r\n")


class BadNameError(NattyError):
    """A stream, consumer or bucket name holds a character that is not allowed."""


def check_name(kind: str, name: str) -> str:
    """Return the name if it is one (ADR-6); BadNameError names the character and its place."""
    if not name:
        raise BadNameError(f"the {kind}'s name is empty")
    for place, character in enumerate(name, start=1):
        if character in _FORBIDDEN or not character.isprintable():
            raise BadNameError(f"{kind} name {name!r}: {character!r} at character {place} is not allowed")
    return name
