"""What a restore will need of a stream besides its messages: the sweep's leader writes it down whenever it changed.

A chain of documents of its own. The newest one says what is; the last one of each hour stays for good, in `_history/`,
so that a stream can be restored as it was at an earlier time, with the positions that its consumers had then.
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
from capture.archive.identity import ARCHIVE, STREAMS, claimed
from capture.archive.readme import VERSION
from capture.archive.scope import ASKED
from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import AlreadyStored
from capture.stores.contract import REQUESTS_AT_ONCE, Store
from natty import Natty, StreamNotFoundError
from natty.streams import ConsumerInfo
from natty.streams.listing import Listing, all_consumers
from natty.wire.background import map_concurrently

HISTORY = "_history/"
HOUR = 3600.0
DELETED_A_SECOND = 100_000
"""How many deleted sequences a server is asked for, on average: a list of ten millions comes every 100 s at most."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's configuration as the server gave it, with what this version does not know of.

    It was first seen at `since` (Unix seconds), when the stream's first and last sequence were these.
    """

    since: float
    first_seq: int
    last_seq: int
    config: dict[str, Any]


class Position(msgspec.Struct, frozen=True):
    """How far a consumer is: in its own deliveries, and in the stream."""

    consumer_seq: int = 0
    stream_seq: int = 0

    @property
    def is_possible(self) -> bool:
        """Whether a consumer can be there: deliveries are of sequences from 1 on."""
        in_range = 0 <= self.consumer_seq <= MAXIMUM and 0 <= self.stream_seq <= MAXIMUM
        return in_range and (self.stream_seq > 0 or self.consumer_seq == 0)

    def __str__(self) -> str:
        return f"sequence {self.stream_seq:,} (delivery {self.consumer_seq:,})"


class Unacked(msgspec.Struct, frozen=True, rename="pascal"):
    """A message that was delivered and not acknowledged, as the server's own state has it.

    `sequence` is its number among the consumer's deliveries, `timestamp` when it was delivered (Unix nanoseconds).
    """

    sequence: int
    timestamp: int


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer: its configuration as the server gave it, what it has delivered, and up to where all is acknowledged.

    An `ephemeral` one has no durable name: the server deletes it when nobody uses it. `unacked` is how many messages
    it has delivered that are not acknowledged. A backup says which (`pending`, by their sequences), and how often some
    were redelivered; a server does not. None: that was not recorded.
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
    """What is known of a stream, which may be long gone.

    `created` and `state` (messages, bytes, first and last sequence and their times) are the server's; `configurations`
    are in order of their time, the last one holds; `deleted` (`Sequences.to_text`) are all sequences that the stream
    has ever been seen to have deleted, by the server's list of `deleted_seen` (Unix seconds).
    """

    created: str
    state: dict[str, Any] = {}
    configurations: list[Configuration] = []
    deleted: str = ""
    deleted_seen: float = 0.0
    consumers: dict[str, Consumer] = {}


class Earlier(msgspec.Struct, frozen=True):
    """The last recording of an earlier hour: a copy of the document that it was, signature and all."""

    path: str
    sha256: str


class Recording(Document, frozen=True, kw_only=True):
    """What a restore will need of each stream of the archive, by the stream's name.

    `created` (Unix seconds) is when the servers were asked; it held until the next one. `readme` is the version of the
    archive's description, `fixed` the SHA-256 by path of small objects that never change once they are written.
    `of_manifest` is the number of the manifest that was committed by then; 0 where that was not recorded.
    """

    FOLDER: ClassVar[str] = "_recorded/"
    FORMAT: ClassVar[int] = 1

    archive: str = ""
    readme: int = 0
    fixed: dict[str, str] = msgspec.field(default_factory=dict)
    streams: dict[str, StreamRecord] = msgspec.field(default_factory=dict)
    earlier: Earlier | None = None
    of_manifest: int = 0

    def deleted(self, stream: str) -> Sequences:
        """Return every sequence that the stream has been seen to have deleted."""
        record = self.streams.get(stream)
        return Sequences.from_text(record.deleted) if record else Sequences()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a server says of a stream; `deleted` is None if it was not asked for that."""

    config: dict[str, Any]
    state: dict[str, Any]
    consumers: Listing[ConsumerInfo]
    deleted: Sequences | None = None


# --- decisions: pure -------------------------------------------------------------------------------------------------


