from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natty.config.units import NANOSECONDS

DURATIONS = {
    "max_age",
    "duplicate_window",
    "ack_wait",
    "inactive_threshold",
    "subject_delete_marker_ttl",
    "max_expires",
    "priority_timeout",
}
LISTS_OF_SECONDS = {"backoff"}
_ZEROS: tuple[Any, ...] = (None, 0, "", False, [], {}, -1)


def to_wire(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as the server writes them: durations in seconds become nanoseconds; None values are left out."""
    wire: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name in DURATIONS:
            value = round(value * NANOSECONDS)
        elif name in LISTS_OF_SECONDS:
            value = [round(one * NANOSECONDS) for one in value]
        wire[name] = value
    return wire


def from_wire(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of the server's with durations in seconds; what is no number there stays as it is."""
    settings = dict(config)
    for name in DURATIONS & config.keys():
        if isinstance(config[name], int):
            settings[name] = config[name] / NANOSECONDS
    return settings


def differing(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that differ, sorted; only what is wanted is compared.

    A setting that the server leaves out has its zero value there. Of a mapping, only the wanted keys are compared.
    """
    return [name for name, value in sorted(wanted.items()) if not _same(value, actual.get(name))]


def difference(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Return what differs, one readable line a setting; only what is wanted is compared."""
    return [describe(name, actual.get(name), wanted[name]) for name in differing(wanted, actual)]


def describe(name: str, actual: Any, wanted: Any) -> str:
    """Return one difference as a readable line, durations in seconds."""
    return f"{name} is {_show(name, actual)}, wanted {_show(name, wanted)}"


def _same(want: Any, have: Any) -> bool:
    if isinstance(want, Mapping) and isinstance(have, Mapping):
        return not differing(want, have)
    if isinstance(want, list) and isinstance(have, list) and all(isinstance(one, str) for one in want + have):
        return sorted(want) == sorted(have)  # subjects, tags: their order means nothing
    return bool(have == want or (not want and have in _ZEROS))


def _show(name: str, value: Any) -> str:
    if name in DURATIONS and isinstance(value, int):
        return f"{value / NANOSECONDS:g} s"
    if name in LISTS_OF_SECONDS and value:
        return f"[{', '.join(f'{one / NANOSECONDS:g} s' for one in value)}]"
    return repr(value)
