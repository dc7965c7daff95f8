"""The judges of the table of settings: each returns the risk of a change of one setting. Pure.

Except for descriptions, a safe change goes in one direction only (limits up, subjects wider, features on). So two
programs that want different settings cannot undo each other's work: the second one is refused. Tested on nats-server
2.15.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import inf
from typing import Any

from natty.names import covers

SCHEDULES = "schedules"
"""First token of the subjects that hold our schedules; the second is the stream, the third the schedule's name."""
NEVER_CHANGED = "the server never changes it"
OLDER = "messages beyond it are deleted"
IN_USE = "clients that use it fail"
NO_WAY_BACK = "it cannot be switched off again"


class Risk(StrEnum):
    """The risk of a change."""

    SAFE = "safe"  # breaks nothing that is stored, published or read today
    DESTRUCTIVE = "destructive"  # messages may be lost, or a client that works today fails
    FIXED = "fixed"  # the server refuses the change


Judge = Callable[[Any, Any], tuple[Risk, str]]
"""(actual, wanted) → the risk, and the reason."""


def always(have: Any, want: Any) -> tuple[Risk, str]:
    """Any change is safe."""
    return Risk.SAFE, ""


def fixed(have: Any, want: Any) -> tuple[Risk, str]:
    """The server refuses any change."""
    return Risk.FIXED, NEVER_CHANGED


def unknown(have: Any, want: Any) -> tuple[Risk, str]:
    """The server's behaviour is unknown: destructive."""
    return Risk.DESTRUCTIVE, "its effect on clients is not known"


def destructive(why: str) -> Judge:
    """Return the judge of a setting of which every change is destructive."""
    return lambda have, want: (Risk.DESTRUCTIVE, why)


def raised(why: str, *, unlimited: bool = True) -> Judge:
    """Return the judge of a setting whose higher value is safe; with `unlimited`, zero and less mean no limit."""

    def size(value: Any) -> float:
        number = value or 0
        return inf if unlimited and number <= 0 else number

    return lambda have, want: (Risk.SAFE, "") if size(want) >= size(have) else (Risk.DESTRUCTIVE, why)


def switched_on(have: Any, want: Any) -> tuple[Risk, str]:
    """On is safe; off breaks the clients that use it."""
    return (Risk.SAFE, "") if want else (Risk.DESTRUCTIVE, IN_USE)


def on_for_ever(have: Any, want: Any) -> tuple[Risk, str]:
    """On is safe, and the server never switches it off."""
    return (Risk.SAFE, "") if want else (Risk.FIXED, NO_WAY_BACK)


def denies(why: str) -> Judge:
    """Return the judge of a setting that removes a feature forever: on is destructive, off is impossible."""
    return lambda have, want: (Risk.DESTRUCTIVE, why) if want else (Risk.FIXED, NEVER_CHANGED)


def subjects(have: Any, want: Any) -> tuple[Risk, str]:
    """More or wider subjects are safe."""
    lost = [old for old in have or [] if not covers(want, old)]
    if lost:
        later = any(one.startswith(f"{SCHEDULES}.") for one in lost)
        more = ", and the stream could hold nothing that is published later" if later else ""
        return Risk.DESTRUCTIVE, f"messages on {', '.join(lost)} would not be stored any more{more}"
    return Risk.SAFE, ""


def retention(have: Any, want: Any) -> tuple[Risk, str]:
    """The server changes limits to interest and back, but refuses changes to or from a work queue."""
    if "workqueue" in (have, want):
        return Risk.FIXED, NEVER_CHANGED
    return Risk.DESTRUCTIVE, "it decides which messages are deleted once they are acknowledged"
