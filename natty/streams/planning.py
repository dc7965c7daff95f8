"""What a change of a setting would do. Pure: it decides from two configurations and does nothing.

Safe changes go in one direction only (limits up, subjects wider, features on), descriptions aside: two programs that
want different things can't undo each other's work, the second one is refused.
What the server allows was tried on nats-server 2.15; what else it refuses, it says itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

from natty.names import covers
from natty.streams.settings import describe, differing

FIXED = "the server never changes it"
UNKNOWN = "what it does to those who use it is not known"


class Risk(StrEnum):
    """What a change may break."""

    SAFE = "safe"  # nothing that is stored, published or read today
    DESTRUCTIVE = "destructive"  # messages may be lost, or a client that works today fails
    FIXED = "fixed"  # the server does not change it


Judge = Callable[[Any, Any], tuple[Risk, str]]
"""(actual, wanted) → the risk, and why."""


@dataclass(frozen=True)
class Change:
    """One setting that is another one than wanted."""

    setting: str
    actual: Any
    wanted: Any
    risk: Risk
    why: str = ""

    def __str__(self) -> str:
        line = describe(self.setting, self.actual, self.wanted)
        return line if self.risk is Risk.SAFE else f"{line} ({self.risk}: {self.why})"


@dataclass(frozen=True)
class Plan:
    """What it takes to make a stream or a consumer what is wanted: nothing, making it, or changes."""

    name: str
    changes: tuple[Change, ...] = ()
    missing: bool = False

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.changes or self.missing)

    @property
    def worst(self) -> Risk:
        """The greatest risk of the changes."""
        return max((one.risk for one in self.changes), key=list(Risk).index, default=Risk.SAFE)

    def beyond(self, allowed: Iterable[Risk]) -> list[Change]:
        """Return the changes whose risk is not among the allowed ones."""
        return [one for one in self.changes if one.risk not in set(allowed)]

    def applied_to(self, actual: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole configuration with only the planned settings changed; what we don't know stays in it."""
        return dict(actual) | {one.setting: _merged(one.actual, one.wanted) for one in self.changes}


def plan(name: str, wanted: Mapping[str, Any], actual: Mapping[str, Any], judges: Mapping[str, Judge]) -> Plan:
    """Compare what is wanted with what is, both as on the wire. Only what is wanted is looked at."""
    changes = []
    for setting in differing(wanted, actual):
        have, want = actual.get(setting), wanted[setting]
        risk, why = judges.get(setting, _never(UNKNOWN))(have, want)
        changes.append(Change(setting, have, want, risk, why))
    return Plan(name, tuple(changes))


def _merged(have: Any, want: Any) -> Any:
    return {**have, **want} if isinstance(have, Mapping) and isinstance(want, Mapping) else want


def _always(have: Any, want: Any) -> tuple[Risk, str]:
    return Risk.SAFE, ""


def _never(why: str) -> Judge:
    return lambda have, want: (Risk.DESTRUCTIVE, why)


def _fixed(have: Any, want: Any) -> tuple[Risk, str]:
    return Risk.FIXED, FIXED


def _raised(why: str, *, unlimited: bool = True) -> Judge:
    """Up is safe; with `unlimited`, zero and less mean no limit."""

    def size(value: Any) -> float:
        number = value or 0
        return inf if unlimited and number <= 0 else number

    return lambda have, want: (Risk.SAFE, "") if size(want) >= size(have) else (Risk.DESTRUCTIVE, why)


def _switched_on(why: str) -> Judge:
    return lambda have, want: (Risk.SAFE, "") if want else (Risk.DESTRUCTIVE, why)


def _subjects(have: Any, want: Any) -> tuple[Risk, str]:
    lost = [old for old in have or [] if not covers(want, old)]
    if lost:
        return Risk.DESTRUCTIVE, f"messages on {', '.join(lost)} would not be stored any more"
    return Risk.SAFE, ""


