"""Lists of tables in capture.toml, `[[pipeline]]` and `[[retention]]`: names the wrong table, its setting and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from capture.archive.retention import Rule
from capture.config.provenance import Given, Origin, Place, variable
from capture.errors import choices, mistake
from capture.pipelines.definition import Pipeline

TABLE_LISTS: Mapping[str, type[msgspec.Struct]] = {"pipeline": Pipeline, "retention": Rule}
"""The settings that are lists of tables, and the type of a table."""


def take_table_lists(given: Given, values: dict[Place, Any], faults: dict[Place, str]) -> None:
    """Remove from `values` the tables, and lists of tables, that can't be used; add a sentence for each to `faults`."""
    for name, kind in TABLE_LISTS.items():
        place = (name,)
        inside = [one for one in (*faults, *values) if one[0] == name and len(one) > 1]
        for one in inside:  # a variable CAPTURE_PIPELINE__NAME, or a table [pipeline]
            values.pop(one, None)
            faults.pop(one, None)
            origin = given.settings[one].origin if one in given.settings else Origin("variable", variable(one))
            faults.setdefault(place, _refuse(name, origin))
        if place not in values:
            continue
        tables, usable = values.pop(place), []
        if not isinstance(tables, list) or not all(isinstance(one, dict | kind) for one in tables):
            faults.setdefault(place, _refuse(name, given.settings[place].origin))
            continue
        for number, table in enumerate(tables):
            found = dict(_find_mistakes(given, name, number, kind, table)) if isinstance(table, dict) else {}
            faults |= found
            usable += [] if found else [table]
        values[place] = usable


def table_label(name: str, number: int, table: Mapping[str, Any]) -> str:
    """Return how a sentence names a table of a list: "pipeline daily_revenue", "retention 2" if it has no name."""
    known = table.get("name")
    return f"{name} {known}" if isinstance(known, str) and known else f"{name} {number + 1}"


def _refuse(name: str, origin: Origin) -> str:
    if origin.kind == "file":
        return origin.complaint(f"`{name}` is a list of tables: write [[{name}]]")
    return origin.complaint(
        f"`{name}` is a list of tables, which a {origin.kind} can't give: write [[{name}]] in a file"
    )


def _find_mistakes(
    given: Given, name: str, number: int, kind: type[msgspec.Struct], table: Mapping[str, Any]
) -> Iterator[tuple[Place, str]]:
    """Yield the place of each setting of a table that can't be used, and a sentence that names it and its line."""
    label = table_label(name, number, table)
    fields = {one.name: one for one in msgspec.structs.fields(kind)}
    needed = {one.name for one in fields.values() if one.required}
    for missing in needed - table.keys():
        origin = given.origin_in((name,), number)
        yield (name, str(number), missing), origin.complaint(f"{label}: `{missing}` is missing")
    for setting, value in table.items():
        origin = given.origin_in((name,), number, setting)
        if setting not in fields:
            close = get_close_matches(setting, fields, 1)
            hint = f"; did you mean `{close[0]}`?" if close else ""
            said = f"{label}: there is no setting `{setting}`"
            yield (name, str(number), setting), origin.complaint(said, hint)
            continue
        try:
            msgspec.convert(
                {setting: value}, msgspec.defstruct("Part", [(setting, fields[setting].type)]), strict=False
            )
        except msgspec.ValidationError as error:
            said = f"{label}: {mistake(error, choices(kind, (setting,)))}"
            yield (name, str(number), setting), origin.complaint(said)
