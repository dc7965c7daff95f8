"""How facts are printed for people and programs: tables, blocks of names and values, JSON.

Control characters in a cell are escaped, since most cells contain foreign text; cells are never markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from natty.cli.terminal import json_text, printable, say

Json = Annotated[bool, typer.Option("--json", "-j", help="Print JSON.")]

SCREEN = 200  # rows that rich lays out on a terminal, in half a millisecond each; it folds wide ones
COLOURED = 100_000  # characters of JSON that are coloured
TOGETHER = 1_000  # rows of a long list that are printed together
LEAST = 24  # characters to which a column of sentences may shrink
PIPE = 1_000_000  # characters of a line without a terminal


class PlainConsole(Console):
    """A console that prints text without markup, and escapes everything that a terminal could interpret.

    A `Text` is printed unchanged. Lines in a pipe are not folded. With `live`, those on a terminal are, between any
    characters if need be: rich's `Live` cuts what is longer.
    """

    def __init__(self, *, live: bool = False) -> None:
        super().__init__(markup=False, highlight=False)
        self.folds = live and self.is_terminal
        if not self.is_terminal:
            self.width = PIPE

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a text, for printing or for a cell, with all characters escaped that are not printable."""
        return super().render_str(printable(text, also="\n\t"), **{**how, "markup": False, "emoji": False})


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, total: Sequence[Any] = ()) -> None:
    """Print `Rows`. A list that is too long for layout is printed with one line per row on a terminal, too."""
    table, console = Rows(columns, rows, total=total), PlainConsole()
    if console.is_terminal and len(table.rows) <= SCREEN:
        console.print(table, crop=False)
    else:
        say(*table.lines())


class GrowingTable:
    """A table whose rows come in parts. More than TOGETHER rows are printed part by part; columns only get wider."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._waiting: list[Sequence[Any]] = []
        self._widths: list[int] = []

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows."""
        self._waiting += rows
        if len(self._waiting) > TOGETHER:
            self._print()

    def end(self) -> None:
        """Print the rows that are left. A short table is printed by `print_table`."""
        if not self._widths:
            print_table(self._columns, self._waiting)
        elif self._waiting:
            self._print()

    def _print(self) -> None:
        part, is_first = Rows(self._columns, self._waiting), not self._widths
        say(*part.lines(self._widths)[0 if is_first else 1 :])
        self._widths, self._waiting = part.widths(self._widths), []


class Rows:
    """A table that rich prints; a column whose name begins with `>` is right-aligned.

    In a pipe each row is one line of any length. On a terminal that is too narrow, cells are folded between words; if
    that is not enough, each row is a block of names and values. `total` is a last row, under a line.
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, total: Sequence[Any] = ()) -> None:
        self.columns = [printable(column.removeprefix(">")) for column in columns]
        self.right = [column.startswith(">") for column in columns]
        self.rows = [[printable(str(cell)) for cell in row] for row in rows]
        self.total = [printable(str(cell)) for cell in total]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths_within(options.max_width) if console.is_terminal else self.widths()
        if widths is None:
            yield from (_line(console, line) for line in self.records())
        elif console.is_terminal:
            yield self._table(widths)
        else:
            yield from (_line(console, line) for line in self.lines())

    def lines(self, least: Sequence[int] = ()) -> list[str]:
        """Return the heading and the rows, one line each, in columns of at least these widths."""
        widths = self.widths(least)
        return [
            " " + "  ".join(map(_pad, line, widths, self.right)).rstrip() for line in (self.columns, *self._cells())
        ]

    def records(self) -> list[str]:
        """Return the rows as blocks of names and values, with an empty line between them and without empty values."""
        width = max(map(cell_len, self.columns), default=0)
        found = []
        for row in self._cells():
            named = zip(self.columns, row, strict=True)
            found += [*(f" {_pad(name, width, False)}  {cell}" for name, cell in named if cell), ""]
        return found[:-1]

    def _cells(self) -> list[list[str]]:
        return [*self.rows, self.total] if self.total else self.rows

    def widths(self, least: Sequence[int] = ()) -> list[int]:
        """Return the widths of the columns, but at least these."""
        widths = [max(map(cell_len, cells)) for cells in zip(self.columns, *self._cells(), strict=True)]
        return list(map(max, widths, least)) if least else widths

    def _widths_within(self, most: int) -> list[int] | None:
        """Return column widths that break no word and no number; None if there is no room for that."""
        widths, columns = self.widths(), zip(self.columns, *self._cells(), strict=True)
        least = [
            width if right else max([min(width, LEAST), *(cell_len(word) for cell in cells for word in cell.split())])
            for cells, width, right in zip(columns, widths, self.right, strict=True)
        ]
        room = most - 2 * len(widths)
        if sum(least) > room:
            return None
        while (excess := sum(widths) - room) > 0:
            spare, widest = max((width - low, at) for at, (width, low) in enumerate(zip(widths, least, strict=True)))
            widths[widest] -= min(spare, max(1, excess // 2))
        return widths

    def _table(self, widths: list[int]) -> Table:
        table = Table(box=None)
        for column, width, right in zip(self.columns, widths, self.right, strict=True):
            table.add_column(Text(column), justify="right" if right else "left", overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*map(Text, row))
        if self.total:
            table.add_section()
            table.add_row(*(Text(cell, style="bold") for cell in self.total))
        return table


class Pairs:
    """Names and values in two columns, for rich. A value is whole: on a terminal it is folded between words."""

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        self.pairs = [(printable(name), printable(str(value))) for name, value in pairs]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = max((cell_len(name) for name, _ in self.pairs), default=0)
        values = max(1, options.max_width - names - 3)
        words = [cell_len(word) for _, value in self.pairs for word in value.split()]
        if console.is_terminal and max(words, default=0) <= values:
            table = Table(show_header=False, box=None)
            table.add_column(width=names)
            table.add_column(overflow="fold")
            for name, value in self.pairs:
                table.add_row(Text(name), Text(value))
            yield table
        else:
            yield from (_line(console, f" {_pad(name, names, False)}  {value}") for name, value in self.pairs)


def print_facts(title: str, facts: Iterable[tuple[str, Any]]) -> None:
    """Print names and values below a title, as the `nats` tool does. Empty values are left out; 0 and False are not."""
    shown = [(name, _show_value(value)) for name, value in facts if value not in ("", None, [])]
    width = max((len(name) for name, _ in shown), default=0)
    say(title, *(f"  {name:>{width}}: {printable(value)}" for name, value in shown))


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print `Pairs`."""
    PlainConsole().print(Pairs(pairs), crop=False)


def print_document(data: Any, *, default: Callable[[Any], Any] | None = None) -> None:
    """Print JSON, in colours on a terminal if it is not too long; `default` converts other values for JSON."""
    text, console = json_text(data, indent=2, default=default), Console()
    if console.is_terminal and len(text) <= COLOURED:
        console.print_json(text, ensure_ascii=text.isascii())
    else:
        print(text)


def _line(console: Console, line: str) -> Text:
    """Return a line that the console prints whole: longer than the terminal, unless it has to fold it."""
    folds = isinstance(console, PlainConsole) and console.folds
    return Text(line, overflow="fold") if folds else Text(line, no_wrap=True, overflow="ignore")


def _pad(cell: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(cell))
    return padding + cell if right else cell + padding


def _show_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
