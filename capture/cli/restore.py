"""`capture restore`: makes a stream from its archive."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.progress import TimeRemainingColumn

from capture.cli import settings
from capture.cli.cat import moment
from capture.cli.verify import show_progress
from capture.config.settings import CaptureConfig
from capture.errors import RestoreRefusedError
from capture.restoring.past import Window, only_stream
from capture.stores import open_store
from capture.verification.verdict import TOLD
from natty import Natty
from natty.cli import connect, terminal
from natty.cli.run import run_async
from natty.cli.tables import print_document
from natty.config.units import parse_time, write_count

if TYPE_CHECKING:  # they import pyarrow, which takes longer than the completion of a word may take
    from capture.restoring.plan import Options, Plan
    from capture.restoring.rebuild import Restored

JSON_VERSION = 1
SHOWN = 5  # runs of gaps


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The options of the command line; `prefix` and `speed` are for a replay."""

    config: CaptureConfig
    options: Options
    offline: bool
    dry_run: bool
    prefix: str
    speed: float


def _start(text: str) -> dict[str, int]:
    """Return where a window starts: a sequence, or a time with its zone. Raises a usage error if it is neither."""
    if text.isdecimal() and int(text):
        return {"start": int(text)}
    return {"start_ns": _at(text)}


def _at(text: str) -> int:
    """Return the Unix nanoseconds of a time with its zone, or of a duration before now. Raises a usage error."""
    return parse_time(moment(text))


def _speed(text: str) -> float:
    """Return the factor to the original speed: 1 for "original", 0 for "max". Raises a usage error if it is invalid."""
    try:
        speed = {"original": 1.0, "max": 0.0}[text] if text in ("original", "max") else float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed < 1e9 or (speed == 0 and text != "max"):
        raise typer.BadParameter(f"{text!r} is not a pace; write original, max, or a factor to the original speed: 10")
    return speed


@connect.options
def restore(
    *,
    nats: dict[str, Any],
    archive: Annotated[str | None, typer.Argument(metavar="ARCHIVE", help="Folder or URL; default: --store.")] = None,
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    at: Annotated[
        int | None,
        typer.Option(parser=_at, metavar="TIME", help="State at this time: 2026-11-21T06:00:00Z, or 1h30m ago: 1h30m."),
    ] = None,
    to_sequence: Annotated[int | None, typer.Option(min=1, metavar="N", help="Last sequence.")] = None,
    start: Annotated[
        Any,
        typer.Option("--from", parser=_start, metavar="N|TIME", help="First sequence, or time of the first message."),
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(metavar="FILTER", help="Only these subjects; other messages become gaps. Repeatable."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All archived messages, also those that were deleted or had expired.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Another name for the restored stream.")
    ] = None,
    consumers: Annotated[
        bool, typer.Option("--consumers/--no-consumers", help="Restore durable consumers too, at their positions.")
    ] = True,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=5, metavar="N", help="Number of replicas; default: as recorded.")
    ] = None,
    detached: Annotated[
        bool,
        typer.Option(
            "--detached", help="Restore a copy for inspection, which accepts no messages and has no consumers."
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Delete the leftovers of an interrupted restore, and start again.")
    ] = False,
    replay_to: Annotated[
        str | None, typer.Option("--replay", metavar="PREFIX", help="Publish the messages again below this subject.")
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option(
            parser=_speed, metavar="PACE", help="Speed of a replay: original, max, or a factor to the original speed."
        ),
    ] = None,
    public_key: settings.PublicKey = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Trust the newest documents in the store; do not check them with NATS.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be restored, and what not.")] = False,
    as_json: settings.Json = False,
) -> None:
    """Restore a stream from its archive, exactly as it was; never changes an existing stream."""
    from capture.restoring.plan import Options

    if replay_to is None and pace is not None:
        raise typer.BadParameter("--pace needs --replay")
    if to_sequence is not None and (start or {}).get("start", 0) > to_sequence:
        raise typer.BadParameter(
            f"--from {start['start']} is after --to-sequence {to_sequence}: no message is in this range"
        )
    if at is not None and (start or {}).get("start_ns", at) > at:
        raise typer.BadParameter("--from is after --at: no message is in this range")
    flags = {"stream": stream, "store": archive or store, "public_key_file": public_key and str(public_key)}
    wanted = _Wanted(
        config=settings.archive(config, flags, nats, needs=("store",)),
        options=Options(
            window=Window(
                at_ns=at,
                to_sequence=to_sequence,
                **(start or {}),
                subjects=tuple(subject or ()),
                everything=everything,
            ),
            name=name or "",
            consumers=consumers,
            replicas=replicas,
            detached=detached,
            again=again,
            replay=replay_to is not None,
        ),
        offline=offline,
        dry_run=dry_run,
        prefix=replay_to or "",
        speed=pace or 0.0,
    )
    plan, done = run_async(_restore(wanted, say=not as_json))
    if as_json:
        print_document(_as_dict(plan, done))
    elif done is not None:
        terminal.say(*_summary(done).splitlines())


