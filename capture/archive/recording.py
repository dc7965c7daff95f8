"""Records what a restore needs of a stream besides its messages; the sweep's leader writes it when it has changed.

A separate chain of documents. The newest one is the current state. The last one of each hour is kept without end in
`_history/`, so that a stream can be restored as it was at an earlier time, with its consumers' positions at that time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, ClassVar

import msgspec

from capture.archive import chain
from capture.archive.chain import Document, Head, HeadPointer, current, old_documents
from capture.archive.identity import STREAMS, list_claimed
from capture.archive.manifest import ARCHIVE
from capture.archive.readme import VERSION
from capture.archive.scope import ASKED
from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import AlreadyStoredError
from capture.stores.contract import Store
from natty import Natty, StreamNotFoundError
from natty.streams import ConsumerInfo
from natty.streams.listing import Listing, all_consumers

HISTORY = "_history/"
HOUR = 3600.0
DELETED_A_SECOND = 100_000
"""Deleted sequences to request from a server per second, on average: ten million at most every 100 s."""
SKIP = 8
"""The base of the skip pointers: any of 8^n hours of history is at most n + 1 documents away."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's configuration as the server returned it, with fields that this version does not know.

    It was first seen at `since` (Unix seconds), when the stream had this first and last sequence.
    """

    since: float
    first_seq: int
    last_seq: int
    config: dict[str, Any]


class Position(msgspec.Struct, frozen=True):
    """The position of a consumer: in its own deliveries, and in the stream."""

    consumer_seq: int = 0
    stream_seq: int = 0

    @property
    def is_possible(self) -> bool:
        """Whether a consumer can have this position: delivered sequences start at 1."""
        in_range = 0 <= self.consumer_seq <= MAXIMUM and 0 <= self.stream_seq <= MAXIMUM
        return in_range and (self.stream_seq > 0 or self.consumer_seq == 0)

    def __str__(self) -> str:
        return f"sequence {self.stream_seq:,} (delivery {self.consumer_seq:,})"


class Unacked(msgspec.Struct, frozen=True, rename="pascal"):
    """A message that was delivered and not acknowledged, as in the server's own state.

    `sequence` is its number among the consumer's deliveries, `timestamp` its time of delivery (Unix nanoseconds).
    """

    sequence: int
    timestamp: int


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer: its configuration as the server returned it, its last delivery, and its ack floor.

    An `ephemeral` one has no durable name: the server deletes it when it is not used. `unacked` is the number of
    messages that it has delivered and that are not acknowledged. A backup also has their sequences (`pending`), and how
    often some were redelivered; a server does not report these. None: not recorded.
    """

    created: str
    ephemeral: bool
    config: dict[str, Any]
    delivered: Position
    ack_floor: Position
    unacked: int | None = None
    pending: dict[int, Unacked] | None = None
    redelivered: dict[int, int] | None = None


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a stream, which may not exist any more.

    `created` and `state` (messages, bytes, first and last sequence and their times) are the server's. `configurations`
    are in order of time; the last one is current. `deleted` (`Sequences.to_text`) are all sequences that the stream was
    ever seen to have deleted, by the server's list at `deleted_seen` (Unix seconds).
    """

    created: str
    state: dict[str, Any] = {}
    configurations: list[Configuration] = []
    deleted: str = ""
    deleted_seen: float = 0.0
    consumers: dict[str, Consumer] = {}


class Earlier(msgspec.Struct, frozen=True):
    """The last recording of an earlier hour: a copy of that document, with its signature."""

    path: str
    sha256: str


class Recording(Document, frozen=True, kw_only=True):
    """What a restore needs of each stream of the archive, by the stream's name.

    `created` (Unix seconds) is when the server was queried; the recording is valid until the next one. `readme` is the
    version of the archive's description, `fixed` the SHA-256 by path of small objects that never change after they are
    written. `of_manifest` is the number of the last manifest that was committed by then; 0 if not recorded.

    `earlier` is the previous hour of the history. `skips` leads further back: list n names the last SKIP hours whose
    number is a multiple of SKIP^n, oldest first. `hours` is the number of hours that are counted so. Versions that do
    not know these two fields drop them; counting then begins again with 1.
    """

    FOLDER: ClassVar[str] = "_recorded/"
    FORMAT: ClassVar[int] = 1

    archive: str = ""
    readme: int = 0
    fixed: dict[str, str] = msgspec.field(default_factory=dict)
    streams: dict[str, StreamRecord] = msgspec.field(default_factory=dict)
    earlier: Earlier | None = None
    hours: int = 0
    skips: list[list[Earlier]] = msgspec.field(default_factory=list)
    of_manifest: int = 0

    def list_hours(self) -> list[Earlier]:
        """Return the hours of the history that the recording names, some of them several times."""
        return [one for known in self.skips for one in known] + ([self.earlier] if self.earlier else [])

    def find_deleted(self, stream: str) -> Sequences:
        """Return every sequence that the stream was seen to have deleted."""
        record = self.streams.get(stream)
        return Sequences.from_text(record.deleted) if record else Sequences()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a server reports about a stream; `deleted` is None if it was not requested."""

    config: dict[str, Any]
    state: dict[str, Any]
    consumers: Listing[ConsumerInfo]
    deleted: Sequences | None = None


