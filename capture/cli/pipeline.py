"""`capture pipeline`: shows the tables that are derived from streams, their runs, and what is new for them."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from capture.archive import chain
from capture.archive.chain import latest_offline
from capture.cli import completion, settings
from capture.cli import pipeline_pages as pages
from capture.cli.archive import Offline
from capture.cli.pipeline_requests import pause, rerun, resume, run
from capture.config.pipelines import find_code_fault, pipelines_store, pipelines_trust, read_pipelines
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, ConfigError
from capture.pipelines.document import Pipelines, PipelineTable
from capture.pipelines.run import choose_method
from capture.reading.pipeline_view import PipelineFacts, PipelineView, compare_definitions
from capture.stores import open_store
from natty import Natty
from natty.cli import connect
from natty.cli.run import complaint, run_async
from natty.cli.tables import print_document, print_table
from natty.errors import NattyError

T = TypeVar("T")

Name = Annotated[str, typer.Argument(help="Pipeline, as [[pipeline]] names it.", autocompletion=completion.pipelines)]
SomeName = Annotated[
    str | None,
    typer.Argument(help="Pipeline, as [[pipeline]] names it; default: all.", autocompletion=completion.pipelines),
]

app = typer.Typer(help="Show and run the pipelines: tables that are derived from streams.", no_args_is_help=True)


@app.callback()
def pipeline() -> None:
    """Show and run the pipelines: tables that are derived from streams."""


@app.command()
@connect.options
def ls(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
    offline: Offline = False,
) -> None:
    """List the pipelines, each after those that it reads: rows, last run, and how far the table is behind."""

    async def look(view: PipelineView) -> list[PipelineFacts]:
        return [await view.describe(name) for name in view.list_names()]

    found = _view(_load(config, store, nats), look, offline=offline)
    if as_json:
        print_document([pages.summarise(one) for one in found])
    else:
        pages.print_list(found)


@app.command()
@connect.options
def show(
    name: Name,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
    offline: Offline = False,
) -> None:
    """Show a pipeline: its settings, how its table is kept, the table, and exactly what it has of its inputs."""

    async def look(view: PipelineView) -> PipelineFacts:
        return await view.describe(view.find(name))

    facts = _view(_load(config, store, nats), look, offline=offline)
    if as_json:
        print_document(pages.detail(facts))
    else:
        pages.print_page(facts)


@app.command()
@connect.options
def plan(
    name: Name,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
    offline: Offline = False,
) -> None:
    """Show what the next run of a pipeline would read, and which files it may replace. Changes nothing."""

    async def look(view: PipelineView) -> pages.Plan:
        facts = await view.describe(view.find(name))
        if facts.pipeline is None:
            raise ConfigError(f"pipeline {name} is not configured any more: it has a table, and no further runs")
        return pages.Plan(facts, await view.list_readings(facts), await view.list_files(name))

    found = _view(_load(config, store, nats), look, offline=offline)
    if as_json:
        print_document(found.as_dict())
    else:
        pages.print_lines(found.sentences())


@app.command()
@connect.options
def history(
    name: Name,
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    spark_plan: Annotated[
        int | None,
        typer.Option(
            "--plan", metavar="RUN", help="Print Spark's plan of this run; kept for the last run and for failed runs."
        ),
    ] = None,
    as_json: settings.Json = False,
    offline: Offline = False,
) -> None:
    """Show the last runs of a pipeline: when, how long, rows and bytes in and out, files, and why a run failed."""

    async def look(view: PipelineView) -> PipelineTable | None:
        return view.document.tables.get(view.find(name))

    table = _view(_load(config, store, nats), look, offline=offline)
    runs = table.runs if table else []
    if spark_plan is not None:
        kept = [one for one in runs if one.plan]
        wanted = [one for one in kept if one.number == spark_plan]
        if not wanted:
            known = ", ".join(str(one.number) for one in kept) or "none"
            raise CaptureError(
                f"no plan of run {spark_plan} of pipeline {name} is kept; kept are those of runs: {known}"
            )
        pages.print_lines(wanted[-1].plan.splitlines())
    elif as_json:
        print_document(msgspec.to_builtins(runs))
    else:
        pages.print_runs(name, runs)


@app.command()
def check(
    name: SomeName = None,
    *,
    config: settings.Config = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
) -> None:
    """Check the pipelines without Spark and server, and show what a changed one means for its table.

    Exits with 1 if there are problems.
    """
    wanted = _load(config, store, {})
    chosen = [one for one in read_pipelines(wanted) if name in (None, one.name)]
    if not chosen:
        raise _unknown(name, wanted)
    tables, others = run_async(_read_tables(wanted)), {one.name: one for one in read_pipelines(wanted)}
    rows, faults = [], []
    for one in chosen:
        method, table = choose_method(one, others), tables.get(one.name)
        fault = find_code_fault(one)
        faults += [fault] if fault else []
        changed = sorted(compare_definitions(table.definition, one.definition)) if table and table.number else []
        rows.append(
            {
                "name": one.name,
                "upkeep": str(method.upkeep),
                "why": method.why,
                "table": "needs rerun" if changed else "same" if table and table.number else "new",
                "changed": changed,
                "error": fault,
            }
        )
    if as_json:
        print_document(rows)
    else:
        print_table(("pipeline", "upkeep", "table", "changed"), pages.list_checks(rows))
        pages.print_lines(pages.explain_checks(rows))
    for fault in () if as_json else faults:
        print(complaint("capture", fault), file=sys.stderr)
    if faults:
        raise typer.Exit(1)


@app.command()
def lineage(*, config: settings.Config = None, store: settings.Store = None, as_json: settings.Json = False) -> None:
    """Show which pipeline reads which streams and pipelines, from the configuration alone."""
    pipelines = read_pipelines(_load(config, store, {}))
    if as_json:
        names = {one.name for one in pipelines}
        streams = sorted({read for one in pipelines for read in one.reads} - names)
        print_document({"streams": streams, "pipelines": [{"name": one.name, "reads": one.reads} for one in pipelines]})
    else:
        pages.print_lines(pages.draw_lineage(pipelines))


for command in (run, rerun, pause, resume):
    app.command()(command)


def _load(config: Path | None, store: str | None, nats: dict[str, Any]) -> CaptureConfig:
    """Return the configuration of all streams. ConfigError if it has no pipelines, or if one is wrong."""
    found = settings.with_pipelines(config, {"store": store}, nats)
    if not found.pipeline:
        raise ConfigError(
            "the configuration has no pipelines: write [[pipeline]] into capture.toml, see docs/pipelines.md"
        )
    return found


def _unknown(name: str | None, config: CaptureConfig) -> ConfigError:
    known = ", ".join(one.name for one in config.pipeline)
    return ConfigError(f"there is no pipeline {name!r}; there are: {known}")


def _view(config: CaptureConfig, look: Callable[[PipelineView], Awaitable[T]], *, offline: bool) -> T:
    """Return what `look` finds in the committed tables; in the newest ones in the store if no server answers."""

    async def read() -> T:
        if not offline:
            try:
                async with Natty(**config.nats) as natty:
                    return await look(await PipelineView.open(config, natty))
            except NattyError as error:
                text = f"NATS can't be asked for the committed tables, so these are the newest in the store: {error}"
                print(complaint("capture", text), file=sys.stderr)
        return await look(await PipelineView.open(config))

    return run_async(read())


async def _read_tables(config: CaptureConfig) -> dict[str, PipelineTable]:
    """Return the tables in the newest document in the store; none if there is no document."""
    store, check = open_store(pipelines_store(config)), pipelines_trust(config).check_document
    return (await chain.read(store, await latest_offline(store, Pipelines), Pipelines, check=check)).tables
