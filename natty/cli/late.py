"""Commands that are imported when they are called: to import all of them takes longer than most of them run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer


@dataclass(frozen=True)
class Commands:
    """The commands of a command line, each by its name and its place: `module:name` of a function or of a group."""

    functions: Mapping[str, str]
    groups: Mapping[str, str]

    def add_to(self, app: typer.Typer, name: str = "") -> None:
        """Import and add the command of this name; all commands if there is none of this name."""
        only = {name} & {*self.functions, *self.groups}
        for one, place in self.functions.items():
            if one in only or not only:
                app.command(one)(_imported(place))
        for one, place in self.groups.items():
            if one in only or not only:
                app.add_typer(_imported(place), name=one)


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
