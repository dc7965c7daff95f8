"""`natty consumer add` and `natty consumer edit`: create and change durable pull consumers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from natty import Natty
from natty.cli import completion, connect
from natty.cli.ask import Force, ask, ask_if_missing, confirm, on_terminal, one_of, seconds
from natty.cli.choose import consumer_of, stream_of
from natty.cli.consumer_show import facts_of
from natty.cli.setting_flags import ACK_POLICIES, REPLAY_POLICIES, Config, DryRun, consumer_options, settings_of, start
from natty.cli.stream_code import EXIT_PENDING, SIGNS
from natty.cli.tables import Json, print_document, print_facts
from natty.cli.terminal import say
from natty.config.units import NANOSECONDS
from natty.errors import ConfigError, ConsumerExistsError
from natty.names import check_name
from natty.streams import (
    ConsumerConfig,
    ConsumerInfo,
    Plan,
    Risk,
    ServerConsumerConfig,
    consumer_info,
    plan_consumer,
    stream_info,
)
from natty.streams.consumer import check_consumer, settings_from
from natty.streams.conversion import NO_EPHEMERAL, NO_PUSH, ONLY_DURABLE
from natty.streams.document import load_document

Stream = Annotated[str | None, typer.Argument(help="The stream's name.", autocompletion=completion.streams)]
Name = Annotated[str | None, typer.Argument(help="The durable consumer's name.", autocompletion=completion.consumers)]
Ephemeral = Annotated[bool, typer.Option("--ephemeral", hidden=True, help="Not supported: only durable consumers are.")]
Target = Annotated[str | None, typer.Option("--target", hidden=True, help="Not supported: only pull consumers are.")]
Pull = Annotated[bool, typer.Option("--pull", hidden=True, help="No effect: every consumer is one.")]


@connect.options
@connect.inject("given", consumer_options())
def add(
    *,
    nats: dict[str, Any],
    given: dict[str, Any],
    stream: Stream = None,
    consumer: Name = None,
    config: Config = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Use the default of each option that is not given.")
    ] = False,
    ephemeral: Ephemeral = False,
    target: Target = None,
    pull: Pull = False,
    as_json: Json = False,
) -> None:
    """Make a durable pull consumer. An existing one is never changed.

    On a terminal it asks for what is missing.
    """
    _refuse_others(ephemeral=ephemeral, target=target)
    settings = _read(config)
    asked = stream is None or consumer is None
    stream = stream_of(nats, stream)
    consumer = check_name("consumer", ask_if_missing(consumer, "CONSUMER", "Consumer", partial(check_name, "consumer")))
    if asked and on_terminal() and not (defaults or config):
        given = given | _interview(given)
    settings |= settings_of(given)
    told = connect.call(nats, lambda natty: _add(natty, stream, consumer, settings), stream=stream, consumer=consumer)
    if as_json:
        print_document(told)
    else:
        print_facts(f"Consumer {consumer} of stream {stream}", facts_of(told, datetime.now(UTC)))


@connect.options
@connect.inject("given", consumer_options(editing=True))
def edit(
    *,
    nats: dict[str, Any],
    given: dict[str, Any],
    stream: Stream = None,
    consumer: Name = None,
    config: Config = None,
    dry_run: DryRun = False,
    force: Force = False,
    target: Target = None,
) -> None:
    """Change settings of a durable pull consumer. Other settings stay as they are."""
    _refuse_others(ephemeral=False, target=target)
    stream = stream_of(nats, stream)
    consumer = consumer_of(nats, stream, consumer)
    wanted: ConsumerConfig = {**_read(config), **settings_of(given)}
    plan = connect.call(nats, lambda natty: _plan(natty, stream, consumer, wanted), stream=stream, consumer=consumer)
    for one in plan.changes:
        say(f"{SIGNS[one.risk]} {one}")
    if plan.settled:
        say(f"nothing to change in consumer {consumer} of stream {stream}")
    elif dry_run:
        raise typer.Exit(EXIT_PENDING)
    else:
        confirm(f"Change consumer {consumer} of stream {stream}?", force=force)
        connect.call(nats, lambda natty: natty.ensure_consumer(stream, consumer, allow_destructive=True, **wanted))
        say(f"changed consumer {consumer} of stream {stream}")


def _read(config: Path | None) -> ConsumerConfig:
    return settings_from(load_document(config, kind="consumer"), str(config)) if config else {}


def _refuse_others(*, ephemeral: bool, target: str | None) -> None:
    if ephemeral:
        raise typer.BadParameter(f"{ONLY_DURABLE}. {NO_EPHEMERAL}", param_hint="--ephemeral")
    if target:
        raise typer.BadParameter(f"{ONLY_DURABLE}. {NO_PUSH}", param_hint="--target")


@dataclass(frozen=True)
class _Question:
    """A question for an option that was not given: its text, its parser, and the default answer."""

    option: str
    text: str
    parse: Any
    default: str
    choices: tuple[str, ...] = field(default=())


_QUESTIONS = (
    _Question("deliver", "Start: all, new, last, subject, a sequence, 1h, or a time", start, "all"),
    _Question("ack", "Ack policy", one_of(*ACK_POLICIES), "explicit", ACK_POLICIES),
    _Question("replay", "Replay", one_of(*REPLAY_POLICIES), "instant", REPLAY_POLICIES),
    _Question("filter", "Subjects to deliver", lambda text: [] if text == "all" else [text], "all"),
    _Question("wait", "Ack wait", seconds, "30s"),
    _Question("max_deliver", "Maximum deliveries, -1: no limit", int, "-1"),
    _Question("max_pending", "Maximum unacknowledged, -1: no limit", int, "1000"),
)
_OF_ACKS = {"wait", "max_deliver", "max_pending"}


def _interview(given: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for one in _QUESTIONS:
        unacked = (given | answers).get("ack") == "none" and one.option in _OF_ACKS
        if one.option not in given and not unacked and not (one.option == "wait" and "backoff" in given):
            answers[one.option] = ask(one.text, one.parse, default=one.default, choices=one.choices)
    return answers


async def _add(natty: Natty, stream: str, consumer: str, wanted: ConsumerConfig) -> ConsumerInfo:
    check_consumer(wanted, (await stream_info(natty.jetstream, stream))["config"])
    await natty.create_consumer(stream, consumer, **wanted)
    return await consumer_info(natty.jetstream, stream, consumer)


async def _plan(natty: Natty, stream: str, consumer: str, wanted: ConsumerConfig) -> Plan:
    """Return what would change. Raises ConfigError for a contradiction, ConsumerExistsError for a fixed setting."""
    of_stream = (await stream_info(natty.jetstream, stream))["config"]
    config = (await consumer_info(natty.jetstream, stream, consumer))["config"]
    if config.get("deliver_subject") or not config.get("durable_name"):
        raise ConfigError(f"consumer {consumer} of stream {stream} has another kind: {ONLY_DURABLE}")
    check_consumer({**_current_settings(config), **wanted}, of_stream)
    plan = await plan_consumer(natty.jetstream, stream, consumer, wanted)
    if fixed := plan.beyond({Risk.SAFE, Risk.DESTRUCTIVE}):
        raise ConsumerExistsError(f"nothing was changed. {plan.name}: {'; '.join(map(str, fixed))}")
    return plan


def _current_settings(config: ServerConsumerConfig) -> ConsumerConfig:
    """Return the settings of a consumer that new ones may contradict; durations in seconds."""
    if config["ack_policy"] == "none":
        return {"ack_policy": "none"}
    waits: list[float | str] = [one / NANOSECONDS for one in config.get("backoff") or []]
    return {"max_deliver": config.get("max_deliver") or -1, "backoff": waits}
