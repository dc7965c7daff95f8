"""Checks of options: their names, and each value against the type and the range of its field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from natty.errors import ConfigError

T = TypeVar("T")
SHOWN = 3  # names
ALIKE = 0.6  # of 1, as difflib counts
LARGEST = 2**63 - 1  # of a whole number, and of nanoseconds, in the server's documents
LONGEST = LARGEST / 1e9  # seconds


@dataclass(frozen=True)
class Range:
    """The numbers that a field allows."""

    least: float
    most: float = math.inf
    above: bool = False  # whether `least` itself is not allowed

    def __contains__(self, value: float) -> bool:
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        if self.above:
            return f"more than {self.least:g}"
        return f"{self.least:g} or more" if self.most >= LONGEST else f"{self.least:g} to {self.most:g}"


Count = Annotated[int, Range(1, LARGEST)]
"""A whole number, 1 or more."""
CountOrZero = Annotated[int, Range(0, LARGEST)]
"""A whole number, 0 or more."""
Seconds = Annotated[float, Range(0, above=True)]
"""Seconds, more than 0; infinity is allowed."""
SecondsOrZero = Annotated[float, Range(0)]
"""Seconds, 0 or more; infinity is allowed."""
ServerSeconds = Annotated[float, Range(0, LONGEST, above=True)]
"""Seconds, more than 0, that a request to the server holds."""


def make_options(
    kind: Callable[..., T], call: str, given: Mapping[str, object], elsewhere: Mapping[str, str] | None = None
) -> T:
    """Return the options object of a call. TypeError for an unknown name, with the nearest one.

    `elsewhere` has names of settings that another call takes, and the end of the sentence for each.
    """
    known, others = _hints(kind), elsewhere or {}
    for name in given:
        if name not in known:
            raise TypeError(f"{call}() has no option {name}{others.get(name) or did_you_mean(name, [*known])}")
    return kind(**given)


def check_options(options: object) -> None:
    """Check each field of an options object with `check_value`."""
    kind: Any = type(options)
    for name, hint in _hints(kind).items():
        check_value(name, getattr(options, name), hint)


def check_value(name: str, value: object, hint: Any) -> None:
    """TypeError for a value of another type; ValueError for a number out of its range, NaN, and an unknown word."""
    if wrong := _fault(value, hint):
        raise wrong(f"{name} is {value!r}; write {', or '.join(dict.fromkeys(_words(hint)))}")


def check_numbers(body: Any, name: str = "a number") -> None:
    """ConfigError, with the name of the setting, for an integer that does not fit into 64 bits of the server's."""
    if isinstance(body, dict):
        for key, value in body.items():
            check_numbers(value, str(key))
    elif isinstance(body, list | tuple):
        for value in body:
            check_numbers(value, name)
    elif isinstance(body, int) and not -LARGEST <= body <= LARGEST:
        raise ConfigError(f"{name} is {body}, more than a server can store: the largest number is {LARGEST}")


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """Return the names that are similar to this one, the nearest first; ignores case."""
    by_small = {one.lower(): one for one in names}
    return [by_small[small] for small in get_close_matches(name.lower(), by_small, SHOWN, ALIKE)]


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return the end of a sentence about an unknown name: "; did you mean …?", or "" if none is similar."""
    found = nearest(name, names)
    return f"; did you mean {' or '.join(found)}?" if found else ""


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fault(value: object, hint: Any) -> type[Exception] | None:
    """Return the error for a value that does not fit the hint, None if it fits."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fault(value, arguments[0]) or (None if value in arguments[1] else ValueError)
    if origin in (Union, UnionType):
        faults = [_fault(value, one) for one in arguments]
        return None if None in faults else ValueError if ValueError in faults else TypeError
    if origin is Literal:
        return None if value in arguments else ValueError if isinstance(value, str) else TypeError
    if hint is float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return TypeError
        return ValueError if math.isnan(value) else None
    if hint is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else TypeError
    if origin is Callable:
        return None if callable(value) else TypeError
    if origin in (Sequence, tuple, list):
        return _fault_of_each(value, arguments[0])
    kind = Mapping if is_typeddict(hint) else origin or hint
    return None if hint is Any or isinstance(value, kind) else TypeError


def _fault_of_each(values: object, hint: Any) -> type[Exception] | None:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return TypeError
    return next((wrong for one in values if (wrong := _fault(one, hint))), None)


def _words(hint: Any) -> Iterable[str]:
    """Yield what fits the hint, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield f"{next(iter(_words(arguments[0])))}, {arguments[1]}"
    elif origin in (Union, UnionType):
        for one in arguments:
            yield from _words(one)
    elif origin is Literal:
        yield " or ".join(map(str, arguments))
    elif origin in (Sequence, tuple, list):
        yield f"a list; each element is {' or '.join(_words(arguments[0]))}"
    elif origin is Callable:
        yield "a function"
    else:
        yield _WORDS.get(dict if is_typeddict(hint) else origin or hint) or f"a {hint.__name__}"


_WORDS = {
    int: "a whole number",
    float: "a number of seconds, such as 90 for a minute and a half",
    bool: "True or False",
    str: "text",
    dict: "a dict",
    NoneType: "None",
}
