"""The flags of streams' and consumers' settings, named as in the `nats` tool: made from the table in `streams.schema`.

This file adds only how a command line writes a word, a limit, a duration or a list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import typer

from natty.cli.ask import one_of, seconds, size, usage
from natty.config.units import NANOSECONDS
from natty.streams.consumer import linear_backoff, on_wire, priority, start_at, time_of
from natty.streams.schema import ConsumerConfig, Duration, Setting, Size, StreamConfig, StreamSource, rows, texts

Config = Annotated[
    Path | None,
    typer.Option("--config", help="File with a configuration, or output of `info --json`; options override it."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show what would change, and change nothing. Exits with 3 if anything would."),
]

UNLIMITED = -1
NOT_OF_A_COPY = (
    "subjects",
    "retention",
    "first_sequence",
    "ack",
    "mirror",
    "transform_source",
    "transform_destination",
    "allow_batch",
    "allow_fast_ingest",
    "allow_counter",
    "allow_schedules",
    "persist_mode",
)
"""Flags of settings that a stream can't have, or can't choose, if it copies what another one has stored."""
STEPS, SHORTEST, LONGEST = 10, 60.0, 1200.0  # of `--backoff linear`, as in the nats tool; seconds
ACK_POLICIES = ("explicit", "all", "none")
REPLAY_POLICIES = ("instant", "original")


@dataclass(frozen=True)
class Flag:
    """The flag of a setting, without dashes, and the path of its value in a configuration.

    A consumer's durations are seconds here; a stream's are nanoseconds, and 0 and -1 mean none.
    """

    name: str
    keys: tuple[str, ...]
    hint: Any
    setting: Setting
    text: str
    in_seconds: bool


def nanoseconds(text: str) -> int:
    """Return a duration in nanoseconds; 0 and -1 mean none. Raises a usage error if it is not a duration."""
    return 0 if text in ("0", "-1") else round(seconds(text) * NANOSECONDS)


def limit(text: str) -> int:
    """Return a limit of messages or consumers; 0 and -1 mean none. Raises a usage error if it is not a number."""
    if not re.fullmatch(r"-?[0-9]+", text):
        raise typer.BadParameter(f"{text!r} is not a number; write a limit, or -1 for none")
    return int(text) or UNLIMITED


def size_limit(text: str) -> int:
    """Return a limit in bytes: 512, 64KB, 1GiB; 0 and -1 mean none. Raises a usage error if it is not a size."""
    return UNLIMITED if text in ("0", "-1") else size(text)


def subjects_of(text: str) -> list[str]:
    """Return subjects that are separated by commas or blanks. Raises a usage error if there are none."""
    if not (found := [one for one in re.split(r"[,\s]+", text) if one]):
        raise typer.BadParameter(f"{text!r} contains no subject")
    return found


def storage(text: str) -> str:
    """Return file or memory; the first letter is enough. Raises a usage error for another word."""
    return {"f": "file", "m": "memory"}.get(text) or one_of("file", "memory")(text)


def retention(text: str) -> str:
    """Return limits, interest, or workqueue for work. Raises a usage error for another word."""
    found = one_of("limits", "interest", "work", "workq", "workqueue")(text)
    return "workqueue" if found.startswith("work") else found


def pair(text: str) -> tuple[str, str]:
    """Return the name and value of `name=value`, or of `name:value`, as in the `nats` tool. Raises a usage error."""
    name, mark, value = text.partition("=" if "=" in text else ":")
    if not (name and mark):
        raise typer.BadParameter(f"{text!r} is not metadata; write it as name=value", param_hint="--metadata")
    return name, value


def start(text: str) -> ConsumerConfig:
    """Return the settings for where a consumer starts. Raises a usage error if it is not a start."""
    return usage(lambda: start_at(text, datetime.now(UTC)))


def moment(text: str) -> datetime:
    """Return a future time: a duration from now, or a time. Raises a usage error if it is neither."""
    return usage(lambda: time_of(text, datetime.now(UTC)))


_ITS_OWN: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "retention": (str, {"parser": retention, "metavar": "WORD"}),
    "storage": (str, {"parser": storage, "metavar": "WORD"}),
    "deliver_policy": (ConsumerConfig, {"parser": start}),
    "pause_until": (datetime, {"parser": moment}),
    "sample_freq": (int, {"min": 0, "max": 100}),
    "backoff": (list[str], {"metavar": "TEXT"}),
}
"""Setting → the type and the options of its flag, if its type alone does not define them."""
_IN_WORDS: Mapping[str, str] = {
    "subjects": "Subjects to store, separated by commas; wildcards are allowed.",
    "filter_subjects": "Subjects to deliver, separated by commas; wildcards are allowed. Default: all.",
    "retention": "limits, interest, or work for a work queue. Default: limits.",
    "discard_new_per_subject": "With --discard new, refuse new messages of each subject at its limit. Default: off.",
    "no_ack": "Acknowledge published messages. Default: on.",
    "tags": "Tag that a server must have to hold the stream.",
    "allow_direct": "Let every replica answer reads of single messages. Default: on.",
    "sources": "Stream whose messages are copied into this one.",
    "mirror": "Stream of the same account to mirror.",
    "backoff": "Delays before each further delivery: 1s,10s,1m, or linear, or none. Default: the --wait.",
    "deliver_policy": "Where to start: all, new, last, subject, a sequence, 1h, or a time. Default: all.",
    "pause_until": "Time until which it delivers no messages, or a duration such as 1h. Needs nats-server 2.11.",
}
"""Setting → the help text of its flag, if the flag is written differently from the setting."""


def _flags(kind: Any, keys: tuple[str, ...] = (), *, in_seconds: bool) -> dict[str, Flag]:
    found: dict[str, Flag] = {}
    for name, (hint, setting) in rows(kind).items():
        if rows(hint) if hasattr(hint, "__total__") else ():
            found |= _flags(hint, (*keys, name), in_seconds=in_seconds)
        elif not setting.without_flag:
            flag = setting.flag or name.replace("_", "-")
            found[flag.replace("-", "_")] = Flag(
                flag, (*keys, name), hint, setting, texts(kind).get(name, name), in_seconds
            )
    return found


def _option(flag: Flag, *, defaults: bool) -> Any:
    """Return the option for typer; with `defaults` the help text includes the default."""
    name, setting = flag.keys[-1], flag.setting
    kind, options = _ITS_OWN.get(name) or _by_type(flag.hint, setting, in_seconds=flag.in_seconds)
    text = _IN_WORDS.get(name) or re.sub(r" in (seconds|bytes) or as text", "", flag.text)
    if not defaults:
        text = text.partition(" Default: ")[0]
    if setting.unlimited and "-1: " not in text:
        text = f"{text.removesuffix(' Default: no limit.')} -1: no limit."
    if get_origin(kind) is list and name != "backoff":
        text += " May be given several times."
    written = f"--{flag.name}/--no-{flag.name}" if kind is bool and name != "mem_storage" else f"--{flag.name}"
    named = {"metavar": setting.metavar} if setting.metavar else {}
    return Annotated[kind | None, typer.Option(written, help=text, **{**options, **named})]


def _by_type(hint: Any, setting: Setting, *, in_seconds: bool) -> tuple[Any, Mapping[str, Any]]:
    if get_origin(hint) is Literal:
        return str, {"parser": one_of(*get_args(hint)), "metavar": "WORD"}
    if hint == Duration:
        return (float, {"parser": seconds, "metavar": "DURATION"}) if in_seconds else (int, _LENGTH)
    if hint == Size:
        return int, {"parser": size_limit if setting.unlimited else size, "metavar": "SIZE"}
    if hint is int:
        return int, ({"min": setting.least} if setting.least is not None else {"parser": limit, "metavar": "NUMBER"})
    if hint is bool:
        return bool, {}
    return (str if hint in (str, StreamSource) else list[str]), {"metavar": "TEXT"}


_LENGTH: Mapping[str, Any] = {"parser": nanoseconds, "metavar": "DURATION"}
STREAM = _flags(StreamConfig, in_seconds=False)
"""Parameter of a command → flag, for each setting of a stream."""
CONSUMER = _flags(ConsumerConfig, in_seconds=True)
"""Parameter of a command → flag, for each setting of a consumer."""


def stream_options(*, without: tuple[str, ...] = (), editing: bool = False, defaults: bool = False) -> dict[str, Any]:
    """Return parameter → option for a stream's settings, except some; with `editing` only for those that can be edited.

    `defaults` shows the server's defaults, for a command that uses them if an option is not given.
    """
    return {
        name: _option(flag, defaults=defaults)
        for name, flag in STREAM.items()
        if name not in without and (flag.setting.editable or not editing)
    }


def document_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options as a stream's configuration, in the server's terms; omit those not given."""
    return _configuration(STREAM, given)


