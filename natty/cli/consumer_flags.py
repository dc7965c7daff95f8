"""The settings of a consumer as options, named as in the `nats` tool, and what they are in the server's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, cast

import typer

from natty.cli.ask import one_of, seconds, size
from natty.cli.stream_flags import pair, subjects_of
from natty.streams import ConsumerConfig
from natty.streams.consumer import linear_backoff, on_wire, priority, start_at, time_of

T = TypeVar("T")

STEPS, SHORTEST, LONGEST = 10, 60.0, 1200.0  # of `--backoff linear`, as in the nats tool; seconds
ACK_POLICIES = ("explicit", "all", "none")
REPLAY_POLICIES = ("instant", "original")


def start(text: str) -> ConsumerConfig:
    """Return where a consumer begins. Usage error if it is no start."""
    return _parsed(lambda: start_at(text, datetime.now(UTC)))


def moment(text: str) -> datetime:
    """Return a moment to come: a duration from now on, or a time. Usage error if it is none."""
    return _parsed(lambda: time_of(text, datetime.now(UTC)))


def _parsed(parse: Callable[[], T]) -> T:
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _number(flag: str, description: str, least: int = -1) -> Any:
    return Annotated[int | None, typer.Option(flag, min=least, help=description)]


def _duration(flag: str, description: str) -> Any:
    return Annotated[float | None, typer.Option(flag, parser=seconds, metavar="DURATION", help=description)]


def _text(flag: str, description: str) -> Any:
    return Annotated[str | None, typer.Option(flag, help=description)]


def _texts(flag: str, description: str) -> Any:
    return Annotated[list[str] | None, typer.Option(flag, help=f"{description}; may be given several times.")]


def _word(flag: str, description: str, words: tuple[str, ...]) -> Any:
    return Annotated[str | None, typer.Option(flag, parser=one_of(*words), metavar="WORD", help=description)]


_PLAIN: dict[str, Any] = {
    "description": _text("--description", "What the consumer is for."),
    "ack_wait": _duration("--wait", "How long a message may take until it is delivered again [default: 30s]."),
    "max_deliver": _number("--max-deliver", "How often a message is delivered at most; -1: no limit."),
    "max_ack_pending": _number("--max-pending", "Unacknowledged messages at most; -1: no limit [default: 1000]."),
    "max_batch": _number("--max-pull-batch", "Messages that one request may ask for.", 1),
    "max_expires": _duration("--max-pull-expire", "How long one request may wait."),
    "max_bytes": Annotated[
        int | None,
        typer.Option("--max-pull-bytes", parser=size, metavar="SIZE", help="Bytes that one request may ask for."),
    ],
    "inactive_threshold": _duration("--inactive-threshold", "Delete it when nobody has read for so long."),
    "num_replicas": _number("--replicas", "Copies, in a cluster; the stream's own by default.", 1),
    "headers_only": Annotated[
        bool | None, typer.Option("--headers-only/--no-headers-only", help="Deliver headers without payloads.")
    ],
}
_PARTS: dict[str, Any] = {
    "filter": _texts("--filter", "Only messages on these subjects, also separated by commas"),
    "backoff": _texts("--backoff", "Waits before each further delivery: 1s,10s,1m, or linear, or none"),
    "backoff_steps": _number("--backoff-steps", f"Waits of --backoff linear [default: {STEPS}].", 1),
    "backoff_min": _duration("--backoff-min", "Its shortest wait [default: 1m]."),
    "backoff_max": _duration("--backoff-max", "What its waits grow towards [default: 20m]."),
    "sample": Annotated[
        int | None, typer.Option("--sample", min=0, max=100, help="Percent of acknowledgements that are observed.")
    ],
    "metadata": _texts("--metadata", "Metadata, as name=value"),
}
_ONCE: dict[str, Any] = {
    "ack_policy": _word("--ack", "explicit, all or none [default: explicit].", ACK_POLICIES),
    "deliver": Annotated[
        dict[str, Any] | None,
        typer.Option(parser=start, metavar="START", help="all, new, last, subject, a sequence, 1h, or a time."),
    ],
    "replay_policy": _word("--replay", "instant, or original: as slowly as they came.", REPLAY_POLICIES),
    "max_waiting": _number("--max-waiting", "Requests that may wait at the same time.", 1),
    "mem_storage": Annotated[bool | None, typer.Option("--memory", help="Keep its position in memory only.")],
    "pause": Annotated[
        datetime | None, typer.Option(parser=moment, metavar="UNTIL", help="Paused for 1h, or until a time.")
    ],
    "pinned_groups": _texts("--pinned-groups", "Only one client of such a group gets messages"),
    "pinned_ttl": _duration("--pinned-ttl", "How long a pinned client may be silent."),
    "overflow_groups": _texts("--overflow-groups", "Such a group gets messages when others lag"),
    "prioritized_groups": _texts("--prioritized-groups", "Such a group goes by its members' priorities"),
}
NEW = _PLAIN | _PARTS | _ONCE
"""The options of a consumer that is made."""
CHANGED = _PLAIN | _PARTS
"""Those of one that is changed: the server never changes the others."""
_AS_THEY_ARE = (*_PLAIN, "ack_policy", "replay_policy", "max_waiting", "mem_storage")


def settings_of(given: Mapping[str, Any]) -> ConsumerConfig:
    """Return the given options as settings, durations in seconds. Usage error, ConfigError."""
    has = {name: value for name, value in given.items() if value not in (None, [])}
    settings: dict[str, Any] = {name: has[name] for name in _AS_THEY_ARE if name in has} | has.get("deliver", {})
    if "filter" in has:
        settings["filter_subjects"] = subjects_of(",".join(has["filter"]))
    if settings.get("deliver_policy") == "last_per_subject" and "filter" not in has:
        settings["filter_subjects"] = [">"]  # the server wants one
    if "backoff" in has:
        settings["backoff"] = _backoff(",".join(has["backoff"]), has)
    if "sample" in has:
        settings["sample_freq"] = str(has["sample"])
    if "metadata" in has:
        settings["metadata"] = dict(pair(one) for one in has["metadata"])
    if "pause" in has:
        settings["pause_until"] = on_wire(has["pause"])
    return cast("ConsumerConfig", {**settings, **priority(has, has.get("pinned_ttl"))})


def _backoff(text: str, given: Mapping[str, Any]) -> list[float]:
    if text == "none":
        return []
    if text == "linear":
        shortest, longest = given.get("backoff_min", SHORTEST), given.get("backoff_max", LONGEST)
        return linear_backoff(given.get("backoff_steps", STEPS), shortest, longest)
    return [seconds(one.strip()) for one in text.split(",")]
