"""The demo's result, and its display."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from capture.cli.demo.flights import QUESTIONS, Answer, Question
from capture.cli.demo.tables import TABLES, Kept
from natty.config.units import write_count

ROWS_SHOWN = 5


@dataclass
class Result:
    """The result of the demo; the last table shows it."""

    messages: int = 0
    published_per_second: float = 0.0
    captured_per_second: float = 0.0
    plain_text: str = ""
    killed: str = ""
    successor: str = ""
    failover_seconds: float = 0.0
    blocks: int = 0
    block_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    verdict: str = ""
    verified: bool = False
    questions_asked: int = 0
    pipelines_killed: str = ""
    pipelines_successor: str = ""
    pipelines_failover_seconds: float = 0.0
    tables: dict[str, int] = field(default_factory=dict)  # the rows of each
    folder: str = ""
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)
    table_differences: list[str] = field(default_factory=list)

    @property
    def answers_equal(self) -> bool:
        """Whether every query was run, and Spark's answers equal the CSV's."""
        return self.questions_asked == len(QUESTIONS) and not self.differences

    @property
    def tables_equal(self) -> bool:
        """Whether every table of a pipeline was read, and has the rows that the CSV gives."""
        return [*self.tables] == [one.name for one in TABLES] and not self.table_differences

    @property
    def ok(self) -> bool:
        """Whether every check succeeded."""
        return self.verified and self.answers_equal and self.tables_equal


def program() -> str:
    """Return how to call this command line from the current folder."""
    if shutil.which("capture") or Path(sys.argv[0]).name != "capture":
        return "capture"
    return shlex.quote(os.path.relpath(sys.argv[0]))


class Screen:
    """Progress bars while the demo works, a line for each step, tables at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:>20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def is_terminal(self) -> bool:
        """Whether a person sees it."""
        return self._console.is_terminal

    def say(self, text: str) -> None:
        """Print a step that begins. It is not broken into lines, so that an address can be copied."""
        self._console.print(f"… {text}", highlight=False, soft_wrap=True)

    def finish(self, text: str, *, well: bool = True) -> None:
        """Print a step that has ended, and whether it succeeded."""
        self._console.print(f"{'[green]✓[/green]' if well else '[red]✗[/red]'} {text}", highlight=False)

    def advance(self, what: str, done: int, total: int) -> None:
        """Advance a bar."""
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._bars[what], completed=done)

    def answer(self, question: Question | Kept, rows: Answer, *, equal: bool) -> None:
        """Show an answer and whether it equals the CSV's."""
        mark = "[green]✓[/green]" if equal else "[red]✗[/red]"
        self._console.print(f"{mark} {question.title}: {'equal to' if equal else 'DIFFERENT from'} the CSV")
        table = Table()
        for column in question.columns:
            table.add_column(column, justify="right")
        for row in rows[:ROWS_SHOWN]:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
        if len(rows) > ROWS_SHOWN:
            table.caption = f"and {len(rows) - ROWS_SHOWN} more rows"
        self._console.print(table)

    def summary(self, result: Result, folder: Path) -> None:
        """Show the result, and commands to try next."""
        table = Table(title="The demo", show_header=False, title_justify="left")
        table.add_column(justify="right")
        table.add_column()
        for name, value in self._lines(result, folder):
            table.add_row(name, value)
        self._console.print(table)
        for difference in (*result.differences, *result.table_differences):
            self._console.print(f"[red]✗[/red] {difference}", highlight=False)

    def _lines(self, result: Result, folder: Path) -> list[tuple[str, str]]:
        config = folder / "capture.toml"
        store = folder / "archive"
        kept = [
            ("files", f"{store}/table (Parquet, sorted by sequence)"),
            ("try next", f"{program()} ls --store '{store}'"),
            ("", f"{program()} verify --offline --config '{config}'"),
            ("", f"{program()} sql --config '{config}' \"SELECT subject, COUNT(*) FROM messages GROUP BY subject\""),
        ]
        gone = [("files", "removed; use --keep to keep them"), ("try next", f"{program()} demo --keep")]
        return [
            ("messages", f"{result.messages:,}, each published over TLS and acknowledged by three servers"),
            ("published", f"{result.published_per_second:,.0f} per second"),
            ("captured", f"{result.captured_per_second:,.0f} per second, from the first publish to the last ack"),
            (
                "fail-over",
                f"{result.failover_seconds:.2f} s from SIGKILL of {result.killed} to {result.successor} sweeping",
            ),
            ("blocks", f"{result.blocks} with {result.block_bytes:,} bytes before compaction"),
            ("table", f"{write_count(result.files, 'file')} with {result.file_bytes:,} bytes after it"),
            ("verify", result.verdict),
            ("answers", "Spark's and the CSV's are equal" if result.answers_equal else "Spark's and the CSV's DIFFER"),
            (
                "pipelines",
                " and ".join(f"{name} with {count:,} rows" for name, count in result.tables.items())
                + (": equal to the CSV" if result.tables_equal else ": DIFFERENT from the CSV"),
            ),
            ("took", f"{result.seconds:.0f} s"),
            *(kept if result.folder else gone),
        ]
