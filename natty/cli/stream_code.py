"""`natty stream plan` and `apply`: streams as code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from natty import Natty
from natty.cli import connect
from natty.cli.ask import confirm
from natty.cli.tables import Json, print_document
from natty.cli.terminal import say
from natty.errors import StreamExistsError
from natty.streams import Declared, Plan, Risk, load_streams, plan_consumer, plan_stream

EXIT_PENDING = 3
SIGNS = {Risk.SAFE: "~", Risk.DESTRUCTIVE: "!", Risk.FIXED: "x"}
"""Risk → the sign before a change."""

File = Annotated[Path, typer.Option("--file", "-f", help="File of streams, TOML; see docs/streams.md.")]
Force = Annotated[bool, typer.Option("--force", help="Do not ask.")]


@connect.options
def show_plan(*, nats: dict[str, Any], file: File, as_json: Json = False) -> None:
    """Show what `apply` would do. Exits with 0 if there is nothing to do, with 3 if changes are pending."""
    streams = load_streams(file)
    plans = connect.call(nats, lambda natty: _plans(natty, streams))
    show_plans(plans, as_json, making="to be made")
    if not all(plan.settled for plan in plans):
        raise typer.Exit(EXIT_PENDING)


@connect.options
def apply(
    *,
    nats: dict[str, Any],
    file: File,
    allow_destructive: Annotated[
        bool, typer.Option("--allow-destructive", help="Also make changes that can lose messages or break clients.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make or change the streams and consumers of a file. Everything that is not in the file stays as it is."""
    streams = load_streams(file)
    plans = connect.call(nats, lambda natty: _plans(natty, streams))
    _refuse(plans, allow_destructive=allow_destructive)
    if dangerous := _beyond(plans, {Risk.SAFE}):
        confirm(f"{'; '.join(dangerous)}. Change this?", force=force)
    connect.call(nats, lambda natty: _apply(natty, streams, allow_destructive=allow_destructive))
    show_plans(plans, as_json, making="made")


async def _plans(natty: Natty, streams: list[Declared]) -> list[Plan]:
    plans = []
    for one in streams:
        plans.append(await plan_stream(natty.jetstream, one.name, one.settings))
        for durable, wanted in one.consumers.items():
            plans.append(await plan_consumer(natty.jetstream, one.name, durable, wanted))
    return plans


async def _apply(natty: Natty, streams: list[Declared], *, allow_destructive: bool) -> None:
    for one in streams:
        await natty.ensure_stream(one.name, allow_destructive=allow_destructive, **one.settings)
        for durable, wanted in one.consumers.items():
            await natty.ensure_consumer(one.name, durable, allow_destructive=allow_destructive, **wanted)


def _refuse(plans: list[Plan], *, allow_destructive: bool) -> None:
    """Raise before anything is changed if a part can't be done."""
    if lines := _beyond(plans, {Risk.SAFE, Risk.DESTRUCTIVE}):
        raise StreamExistsError(f"nothing was changed. {'; '.join(lines)}: create it under another name")
    if (lines := _beyond(plans, {Risk.SAFE})) and not allow_destructive:
        how = "give --allow-destructive to change it anyway"
        raise StreamExistsError(f"nothing was changed. {'; '.join(lines)}: {how}")


def _beyond(plans: list[Plan], allowed: set[Risk]) -> list[str]:
    return [f"{plan.name}: {one}" for plan in plans for one in plan.beyond(allowed)]


def show_plans(plans: list[Plan], as_json: bool, *, making: str) -> None:
    """Print one line for each change; `making` describes what is missing."""
    if as_json:
        print_document([asdict(plan) for plan in plans])
        return
    for plan in plans:
        if plan.missing:
            say(f"+ {plan.name}: {making}")
        elif plan.settled:
            say(f"= {plan.name}")
        for one in plan.changes:
            say(f"{SIGNS[one.risk]} {plan.name}: {one}")
