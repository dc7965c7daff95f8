"""`capture verify` and `capture purge --captured`: compare archive and stream; delete what is proven to be archived."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

from capture.archive.chain import Head
from capture.archive.identity import holds_archive, require_archive
from capture.archive.sequences import Sequences
from capture.cli import settings
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, ConfigError
from capture.stores import open_store
from capture.verification.check import Check, check
from capture.verification.outputs import (
    nagios,
    nagios_pipeline,
    nagios_unknown,
    prometheus,
    prometheus_failure,
    prometheus_pipeline,
    write_atomically,
)
from capture.verification.pipelines import PipelineCheck, check_pipeline
from capture.verification.purge import Margin, Plan, Stock, find_purge_subjects, plan_purge, take_stock
from capture.verification.purge import purge as purge_stream
from capture.verification.verdict import Holdings
from natty import Natty, NattyError, NotConnectedError, RequestTimeoutError
from natty.cli import connect
from natty.cli.ask import confirm, seconds
from natty.cli.run import run_async
from natty.cli.tables import print_document
from natty.cli.terminal import say
from natty.config.units import write_count
from natty.errors import UNREADABLE, ConnectError, DomainUnreachableError, JetStreamNotEnabledError

STANDARD_OUTPUT = Path("-")
PURGE_JSON_VERSION = 1
UNREACHABLE = (ConnectError, NotConnectedError, RequestTimeoutError, DomainUnreachableError, JetStreamNotEnabledError)


# --- verify ----------------------------------------------------------------------------------------------------------


@connect.options
def verify(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    pipeline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Check the table of this pipeline, and not the archive."),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep/--quick",
            " /--no-checksums",
            help="Read every object again (default), or only check that it exists with its size.",
        ),
    ] = True,
    offline: Annotated[
        bool, typer.Option("--offline", help="Compare the archive with its own record of the stream, without NATS.")
    ] = False,
    public_key: settings.PublicKey = None,
    encrypted_only: settings.EncryptedOnly = False,
    noted: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Earlier output of `capture head`: the archive must still contain it."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="RUNS", help="Sequences that were purged or deleted on purpose, such as 2-4,6."),
    ] = None,
    as_json: settings.Json = False,
    as_nagios: Annotated[
        bool, typer.Option("--nagios", help="Print one line for Nagios, and exit with Nagios' status: 0, 1, 2 or 3.")
    ] = False,
    prometheus_file: Annotated[
        Path | None,
        typer.Option("--prometheus", metavar="FILE", help="File for Prometheus metrics; - is standard output."),
    ] = None,
) -> None:
    """Compare archive and stream, sequence by sequence. Exits with 3 if anything is missing or damaged.

    Exits with 1 if not everything could be checked.
    """
    _check_outputs(as_json, as_nagios, prometheus_file == STANDARD_OUTPUT)
    try:
        if pipeline is not None:
            if stream or noted or accept:
                raise typer.BadParameter("--pipeline can't be combined with --stream, --noted and --accept")
            with _publish_failure(prometheus_file, "", pipeline):
                flags = {"store": store, **settings.checks(public_key, encrypted_only)}
                found = run_async(_prove(settings.with_pipelines(config, flags, nats), pipeline, deep, offline))
            raise typer.Exit(_print_pipeline(found, as_json, as_nagios, prometheus_file))
        with _publish_failure(prometheus_file, stream or ""):
            flags = {"stream": stream, "store": store, **settings.checks(public_key, encrypted_only)}
            wanted = settings.archive(config, flags, nats)
        with _publish_failure(prometheus_file, wanted.stream):
            checked = run_async(_verify(wanted, deep, offline, _heads(noted), _read_runs(accept or [])))
        status = _print_check(checked, as_json, as_nagios, prometheus_file)
    except (CaptureError, NattyError) as error:
        if not as_nagios:
            raise
        status, line = nagios_unknown(str(error))
        say(line)
    raise typer.Exit(status)


@contextlib.contextmanager
def _publish_failure(file: Path | None, stream: str, pipeline: str = "") -> Iterator[None]:
    """Publish the failure for Prometheus if nothing could be checked."""
    try:
        yield
    except (CaptureError, NattyError):
        if file is not None:
            _publish(file, prometheus_failure(stream, time.time(), pipeline=pipeline))
        raise


def _check_outputs(*to_standard_output: bool) -> None:
    if sum(to_standard_output) > 1:
        raise typer.BadParameter("only one of --json, --nagios and --prometheus - can use standard output")


def _print_check(checked: Check, as_json: bool, as_nagios: bool, prometheus_file: Path | None) -> int:
    """Print the selected outputs, and return the exit status."""
    if prometheus_file is not None:
        _publish(prometheus_file, prometheus(checked))
    if as_nagios:
        status, line = nagios(checked)
        say(line)
        return status
    if as_json:
        print_document(checked.as_dict())
    elif prometheus_file != STANDARD_OUTPUT:
        say(checked.sentence())
    return checked.status


def _print_pipeline(checked: PipelineCheck, as_json: bool, as_nagios: bool, prometheus_file: Path | None) -> int:
    """Print the selected outputs about a pipeline's table, and return the exit status."""
    if prometheus_file is not None:
        _publish(prometheus_file, prometheus_pipeline(checked))
    if as_nagios:
        status, line = nagios_pipeline(checked)
        say(line)
        return status
    if as_json:
        print_document(checked.as_dict())
    elif prometheus_file != STANDARD_OUTPUT:
        say(*checked.sentences())
    return checked.status


