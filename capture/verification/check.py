"""Compares an archive with its stream, for the command line and the demo."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from capture.archive.chain import Head, HeadReader, latest_offline, read
from capture.archive.heads import SWEEP, head_readers, newest_readers
from capture.archive.identity import Identity, holds_archive, read_record, require_archive, stream_path
from capture.archive.index.tree import ALL, Where
from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import Picture, read_documents, read_picture
from capture.archive.recording import Consumer, Recording, resume
from capture.archive.scope import find_out_of_scope
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.config.consumers import Position, consumer_states, read_recorded_consumers
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, DamagedIndexError, ManifestError, NewerFormatError, NotStoredError
from capture.ingest.board import server_time
from capture.ingest.source import stream_info
from capture.maintenance.sweep import read_entries
from capture.reading.remaining import read_direct_scope
from capture.stores import Store
from capture.verification.audit import HeadReaders, audit
from capture.verification.explanation import Explained, explain
from capture.verification.objects import Progress, read_archive
from capture.verification.recorded_stream import has_limits, list_configurations, read_accountable, read_recorded_report
from capture.verification.verdict import Holdings, StreamReport, Verdict, compare
from natty import Natty, StreamNotFoundError
from natty.config.units import write_count, write_time
from natty.streams import stream_state
from natty.wire.servers import Version

JSON_VERSION = 1
"""The version of `Check.as_dict`. It grows when a field changes its meaning or is removed, not when one is added."""
WELL, UNCHECKED, WRONG = 0, 1, 3
"""Exit statuses: all is well; something could not be checked; something is missing or damaged."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A verdict on the sequences that were acknowledged; later ones are in flight.

    `uncompared` says why a requested comparison with the stream was not possible. `gone`: the stream does not exist any
    more. `recorded` is the time of the recording that was used instead of the stream (Unix seconds). `notes` are other
    facts for an operator; `advice` says what happens to missing messages, or what to do.
    """

    verdict: Verdict
    held: Holdings
    stream: str
    store: str
    deep: bool = True
    unacknowledged: int = 0
    gone: bool = False
    recorded: float = 0.0
    uncompared: str = ""
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    checked_at: float = 0.0
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """WRONG if something is missing or damaged; UNCHECKED if something could not be checked; otherwise WELL."""
        if not self.verdict.ok:
            return WRONG
        verdict = self.verdict
        doubtful = self.uncompared or verdict.unchecked or verdict.awaited or verdict.unexplained
        return UNCHECKED if doubtful else WELL

    @property
    def ok(self) -> bool:
        """Whether everything was checked, nothing is missing or stored twice, and every object is sound."""
        return self.status == WELL

    def sentence(self) -> str:
        """Return the verdict for people."""
        said = [self.verdict.sentence()]
        if left := len(self.verdict.remaining):
            said.append(f"{write_count(left, 'message')} of the stream {'is' if left == 1 else 'are'} not captured yet")
        if self.unacknowledged:
            said.append(f"{write_count(self.unacknowledged, 'newer message', 'is', 'are')} not acknowledged yet")
        if self.gone:
            said.append(f"the stream {self.stream} is gone")
        if self.recorded:
            said.append(f"compared with the recording of {write_time(self.recorded)}")
        if not self.deep:
            said.append("checksums were not checked")
        if self.uncompared:
            said.append(f"the stream could not be compared: {self.uncompared}")
        return "; ".join([*said, *self.advice, *self.notes])

    def as_dict(self) -> dict[str, object]:
        """Return the verdict for programs: docs/verify.md describes every field."""
        return {
            "version": JSON_VERSION,
            "status": self.status,
            "stream": self.stream,
            "store": self.store,
            "checked_at": self.checked_at,
            "seconds": round(self.seconds, 3),
            "objects": self.held.objects,
            "bytes": self.held.bytes,
            "checksums": self.deep,
            **self.verdict.as_dict(),
            "ok": self.ok,
            "unacknowledged": self.unacknowledged,
            "stream_gone": self.gone,
            "recorded_at": self.recorded or None,
            "uncompared": self.uncompared,
            "notes": list(self.notes),
            "advice": list(self.advice),
        }


async def check(
    natty: Natty | None,
    config: CaptureConfig,
    store: Store,
    *,
    deep: bool = True,
    noted: Iterable[Head] = (),
    accepted: Sequences | None = None,
    on_progress: Progress | None = None,
) -> Check:
    """Compare archive and stream by exact sets. Without `natty`, compare the archive with its own recording.

    `deep` reads every object and every document again. If the configuration names public keys, documents must be
    signed. `noted` heads were recorded outside the archive: see `audit`. `accepted` sequences were removed from the
    stream on purpose: they are not unexplained. The check first reads what capture has
    acknowledged, then the archive, then the stream. So everything acknowledged is in the archive by then, and messages
    that left the stream meanwhile do not count as missing. StreamNotFoundError if neither server nor archive knows the
    stream; CaptureError if it was created again; NoArchiveError if the store holds no archive, and NATS knows of none.
    """
    began = time.time()
    before = await _read_acknowledged(natty, config, store) if natty else None
    await _check_archive(natty, config, store)
    live = natty if before else None
    heads = head_readers(live, config.name) if live else None
    audited = await audit(store, heads, archive=config.name, keys=config.public_keys(), noted=noted, deep=deep)
    recording = await _read_recording(store, heads)
    uncompared = ""
    if before and before.gone and (found := await read_recorded_consumers(config, store, recording)):
        before = _use_recorded(before, found)
        uncompared = _describe_gone(found, before)
    held = await _read_holdings(live, config, store, deep, on_progress)
    held = replace(held, problems=(*_drop_reported(held.problems, audited.problems), *audited.problems))
    unacknowledged = before.waiting if before else 0
    advice: tuple[str, ...] = ()
    if live and before:
        verdict, stored_since, advice = await _compare_live(live, config, store, held, before, recording)
        unacknowledged += len(stored_since)
    else:
        if not held.objects and not held.problems and config.stream not in recording.streams:
            await require_archive(store, config.stream)
        look = partial(archive_picture, live, config, store)
        verdict = compare(held, await read_recorded_report(config, store, recording, look))
    return Check(
        verdict=replace(verdict, unexplained=verdict.unexplained - (accepted or Sequences())),
        held=held,
        stream=config.stream,
        store=store.url,
        deep=deep,
        unacknowledged=unacknowledged,
        gone=natty is not None and before is None,
        recorded=recording.created if before is None and verdict.asked else 0.0,
        uncompared=uncompared,
        notes=audited.notes,
        advice=advice,
        checked_at=began,
        seconds=time.time() - began,
    )


def _drop_reported(problems: Iterable[str], reported: Iterable[str]) -> list[str]:
    """Return the problems of reading the archive without those of documents that the audit already reports."""
    documents = {one.partition(" ")[0] for one in reported}
    return [one for one in dict.fromkeys(problems) if not any(path in one for path in documents)]


async def _check_archive(natty: Natty | None, config: CaptureConfig, store: Store) -> None:
    """Raise NoArchiveError if neither store nor NATS has an archive. One that only NATS has was lost: compare it."""
    if not natty or await holds_archive(store) or not await SWEEP.reader(natty, config.name)():
        await require_archive(store)


# --- the archive -----------------------------------------------------------------------------------------------------


async def _read_holdings(
    natty: Natty | None, config: CaptureConfig, store: Store, deep: bool, on_progress: Progress | None
) -> Holdings:
    """Return what the archive holds of the stream. Reads the entries first, then manifest and table."""

    async def look() -> tuple[list[Stored], Picture]:
        entries, unreadable[:] = await read_entries(store)
        picture = await read_documents(store, *archive_heads(natty, config, store), where=Where(stream=config.stream))
        return [one for one in entries if one.stream == config.stream], picture

    unreadable: list[str] = []
    try:
        entries, picture = await look()
        streams = await read_archive(
            store,
            picture,
            deep=deep,
            pending_entries=entries,
            keys=config.keys(),
            again=look,
            on_progress=on_progress,
            trust=config.trust(),
        )
    except NewerFormatError:
        raise  # it is not known what is stored: nothing is missing, and nothing is proven
    except ManifestError as error:
        return Holdings(problems=(str(error), *unreadable), unread=isinstance(error, DamagedIndexError))
    held = streams.get(config.stream, Holdings())
    return replace(held, problems=(*held.problems, *unreadable, *held.refused))


def archive_heads(natty: Natty | None, config: CaptureConfig, store: Store) -> tuple[HeadReader, HeadReader]:
    """Return readers of the heads of manifest and table: see `newest_readers`."""
    readers = newest_readers(natty, config.name, store)
    return readers[Manifest], readers[Table]


async def archive_picture(natty: Natty | None, config: CaptureConfig, store: Store, where: Where = ALL) -> Picture:
    """Return the archive as last committed, with its objects; without `natty`, by the newest documents in the store."""
    return await read_picture(store, *archive_heads(natty, config, store), where=where)


async def _read_recording(store: Store, heads: HeadReaders | None) -> Recording:
    """Return the archive's newest recording, empty if it can't be read: the audit reports why."""
    try:
        head = await heads[Recording]() if heads else None
        return await read(store, head or await latest_offline(store, Recording), Recording)
    except ManifestError:
        return Recording()


# --- the stream ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """The progress of capture at one time: messages up to `floor` are settled, and `waiting` later ones are not.

    `last` is the stream's last sequence, read earlier; `at` is the time in Unix seconds by the server's clock. `gone`:
    capture's consumer does not exist. Its progress is then the archive's record, if there is one. `no_consumer`:
    capture reads by direct gets, so the archive's set is the progress; messages before `start` are out of its scope.
    `acks_delete`, `accountable`: as in `StreamReport`.
    """

    last: int
    floor: int
    at: float = 0.0
    waiting: int = 0
    delivered: int | None = None
    acks_delete: bool = False
    configurations: tuple[dict[str, Any], ...] = ()
    accountable: int | None = None
    gone: bool = False
    no_consumer: bool = False
    start: int = 1

    @property
    def upto(self) -> int:
        """The last sequence that must be stored."""
        return min(self.last, self.floor) if self.waiting else self.last


async def _read_acknowledged(natty: Natty, config: CaptureConfig, store: Store) -> Acknowledged | None:
    """Return the progress of capture; None if the stream is gone, and the archive knows it.

    CaptureError if it was created again under its name; StreamNotFoundError if neither server nor archive knows it.
    """
    try:
        known = await read_record(store, stream_path(config.stream), Identity)
    except (NotStoredError, ManifestError):  # the audit reports a damaged one
        known = None
    try:
        info = await stream_info(natty, config.stream)
    except StreamNotFoundError:
        if known is None:
            raise
        return None
    if known and known.created != info["created"]:
        raise CaptureError(
            f"the archive in {store.url} is of stream {config.stream} created at {known.created}, but the server's was"
            f" created at {info['created']}: it is another stream. To check only the archive, use --offline"
        )
    last, acks_delete = info["state"]["last_seq"], info["config"]["retention"] != "limits"
    configurations = (info["config"],)
    states = await consumer_states(natty, config)
    scope = None if states else await read_direct_scope(store, config.stream)
    if scope or config.is_direct:
        at, start = server_time(info), scope.start if scope else 1
        return Acknowledged(last=last, floor=last, at=at, configurations=configurations, no_consumer=True, start=start)
    if not states:
        at = server_time(info)
        return Acknowledged(
            last=last, floor=last, at=at, acks_delete=acks_delete, configurations=configurations, gone=True
        )
    position = Position.of(states)
    return Acknowledged(
        last=last,
        floor=position.floor,
        at=max(map(server_time, states)),
        waiting=position.pending + position.unacked,
        delivered=position.delivered,
        acks_delete=acks_delete,
        configurations=configurations,
    )


async def _compare_live(
    natty: Natty,
    config: CaptureConfig,
    store: Store,
    held: Holdings,
    before: Acknowledged,
    recording: Recording,
) -> tuple[Verdict, Sequences, tuple[str, ...]]:
    """Compare with the current stream: messages that left it meanwhile are not missing. Then check what seems missing.

    Are the messages in the archive's scope? Did the consumer, perhaps led by another server, know of them when it
    reported its progress? What does the sweep's leader report about them? Also returns the messages that were stored
    meanwhile, and advice about the missing ones.
    """
    known = (*before.configurations, *list_configurations(recording.streams.get(config.stream)))
    before = replace(before, configurations=known)
    if before.acks_delete:
        look = partial(archive_picture, natty, config, store)
        accountable = await read_accountable(store, config.stream, known, before.at, look)
        before = replace(before, accountable=accountable)
    verdict = compare(held, await _read_report(natty, config, before, recording))
    if not (doubted := verdict.missing - held.lost):
        return verdict, Sequences(), _advice(held, Explained(), doubted, natty.connection.server_version)
    unwanted = await find_out_of_scope(natty, store, config.stream, doubted)
    if doubted.last > before.floor and (now := await _read_acknowledged(natty, config, store)) and now.waiting:
        before = replace(before, waiting=max(1, before.waiting))
    report = replace(await _read_report(natty, config, before, recording), unwanted=unwanted)
    doubted = compare(held, report).missing - held.lost
    said = await explain(natty, store, config, doubted, before.at) if doubted else Explained()
    report = replace(
        await _read_report(natty, config, before, recording), unwanted=unwanted | said.stored, awaited=said.awaited
    )
    verdict = compare(held, report)
    verdict = replace(verdict, unwanted=verdict.unwanted - said.stored)
    return verdict, said.stored, _advice(held, said, verdict.missing - held.lost, natty.connection.server_version)


def _advice(held: Holdings, said: Explained, missing: Sequences, version: Version) -> tuple[str, ...]:
    """Return what to do about missing messages."""
    advice = []
    if missing and held.problems and not held.objects:
        advice.append("the store does not hold the archive that NATS knows: check the store, see docs/moving.md")
    elif missing:
        advice.append(said.advise(version))
    if held.lost:
        advice.append(
            "messages of damaged objects that the stream still has are delivered again to a node with another durable"
        )
    return tuple(advice)


async def _read_report(natty: Natty, config: CaptureConfig, before: Acknowledged, recording: Recording) -> StreamReport:
    state = await stream_state(natty.jetstream, config.stream, deleted=True)
    first = max(1, state["first_seq"])  # a stream that never held a message reports 0, and 0 as deleted
    return StreamReport(
        first=first,
        last=before.upto,
        deleted=Sequences.from_iterable(state.get("deleted") or [])
        | recording.find_deleted(config.stream).within(1, first - 1),
        delivered=before.delivered,
        acks_delete=before.acks_delete,
        limited=has_limits(before.configurations),
        accountable=before.accountable,
        unwanted=Sequences.from_range(1, before.start - 1),
        no_consumer=before.no_consumer,
    )


def _use_recorded(before: Acknowledged, consumers: Mapping[str, Consumer]) -> Acknowledged:
    """Return the progress of capture at the last recording: later messages were perhaps never delivered to it."""
    floor = min(before.last, *(resume(one)[0].stream_seq for one in consumers.values()))
    return replace(before, floor=floor, waiting=before.last - floor)


def _describe_gone(consumers: Iterable[str], before: Acknowledged) -> str:
    return (
        f"capture's consumer {', '.join(consumers)} is gone, and its progress is only known up to sequence"
        f" {before.floor:,}, as recorded. Start a node: it creates the consumer again, and captures the rest"
    )
