"""The difference between a wanted configuration and the actual one, as a plan of changes with their risks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from natty.config.units import NANOSECONDS
from natty.streams.changes import Judge, Risk, unknown
from natty.streams.conversion import DURATIONS, LISTS_OF_SECONDS
from natty.streams.schema import ConsumerConfig, StreamConfig, rows

_ZEROS: tuple[Any, ...] = (None, 0, "", False, [], {}, -1)


@dataclass(frozen=True)
class Change:
    """One setting whose value differs from the wanted one."""

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
    """What to do for a stream or a consumer: nothing, create it, or change it."""

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

    def apply_to(self, actual: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole configuration with only the planned settings changed; it keeps unknown fields."""
        return dict(actual) | {one.setting: _overlay(one.actual, one.wanted) for one in self.changes}


def plan(name: str, wanted: Mapping[str, Any], actual: Mapping[str, Any], judges: Mapping[str, Judge]) -> Plan:
    """Compare the wanted settings with the actual ones, both in the server's terms. Others are not compared."""
    changes = []
    for setting in list_differing(wanted, actual):
        have, want = actual.get(setting), wanted[setting]
        risk, why = judges.get(setting, unknown)(have, want)
        changes.append(Change(setting, have, want, risk, why))
    return Plan(name, tuple(changes))


def _judges(kind: Any) -> Mapping[str, Judge]:
    return {name: setting.judge for name, (_, setting) in rows(kind).items() if setting.judge is not unknown}


STREAM = _judges(StreamConfig)
"""The judges of a stream's settings; a change of a setting without a judge is destructive."""
CONSUMER = _judges(ConsumerConfig)
"""The judges of a consumer's settings; a `filter_subject` is compared as `filter_subjects` with one element."""


def _overlay(have: Any, want: Any) -> Any:
    return {**have, **want} if isinstance(have, Mapping) and isinstance(want, Mapping) else want


def list_differing(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Return the names of the wanted settings that differ, sorted.

    A setting that the server leaves out has its zero value. Of a mapping, compares only the wanted keys.
    """
    return [name for name, value in sorted(wanted.items()) if not _same(value, actual.get(name))]


def difference(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Return one readable line for each wanted setting that differs."""
    return [describe(name, actual.get(name), wanted[name]) for name in list_differing(wanted, actual)]


def describe(name: str, actual: Any, wanted: Any) -> str:
    """Return one difference as a readable line, durations in seconds."""
    return f"{name} is {_show(name, actual)}, wanted {_show(name, wanted)}"


def _same(want: Any, have: Any) -> bool:
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        return not list_differing(want, have)
    if isinstance(want, list) and isinstance(have, list) and all(isinstance(one, str) for one in want + have):
        return sorted(want) == sorted(have)  # subjects, tags: the order does not matter
    want, have = _drop_zeros(want), _drop_zeros(have)
    return bool(have == want or (not want and have in _ZEROS))


def _drop_zeros(value: Any) -> Any:
    """Return a value without the zeros inside of it: a server leaves them out, and Go's JSON may have them."""
    if isinstance(value, Mapping):
        return {name: kept for name, one in value.items() if (kept := _drop_zeros(one)) not in _ZEROS}
    return [_drop_zeros(one) for one in value] if isinstance(value, list) else value


def _show(name: str, value: Any) -> str:
    if name in DURATIONS and isinstance(value, int):
        return f"{value / NANOSECONDS:.15g} s"
    if name in LISTS_OF_SECONDS and value:
        return f"[{', '.join(f'{one / NANOSECONDS:.15g} s' for one in value)}]"
    return repr(value)
