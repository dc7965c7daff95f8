"""Deletes from a stream only messages that are proven to be in the archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from capture.archive.identity import Identity, read_record, stream_path
from capture.archive.sequences import Sequences
from capture.config.consumers import consumer_names, consumer_states, consumers
from capture.config.settings import CaptureConfig
from capture.errors import NotStoredError, PurgeRefusedError
from capture.ingest.source import stream_info
from capture.reading.stream_times import find_first_since, read_present
from capture.stores import Store
from capture.verification.verdict import Holdings
from natty import Batch, Natty
from natty.config.units import write_count
from natty.names import covers
from natty.pulling.ordered import CaughtUp, Ordered, OrderedOptions
from natty.streams.contents import check_purge
from natty.streams.listing import all_consumers, all_streams

READ_AHEAD = 8192  # messages; the server sends only their headers


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Messages that are always kept: the newest `messages`, and those that the stream stored in the last `seconds`."""

    messages: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What a stream holds, and which other readers still need it.

    `present` are its sequences, `ours` those of them on the subjects to be purged: `filters`, or all subjects. `floors`
    maps the name of each other reader to the sequence up to which it is done. `young` is the first sequence that the
    margin's time keeps.
    """

    present: Sequences
    ours: Sequences
    filters: tuple[str, ...] = ()
    floors: Mapping[str, int] = field(default_factory=dict)
    young: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What may be purged: the `messages` of `ours` below sequence `before`. `reason` says why not more."""

    before: int
    messages: int
    reason: str


def plan_purge(stock: Stock, held: Holdings, keep: int = 0) -> Plan:
    """Decide up to where the stream may be purged, by what the archive holds of it; pure.

    Every purged message is proven to be stored, no other reader needs it, and it is not among the newest `keep`
    messages or the young ones. A purge deletes everything below a sequence, so it ends at the first message that must
    stay.
    """
    bounds = [(stock.present.last + 1 if stock.present else 1, "no message has to be kept")]
    if unproven := stock.ours - held.proven:
        bounds.append((unproven.first, f"sequence {unproven.first} {_explain(unproven.first, held)}"))
    bounds += [
        (floor + 1, f"{name} still needs messages after sequence {floor}") for name, floor in stock.floors.items()
    ]
    if keep:
        bounds.append(
            (_find_first_of_newest(stock.present, keep), f"the newest {write_count(keep, 'message', 'is', 'are')} kept")
        )
    if stock.young is not None:
        bounds.append((stock.young, f"messages from sequence {stock.young} on are too young"))
    before, reason = min(bounds, key=lambda bound: bound[0])
    return Plan(before=before, messages=len(stock.ours.within(1, before - 1)), reason=reason)


def _explain(unproven: int, held: Holdings) -> str:
    """Say why a sequence is not proven."""
    for name, sequences in held.incomplete.items():
        if unproven in sequences:
            return f"is only in a block that does not keep messages whole ({name})"
    return "is not proven to be stored"


def _find_first_of_newest(present: Sequences, count: int) -> int:
    """Return the first of the newest `count` sequences; of all, if there are fewer."""
    if len(present) <= count:
        return present.first if present else 1
    low, high = present.first, present.last
    while low < high:  # the highest sequence with `count` from it on
        middle = (low + high + 1) // 2
        if len(present.within(middle, present.last)) >= count:
            low = middle
        else:
            high = middle - 1
    return low


# --- what the server says --------------------------------------------------------------------------------------------


async def find_purge_subjects(natty: Natty, config: CaptureConfig, store: Store) -> tuple[str, ...]:
    """Return the subjects to be purged, none for all of them.

    PurgeRefusedError if the stream can't be purged, if it is not the stream that was captured, or if the messages on
    the captured subjects can't be determined exactly.
    """
    info = await stream_info(natty, config.stream)
    _check_purgeable(config.stream, info["config"])
    await _check_identity(store, config.stream, info["created"])
    return await _read_filters(natty, config, info["config"])


async def take_stock(
    natty: Natty, config: CaptureConfig, store: Store, margin: Margin, *, now: float, ignore_others: bool = False
) -> Stock:
    """Request everything that `plan_purge` needs from the server; `now` in Unix seconds. PurgeRefusedError."""
    stream, filters = config.stream, await find_purge_subjects(natty, config, store)
    present, last = await read_present(natty, stream)
    return Stock(
        present=present,
        ours=present & await _find_on_subjects(natty, stream, filters) if filters else present,
        filters=filters,
        floors={} if ignore_others else await _read_floors(natty, config, last),
        young=await find_first_since(natty, stream, present, now - margin.seconds) if margin.seconds else None,
    )


def _check_purgeable(stream: str, config: Mapping[str, Any]) -> None:
    if config.get("mirror"):
        raise PurgeRefusedError(f"stream {stream} is a mirror of {config['mirror']['name']}: purge that stream instead")
    if config.get("sealed"):
        raise PurgeRefusedError(f"stream {stream} is sealed: nothing can be deleted from it any more")
    if config.get("deny_purge"):
        raise PurgeRefusedError(f"stream {stream} has deny_purge in its configuration: it can't be purged")


