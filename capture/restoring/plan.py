"""Plans a restore: which messages, configuration and consumers, and what can't be restored as it was. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from capture.archive.chain import KEPT
from capture.archive.recording import Consumer, Position, Recording, resume
from capture.archive.sequences import MAXIMUM, Sequences
from capture.reading.supply import Supply
from capture.restoring.past import Past, Window, bounds
from capture.restoring.survey import Survey
from capture.restoring.uptake import LEVEL, MARK, own_metadata
from natty.config.units import write_count, write_time
from natty.names import overlap
from natty.wire.servers import NEEDS

EXACT = NEEDS["exact restore of streams"].minimum
"""The first server version that restores a stream exactly."""
REBUILT = (2, 10)
"""The first one that can begin a stream at a given sequence."""
A_SECOND = {True: 150_000, False: 20_000}
"""Messages per second, for an estimate: for an exact restore (True), and published one by one (False)."""
AN_OBJECT = 0.001
A_MERGED_OBJECT = 0.006
"""Seconds to open an object, for an estimate: read alone, and merged with more objects than are open at once."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to restore, and how: `capture.restore` explains each field."""

    window: Window = field(default_factory=Window)
    name: str = ""
    consumers: bool = True
    replicas: int | None = None
    detached: bool = False
    again: bool = False
    replay: bool = False


@dataclass(frozen=True, kw_only=True)
class Target:
    """The server's facts: its version, the account's streams (configurations by name), and its limits."""

    version: tuple[int, ...]
    streams: Mapping[str, Mapping[str, Any]]
    account: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a restore will do. `wanted` are the messages' sequences, `gaps` the others between the first and the last.

    `supply` has the messages: `objects` objects, `crowded` of them overlap with many others. `config` and `consumers`
    are the final ones. `not_kept` has a sentence for each thing that won't be as it was,
    `obstacles` one for each reason why the restore is not possible. If not `exact`, the messages are published again,
    see `capture.restoring.replay`.
    """

    stream: str
    name: str
    config: Mapping[str, Any]
    consumers: list[dict[str, Any]]
    supply: Supply
    objects: int
    crowded: int
    wanted: Sequences
    first: int
    last: int
    gaps: Sequences
    bytes: int
    exact: bool
    not_kept: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """Number of messages to restore."""
        return len(self.wanted)

    @property
    def seconds(self) -> float:
        """Estimated duration if server, store and machine are idle and near each other."""
        opened = self.crowded * A_MERGED_OBJECT + (self.objects - self.crowded) * AN_OBJECT
        return self.messages / A_SECOND[self.exact] + opened

    def state(self) -> dict[str, Any]:
        """Return the state that is sent to the server first: it reserves `bytes`, and pads up to both ends."""
        return {"messages": self.messages, "bytes": self.bytes, "first_seq": self.first, "last_seq": self.last}


def find_too_old(config: Mapping[str, Any], now: float) -> float:
    """Return the time before which a stream's max_age deletes messages (Unix nanoseconds); 0.0 if it has none."""
    return now * 1e9 - age if (age := config.get("max_age")) else 0.0


def plan_restore(
    past: Past, survey: Survey, supply: Supply, wanted: Sequences, options: Options, target: Target
) -> Plan:
    """Plan the restore of the chosen messages, with the configuration and consumers of the stream.

    `survey` and `supply` are of the objects that may hold these messages.
    """
    there = wanted & survey.fit
    first, last = _ends(past, options.window, there)
    exact = target.version >= EXACT
    config, cut = _target_config(past, options, exact)
    consumers, left = _consumers(past, options, there, last, exact)
    gaps = Sequences.from_range(first, last) - there
    unrestorable = list(_report_unrestorable(wanted - there, survey))
    not_kept = [
        *cut,
        *unrestorable,
        *_report_missing(past, options.window, gaps - (wanted - there)),
        *left,
        *_report_too_old(config, survey, there),
        *_always(past, consumers, exact),
    ]
    state = past.record.state if past.record else {}
    share = len(there) / state["messages"] if state.get("messages") else 0.0
    size = int(state.get("bytes", 0) * share) or survey.bytes  # a recording need not have the stream's size
    return Plan(
        stream=past.stream,
        name=config["name"],
        config=config,
        consumers=consumers,
        supply=supply,
        objects=survey.objects,
        crowded=survey.count_crowded(),
        wanted=there,
        first=first,
        last=last,
        gaps=gaps,
        bytes=size,
        exact=exact,
        not_kept=tuple(not_kept),
        obstacles=tuple(
            [*_report_nothing(past, options.window, there, unrestorable)]
            + ([] if options.replay else [*obstacles(past, config, options, target, size)])
        ),
    )


