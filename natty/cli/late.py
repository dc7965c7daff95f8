"""A command line that imports a command when it is used: importing all takes longer than most of them run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command

from natty.cli.help import SummaryGroup, show_examples


class Place(NamedTuple):
    """Where a command is defined, and its summary in the list of commands."""

    at: str
    """`module:name` of a function, or of a `typer.Typer` with a group of commands."""
    summary: str
    """The first sentence of its help."""

    def load(self) -> Any:
        """Import the function or the group."""
        module, _, name = self.at.partition(":")
        return getattr(import_module(module), name)


class LateGroup(SummaryGroup):
    """The commands of `places`, by name. Listing or completing their names imports none of them."""

    places: ClassVar[Mapping[str, Place]]
    examples: ClassVar[str] = ""
    """The module whose `EXAMPLES` has examples of the commands, one a line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands(self.places)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command. An abbreviation, as the `nats` tool has `str` and `con`, is answered with the whole word."""
        if args[0] not in self.places and (whole := [name for name in self.places if name.startswith(args[0])]):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {', '.join(map(repr, whole))}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands for the help."""
        with self._summaries():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the names that complete a word."""
        with self._summaries():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _summaries(self) -> Iterator[None]:
        """While the body runs, replace each command with its summary."""
        commands = self.commands
        self.commands = {name: TyperCommand(name, help=place.summary) for name, place in self.places.items()}
        try:
            yield
        finally:
            self.commands = commands


class _Commands(Mapping[str, Any]):
    """Click's commands by name, each imported when it is first looked up."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _click_command(name, self._places[name].load())
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _click_command(name: str, found: Any) -> Any:
    """Return click's command for a function or a group, created as part of a larger command line."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    show_examples(app)
    whole: Any = get_command(app)
    return whole.commands[name]