def _publish(file: Path, text: str) -> None:
    if file == STANDARD_OUTPUT:
        print(text, end="")
    else:
        write_atomically(file, text)


def _heads(noted: Path | None) -> list[Head]:
    if noted is None:
        return []
    try:
        return [msgspec.json.decode(line, type=Head) for line in noted.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"{noted} can't be read: {error.strerror}; check --noted") from error
    except UNREADABLE as error:
        raise ConfigError(f"{noted} is not output of `capture head`: {error}; check --noted") from error


def _read_runs(texts: list[str]) -> Sequences:
    """Return the sequences of texts such as "2-4,6"."""
    found = Sequences()
    for one in ",".join(texts).replace("–", "-").replace(" ", "").split(",") if texts else ():
        first, _, last = one.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and 0 < int(first) <= int(last or first)):
            raise typer.BadParameter(f"{one!r} is not a sequence or a run of them: write 2-4,6", param_hint="--accept")
        found |= Sequences.from_range(int(first), int(last or first))
    return found


async def _verify(config: CaptureConfig, deep: bool, offline: bool, noted: list[Head], accepted: Sequences) -> Check:
    """Check with the server. If it can't be reached, check what can be checked without it."""
    store = open_store(config.store)
    with show_progress("objects") as on_progress:
        compare = partial(check, store=store, deep=deep, noted=noted, accepted=accepted, on_progress=on_progress)
        if not offline:
            try:
                async with Natty(**config.nats) as natty:
                    return await compare(natty, config)
            except UNREACHABLE as error:
                if not await holds_archive(store):
                    raise
                alone = await compare(None, config)
                if not alone.held.objects and not alone.held.unread:
                    raise
                return replace(alone, uncompared=str(error))
        return await compare(None, config)


async def _prove(config: CaptureConfig, name: str, deep: bool, offline: bool) -> PipelineCheck:
    """Check a pipeline's table by the head in NATS. If NATS can't be asked, check the newest one in the store."""
    with show_progress("files") as on_progress:
        if offline:
            return await check_pipeline(None, config, name, deep=deep, on_progress=on_progress)
        try:
            async with Natty(**config.nats) as natty:
                return await check_pipeline(natty, config, name, deep=deep, on_progress=on_progress)
        except UNREACHABLE as error:
            alone = await check_pipeline(None, config, name, deep=deep, on_progress=on_progress)
            return replace(alone, uncompared=str(error))


