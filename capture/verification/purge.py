"""Deletes from a stream what the archive provably holds, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from capture.archive.identity import Identity, read_claim, stream_path
from capture.archive.sequences import Sequences
from capture.config.consumers import consumer_names, consumer_states, consumers
from capture.config.settings import CaptureConfig
from capture.errors import NotStored, PurgeRefused
from capture.ingest.source import stream_info
from capture.stores import Store
from natty import Batch, JetStreamError, Natty
from natty.config.units import parse_time
from natty.jetstream import NO_MESSAGE
from natty.names import covers
from natty.pulling.ordered import CaughtUp, Ordered, OrderedOptions
from natty.streams import stream_state
from natty.streams.contents import check_purge
from natty.streams.listing import all_consumers, all_streams

READ_AHEAD = 8192  # messages, of which only headers come


@dataclass(frozen=True, kw_only=True)
class Margin:
    """What stays in any case: the newest `messages` of the stream, and all that it stored in the last `seconds`."""

    messages: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What a stream holds, and who still needs what of it.

    `present` are its sequences, `ours` those of them on the subjects to be purged, `filters`, or on all. `floors` names
    everybody else who reads it, and up to which sequence they are done with it. `young` is the first sequence that the
    margin's time keeps.
    """

    present: Sequences
    ours: Sequences
    filters: tuple[str, ...] = ()
    floors: Mapping[str, int] = field(default_factory=dict)
    young: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What may go: of `ours` all below sequence `before`; `messages` of them. `reason` is why not more."""

    before: int
    messages: int
    reason: str


def plan_purge(stock: Stock, proven: Sequences, keep: int = 0) -> Plan:
    """Decide up to where the stream may be purged; pure.

    All that goes is proven, nobody else needs it, and the newest `keep` messages and the young ones stay. As a purge
    takes everything below a sequence, the first message that must stay ends it.
    """
    bounds = [(stock.present.last + 1 if stock.present else 1, "all of it may go")]
    if unproven := stock.ours - proven:
        bounds.append((unproven.first, f"sequence {unproven.first} is not proven to be stored"))
    bounds += [
        (floor + 1, f"{name} is not done with what comes after sequence {floor}")
        for name, floor in stock.floors.items()
    ]
    if keep:
        bounds.append((_newest(stock.present, keep), f"the newest {keep:,} messages are kept"))
    if stock.young is not None:
        bounds.append((stock.young, f"what the stream stored since sequence {stock.young} is too young"))
    before, reason = min(bounds, key=lambda bound: bound[0])
    return Plan(before=before, messages=len(stock.ours.within(1, before - 1)), reason=reason)


def _newest(present: Sequences, count: int) -> int:
    """Return the first of the newest `count` sequences; of all, if they are no more."""
    if len(present) <= count:
        return present.first if present else 1
    low, high = present.first, present.last
    while low < high:  # the highest sequence from which on there are `count`
        middle = (low + high + 1) // 2
        if len(present.within(middle, present.last)) >= count:
            low = middle
        else:
            high = middle - 1
    return low


# --- what the server says --------------------------------------------------------------------------------------------


async def purgeable(natty: Natty, config: CaptureConfig, store: Store) -> tuple[str, ...]:
    """Return the subjects that are to be purged, none for all of them.

    PurgeRefused if the stream can't be purged, if it is not the one that was captured, or if what is on the captured
    subjects can't be told exactly.
    """
    info = await stream_info(natty, config.stream)
    _check_purgeable(config.stream, info["config"])
    await _check_identity(store, config.stream, info["created"])
    return await _filters(natty, config, info["config"])


async def take_stock(
    natty: Natty, config: CaptureConfig, store: Store, margin: Margin, *, now: float, ignore_others: bool = False
) -> Stock:
    """Ask the server for all that `plan_purge` has to know; `now` in Unix seconds. PurgeRefused, as by `purgeable`."""
    stream, filters = config.stream, await purgeable(natty, config, store)
    state = await stream_state(natty.jetstream, stream, deleted=True)
    last = state["last_seq"]
    present = Sequences.from_range(max(1, state["first_seq"]), last) - Sequences.from_iterable(
        state.get("deleted") or []
    )
    return Stock(
        present=present,
        ours=present & await _on_subjects(natty, stream, filters) if filters else present,
        filters=filters,
        floors={} if ignore_others else await _floors(natty, config, last),
        young=await _first_since(natty, stream, present, now - margin.seconds) if margin.seconds else None,
    )


def _check_purgeable(stream: str, config: Mapping[str, Any]) -> None:
    if config.get("mirror"):
        raise PurgeRefused(f"stream {stream} is a mirror of {config['mirror']['name']}: what is to go must go there")
    if config.get("sealed"):
        raise PurgeRefused(f"stream {stream} is sealed: nothing can be deleted from it any more")
    if config.get("deny_purge"):
        raise PurgeRefused(f"stream {stream} has deny_purge in its configuration: it can't be purged")


async def _check_identity(store: Store, stream: str, created: str) -> None:
    try:
        known = await read_claim(store, stream_path(stream), Identity)
    except NotStored:
        raise PurgeRefused(f"the archive in {store.url} holds nothing of a stream {stream}") from None
    if known.created != created:
        raise PurgeRefused(
            f"the archive in {store.url} is of a stream {stream} made at {known.created}, and this one was made at"
            f" {created}: nothing of it is stored"
        )


async def _filters(natty: Natty, config: CaptureConfig, stream: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the subjects to be purged, none for all of them. PurgeRefused if it is not sure which are captured."""
    wanted = sorted(config.filter_subjects)
    if config.group:
        members = await consumers(natty, msgspec.structs.replace(config, member=""))
        wanted = sorted(subject for one in members for subject in one.filter_subjects)
    for consumer in [] if config.group else await consumer_states(natty, config):
        found = consumer["config"].get("filter_subjects") or [consumer["config"].get("filter_subject") or ""]
        if (found := sorted(filter(None, found))) != wanted:
            raise PurgeRefused(
                f"consumer {config.durable} of stream {config.stream} captures {', '.join(found) or 'every subject'},"
                f" and the configuration says {', '.join(wanted) or 'every subject'}: make filter_subjects the same"
            )
    if wanted and all(covers(wanted, subject) for subject in stream.get("subjects") or [">"]):
        return ()
    if wanted and stream["retention"] == "workqueue":
        raise PurgeRefused(
            f"stream {config.stream} is a work queue of which only {', '.join(wanted)} is captured: what it holds on"
            f" these subjects can't be told exactly, since it lets nobody else read. Its acks delete what is captured"
        )
    return tuple(wanted)