# --- decisions: pure -------------------------------------------------------------------------------------------------


def update_record(record: StreamRecord, seen: Seen, now: float) -> StreamRecord:
    """Return the record updated with `seen`; an equal one if nothing has changed.

    A sequence that was once seen as deleted stays deleted. Consumers that no server reported stay unchanged.
    """
    configurations = record.configurations
    if not configurations or configurations[-1].config != seen.config:
        first, last = seen.state["first_seq"], seen.state["last_seq"]
        configurations = [
            *configurations,
            Configuration(since=now, first_seq=first, last_seq=last, config=seen.config),
        ]
    known = Sequences.from_text(record.deleted)
    deleted = known if seen.deleted is None else known | seen.deleted
    changed = deleted != known
    return StreamRecord(
        created=record.created,
        state=seen.state,
        configurations=configurations,
        deleted=deleted.to_text() if changed else record.deleted,
        deleted_seen=now if changed else record.deleted_seen,
        consumers=_update_consumers(record.consumers, seen.consumers),
    )


def _update_consumers(before: Mapping[str, Consumer], listing: Listing[ConsumerInfo]) -> dict[str, Consumer]:
    silent = {name: before[name] for name in listing.missing if name in before}
    return silent | {info["name"]: _record_consumer(info) for info in listing.found}


def _record_consumer(info: Mapping[str, Any]) -> Consumer:
    """Return the record of a consumer. An impossible ack floor is replaced if the true one is known.

    Servers report such floors: for example 0 after thousands of messages, none of them unacknowledged.
    """
    found = Consumer(
        created=info["created"],
        ephemeral=not info["config"].get("durable_name"),
        config=info["config"],
        delivered=msgspec.convert(info["delivered"], Position),
        ack_floor=msgspec.convert(info["ack_floor"], Position),
        unacked=info.get("num_ack_pending"),
    )
    place, contradiction = resume(found)
    return msgspec.structs.replace(found, ack_floor=place) if contradiction and found.unacked == 0 else found


def resume(one: Consumer) -> tuple[Position, str]:
    """Return up to where a consumer has acknowledged everything, and what in its record contradicts that ("": nothing).

    The recorded ack floor is not used if it contradicts the record, or if no message is unacknowledged. If the record
    does not contain the true one, the result is the position right before the first message for this consumer.
    """
    floor, delivered = one.ack_floor, one.delivered
    if one.config.get("ack_policy") == "none":
        floor = delivered
    if not delivered.is_possible:
        return _start_position(one.config), f"everything up to {delivered} was delivered to it"
    contradiction = _find_contradiction(floor, delivered, one.pending or ())
    unacked = len(one.pending) if one.pending is not None else one.unacked
    if unacked == 0:
        return delivered, contradiction
    if not contradiction:
        return floor, ""
    if one.pending:
        first = min(one.pending)
        deliveries = min(held.sequence for held in one.pending.values()) - 1
        return Position(max(0, deliveries), max(0, first - 1)), contradiction
    return _start_position(one.config), contradiction


def _find_contradiction(floor: Position, delivered: Position, pending: Iterable[int]) -> str:
    if not floor.is_possible:
        return f"it has acknowledged everything up to {floor}"
    if floor.stream_seq > delivered.stream_seq:
        return f"it has acknowledged everything up to {floor}, and nothing after {delivered} was delivered to it"
    if (first := min(pending, default=MAXIMUM)) <= floor.stream_seq:
        return f"it has acknowledged everything up to {floor}, and not sequence {first:,}"
    return ""


def _start_position(config: Mapping[str, Any]) -> Position:
    """Return the position right before the first message for a consumer, as far as its configuration says."""
    first = config.get("opt_start_seq") if config.get("deliver_policy") == "by_start_sequence" else 1
    return Position(0, first - 1 if isinstance(first, int) and 1 <= first <= MAXIMUM else 0)