@contextlib.contextmanager
def show_progress(what: str, *more: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    """Show how many objects or messages are done on standard error, only on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *more)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


# --- purge -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The options of the command line."""

    config: CaptureConfig
    margin: Margin
    ignore_others: bool


@connect.options
def purge(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    captured: Annotated[
        bool,
        typer.Option("--captured", help="Required: confirms that only messages proven to be archived are deleted."),
    ] = False,
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Number of newest messages to keep at least.")] = 0,
    keep_for: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="DURATION", help="Age up to which messages are kept: 30s, 1h30m, 7d."),
    ] = None,
    ignore_consumers: Annotated[
        bool,
        typer.Option(
            "--ignore-consumers", help="Delete also messages that others have not acknowledged or copied yet."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    as_json: settings.Json = False,
) -> None:
    """Delete from the stream only messages that are proven to be archived; reads each object again first.

    Asks before it deletes.
    """
    if not captured:
        raise typer.BadParameter("give --captured: it confirms that only messages proven to be archived are deleted")
    wanted = _Wanted(
        config=settings.archive(config, {"stream": stream, "store": store}, nats),
        margin=Margin(messages=keep, seconds=keep_for or 0.0),
        ignore_others=ignore_consumers,
    )
    checked, plan = run_async(_plan(wanted))
    if not as_json:
        say(checked.sentence(), _sentence(wanted.config.stream, plan))
    purged = None
    if plan.messages and not dry_run:
        confirm(_question(wanted, plan), force=force)
        purged = run_async(_purge(wanted, checked.held, plan))
    if as_json:
        print_document(_as_dict(checked, plan, purged, dry_run))
    elif purged is not None:
        print(f"{write_count(purged, 'message')} deleted")


async def _plan(wanted: _Wanted) -> tuple[Check, Plan]:
    config = wanted.config
    store = open_store(config.store)
    with show_progress("objects") as on_progress:
        async with Natty(**config.nats) as natty:
            await require_archive(store)
            await find_purge_subjects(natty, config, store)  # anything that refuses does so before everything is read
            checked = await check(natty, config, store, on_progress=on_progress)
            return checked, plan_purge(await _stock(natty, wanted), checked.held, wanted.margin.messages)


async def _purge(wanted: _Wanted, held: Holdings, plan: Plan) -> int:
    """Purge what was confirmed, or less if more is needed by now: the confirmation may have taken an hour."""
    config = wanted.config
    async with Natty(**config.nats) as natty:
        stock = await _stock(natty, wanted)
        now = plan_purge(stock, held, wanted.margin.messages)
        return await purge_stream(natty, config.stream, min(now.before, plan.before), stock.filters)


async def _stock(natty: Natty, wanted: _Wanted) -> Stock:
    store = open_store(wanted.config.store)
    return await take_stock(
        natty, wanted.config, store, wanted.margin, now=time.time(), ignore_others=wanted.ignore_others
    )


def _sentence(stream: str, plan: Plan) -> str:
    messages = write_count(plan.messages, "message")
    return f"{messages} of {stream} can be deleted, all below sequence {plan.before:,}: {plan.reason}"


def _question(wanted: _Wanted, plan: Plan) -> str:
    subjects = ", ".join(wanted.config.filter_subjects)
    return (
        f"Delete {write_count(plan.messages, 'message')} of stream {wanted.config.stream},"
        f" all below sequence {plan.before:,}{f' on {subjects}' if subjects else ''}, permanently?"
    )


def _as_dict(checked: Check, plan: Plan, purged: int | None, dry_run: bool) -> dict[str, object]:
    return {
        "version": PURGE_JSON_VERSION,
        "stream": checked.stream,
        "store": checked.store,
        "before": plan.before,
        "messages": plan.messages,
        "reason": plan.reason,
        "dry_run": dry_run,
        "purged": purged,
        "verified": checked.as_dict(),
    }