async def _on_subjects(natty: Natty, stream: str, filters: tuple[str, ...]) -> Sequences:
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


async def _first_since(natty: Natty, stream: str, present: Sequences, since: float) -> int | None:
    """Return a sequence from which on all is younger than `since` (Unix seconds), and nothing before; None if none is.

    Times grow with sequences, so it is looked for by halving.
    """
    if not present:
        return None
    low, high = present.first, present.last + 1
    while low < high:
        middle = (low + high) // 2
        try:
            answer = await natty.jetstream.request(f"STREAM.MSG.GET.{stream}", {"seq": middle, "next_by_subj": ">"})
        except JetStreamError as error:
            if error.err_code != NO_MESSAGE:
                raise
            high = middle
            continue
        if parse_time(answer["message"]["time"]) >= since * 1e9:
            high = middle
        else:
            low = answer["message"]["seq"] + 1
    return low if low <= present.last else None


# --- who else needs what ---------------------------------------------------------------------------------------------


async def _floors(natty: Natty, config: CaptureConfig, last: int) -> dict[str, int]:
    """Return up to which sequence each other consumer, mirror and source is done. PurgeRefused if one doesn't say."""
    found = await all_consumers(natty.jetstream, config.stream)
    if found.missing:
        raise PurgeRefused(
            f"nobody answers for consumer {found.missing[0]}: how far it is can't be told. Try again when its"
            f" server is back, or ignore it with --ignore-consumers"
        )
    ours = await consumer_names(natty, config)
    others = [one for one in found.found if one["name"] not in ours]
    floors = {f"consumer {one['name']}": _floor(one, last) for one in others}
    for one in (await all_streams(natty.jetstream)).found:
        floors |= _copied(config.stream, one, last)
    return floors


def _floor(consumer: Mapping[str, Any], last: int) -> int:
    """Return up to which sequence a consumer needs nothing any more.

    The acknowledged floor of one with filters stays at the last message that was for it, so its backlog is looked at.
    """
    config = consumer["config"]
    filtered = config.get("filter_subject") or config.get("filter_subjects")
    if filtered and not consumer["num_pending"] and not consumer["num_ack_pending"]:
        return last
    return int(consumer["ack_floor"]["stream_seq"])


def _copied(stream: str, other: Mapping[str, Any], last: int) -> dict[str, int]:
    """Return how far another stream is that mirrors this one, or has it as a source."""
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
    """Tell whether a mirror or source says that it lacks nothing; one that never got an answer says nothing."""
    return copy is not None and not copy["lag"] and copy["active"] >= 0 and not copy.get("error")


# --- the deed --------------------------------------------------------------------------------------------------------


async def purge(natty: Natty, stream: str, before: int, filters: Iterable[str]) -> int:
    """Delete what is below a sequence, on these subjects or on all; return how many messages that were.

    PurgeRefused, before nats-server 2.15, if consumers with several filters would skip what they were not delivered.
    Messages that are published meanwhile have higher sequences. Below sequence 1 there is nothing, so nothing is asked
    for: to a server, no sequence means everything.
    """
    purged = 0
    if before <= 1:
        return purged
    for subject in tuple(filters) or ("",):
        if subject:
            await check_purge(natty.jetstream, stream, subject, held=False)  # all that is purged is acknowledged
        wanted = {"seq": before} | ({"filter": subject} if subject else {})
        purged += (await natty.jetstream.request(f"STREAM.PURGE.{stream}", wanted))["purged"]
    return purged