def updated(record: StreamRecord, seen: Seen, now: float) -> StreamRecord:
    """Return the record with what was seen; the same one if nothing has changed.

    What was seen to be deleted once stays deleted. Consumers that nobody answered for stay as they were.
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
        consumers=_consumers(record.consumers, seen.consumers),
    )


def _consumers(before: Mapping[str, Consumer], listing: Listing[ConsumerInfo]) -> dict[str, Consumer]:
    silent = {name: before[name] for name in listing.missing if name in before}
    return silent | {info["name"]: _consumer(info) for info in listing.found}


def _consumer(info: Mapping[str, Any]) -> Consumer:
    """Return what is recorded of a consumer. An ack floor that can't be true is replaced where the true one is known.

    Servers report such floors: 0, say, after thousands of messages of which none is unacknowledged.
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

    The recorded ack floor is not used where it contradicts itself, nor where nothing is unacknowledged. Where the
    record does not tell the true one, it is the place right before the first message that the consumer was to get.
    """
    floor, delivered = one.ack_floor, one.delivered
    if one.config.get("ack_policy") == "none":
        floor = delivered
    if not delivered.is_possible:
        return _beginning(one.config), f"it was given everything up to {delivered}"
    contradiction = _contradiction(floor, delivered, one.pending or ())
    unacked = len(one.pending) if one.pending is not None else one.unacked
    if unacked == 0:
        return delivered, contradiction
    if not contradiction:
        return floor, ""
    if one.pending:
        first = min(one.pending)
        deliveries = min(held.sequence for held in one.pending.values()) - 1
        return Position(max(0, deliveries), max(0, first - 1)), contradiction
    return _beginning(one.config), contradiction


def _contradiction(floor: Position, delivered: Position, pending: Iterable[int]) -> str:
    if not floor.is_possible:
        return f"it has acknowledged everything up to {floor}"
    if floor.stream_seq > delivered.stream_seq:
        return f"it has acknowledged everything up to {floor}, and was given nothing after {delivered}"
    if (first := min(pending, default=MAXIMUM)) <= floor.stream_seq:
        return f"it has acknowledged everything up to {floor}, and not sequence {first:,}"
    return ""


def _beginning(config: Mapping[str, Any]) -> Position:
    """Return the place right before the first message that a consumer was to get, as far as its configuration says."""
    first = config.get("opt_start_seq") if config.get("deliver_policy") == "by_start_sequence" else 1
    return Position(0, first - 1 if isinstance(first, int) and 1 <= first <= MAXIMUM else 0)


def is_unaware(record: StreamRecord, state: Mapping[str, Any], now: float) -> bool:
    """Tell whether the server has to be asked which sequences are deleted: if it counts others than are known.

    What is known to be deleted stays so. Where as many lie between its first and last sequence, they are the same.
    """
    count = int(state.get("num_deleted", 0)) if state["last_seq"] else 0  # an empty stream counts a sequence 0
    inside = Sequences.from_text(record.deleted).within(state["first_seq"], state["last_seq"])
    if count == len(inside):
        return False
    return now - record.deleted_seen >= count / DELETED_A_SECOND


def history_path(document: Document) -> str:
    """Return where a recording stays when its hour is over: by the hour it was made in, UTC."""
    made = datetime.fromtimestamp(document.created, UTC)
    return f"{HISTORY}{made:%Y-%m-%d}/{made:%H}-{document.number:010d}-{document.token}.json"


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
    """Ask the server about each stream of the archive, commit what has changed, remove old recordings.

    A stream that is gone, or was made again under its name, stays as it was recorded. May be stopped anywhere and run
    again. Fenced if this term is over; NattyError if the server does not answer.
    """
    head, before = await current(store, pointer, Recording, now)
    new = {one.stream: StreamRecord(created=one.created) for one in await claimed(store, before.streams)}
    streams = {name: await _looked_at(natty, name, one, now) for name, one in (before.streams | new).items()}
    known = await fixed(store, before.fixed)
    after = msgspec.structs.replace(before, archive=archive, readme=VERSION, fixed=known, streams=streams)
    if after == before:
        return head
    of_manifest = max(of_manifest, before.of_manifest)
    after = msgspec.structs.replace(after, created=now, leader=node, of_manifest=of_manifest)
    return await follow_up(store, pointer, head, before, after, grace=grace)


async def fixed(store: Store, known: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 by path of what says which archive and streams these are, and what was asked of them.

    What is known is not read again: who changes it later is found out.
    """
    objects = await store.list(STREAMS) + await store.list(ASKED)
    new = [path for path in (ARCHIVE, *(one.path for one in objects)) if path not in known]
    return dict(known) | {path: sha256(await store.get(path)).hexdigest() for path in new}


async def follow_up(
    store: Store, pointer: HeadPointer, head: Head, before: Recording, after: Recording, *, grace: float
) -> Head:
    """Commit a recording after the one that the head names, which stays in the history if it is the last of its hour.

    Old ones are removed. Fenced if this term is over.
    """
    objects = await store.list(Recording.FOLDER)
    earlier = await _kept(store, head, before, after.created)
    head = await chain.commit(store, pointer, head, msgspec.structs.replace(after, earlier=earlier))

    async def remove(path: str) -> None:
        pointer.check()
        await store.delete(path)

    await map_concurrently(old_documents(before, objects, after.created - grace), remove, at_once=REQUESTS_AT_ONCE)
    return head


async def _looked_at(natty: Natty, name: str, record: StreamRecord, now: float) -> StreamRecord:
    """Return the record brought up to date. Consumers are asked for first: they are never ahead of the stream then."""
    try:
        consumers = await all_consumers(natty.jetstream, name)
        info, deleted = await natty.jetstream.request(f"STREAM.INFO.{name}"), None
        if is_unaware(record, info["state"], now):
            info = await natty.jetstream.request(f"STREAM.INFO.{name}", {"deleted_details": True})
            deleted = Sequences.from_iterable(info["state"].pop("deleted", None) or ())
    except StreamNotFoundError:
        return record
    if info["created"] != record.created:
        return record
    seen = Seen(config=info["config"], state=info["state"], consumers=consumers, deleted=deleted)
    return updated(record, seen, now)


async def _kept(store: Store, head: Head, document: Recording, now: float) -> Earlier | None:
    """Keep a copy of the recording that is about to be replaced, if it is the last one of its hour."""
    if not document.streams or document.created // HOUR == now // HOUR:
        return document.earlier
    path = history_path(document)
    with contextlib.suppress(AlreadyStored):  # by a leader who died before its commit
        await store.put(path, await chain.fetch(store, head))
    return Earlier(path, head.sha256)