def _ends(past: Past, window: Window, wanted: Sequences) -> tuple[int, int]:
    """Return the stream's first and last sequence. An empty stream begins after its last one; (0, 0): it had none."""
    first, last = bounds(past, window)
    if (window.start_ns is not None or window.everything) and wanted:
        first = wanted.first
    last = max(last, wanted.last if wanted else 0)
    if not wanted:
        return (last + 1, last) if last else (0, 0)
    return max(1, min(first, wanted.first)), last


def _target_config(past: Past, options: Options, exact: bool) -> tuple[dict[str, Any], list[str]]:
    """Return the stream's configuration, and a sentence for each part that is left out.

    A mirror, or a stream with sources, keeps them only if the restore is exact and of the whole stream. The server then
    continues after the last message that it got from them.
    """
    config = dict(past.config) | {"name": options.name or past.stream, "metadata": _metadata(past.config, exact)}
    if options.replicas is not None:
        config["num_replicas"] = options.replicas
    if options.detached:
        return _without(config, "mirror", "sources", "republish", "subject_transform") | {
            "subjects": [config["name"]]
        }, []
    window = options.window
    is_part = bool(window.at_ns is not None or window.to_sequence or window.subjects)
    origins = [config["mirror"]] if config.get("mirror") else list(config.get("sources") or ())
    if not origins or (exact and not is_part):
        return config, []
    why = (
        "after a part of the stream, it would add all later messages"
        if exact
        else "this server would copy all messages again"
    )
    names = ", ".join(dict.fromkeys(one["name"] for one in origins))
    plain = _without(config, "mirror", "mirror_direct", "sources")
    return plain | {"subjects": config.get("subjects") or [config["name"]]}, [
        f"the stream no longer copies from {names}: {why}. It is a plain stream"
    ]


def _metadata(config: Mapping[str, Any], exact: bool) -> dict[str, str]:
    """Return the metadata to restore. Without an exact restore the server itself sets the level of what it creates."""
    metadata = own_metadata(config)
    if not exact:
        metadata.pop(LEVEL, None)
    return metadata