async def _check_identity(store: Store, stream: str, created: str) -> None:
    try:
        known = await read_record(store, stream_path(stream), Identity)
    except NotStoredError:
        raise PurgeRefusedError(f"the archive in {store.url} holds no messages of stream {stream}") from None
    if known.created != created:
        raise PurgeRefusedError(
            f"the archive in {store.url} is of stream {stream} created at {known.created}, but the server's was created"
            f" at {created}: it is another stream, and not archived"
        )


async def _read_filters(natty: Natty, config: CaptureConfig, stream: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the subjects to be purged, none for all. PurgeRefusedError if the captured subjects are uncertain."""
    wanted = sorted(config.filter_subjects)
    if config.group:
        members = await consumers(natty, msgspec.structs.replace(config, member=""))
        wanted = sorted(subject for one in members for subject in one.filter_subjects)
    for consumer in [] if config.group else await consumer_states(natty, config):
        found = consumer["config"].get("filter_subjects") or [consumer["config"].get("filter_subject") or ""]
        if (found := sorted(filter(None, found))) != wanted:
            raise PurgeRefusedError(
                f"consumer {config.durable} of stream {config.stream} captures {', '.join(found) or 'every subject'},"
                f" but the configuration names {', '.join(wanted) or 'every subject'}: make filter_subjects the same"
            )
    if wanted and all(covers(wanted, subject) for subject in stream.get("subjects") or [">"]):
        return ()
    if wanted and stream["retention"] == "workqueue":
        raise PurgeRefusedError(
            f"stream {config.stream} is a work queue of which only {', '.join(wanted)} is captured: its messages on"
            f" these subjects can't be determined exactly, since it allows no other reader. Its acks delete captured"
            f" messages"
        )
    return tuple(wanted)


async def _find_on_subjects(natty: Natty, stream: str, filters: tuple[str, ...]) -> Sequences:
    """Return the sequences of all messages on these subjects."""
    options = OrderedOptions(filters=filters, headers_only=True, max_messages=READ_AHEAD)
    found: list[Sequences] = []
    async with aclosing(Ordered(natty.jetstream, stream, options).__aiter__()) as steps:
        async for step in steps:
            if isinstance(step, CaughtUp):
                break
            if isinstance(step, Batch):
                found.append(Sequences.from_iterable(step.sequences))
    return Sequences.union_of(found)


# --- other readers ---------------------------------------------------------------------------------------------------


async def _read_floors(natty: Natty, config: CaptureConfig, last: int) -> dict[str, int]:
    """Return up to which sequence each other consumer, mirror and source is done. PurgeRefusedError if unknown."""
    found = await all_consumers(natty.jetstream, config.stream)
    if found.missing:
        raise PurgeRefusedError(
            f"no server answers for consumer {found.missing[0]}, so its progress is not known. Try again when its"
            f" server is back, or ignore it with --ignore-consumers"
        )
    ours = await consumer_names(natty, config)
    others = [one for one in found.found if one["name"] not in ours]
    floors = {f"consumer {one['name']}": _floor(one, last) for one in others}
    for one in (await all_streams(natty.jetstream)).found:
        floors |= _floors_of_copy(config.stream, one, last)
    return floors


def _floor(consumer: Mapping[str, Any], last: int) -> int:
    """Return up to which sequence a consumer needs no messages any more.

    The ack floor of a consumer with filters stays at the last message that matches them, so check its backlog.
    """
    config = consumer["config"]
    filtered = config.get("filter_subject") or config.get("filter_subjects")
    if filtered and not consumer["num_pending"] and not consumer["num_ack_pending"]:
        return last
    return int(consumer["ack_floor"]["stream_seq"])


def _floors_of_copy(stream: str, other: Mapping[str, Any], last: int) -> dict[str, int]:
    """Return the progress of another stream that mirrors this one, or has it as a source."""
    name, floors = other["config"]["name"], {}
    mirror = other["config"].get("mirror") or {}
    if mirror.get("name") == stream and not mirror.get("external"):
        floors[f"mirror {name}"] = last if _has_all(other.get("mirror")) else int(other["state"]["last_seq"])
    for source in other["config"].get("sources") or []:
        if source["name"] == stream and not source.get("external"):
            states = [one for one in other.get("sources") or [] if one["name"] == stream]
            floors[f"stream {name}, of which it is a source,"] = last if states and all(map(_has_all, states)) else 0
    return floors


def _has_all(copy: Mapping[str, Any] | None) -> bool:
    """Return whether a mirror or source reports that it is complete; one that never got an answer reports nothing."""
    return copy is not None and not copy["lag"] and copy["active"] >= 0 and not copy.get("error")


# --- the purge -------------------------------------------------------------------------------------------------------


async def purge(natty: Natty, stream: str, before: int, filters: Iterable[str]) -> int:
    """Delete the messages below a sequence, on these subjects or on all; return their number.

    PurgeRefusedError, before nats-server 2.15, if consumers with several filters would skip messages not delivered to
    them. Messages that are published meanwhile have higher sequences. With `before` at most 1 it sends no request:
    there is nothing below sequence 1, and for a server no sequence means everything.
    """
    purged = 0
    if before <= 1:
        return purged
    for subject in tuple(filters) or ("",):
        if subject:
            await check_purge(natty.jetstream, stream, subject, held=False)  # all purged messages are acknowledged
        wanted = {"seq": before} | ({"filter": subject} if subject else {})
        purged += (await natty.jetstream.request(f"STREAM.PURGE.{stream}", wanted))["purged"]
    return purged
