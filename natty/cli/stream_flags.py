"""The settings of a stream as options, named as in the `nats` tool, and what they are in the server's terms."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from natty.cli.ask import one_of, seconds, size
from natty.config.units import NANOSECONDS

UNLIMITED = -1


def nanoseconds(text: str) -> int:
    """Return a duration in nanoseconds; 0 or -1 is none. Usage error if it is none."""
    return 0 if text in ("0", "-1") else round(seconds(text) * NANOSECONDS)


def limit(text: str) -> int:
    """Return a limit of so many messages or consumers; 0 or -1 is none. Usage error if it is no number."""
    if not re.fullmatch(r"-?[0-9]+", text):
        raise typer.BadParameter(f"{text!r} is no number; write a limit, or -1 for none")
    return int(text) or UNLIMITED


def size_limit(text: str) -> int:
    """Return a limit in bytes: 512, 64KB, 1GiB; 0 or -1 is none. Usage error if it is no size."""
    return UNLIMITED if text in ("0", "-1") else size(text)


def subjects_of(text: str) -> list[str]:
    """Return subjects that are separated by commas or blanks. Usage error if there are none."""
    if not (found := [one for one in re.split(r"[,\s]+", text) if one]):
        raise typer.BadParameter(f"{text!r} holds no subject")
    return found


def storage(text: str) -> str:
    """Return the storage that is meant: file or memory, or the first letter."""
    return {"f": "file", "m": "memory"}.get(text) or one_of("file", "memory")(text)


def retention(text: str) -> str:
    """Return the retention that is meant: limits, interest, or work for a work queue."""
    found = one_of("limits", "interest", "work", "workq", "workqueue")(text)
    return "workqueue" if found.startswith("work") else found


def _option(
    flags: str, description: str, parser: Callable[[str], Any] | None = None, metavar: str | None = None
) -> Any:
    return typer.Option(flags, help=description, parser=parser, metavar=metavar)


def _limit(flag: str, description: str, parser: Callable[[str], int] = limit, metavar: str = "NUMBER") -> Any:
    return Annotated[int | None, _option(flag, f"{description}; -1: no limit.", parser, metavar)]


def _span(flag: str, description: str) -> Any:
    return Annotated[int | None, _option(flag, description, nanoseconds, "DURATION")]


def _word(flag: str, description: str, parser: Callable[[str], str]) -> Any:
    return Annotated[str | None, _option(flag, description, parser, "WORD")]


def _text(flag: str, description: str) -> Any:
    return Annotated[str | None, _option(flag, description, metavar="TEXT")]


def _switch(flag: str, description: str) -> Any:
    return Annotated[bool | None, _option(f"--{flag}/--no-{flag}", description)]


def _texts(flag: str, description: str) -> Any:
    return Annotated[list[str] | None, _option(flag, description, metavar="TEXT")]


_PLAIN: dict[str, Any] = {
    "description": _text("--description", "What the stream is for."),
    "storage": _word("--storage", "file or memory.", storage),
    "retention": _word("--retention", "limits, interest, or work for a work queue.", retention),
    "discard": _word("--discard", "At a limit: old messages go, or new ones are refused.", one_of("old", "new")),
    "discard_new_per_subject": _switch(
        "discard-per-subject", "With --discard new, refuse for each subject at its limit."
    ),
    "compression": _word("--compression", "none or s2.", one_of("none", "s2")),
    "num_replicas": Annotated[int | None, typer.Option("--replicas", min=1, help="Copies, in a cluster.")],
    "max_msgs": _limit("--max-msgs", "Messages to keep"),
    "max_msgs_per_subject": _limit("--max-msgs-per-subject", "Messages to keep of each subject"),
    "max_bytes": _limit("--max-bytes", "Bytes to keep, as 1GiB", size_limit, "SIZE"),
    "max_age": _limit("--max-age", "How long to keep messages, as 7d", nanoseconds, "DURATION"),
    "max_msg_size": _limit("--max-msg-size", "Bytes of one message, as 64KB", size_limit, "SIZE"),
    "max_consumers": _limit("--max-consumers", "Consumers it may have"),
    "duplicate_window": _span("--dupe-window", "How long message ids are remembered, as 2m."),
    "first_seq": Annotated[int | None, typer.Option("--first-sequence", min=1, help="The first message's sequence.")],
    "allow_direct": _switch("allow-direct", "Let every replica answer reads of single messages."),
    "mirror_direct": _switch("allow-mirror-direct", "Let mirrors answer reads of single messages."),
    "allow_atomic": _switch("allow-batch", "Take batches that are stored whole or not at all."),
    "allow_batched": _switch("allow-fast-ingest", "Take fast ingest: many messages, one ack."),
    "allow_msg_counter": _switch("allow-counter", "Make each subject a counter."),
    "allow_msg_ttl": _switch("allow-msg-ttl", "Let a message bring its own time to live."),
    "allow_msg_schedules": _switch("allow-schedules", "Take messages that are to be sent later."),
    "allow_rollup_hdrs": _switch("allow-rollup", "Let a message replace all earlier ones."),
    "deny_delete": _switch("deny-delete", "Never delete single messages; can't be taken back."),
    "deny_purge": _switch("deny-purge", "Never purge; can't be taken back."),
    "subject_delete_marker_ttl": _span("--subject-del-markers-ttl", "How long the marker of a subject's end is kept."),
    "persist_mode": _word("--persist-mode", "default or async.", one_of("default", "async")),
}
_PARTS: dict[str, Any] = {
    "subjects": _texts("--subjects", "Subjects it stores, wildcards too; by commas, or given several times."),
    "cluster": _text("--cluster", "Place it in this cluster."),
    "tag": _texts("--tag", "Place it on servers that have this tag; several times."),
    "ack": _switch("ack", "Acknowledge what is published."),
    "metadata": _texts("--metadata", "Metadata, as name=value; several times."),
    "mirror": _text("--mirror", "Mirror this stream of the same account."),
    "sources": _texts("--source", "Take in the messages of this stream; several times."),
    "transform_source": _text("--transform-source", "Rename subjects: from this pattern."),
    "transform_destination": _text("--transform-destination", "Rename subjects: to this one."),
    "republish_source": _text("--republish-source", "Publish stored messages again: those on this pattern."),
    "republish_destination": _text("--republish-destination", "Publish stored messages again: on this subject."),
    "republish_headers": _switch("republish-headers", "Publish again without payloads."),
    "limit_consumer_inactive": _span("--limit-consumer-inactive", "How long a consumer may be inactive at the most."),
    "limit_consumer_max_pending": _limit("--limit-consumer-max-pending", "Unacknowledged messages of a consumer"),
}
_TABLES = {
    "placement": {"cluster": "cluster", "tags": "tag"},
    "subject_transform": {"src": "transform_source", "dest": "transform_destination"},
    "republish": {"src": "republish_source", "dest": "republish_destination", "headers_only": "republish_headers"},
    "consumer_limits": {
        "inactive_threshold": "limit_consumer_inactive",
        "max_ack_pending": "limit_consumer_max_pending",
    },
}
"""A setting that is a table → its keys, and the option of each."""


def settings(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the settings' options, except some; it gets what was given as `wanted`, in the server's terms."""
    options = {name: option for name, option in (_PARTS | _PLAIN).items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_settings(**given: Any) -> None:
            command(wanted=document_of({name: given.pop(name) for name in options}), **given)

        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "wanted"]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in options.items()
        ]
        with_settings.__signature__ = inspect.Signature(own + added)  # type: ignore[attr-defined] # what options() reads
        return with_settings

    return decorate


def document_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings as the server writes them; those that were not given are left out."""
    wanted: dict[str, Any] = {name: value for name in _PLAIN if (value := given.get(name)) is not None}
    has = {name: value for name, value in given.items() if value not in (None, [])}
    if "subjects" in has:
        wanted["subjects"] = subjects_of(",".join(has["subjects"]))
    if "ack" in has:
        wanted["no_ack"] = not has["ack"]
    if "metadata" in has:
        wanted["metadata"] = dict(pair(one) for one in has["metadata"])
    if "mirror" in has:
        wanted["mirror"] = {"name": has["mirror"]}
    if "sources" in has:
        wanted["sources"] = [{"name": one} for one in has["sources"]]
    for setting, keys in _TABLES.items():
        if table := {key: has[flag] for key, flag in keys.items() if flag in has}:
            wanted[setting] = table
    return wanted


def pair(text: str) -> tuple[str, str]:
    """Return the name and value of `name=value`, or of `name:value` as the `nats` tool takes it too. Usage error."""
    name, mark, value = text.partition("=" if "=" in text else ":")
    if not (name and mark):
        raise typer.BadParameter(f"{text!r} is no metadata; write it as name=value", param_hint="--metadata")
    return name, value