def _texts(flag: str, description: str) -> Any:
    return Annotated[
        list[str] | None, typer.Option(flag, metavar="TEXT", help=f"{description} May be given several times.")
    ]


def _wait(flag: str, description: str) -> Any:
    return Annotated[float | None, typer.Option(flag, parser=seconds, metavar="DURATION", help=description)]


_OF_BACKOFF = {
    "backoff_steps": Annotated[
        int | None, typer.Option("--backoff-steps", min=1, help=f"Steps of --backoff linear. Default: {STEPS}.")
    ],
    "backoff_min": _wait("--backoff-min", "Shortest wait of --backoff linear. Default: 1m."),
    "backoff_max": _wait("--backoff-max", "Limit towards which the waits of --backoff linear grow. Default: 20m."),
}
_GROUPS = {
    "pinned_groups": _texts("--pinned-groups", "Group of which one client at a time gets messages."),
    "overflow_groups": _texts("--overflow-groups", "Group that gets messages when others lag."),
    "prioritized_groups": _texts(
        "--prioritized-groups", "Group whose members have priorities. Needs nats-server 2.12."
    ),
}
"""Groups of one kind: the kind is the consumer's `priority_policy`, the groups its `priority_groups`."""


def consumer_options(*, editing: bool = False) -> dict[str, Any]:
    """Return parameter → option for a consumer's settings; with `editing` only for those that the server can change."""
    chosen = {name: flag for name, flag in CONSUMER.items() if flag.setting.editable or not editing}
    own = {name: _option(flag, defaults=not editing) for name, flag in chosen.items()}
    return own | _OF_BACKOFF | ({} if editing else _GROUPS)


