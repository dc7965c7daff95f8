"""How facts are printed for people and for programs: tables, blocks of names and values, JSON.

Control characters in a cell are escaped, as others wrote most of them; no cell is markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from natty.cli.terminal import json_text, printable, say

Json = Annotated[bool, typer.Option("--json", "-j", help="Print JSON.")]

SCREEN = 200  # rows that rich lays out for a terminal; it takes half a millisecond for each, and folds what is too wide
COLOURED = 100_000  # characters of JSON that are coloured


class PlainConsole(Console):
    """A console whose texts are no markup, and hold nothing that a terminal could act on. `Text` is as it was made."""

    def __init__(self) -> None:
        super().__init__(markup=False, highlight=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a text that is printed, or stands in a cell, with all that is not printable escaped."""
        return super().render_str(printable(text, also="\n\t"), **{**how, "markup": False, "emoji": False})


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, total: Sequence[Any] = ()) -> None:
    """Print a table; a column whose name begins with `>` is put to the right. `total` is a last row under a line.

    Where nobody looks, and where there is too much to look at, the lines are as long as they are.
    """
    lines = [[printable(str(cell)) for cell in row] for row in rows]
    last = [printable(str(cell)) for cell in total]
    console = Console(highlight=False)
    if console.is_terminal and len(lines) <= SCREEN:
        console.print(_table(columns, lines, last))
    else:
        _print_lines(columns, [*lines, last] if last else lines)


def print_facts(title: str, facts: Iterable[tuple[str, Any]]) -> None:
    """Print names and values below a title, as the `nats` tool does. Empty values are left out; 0 and False are not."""
    shown = [(name, _shown(value)) for name, value in facts if value not in ("", None, [])]
    width = max((len(name) for name, _ in shown), default=0)
    say(title, *(f"  {name:>{width}}: {printable(value)}" for name, value in shown))


def cells(*values: Any) -> list[Text]:
    """Return the cells of a row of rich's, in which nothing is markup and control characters are escaped."""
    return [Text(printable(str(value))) for value in values]


def print_document(data: Any, *, default: Callable[[Any], Any] | None = None) -> None:
    """Print JSON, in colours on a terminal if it is not too long; `default` makes of others what JSON can say."""
    text, console = json_text(data, indent=2, default=default), Console()
    if console.is_terminal and len(text) <= COLOURED:
        console.print_json(text, ensure_ascii=text.isascii())
    else:
        print(text)


def _table(columns: Sequence[str], lines: list[list[str]], total: list[str]) -> Table:
    table = Table(box=None)
    for column in columns:
        table.add_column(
            Text(printable(column.removeprefix(">"))),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    for line in lines:
        table.add_row(*map(Text, line))
    if total:
        table.add_section()
        table.add_row(*(Text(cell, style="bold") for cell in total))
    return table


def _print_lines(columns: Sequence[str], lines: list[list[str]]) -> None:
    head = [printable(column.removeprefix(">")) for column in columns]
    widths = [max(map(cell_len, cells)) for cells in zip(head, *lines, strict=True)]
    right = [column.startswith(">") for column in columns]
    for line in (head, *lines):
        cells = zip(line, widths, right, strict=True)
        print(" " + "  ".join(_padded(*cell) for cell in cells).rstrip())


def _padded(cell: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(cell))
    return padding + cell if right else cell + padding


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
