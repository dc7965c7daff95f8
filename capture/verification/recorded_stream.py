"""What an archive itself knows of its stream: what it claims to hold of it, and what the sweep has recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from capture.archive.index.tree import Where
from capture.archive.picture import Picture
from capture.archive.recording import Recording, StreamRecord, resume
from capture.archive.scope import Asked, list_replacing_limits, read_records
from capture.archive.sequences import MAXIMUM, Sequences
from capture.config.consumers import consumers_of
from capture.config.settings import CaptureConfig
from capture.errors import ManifestError
from capture.stores import Store
from capture.verification.verdict import StreamReport
from natty.config.units import NANOSECONDS


def has_limits(configurations: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a stream may have removed messages by itself: by age, by a TTL, or the oldest at a limit."""
    return any(one.get("max_age") for one in configurations) or _removes_young(configurations)


def _removes_young(configurations: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a stream may have removed messages by itself before they reached `max_age`."""
    return any(one.get("allow_msg_ttl") or list_replacing_limits(one) for one in configurations)


async def read_accountable(
    store: Store,
    stream: str,
    configurations: Sequence[Mapping[str, Any]],
    at: float,
    read_picture: Callable[[Where], Awaitable[Picture]],
) -> int | None:
    """Return the sequence from which on every message was to be captured, and none can have left by a limit.

    `at` is the time of the stream's state (Unix seconds). If messages expire, those after a stored one that is younger
    than `max_age` can't have. None if there is no such sequence, if capture ever had filters (then others may take and
    acknowledge the rest), or if records of the archive are damaged.
    """
    try:
        asked = await read_records(store, stream)
        claimed = None if any(one.filter_subjects for one in asked) else find_claimed(asked)
        if claimed is None or _removes_young(configurations):
            return None
        ages = [one["max_age"] for one in configurations if one.get("max_age")]
        if not ages:
            return claimed
        oldest = max(0, int(at * NANOSECONDS) - min(ages))
        young = await read_picture(Where(stream=stream, times=(oldest, MAXIMUM)))
    except ManifestError:
        return None  # the audit names it
    first = min((one.first for one in (*young.blocks, *young.files) if one.min_ns >= oldest), default=None)
    return None if first is None else max(claimed, first)


def find_claimed(asked: Iterable[Asked]) -> int | None:
    """Return the sequence from which on messages of every subject were to be captured; None if there is none."""
    return min((one.start for one in asked if not one.filter_subjects), default=None)


def list_configurations(record: StreamRecord | None) -> list[dict[str, Any]]:
    """Return the configurations that the stream was seen to have."""
    return [one.config for one in record.configurations] if record else []


async def read_recorded_report(
    config: CaptureConfig,
    store: Store,
    recording: Recording,
    read_picture: Callable[[Where], Awaitable[Picture]],
) -> StreamReport | None:
    """Return the recorded report of the stream; None if it is missing, damaged, or has no progress of capture."""
    record = recording.streams.get(config.stream)
    try:
        asked = await read_records(store, config.stream)
    except ManifestError:
        return None  # the audit names it
    if record is None or not (found := consumers_of(record, config, asked)):
        return None
    last = min(record.state["last_seq"], *(resume(consumer)[0].stream_seq for consumer in found.values()))
    begin = min((one.start for one in asked), default=1)
    whole = (find_claimed(asked) or last + 1) if asked else 1
    known, acks_delete = list_configurations(record), record.configurations[-1].config["retention"] != "limits"
    accountable = None
    if acks_delete:
        accountable = await read_accountable(store, config.stream, known, recording.created, read_picture)
    return StreamReport(
        first=max(1, record.state["first_seq"]),
        last=last,
        deleted=recording.find_deleted(config.stream),
        unwanted=Sequences.from_range(1, begin - 1),
        doubtful=Sequences.from_range(begin, whole - 1),
        delivered=min(consumer.delivered.stream_seq for consumer in found.values()),
        acks_delete=acks_delete,
        limited=has_limits(known),
        accountable=accountable,
    )