def settings_of(given: Mapping[str, Any]) -> ConsumerConfig:
    """Return the given options as a consumer's settings, durations in seconds. Raises a usage error, ConfigError."""
    has = {name: value for name, value in given.items() if value not in (None, [])}
    apart = ("deliver", "backoff", "sample", "pause", "pinned_ttl")
    settings = _configuration(CONSUMER, {name: value for name, value in has.items() if name not in apart})
    settings |= has.get("deliver", {})
    if settings.get("deliver_policy") == "last_per_subject" and "filter" not in has:
        settings["filter_subjects"] = [">"]  # the server requires one
    if "backoff" in has:
        settings["backoff"] = _backoff(",".join(has["backoff"]), has)
    if "sample" in has:
        settings["sample_freq"] = str(has["sample"])
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


def _configuration(flags: Mapping[str, Flag], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of flags, each at its path; options that are not flags of a setting are left out."""
    wanted: dict[str, Any] = {}
    for name, value in given.items():
        if name in flags and value not in (None, []):
            *tables, last = flags[name].keys
            table = wanted
            for key in tables:
                table = table.setdefault(key, {})
            table[last] = _value(flags[name], value)
    return wanted


def _value(flag: Flag, value: Any) -> Any:
    """Return a flag's value in the form of a configuration."""
    if flag.keys[-1] in ("subjects", "filter_subjects"):
        return subjects_of(",".join(value))
    if flag.hint == dict[str, str]:
        return dict(map(pair, value))
    if flag.hint is StreamSource:
        return {"name": value}
    if flag.hint == list[StreamSource]:
        return [{"name": one} for one in value]
    return not value if flag.setting.negated else value
