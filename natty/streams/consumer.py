"""Settings of durable pull consumers from users: starts, backoff, priority groups, and contradictions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

from natty.config.units import datetime_of, nanoseconds_of, parse_duration, parse_time, show_duration, show_time
from natty.errors import ConfigError
from natty.names import check_pattern, overlap
from natty.streams.conversion import ONLY_DURABLE, check_consumer_settings, from_wire
from natty.streams.info import ServerStreamConfig
from natty.streams.schema import ConsumerConfig, DeliverPolicy, PriorityPolicy

_STARTS: dict[str, DeliverPolicy] = {
    "all": "all",
    "new": "new",
    "next": "new",
    "last": "last",
    "subject": "last_per_subject",
    "last_per_subject": "last_per_subject",
}
_OF_ONE = {"name", "durable_name", "pause_until"}
_WITHOUT_ACKS = ("ack_wait", "backoff", "max_deliver", "max_ack_pending")
_GROUPS: dict[str, PriorityPolicy] = {
    "pinned_groups": "pinned_client",
    "overflow_groups": "overflow",
    "prioritized_groups": "prioritized",
}


def settings_from(document: Mapping[str, Any], where: str) -> ConsumerConfig:
    """Return the settings in a consumer's configuration as the server writes it; durations become seconds.

    Leaves out its names and the end of a pause. ConfigError for another kind of consumer, and for settings that no
    consumer has.
    """
    if document.get("deliver_subject"):
        raise ConfigError(f"{where} is the configuration of a push consumer: {ONLY_DURABLE}")
    settings = from_wire({name: value for name, value in document.items() if name not in _OF_ONE})
    if settings.get("backoff"):
        settings.pop("ack_wait", None)  # the server shows the first delay as ack_wait
    if only := settings.pop("filter_subject", None):
        settings["filter_subjects"] = [only]
    return check_consumer_settings(settings, where, units=False)


def start_at(text: str, now: datetime) -> ConsumerConfig:
    """Return the settings for a start as the `nats` tool's `--deliver` names it.

    all, new, last, subject (the last of each), a sequence, a duration back from `now`, or a time. ValueError.
    """
    if policy := _STARTS.get(text):
        return {"deliver_policy": policy}
    if text.isdecimal():
        if int(text) < 1:
            raise ValueError("a stream's first sequence is 1: write 1 or more, or all")
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    try:
        when_ns = _ns_of(text, now, backwards=True)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a start; write all, new, last, subject, a sequence, a duration as 1h, or a time"
        ) from None
    return {"deliver_policy": "by_start_time", "opt_start_time": show_time(when_ns)}


def time_of(text: str, now: datetime) -> datetime:
    """Return a time given as a duration from `now`, or as a time, in UTC unless it has a zone. ValueError.

    It is truncated to microseconds.
    """
    return datetime_of(_ns_of(text, now))


def _ns_of(text: str, now: datetime, *, backwards: bool = False) -> int:
    """Return the Unix nanoseconds of a time, or of a duration from `now` (or back). ValueError."""
    try:
        return parse_time(text, UTC)
    except ValueError:
        distance = round(parse_duration(text) * 1e9)
        return nanoseconds_of(now) + (-distance if backwards else distance)


def on_wire(when: datetime) -> str:
    """Return a time as the server writes it, without trailing zeros, to compare it."""
    return show_time(nanoseconds_of(when))


def linear_backoff(steps: int, shortest: float, longest: float) -> list[float]:
    """Return `steps` delays in seconds that grow evenly from the shortest towards the longest, like jsm."""
    low, high = sorted((shortest, longest))
    return [round(low + step * (high - low) / steps, 3) for step in range(steps)]


def priority(groups: Mapping[str, Sequence[str]], pinned_ttl: float | None = None) -> ConsumerConfig:
    """Return the settings of a priority policy from pinned_groups, overflow_groups or prioritized_groups (ADR-42).

    ConfigError for more than one of them, and for a `pinned_ttl`, seconds, without pinned groups.
    """
    given = [name for name in _GROUPS if groups.get(name)]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: a consumer has groups of one kind only")
    if pinned_ttl is not None and given != ["pinned_groups"]:
        raise ConfigError(f"pinned_ttl {show_duration(pinned_ttl)} is for pinned groups: name them, too")
    if not given:
        return {}
    policy: ConsumerConfig = {"priority_policy": _GROUPS[given[0]], "priority_groups": list(groups[given[0]])}
    return policy if pinned_ttl is None else {**policy, "priority_timeout": pinned_ttl}


def check_consumer(settings: ConsumerConfig, stream: ServerStreamConfig) -> None:
    """ConfigError if these settings, seconds, contradict each other or the stream's configuration; BadSubjectError.

    Checks only what servers accept silently, or refuse without the numbers (tested on nats-server 2.15).
    """
    _check_acks(settings)
    _check_backoff(settings)
    limits = {"max_deliver": settings.get("max_deliver"), "max_ack_pending": settings.get("max_ack_pending")}
    for name, value in limits.items():
        if value is not None and (value == 0 or value < -1):
            raise ConfigError(f"{name} {value} is not possible: write 1 or more, or -1 for no limit")
    _check_filters(settings.get("filter_subjects") or [], stream)


def _check_acks(settings: ConsumerConfig) -> None:
    if settings.get("ack_policy") != "none":
        return
    if useless := [name for name in _WITHOUT_ACKS if settings.get(name) not in (None, [], -1)]:
        raise ConfigError(f"with ack_policy none nothing is ever acknowledged: leave out {', '.join(useless)}")


def _check_backoff(settings: Mapping[str, Any]) -> None:
    waits, ack_wait, most = (settings.get(name) for name in ("backoff", "ack_wait", "max_deliver"))
    if not waits:
        return
    if ack_wait is not None and ack_wait != waits[0]:
        raise ConfigError(
            f"ack_wait {show_duration(ack_wait)} and a backoff that begins with {show_duration(waits[0])} contradict"
            " each other: the server would take the backoff's and drop the other; leave ack_wait out"
        )
    if most is not None and 0 < most < len(waits):
        raise ConfigError(
            f"max_deliver {most} is less than the {len(waits)} waits of backoff: the last ones would never be used;"
            f" raise it to {len(waits) + 1} or leave waits out"
        )


def _check_filters(filters: Sequence[str], stream: ServerStreamConfig) -> None:
    for one in filters:
        check_pattern(one)
    for one, other in combinations(filters, 2):
        if overlap(one, other):
            raise ConfigError(f"filters {one} and {other} overlap: leave out the narrower one")
    subjects = stream.get("subjects") or []
    if not subjects or any(stream.get(name) for name in ("mirror", "sources", "subject_transform")):
        return  # its messages may have other subjects, too
    for one in filters:
        if not any(overlap(one, subject) for subject in subjects):
            raise ConfigError(
                f"filter {one} matches nothing that stream {stream['name']} stores: its subjects are"
                f" {', '.join(subjects)}"
            )