async def _restore(wanted: _Wanted, *, say: bool) -> tuple[Plan, Restored | None]:
    """Make the plan, print it, and carry it out unless this is a dry run."""
    from capture.restoring.rebuild import prepare, restore_exactly
    from capture.restoring.replay import Pace, rebuild_published, replay

    store = open_store(wanted.config.store)
    config = msgspec.structs.replace(wanted.config, stream=wanted.config.stream or await only_stream(store))
    async with Natty(**config.nats) as natty:
        plan = await prepare(natty, config, store, wanted.options, offline=wanted.offline)
        if say and (plan.messages or not plan.obstacles):
            terminal.say(*_describe(plan, wanted).splitlines())
        if plan.obstacles:
            raise RestoreRefusedError("; ".join(plan.obstacles))
        if wanted.dry_run:
            return plan, None
        with show_progress("messages", TimeRemainingColumn()) as on_progress:
            keys = config.keys()
            if wanted.prefix:
                pace = Pace(speed=wanted.speed)
                done = await replay(natty, plan, store, wanted.prefix, pace=pace, keys=keys, on_progress=on_progress)
                return plan, done
            carry_out = restore_exactly if plan.exact else rebuild_published
            return plan, await carry_out(natty, plan, store, keys, on_progress)


def _describe(plan: Plan, wanted: _Wanted) -> str:
    """Return the plan as text."""
    lines = [
        f"{write_count(plan.messages, 'message')} of {plan.stream}, about {plan.bytes:,} bytes,"
        f" sequences {plan.first:,} to {plan.last:,},"
        f" {f'published below {wanted.prefix}' if wanted.prefix else f'into stream {plan.name}'}",
        f"gaps: {write_count(len(plan.gaps), 'sequence')}{f' ({plan.gaps.describe(SHOWN)})' if plan.gaps else ''}",
    ]
    if not wanted.prefix:
        names = ", ".join(one["config"]["name"] for one in plan.consumers) or "none"
        lines.append(f"consumers: {names}")
        lines.append(_way(plan))
    if not wanted.prefix or not wanted.speed:
        time = f"at least {max(1, round(plan.seconds)):,} s"
        lines.append(f"estimated time: {time}, with idle machines and a store in the same network")
    return "\n".join([*lines, *(f"not restored: {one}" for one in plan.not_kept)])


def _way(plan: Plan) -> str:
    if plan.exact:
        return "sequences, times and headers are restored exactly"
    return "sequences are restored; times and some headers are not, since the server is older than 2.15"


def _summary(done: Restored) -> str:
    rate = done.messages / done.seconds if done.seconds else 0.0
    first = f"{write_count(done.messages, 'message')} restored in {done.seconds:.1f} s, {rate:,.0f} messages/s"
    news = [one for one in done.not_kept if one not in done.plan.not_kept]
    return "\n".join([first, *(f"not restored: {one}" for one in news)])


def _as_dict(plan: Plan, done: Restored | None) -> dict[str, object]:
    return {
        "version": JSON_VERSION,
        "stream": plan.stream,
        "name": plan.name,
        "messages": plan.messages,
        "bytes": plan.bytes,
        "first": plan.first,
        "last": plan.last,
        "gaps": len(plan.gaps),
        "gap_runs": [list(run) for run in islice(plan.gaps.runs(), TOLD)],
        "consumers": [one["config"]["name"] for one in plan.consumers],
        "exact": plan.exact,
        "seconds_expected": round(plan.seconds, 1),
        "not_kept": list(done.not_kept if done else plan.not_kept),
        "restored": None if done is None else {"messages": done.messages, "kept": done.kept, "seconds": done.seconds},
    }
