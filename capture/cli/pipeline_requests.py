"""`capture pipeline run`, `rerun`, `pause`, `resume`: asks the leader of the pipelines, and waits until it is done."""

from __future__ import annotations

import asyncio
import time
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from capture.archive.heads import PIPELINES
from capture.archive.iceberg_state import ANNOUNCED
from capture.cli import completion, settings
from capture.cli.pipeline_pages import explain_change
from capture.config.pipelines import find_pipeline, pipelines_name
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.node.pipeline_requests import What, ask
from capture.pipelines.document import PipelineTable, Run
from capture.reading.pipeline_view import PipelineView, compare_definitions
from natty import Natty
from natty.cli import connect
from natty.cli.ask import seconds, usage
from natty.cli.run import run_async
from natty.cli.tables import print_document
from natty.cli.terminal import say
from natty.config.units import parse_time, show_duration, show_time, write_count
from natty.elections import default_node_name

LOOK = 0.5
"""Seconds between two looks at what the leader has committed."""


def _seconds(text: str) -> float:
    return 0.0 if text == "0" else seconds(text)


Name = Annotated[str, typer.Argument(help="Pipeline, as [[pipeline]] names it.", autocompletion=completion.pipelines)]
Wait = Annotated[
    float,
    typer.Option(
        parser=_seconds,
        metavar="DURATION",
        help="Time to wait for the leader; 0: do not wait.",
    ),
]


@connect.options
def run(
    name: Name,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    wait: Wait = "10m",  # type: ignore[assignment] # typer parses defaults, too
    as_json: settings.Json = False,
) -> None:
    """Run a pipeline now, before its next time, also while it is paused; wait for the result."""
    _Asking(name, "run", wait=wait, as_json=as_json).carry_out(config, store, nats)


@connect.options
def rerun(
    name: Name,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--from",
            parser=lambda text: usage(lambda: parse_time(text)),
            metavar="TIME",
            help="Only messages since this time: 2026-11-21T06:00:00Z.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All messages (default).")] = False,
    wait: Wait = "1h",  # type: ignore[assignment]
    as_json: settings.Json = False,
) -> None:
    """Make all rows of a pipeline's table again, beside the old ones, and swap them in one commit.

    The table then has rows of all messages that the archive holds, or of those since --from.
    """
    if since is not None and everything:
        raise typer.BadParameter("--all and --from exclude each other")
    _Asking(name, "rerun", since_ns=since or 0, wait=wait, as_json=as_json).carry_out(config, store, nats)


@connect.options
def pause(
    name: Name,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    wait: Wait = "1m",  # type: ignore[assignment]
    as_json: settings.Json = False,
) -> None:
    """Pause a pipeline: it runs only on request, until it is resumed. A run that has begun finishes."""
    _Asking(name, "pause", wait=wait, as_json=as_json).carry_out(config, store, nats)


@connect.options
def resume(
    name: Name,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    wait: Wait = "1m",  # type: ignore[assignment]
    as_json: settings.Json = False,
) -> None:
    """Resume a paused pipeline: it runs again at its times."""
    _Asking(name, "resume", wait=wait, as_json=as_json).carry_out(config, store, nats)


@dataclass(frozen=True)
class _Done:
    """The table once the leader has carried out a request, and the run for it; None if nothing was new."""

    table: PipelineTable
    run: Run | None


@dataclass(frozen=True)
class _Asking:
    """A request to the leader. `wait` is how long to wait for it, in seconds."""

    name: str
    what: What
    _: KW_ONLY
    since_ns: int = 0
    wait: float
    as_json: bool

    def carry_out(self, path: Any, store: str | None, nats: dict[str, Any]) -> None:
        """Ask, wait, and print what was done. Exits with 1 if the run failed."""
        config = settings.with_pipelines(path, {"store": store}, nats)
        find_pipeline(config, self.name)
        console = Console(stderr=True)
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            progress.add_task(f"{self.what} {self.name}: waiting for the leader", total=None)
            done = run_async(self._ask(config))
        self._print(done)

    async def _ask(self, config: CaptureConfig) -> _Done | None:
        """Return what the leader has done; None if it is not waited for."""
        name = pipelines_name(config)
        async with Natty(**config.nats) as natty:
            view = await PipelineView.open(config, natty)  # before anything is asked: is it the right store?
            table = view.document.tables.get(self.name)
            if self.what == "run" and table and table.number:
                wanted = find_pipeline(config, self.name).definition
                if changed := compare_definitions(table.definition, wanted):
                    why = explain_change(self.name, sorted(changed))
                    raise CaptureError(f"{why}: `capture pipeline rerun {self.name}` makes it again")
            asked = await ask(natty, name, self.name, self.what, by=default_node_name(), since_ns=self.since_ns)
            until = time.monotonic() + self.wait
            while time.monotonic() < until:
                await asyncio.sleep(LOOK)
                view = await PipelineView.open(config, natty)
                table = view.document.tables.get(self.name)
                if table and table.asked == asked.id:
                    await view.wait_until_announced(self.name, min(ANNOUNCED, until - time.monotonic()))
                    return _Done(table, next((one for one in table.runs if one.asked == asked.id), None))
            if not self.wait:
                return None
            leader = await natty.get_leader(PIPELINES.election(name))
        who = f"{leader}, which leads the pipelines," if leader else "no node leads the pipelines: it"
        raise CaptureError(
            f"{who} has not carried it out within {show_duration(self.wait)}; the request stays:"
            f" `capture pipeline history {self.name}` shows when it was done"
        )

    def _print(self, done: _Done | None) -> None:
        run = done.run if done else None
        if self.as_json:
            state = {"pipeline": self.name, "what": self.what, "done": done is not None}
            print_document(state | ({"run": msgspec.to_builtins(run)} if run else {}))
        elif done is None:
            say(f"{self.what} of {self.name} is requested")
        elif self.what in ("pause", "resume"):
            say(f"{self.name} is {'paused' if done.table.paused else 'resumed'}")
        elif run is None:
            say(f"{self.name}: nothing is new, its table has all that there is")
        elif not run.error:
            say(_describe(self.name, run))
        if run is not None and run.error:
            raise CaptureError(f"the run failed, and the table is as it was: {run.error}")


def _describe(name: str, run: Run) -> str:
    took = show_duration(round(run.took, 1))
    return (
        f"{name}: run {run.number} of {show_time(int(run.ended) * 10**9)} took {took}, read"
        f" {write_count(run.rows_in, 'row')} and wrote {write_count(run.rows_out, 'row')}"
    )