def _without(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def _consumers(
    past: Past, options: Options, wanted: Sequences, last: int, exact: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the consumers to restore, and a sentence for each one that is not restored, or not as it was."""
    recorded = past.record.consumers if past.record else {}
    if options.detached or not options.consumers:
        return [], [f"{write_count(len(recorded), 'consumer')} left out"] if recorded else []
    elsewhere = bool(options.name) and options.name != past.stream
    kept, left = [], []
    for name, one in sorted(recorded.items()):
        if one.ephemeral:
            left.append(f"consumer {name} is ephemeral: it ended with its client")
        elif elsewhere and one.config.get("deliver_subject"):
            left.append(f"consumer {name} is left out: it would push the copy to subscribers of the original")
        else:
            config = dict(one.config) | {"name": name, "metadata": _metadata(one.config, exact)}
            if options.replicas is not None:
                config["num_replicas"] = min(options.replicas, config.get("num_replicas", 0))
            place, contradiction = resume(one)
            state = _consumer_state(one, place, wanted, last, exact)
            kept.append({"config": config, "state": state})
            if contradiction:
                left.append(_other_place(name, one, place, contradiction))
            elif "pending" not in state and (again := _count_acknowledged_beyond(one, place)):
                left.append(
                    f"consumer {name} gets up to {write_count(again, 'message')} again that it has acknowledged, after"
                    f" sequence {state['ack_floor']['stream_seq']:,}"
                )
    return kept, left


def _consumer_state(one: Consumer, place: Position, wanted: Sequences, last: int, exact: bool) -> dict[str, Any]:
    """Return the state of a consumer that continues after a position, with its recorded single acknowledgements.

    The server refuses a state with unacknowledged messages outside of the range between ack floor and last delivery.
    """
    floor, delivered = _position(place, last), _position(one.delivered, last)
    plain = {"delivered": floor, "ack_floor": floor}
    if one.pending is None or not exact or not place.stream_seq < one.delivered.stream_seq <= MAXIMUM:
        return plain
    held = {sequence: what for sequence, what in one.pending.items() if sequence <= last and sequence in wanted}
    if not held:
        return {"delivered": delivered, "ack_floor": delivered}
    if not all(
        floor["stream_seq"] < sequence <= delivered["stream_seq"]
        and floor["consumer_seq"] < what.sequence <= delivered["consumer_seq"]
        for sequence, what in held.items()
    ):
        return plain
    redelivered = {sequence: count for sequence, count in (one.redelivered or {}).items() if sequence in held}
    state = {"delivered": delivered, "ack_floor": floor, "pending": held, "redelivered": redelivered}
    return dict(msgspec.to_builtins(state, str_keys=True))


def _count_acknowledged_beyond(one: Consumer, place: Position) -> int:
    """Return the most messages that a consumer may have acknowledged after a position; redelivered ones count twice."""
    unacked = len(one.pending) if one.pending is not None else one.unacked
    return 0 if unacked is None else max(0, one.delivered.consumer_seq - place.consumer_seq - unacked)


def _other_place(name: str, one: Consumer, place: Position, contradiction: str) -> str:
    instead = f"it continues after sequence {place.stream_seq:,}"
    if place == one.delivered:
        instead += ", since it has acknowledged every delivered message"
    elif not one.pending:
        instead += ": messages that it has acknowledged are delivered again"
    return f"consumer {name} can't be at the position that the server reported ({contradiction}): {instead}"


def _position(place: Position, last: int) -> dict[str, int]:
    return {"consumer_seq": place.consumer_seq, "stream_seq": min(place.stream_seq, last)}


def _report_unrestorable(lost: Sequences, survey: Survey) -> Iterable[str]:
    if lost:
        where = survey.an_unfit + (f" and {survey.unfit - 1:,} more, which do" if survey.unfit > 1 else ", which does")
        yield f"{_name(lost, 'message', 'is', 'are')} only in {where} not keep messages whole"


def _report_missing(past: Past, window: Window, gaps: Sequences) -> Iterable[str]:
    """Report the gaps that are neither deleted in the stream nor left out on purpose."""
    if window.subjects:
        return
    deleted = Sequences.from_text(past.record.deleted) if past.record else Sequences()
    unexplained = gaps - deleted - past.held
    if gone := unexplained & past.removed:
        yield f"{_name(gone, 'message', 'was', 'were')} removed by the archive's retention"
    if unknown := unexplained - past.removed:
        yield f"{_name(unknown, 'sequence', 'is', 'are')} not in the archive: `capture verify` says why"


def _name(found: Sequences, noun: str, one: str, several: str) -> str:
    """Return "1 message (7) is", or "3 messages (7–9) are"."""
    return f"{write_count(len(found), noun)} ({found.describe()}) {one if len(found) == 1 else several}"


def _report_too_old(config: Mapping[str, Any], survey: Survey, wanted: Sequences) -> Iterable[str]:
    if (age := config.get("max_age")) and (gone := survey.old & wanted):
        yield (
            f"at least {write_count(len(gone), 'message', 'is', 'are')} older than the stream's max_age of"
            f" {age / 1e9:g} s: the server deletes them when that holds again"
        )


def _always(past: Past, consumers: list[dict[str, Any]], exact: bool) -> Iterable[str]:
    yield "the stream's time of creation: the restored stream is a new one"
    yield "messages whose own time to live (Nats-TTL) is over are left out by the server"
    if past.record is None:
        unknown = "consumers, and what was deleted by then, are not known"
        since = f"; the configuration is that of {write_time(past.configured)}" if past.configured else ""
        yield f"{_explain_no_record(past.later)}: {unknown}{since}"
    elif consumers:
        when = f"at {write_time(past.recorded)}"
        if not past.record.created:
            when = "when the backup was made"
        if exact and all(past.record.consumers[one["config"]["name"]].pending is not None for one in consumers):
            yield f"consumers continue where they were {when}: what they acknowledged later is delivered again"
        else:
            yield (
                f"consumers continue after the messages that they had acknowledged without a gap {when}: messages "
                "that they acknowledged beyond that are delivered again"
            )


def _explain_no_record(later: Recording | None) -> str:
    """Return why nothing is recorded by a moment, given the earliest recording after it that is kept."""
    if later is None:
        return "nothing was recorded by that time"
    if later.number == 1:
        return f"nothing was recorded by that time, the first recording is of {write_time(later.created)}"
    dropped = f"no recording by that time is kept (only the last {KEPT}, and the last of each hour)"
    return f"{dropped}, the next one is of {write_time(later.created)}"


def _report_nothing(past: Past, window: Window, there: Sequences, unrestorable: list[str]) -> Iterable[str]:
    """Report that there is no message to restore, unless the stream was empty."""
    if there:
        return
    yield from (f"nothing can be restored: {sentence}" for sentence in unrestorable)
    if not unrestorable and window != Window():
        yield f"nothing is restored: no message of {past.stream} matches the request"


def obstacles(past: Past, config: Mapping[str, Any], options: Options, target: Target, size: int) -> Iterable[str]:
    """Yield a sentence for each reason why the server can't have this stream, of about `size` bytes."""
    name = config["name"]
    if (there := target.streams.get(name)) is not None:
        mark = (there.get("metadata") or {}).get(MARK)
        if not mark:
            yield f"there is a stream {name}, and an existing stream is never touched: restore --as another name"
        elif not options.again:
            yield (
                f"a restore of stream {name} was begun and is not finished. If it is no longer running, restore with"
                " --again, which deletes what it left"
            )
    for other, its in target.streams.items():
        taken = [(mine, one) for mine in config.get("subjects") or () for one in its.get("subjects") or ()]
        clash = next(((mine, one) for mine, one in taken if other != name and overlap(mine, one)), None)
        if clash is not None:
            yield (
                f"subject {clash[0]} overlaps {clash[1]} of stream {other}: delete that, or restore --detached, as a "
                "copy that accepts no messages"
            )
    if target.version < REBUILT:
        yield "nats-server 2.10 or later is needed: an earlier one can't begin a stream at a sequence"
    if config.get("retention") == "interest" and not (past.record and options.consumers and past.record.consumers):
        yield f"stream {name} keeps messages that a consumer needs: without its consumers it would keep none"
    yield from _limits(target.account, config, size)


def _limits(account: Mapping[str, Any], config: Mapping[str, Any], needed: int) -> Iterable[str]:
    limits, kind = account.get("limits") or {}, "memory" if config.get("storage") == "memory" else "storage"
    most, used = limits.get(f"max_{kind}", -1), account.get(kind, 0)
    if 0 < limits.get("max_streams", -1) <= account.get("streams", 0):
        yield f"the account may have {limits['max_streams']} streams, and has that many"
    if 0 <= most < used + needed:
        yield f"the account may store {most:,} bytes ({kind}), {used:,} are used, and {needed:,} more are needed"