def is_unaware(record: StreamRecord, state: Mapping[str, Any], now: float) -> bool:
    """Return whether to ask the server which sequences are deleted: its count differs from the known ones.

    A known deletion stays. If as many known ones are between the stream's first and last sequence, the sets are equal.
    """
    count = int(state.get("num_deleted", 0)) if state["last_seq"] else 0  # an empty stream reports 0 as deleted
    inside = Sequences.from_text(record.deleted).within(state["first_seq"], state["last_seq"])
    if count == len(inside):
        return False
    return now - record.deleted_seen >= count / DELETED_A_SECOND


def history_path(document: Document) -> str:
    """Return the path at which a recording is kept after its hour: by the hour in which it was made, UTC."""
    made = datetime.fromtimestamp(document.created, UTC)
    return f"{HISTORY}{made:%Y-%m-%d}/{made:%H}-{document.number:010d}-{document.token}.json"


def add_hour(document: Recording, before: Recording, hour: Earlier) -> Recording:
    """Return the document with `hour`, the copy of its predecessor `before`, as the newest hour of its history."""
    hours, skips, step = before.hours + 1, [*before.skips, []], 1
    for level, known in enumerate(skips):
        if hours % step == 0:
            skips[level] = [*known, hour][-SKIP:]
        step *= SKIP
    return msgspec.structs.replace(document, earlier=hour, hours=hours, skips=[one for one in skips if one])


# --- the work --------------------------------------------------------------------------------------------------------


async def record(
    store: Store,
    pointer: HeadPointer,
    natty: Natty,
    *,
    archive: str,
    now: float,
    grace: float,
    node: str = "",
    of_manifest: int = 0,
) -> Head:
    """Ask the server about each stream of the archive, commit the changes, remove old recordings.

    The record of a stream that is gone, or was created again under its name, stays unchanged. May be interrupted at any
    point and run again. FencedError if this term is over; NattyError if the server does not answer.
    """
    head, before = await current(store, pointer, Recording, now)
    new = {one.stream: StreamRecord(created=one.created) for one in await list_claimed(store, before.streams)}
    streams = {name: await _refresh(natty, name, one, now) for name, one in (before.streams | new).items()}
    known = await read_digests(store, before.fixed)
    after = msgspec.structs.replace(before, archive=archive, readme=VERSION, fixed=known, streams=streams)
    if after == before:
        return head
    of_manifest = max(of_manifest, before.of_manifest)
    after = msgspec.structs.replace(after, created=now, leader=node, of_manifest=of_manifest)
    return await follow_up(store, pointer, head, before, after, grace=grace)


async def read_digests(store: Store, known: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 by path of the objects that identify the archive and its streams, and record their scope.

    Known objects are not read again, so that later changes to them are detected.
    """
    objects = await store.list(STREAMS) + await store.list(ASKED)
    new = [path for path in (ARCHIVE, *(one.path for one in objects)) if path not in known]
    return dict(known) | {path: sha256(await store.get(path)).hexdigest() for path in new}


async def follow_up(
    store: Store, pointer: HeadPointer, head: Head, before: Recording, after: Recording, *, grace: float
) -> Head:
    """Commit a recording as the successor of the head's one, which stays in the history if it is the last of its hour.

    Removes old recordings. FencedError if this term is over.
    """
    objects = await store.list(Recording.FOLDER)
    after = await _keep_last_of_hour(store, head, before, after)
    head = await chain.commit(store, pointer, head, after)
    await chain.delete(store, pointer, old_documents(before, objects, after.created - grace))
    return head


async def _refresh(natty: Natty, name: str, record: StreamRecord, now: float) -> StreamRecord:
    """Return the updated record. Requests consumers first, so that they are never ahead of the stream."""
    try:
        consumers = await all_consumers(natty.jetstream, name)
        info, deleted = await natty.jetstream.request(f"STREAM.INFO.{name}", led=True), None
        if is_unaware(record, info["state"], now):
            info = await natty.jetstream.request(f"STREAM.INFO.{name}", {"deleted_details": True}, led=True)
            deleted = Sequences.from_iterable(info["state"].pop("deleted", None) or ())
    except StreamNotFoundError:
        return record
    if info["created"] != record.created:
        return record
    seen = Seen(config=info["config"], state=info["state"], consumers=consumers, deleted=deleted)
    return update_record(record, seen, now)


async def _keep_last_of_hour(store: Store, head: Head, before: Recording, after: Recording) -> Recording:
    """Copy the recording `before` into the history if it is the last one of its hour; return `after` with its name."""
    if not before.streams or before.created // HOUR == after.created // HOUR:
        return msgspec.structs.replace(after, earlier=before.earlier, hours=before.hours, skips=before.skips)
    path = history_path(before)
    with contextlib.suppress(AlreadyStoredError):  # by a leader that died before its commit
        await store.put(path, await chain.fetch(store, head))
    return add_hour(after, before, Earlier(path, head.sha256))