def _retention(have: Any, want: Any) -> tuple[Risk, str]:
    if "workqueue" in (have, want):
        return Risk.FIXED, FIXED
    return Risk.DESTRUCTIVE, "it decides which messages are deleted once they are acknowledged"


_OLDER = "messages that are beyond it are deleted"
_IN_USE = "who uses it fails"
STREAM: Mapping[str, Judge] = {
    "description": _always,
    "metadata": _always,
    "compression": _always,
    "subjects": _subjects,
    "max_msgs": _raised(_OLDER),
    "max_bytes": _raised(_OLDER),
    "max_age": _raised(_OLDER),
    "max_msgs_per_subject": _raised(_OLDER),
    "max_msg_size": _raised("larger messages would be refused"),
    "max_consumers": _raised("new consumers would be refused"),
    "duplicate_window": _raised("repeated messages that come later than it would be stored twice", unlimited=False),
    "num_replicas": _raised("fewer copies survive the loss of servers", unlimited=False),
    "allow_direct": _switched_on(_IN_USE),
    "mirror_direct": _switched_on(_IN_USE),
    "allow_atomic": _switched_on(_IN_USE),
    "allow_batched": _switched_on(_IN_USE),
    "allow_msg_schedules": _switched_on(_IN_USE),
    "allow_msg_ttl": lambda have, want: (Risk.SAFE, "") if want else (Risk.FIXED, "it can't be switched off again"),
    "allow_rollup_hdrs": _never("it decides whether a publisher can delete what is stored"),
    "deny_delete": lambda have, want: (
        (Risk.DESTRUCTIVE, "it can't be switched off again") if want else (Risk.FIXED, FIXED)
    ),
    "deny_purge": lambda have, want: (
        (Risk.DESTRUCTIVE, "it can't be switched off again") if want else (Risk.FIXED, FIXED)
    ),
    "discard": _never("at a limit, the one deletes the oldest messages and the other refuses new ones"),
    "retention": _retention,
    "sealed": lambda have, want: (
        (Risk.DESTRUCTIVE, "nothing can be stored in it ever again") if want else (Risk.FIXED, FIXED)
    ),
    "placement": _never("its messages move to other servers"),
    "republish": _never("subscribers get messages they do not expect, or miss them"),
    "subject_transform": _never("messages are stored on other subjects than today"),
    "sources": _never("messages of other streams are added, or stay away"),
    "storage": _fixed,
    "mirror": _fixed,
    "first_seq": _fixed,
    "persist_mode": _fixed,
    "allow_msg_counter": _fixed,
}
"""What may become of a stream's settings."""

CONSUMER: Mapping[str, Judge] = {
    "description": _always,
    "metadata": _always,
    "ack_wait": _raised("messages still being handled would be delivered a second time", unlimited=False),
    "max_ack_pending": _raised("who reads fast stalls"),
    "max_deliver": _raised("messages would be given up after fewer deliveries"),
    "inactive_threshold": _raised("it would be deleted sooner while nobody reads"),
    "max_batch": _raised("larger requests would be refused"),
    "max_expires": _raised("longer requests would be refused"),
    "max_bytes": _raised("larger requests would be refused"),
    "num_replicas": _raised("fewer copies survive the loss of servers", unlimited=False),
    "filter_subjects": _never("what it has passed over is not delivered later, and what is filtered out never"),
    "sample_freq": _always,
    "backoff": _never("messages still being handled could be delivered a second time"),
    "headers_only": _never("handlers get payloads, or none, that they do not expect"),
    "ack_policy": _fixed,
    "deliver_policy": _fixed,
    "opt_start_seq": _fixed,
    "opt_start_time": _fixed,
    "replay_policy": _fixed,
    "max_waiting": _fixed,
    "mem_storage": _fixed,
}
"""What may become of a consumer's settings; a `filter_subject` is looked at as `filter_subjects` of one."""
