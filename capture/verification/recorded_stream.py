"""What an archive itself knows of its stream: what it claims to hold of it, and what the sweep has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capture.archive.recording import Recording, StreamRecord, resume
from capture.archive.scope import Asked, read_records
from capture.archive.sequences import Sequences
from capture.config.consumers import consumers_of
from capture.config.settings import CaptureConfig
from capture.errors import ManifestError
from capture.stores import Store
from capture.verification.verdict import StreamReport


def has_limits(configurations: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a stream may have removed messages by itself: by age, by a TTL, or the oldest at a limit."""
    return any(
        one.get("max_age")
        or one.get("allow_msg_ttl")
        or (
            one.get("discard", "old") == "old"
            and any(one.get(name, -1) > 0 for name in ("max_msgs", "max_bytes", "max_msgs_per_subject"))
        )
        for one in configurations
    )


def find_claimed(asked: Iterable[Asked]) -> int | None:
    """Return the sequence from which on messages of every subject were to be captured; None if there is none."""
    return min((one.start for one in asked if not one.filter_subjects), default=None)


def list_configurations(record: StreamRecord | None) -> list[dict[str, Any]]:
    """Return the configurations that the stream was seen to have."""
    return [one.config for one in record.configurations] if record else []


async def read_claimed(store: Store, stream: str) -> int | None:
    """Return `find_claimed` of the archive's records; None if one is damaged."""
    try:
        return find_claimed(await read_records(store, stream))
    except ManifestError:
        return None  # the audit names it


async def read_recorded_report(config: CaptureConfig, store: Store, recording: Recording) -> StreamReport | None:
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
    return StreamReport(
        first=max(1, record.state["first_seq"]),
        last=last,
        deleted=recording.find_deleted(config.stream),
        unwanted=Sequences.from_range(1, begin - 1),
        doubtful=Sequences.from_range(begin, whole - 1),
        delivered=min(consumer.delivered.stream_seq for consumer in found.values()),
        acks_delete=record.configurations[-1].config["retention"] != "limits",
        limited=has_limits(list_configurations(record)),
        claimed=find_claimed(asked),
    )
