"""`natty leader`: shows who leads and who led, hands over, and runs a program while leader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from natty import ConfigError, Election, LeadershipLostError, Natty, NattyError, Term
from natty.cli import completion, connect
from natty.cli.ask import seconds
from natty.cli.interrupts import SIGNALED
from natty.cli.run import log_as_daemon
from natty.cli.tables import Json, print_document, print_table
from natty.cli.terminal import json_text, say
from natty.config.units import NANOSECONDS, parse_time, show_time, write_time
from natty.elections import BUCKET, LastRun, TermNote, elections, last_success, leadership, trail
from natty.elections.options import LEASE
from natty.elections.process import Program
from natty.streams.nearest import missing_sentence
from natty.wire.background import cancel_all, map_concurrently

EXIT_LOST = 75  # EX_TEMPFAIL: the term ended before the program did
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)

app = typer.Typer(help="Elections.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The election's name.", autocompletion=completion.elections)]
InBucket = Annotated[str, typer.Option("--bucket", help="Bucket of the elections.", autocompletion=completion.buckets)]


@app.command()
@connect.options
def ls(*, nats: dict[str, Any], bucket: InBucket = BUCKET, as_json: Json = False) -> None:
    """List elections and the last recorded leader of each."""
    found = connect.call(nats, lambda natty: _ls(natty, bucket))
    if as_json:
        print_document(found)
        return
    if not found:
        say(f"bucket {bucket} never had an election")
        return
    rows = [(one["election"], one["node"] or "none", one["token"] or "", _show_since(one)) for one in found]
    print_table(("election", "leader", ">token", "since"), rows)


def _show_since(one: dict[str, Any]) -> str:
    return write_time(parse_time(one["since"]) / NANOSECONDS) if one["since"] else ""


async def _ls(natty: Natty, bucket: str) -> list[dict[str, Any]]:
    names = await elections(natty.jetstream, bucket)
    subjects = [natty.election(name, bucket=bucket).subjects for name in names]
    leaders = await map_concurrently(subjects, lambda one: leadership(natty.jetstream, one))
    return [{"election": name, **asdict(leader)} for name, leader in zip(names, leaders, strict=True)]


@app.command()
@connect.options
def show(
    *,
    nats: dict[str, Any],
    name: Name,
    bucket: InBucket = BUCKET,
    terms: Annotated[
        int, typer.Option(min=0, help="Number of recent terms to show: leader, time, reason of the end.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show the last recorded leader, and when work that --cron repeats last succeeded: hints, which may be old."""
    leader, notes, last = connect.call(nats, lambda natty: _show(natty, name, bucket, terms))
    succeeded = last and {"time": show_time(int(last.slot) * 10**9), "node": last.node}
    if as_json:
        shown: dict[str, Any] = {"election": name, "leader": leader, "last_success": succeeded}
        print_document(shown | ({"terms": [msgspec.to_builtins(note) for note in notes]} if terms else {}))
        return
    say(f"{leader} leads {name}" if leader else f"no node leads {name}")
    if succeeded:
        say(f"  last success: the run of {succeeded['time']}, by {succeeded['node']}")
    for note in notes:
        say(_describe(note))


def _describe(note: TermNote) -> str:
    began = write_time(note.began)
    if note.ended is None:
        return f"  {began}  {note.node}, token {note.token}: no end recorded"
    return f"  {began}  {note.node}, token {note.token}: {note.reason} after {note.ended - note.began:.1f} s"


async def _show(natty: Natty, name: str, bucket: str, terms: int) -> tuple[str | None, list[TermNote], LastRun | None]:
    subjects = natty.election(name, bucket=bucket).subjects
    notes = await trail(natty.jetstream, subjects, last=terms) if terms else []
    if (leader := await natty.get_leader(name, bucket=bucket)) is None:
        await _check_known(natty, name, bucket)
    return leader, notes, await last_success(natty.jetstream, subjects)


async def _check_known(natty: Natty, name: str, bucket: str) -> None:
    """Raise ConfigError, with the nearest names, if there was never an election of that name."""
    known = await elections(natty.jetstream, bucket)
    if name not in known:
        raise ConfigError(f"bucket {bucket}: {missing_sentence('election', name, known)}")


@app.command()
@connect.options
def watch(*, nats: dict[str, Any], name: Name, bucket: InBucket = BUCKET, as_json: Json = False) -> None:
    """Print the current leader and each change, until interrupted."""
    connect.call(nats, lambda natty: _watch(natty, name, bucket, as_json))


async def _watch(natty: Natty, name: str, bucket: str, as_json: bool) -> None:
    async with aclosing(natty.observe(name, bucket=bucket)) as seen:
        async for now in seen:
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            if as_json:
                say(json_text({"time": when, "election": name, **asdict(now)}))
            else:
                leads = f"{now.node} leads {name}, token {now.token}" if now else f"no node leads {name}"
                say(f"{when}  {leads}")


@app.command("step-down")
@connect.options
def step_down(
    *,
    nats: dict[str, Any],
    name: Name,
    to: Annotated[str, typer.Option(help="Node to lead next, if it is a candidate.")] = "",
    bucket: InBucket = BUCKET,
) -> None:
    """Ask the leader to step down."""
    asked = connect.call(nats, lambda natty: _step_down(natty, name, to, bucket))
    say(f"asked {asked} to step down" if asked else f"no node leads {name}")


async def _step_down(natty: Natty, name: str, to: str, bucket: str) -> str:
    if not (asked := await natty.step_down(name, to=to, bucket=bucket)):
        await _check_known(natty, name, bucket)
    return asked


