"""Where each setting comes from: collects the file, variables and flags, with the origin of each value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from capture.errors import ConfigError

ENVIRONMENT = "CAPTURE_"  # CAPTURE_STREAM, CAPTURE_LIMITS__MAX_AGE: settings; two underscores stand for the dot
DEFAULT = "default"
_FLAGS = {
    ("node",): "--node-name",
    ("nats", "servers"): "--server",
    ("logging", "level"): "--log-level",
    ("logging", "format"): "--log-format",
}
"""The flags whose name differs from their setting's."""

Place = tuple[str, ...]
"""A setting's tables and its name: ("limits", "max_age")."""


@dataclass(frozen=True)
class Origin:
    """The origin of a value: a flag, a variable, or the file with the line in which the setting begins."""

    kind: str
    name: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f", line {self.line}" if self.line else "")

    def complaint(self, sentence: str, hint: str = "") -> str:
        """Return a sentence about the value with its origin, and then `hint`."""
        where = self.name if self.kind == "file" else f"{self.kind} {self.name}"
        return f"{where}: {sentence}" + (f" in line {self.line}" if self.line else "") + hint


@dataclass(frozen=True)
class Setting:
    """A value and its origin."""

    value: Any = field(repr=False)  # it may be a secret
    origin: Origin


@dataclass
class Given:
    """The settings that were given, each with its origin, in the order file, variables, flags: a later one wins.

    `refused` holds a sentence for each setting that was not accepted because another one gives a value to its table.
    `lines` are the file's: see `lines_of`.
    """

    settings: dict[Place, Setting] = field(default_factory=dict)
    refused: dict[Place, str] = field(default_factory=dict)
    lines: dict[Place, int] = field(default_factory=dict)

    def put(self, place: Place, value: Any, origin: Origin) -> None:
        """Add a setting, or a whole table; it replaces what was given there."""
        for end in range(1, len(place)):
            table = self.settings.get(place[:end])
            if table and table.value != {}:
                name = ".".join(place[:end])
                self.refused[place] = origin.complaint(f"{name} is a table here, and a value in {table.origin}")
                return
            self.settings.pop(place[:end], None)
        for inside in self.below(place):
            del self.settings[inside]
        self.settings |= {inside: Setting(leaf, origin) for inside, leaf in _leaves(value, place)}

    def below(self, place: Place) -> dict[Place, Setting]:
        """Return the settings at this place or in the table of this name."""
        return {one: setting for one, setting in self.settings.items() if one[: len(place)] == place}

    def origin_in(self, table: Place, number: int, *names: str) -> Origin:
        """Return the origin of a setting in a list of tables, `[[table]]`, by the number of its table from 0.

        The line is that of the setting, or that in which its table begins, or the list.
        """
        origin = self.settings[table].origin
        places = [(*table, str(number), *names), (*table, str(number))] if origin.kind == "file" else []
        return replace(origin, line=next(filter(None, map(self.lines.get, places)), origin.line))

    def source(self, place: Place) -> str:
        """Return the origin of the setting; "default" if it was not given."""
        origins = {(one.origin.kind, one.origin.name): one.origin for one in reversed(self.below(place).values())}
        return ", ".join(map(str, reversed(origins.values()))) or DEFAULT

    def blame(self, sentence: str, *names: str) -> str:
        """Return the sentence with the origins of the settings at fault.

        These are the given settings, among `names` and in tables of these names, whose name is in the sentence; if
        there are none, those whose value is in the sentence; if there are none, all of them except those of `[nats]`,
        which has its own variables and contexts.
        """
        given = {place: setting for name in names for place, setting in self.below((name,)).items()}
        words = set(re.findall(r"\w+", sentence))
        blamed = [place for place in given if place[-1] in words]
        blamed = blamed or [place for place, setting in given.items() if _is_quoted(setting.value, sentence)]
        blamed = blamed or [place for place in given if place[0] != "nats"]
        told = "; ".join(f"{'.'.join(place)}: {given[place].origin}" for place in blamed)
        return f"{sentence} ({told})" if told else sentence


def gather(path: Path | None, flags: Mapping[str, Any], environment: Mapping[str, str], reserved: set[str]) -> Given:
    """Return the settings of the file, then of the variables except the `reserved` ones, then of the flags.

    None and "" count as not given. Flags are named by the dotted setting. Raises ConfigError if the file can't be read
    or is not valid TOML.
    """
    given = Given()
    if path:
        values, given.lines = _read(path)
        for place, value in _leaves(values):
            given.put(place, value, Origin("file", str(path), given.lines.get(place)))
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT) and name not in reserved and text:
            place = tuple(name[len(ENVIRONMENT) :].lower().split("__"))
            given.put(place, text, Origin("variable", name))
    for name, value in flags.items():
        if value is not None:
            place = tuple(name.split("."))
            given.put(place, value, Origin("flag", _FLAGS.get(place) or f"--{place[-1].replace('_', '-')}"))
    return given


def variable(place: Place) -> str:
    """Return the name of the variable for this setting."""
    return ENVIRONMENT + "__".join(place).upper()


def tree(values: Iterable[tuple[Place, Any]]) -> dict[str, Any]:
    """Return the values in nested tables."""
    root: dict[str, Any] = {}
    for (*tables, name), value in values:
        table = root
        for one in tables:
            table = table.setdefault(one, {})
        table[name] = value
    return root


def lines_of(text: str) -> dict[Place, int]:
    """Return the line in which each setting, and each table, of a valid TOML text begins.

    It decodes each statement separately, below its table's header. A statement of several lines can't be decoded before
    its last line. Tables of a list, `[[name]]`, have their numbers from 0 after its name.
    """
    found: dict[Place, int] = {}
    tables: Counter[Place] = Counter()
    header, statement, began = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += f"{line}\n"
        is_header = statement.lstrip().startswith("[")
        try:
            values = msgspec.toml.decode(statement if is_header else header + statement)
        except msgspec.DecodeError:
            continue
        for place, value in _leaves(values):
            for end in range(1, len(place) + 1):
                found.setdefault(place[:end], began)
            if statement.lstrip().startswith("[["):
                tables[place] += 1
            if tables[place]:
                numbered = (*place, str(tables[place] - 1))
                for end in range(len(place) + 1, len(inside := _first_place(value, numbered)) + 1):
                    found.setdefault(inside[:end], began)
        header = statement if is_header else header
        statement, began = "", number + 1
    return found


def _read(path: Path) -> tuple[dict[str, Any], dict[Place, int]]:
    try:
        text = path.read_bytes().decode()
        return msgspec.toml.decode(text, type=dict[str, Any]), lines_of(text)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}; check --config") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _is_quoted(value: Any, sentence: str) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(isinstance(one, str) and one != "" and one in sentence for one in values)


def _first_place(tables: Any, place: Place) -> Place:
    """Return the place of the first setting in a list with one table, which has this place."""
    return next((inside for inside, _ in _leaves(tables[0], place)), place)


def _leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield each value that is not a table, and each empty table."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, (*place, name))
    elif place:
        yield place, value