@app.command()
@connect.options
def run(
    invoked: typer.Context,
    *,
    nats: dict[str, Any],
    name: Name,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The program, and its arguments.")],
    lease: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="Time after which a dead leader is replaced.")
    ] = f"{LEASE:g}s",  # type: ignore[assignment] # typer parses defaults, too
    node_name: Annotated[str, typer.Option(help="Name of this node. Default: host and process.")] = "",
    priority: Annotated[int, typer.Option(help="Priority of this node; lower numbers are preferred.")] = 0,
    wait: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="DURATION", help="Time to wait for election. Default: no limit."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="DURATION", help="Run it repeatedly: time from start to start, such as 5m."
        ),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(help='Run it at these times: minute hour day month weekday, such as "0 3 * * *"; or @daily.'),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of --cron, such as Europe/Berlin. Default: UTC.")] = "",
    bucket: InBucket = BUCKET,
) -> None:
    """Run a program while leader, as `flock` runs one under a lock, and exit with its status.

    The program gets SIGTERM before its term ends, and SIGKILL at the end, with all its child processes; the status is
    then 75. Signals are passed on to it. NATTY_TOKEN and NATTY_TERM in its environment are the token and the term's
    number.

    With --every or --cron it runs again and again while this node leads, one run at a time, until SIGTERM, SIGINT,
    SIGHUP or SIGQUIT; this node stays a candidate if it loses office. A status other than 0 is a failed run: it is
    logged and repeated after a growing pause. --cron makes up for missed runs once, also those of a dead leader.
    """
    if every is not None and cron is not None:
        raise ConfigError("--every and --cron exclude each other; give one")
    if timezone and cron is None:
        raise ConfigError("--timezone has no effect without --cron")
    if every is not None or cron is not None:
        log_as_daemon(invoked)
    try:
        options = {"name": name, "lease": lease, "node_name": node_name, "priority": priority, "bucket": bucket}
        options |= {"every": every, "cron": cron, "timezone": timezone}
        raise typer.Exit(connect.call(nats, lambda natty: _run(natty, options, command, wait)))
    except ValueError as error:
        raise ConfigError(str(error)) from error


async def _run(natty: Natty, options: dict[str, Any], command: list[str], wait: float | None) -> int:
    errand = _Errand(command)
    election = natty.election(**options, on_elected=lambda token: errand.elected.set())
    if election.options.repeats and shutil.which(command[0]) is None:  # otherwise each run would fail
        raise ConfigError(f"there is no program {command[0]}")
    running = asyncio.create_task(errand.repeat(election) if election.options.repeats else errand.run(election))
    errand.listen(running)
    if wait is not None:
        elected = asyncio.create_task(errand.elected.wait())
        await asyncio.wait([running, elected], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        elected.cancel()
        if not errand.elected.is_set() and not running.done():
            await cancel_all([running])
            leader = await natty.get_leader(options["name"], bucket=options["bucket"])
            raise ConfigError(f"{leader or 'no node'} leads {options['name']}; not elected within {wait:g} s")
    try:
        return await running
    except asyncio.CancelledError:
        return SIGNALED + errand.signal if errand.status is None else errand.status


class _Errand:
    """The program, and the signals for it."""

    def __init__(self, command: list[str]) -> None:
        self.elected = asyncio.Event()
        self.signal = 0
        self.status: int | None = None  # of a program that was running when a signal ended the repetition
        self._command = command
        self._program: Program | None = None

    def listen(self, running: asyncio.Task[int]) -> None:
        for number in PASSED_ON:
            asyncio.get_running_loop().add_signal_handler(number, self._pass_on, number, running)

    def _pass_on(self, number: signal.Signals, running: asyncio.Task[int]) -> None:
        if number in ENDING:
            self.signal = number
        if self._program is not None:
            self._program.send_signal(number)
        elif number in ENDING:  # no program runs; a later one does not get the others: they would kill it as it starts
            running.cancel()

    async def run(self, election: Election) -> int:
        """Run the program once and return its status."""
        try:
            async with election as term:
                status = await self._run_program(term)
                term.check()  # if this process was frozen, the guard has stopped the program before we are cancelled
                return status
        except LeadershipLostError as error:
            typer.echo(f"natty: {self._command[0]} was stopped: {error}", err=True)
            return EXIT_LOST

    async def repeat(self, election: Election) -> int:
        """Run the program again and again, until a signal cancels this task."""
        repeating = asyncio.current_task()
        assert repeating is not None

        async def work(term: Term) -> int:
            status = None
            try:
                status = await self._run_program(term)
            finally:
                self._program = None
                if over := _is_over(term):  # also if it has ended before we are cancelled: the guard stops it in time
                    self._report_stop(term)
                if self.signal:  # it was passed on, and this was the last run
                    self.status = EXIT_LOST if over else status
                    repeating.cancel()
            if self.signal:
                await asyncio.Event().wait()
            if status:
                raise NattyError(f"{self._command[0]} exited with status {status}")
            return status

        return await election.run(work)

    def _report_stop(self, term: Term) -> None:
        text = f"natty: {self._command[0]} was stopped: {term.node} does not lead {term.name!r} any more"
        typer.echo(text if self.signal else f"{text}; it stays a candidate", err=True)

    async def _run_program(self, term: Term) -> int:
        environment = os.environ | {"NATTY_TOKEN": str(term.token), "NATTY_TERM": str(term.number)}
        status = await term.run_process(self._command, env=environment, on_start=self._note_start)
        return SIGNALED - status if status < 0 else status

    def _note_start(self, program: Program) -> None:
        self._program = program


def _is_over(term: Term) -> bool:
    """Whether the term has ended, or its work has to stop."""
    with contextlib.suppress(LeadershipLostError):
        term.check()
        return term.lost.is_set()
    return True
