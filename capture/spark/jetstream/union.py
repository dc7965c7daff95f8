"""A batch over archive and stream: the driver decides which task reads which messages, from exact sets."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from capture.archive.encryption import VARIABLE, Keys
from capture.archive.identity import archive_name
from capture.archive.manifest import Stored, is_encrypted
from capture.archive.sequences import MAXIMUM, Sequences
from capture.config.settings import CaptureConfig
from capture.errors import DataLossError, KeyMissingError, NoArchiveError
from capture.reading.merge import GoneError, make_look, merge_shares
from capture.reading.read import identity_of
from capture.reading.search import CapturedStream, Search
from capture.reading.shares import Selection, Share, narrow, shares
from capture.reading.stream_range import StreamFacts
from capture.reading.tail import Tail, read_tail, take_snapshot
from capture.spark.jetstream.source_options import ReadOptions
from capture.spark.jetstream.splits import LEAVE, MAX_RANGES, RANGE
from capture.stores import open_store
from natty import Natty
from natty.config.units import parse_time, write_count

TASK_BYTES = 64 << 20
"""Stored bytes of a task, if the number of partitions is not given: some seconds' work."""

log = logging.getLogger("capture.spark.jetstream")


@dataclass(frozen=True)
class ArchivePart(InputPartition):
    """Messages that the archive gives: of each object its record, and the sequences that are given and withheld."""

    created: str
    shares: list[tuple[bytes, str, str]]

    def __repr__(self) -> str:
        return f"ArchivePart({len(self.shares)} objects)"


@dataclass(frozen=True)
class TailPart(InputPartition):
    """Messages that only the stream held when the query was planned."""

    created: str
    stream: StreamFacts
    wanted: str
    settled: int

    def __repr__(self) -> str:
        return f"TailPart({self.stream.name}, {Sequences.from_text(self.wanted).describe()})"


async def plan_union(natty: Natty, options: ReadOptions) -> list[InputPartition]:
    """Return the tasks of a batch. Together they read each message of archive and stream once.

    ConfigError, NoArchiveError; CaptureError if the stream is not the captured one.
    """
    try:
        created = (await identity_of(open_store(options.archive), options.stream)).created
    except NoArchiveError as error:
        if Path(options.archive).is_absolute() or ":" in options.archive:
            raise
        raise NoArchiveError(
            f"{error}. {options.archive} is relative to the working folder of Spark's processes: give the whole path"
        ) from error
    captured = await _find_captured(natty, options, created)
    snapshot = await take_snapshot([captured], captured.look, _warn_missing)
    selection = _selection(options)
    if captured.keys is None and (sealed := next(filter(is_encrypted, snapshot.objects), None)):
        raise KeyMissingError(f"{sealed.path} is encrypted, and there are no keys: give keyFile, or set {VARIABLE}")
    parts: list[InputPartition] = [
        ArchivePart(created, list(map(_pack, some)))
        for some in group(shares(snapshot.objects, selection), options.partitions)
    ]
    for tail in snapshot.tails:
        wanted = selection.among(tail.wanted)
        for some in split(wanted, options.partitions):
            parts.append(TailPart(created, tail.stream, some.to_text(), tail.search.settled))
    return parts


async def read_part(
    natty: Natty, options: ReadOptions, columns: Sequence[str], part: ArchivePart | TailPart
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the messages of a task that are selected, with these columns. Raises as `tail.read_tail` does.

    DataLossError if messages left the stream and were not captured; with `failOnDataLoss` false it logs that.
    """
    selection, captured = _selection(options), await _find_captured(natty, options, part.created)
    needed = list(dict.fromkeys([*columns, "sequence", *sorted(selection.columns)]))
    if isinstance(part, ArchivePart):
        batches = _read_archive(captured, list(map(_unpack, part.shares)), needed)
    else:
        search = Search(captured, part.settled)
        tail = Tail(captured, part.stream, Sequences.from_text(part.wanted), search)
        batches = read_tail(tail, columns=needed, on_gap=_fail if options.fail_on_data_loss else _warn)
    async with aclosing(batches):
        async for batch in batches:
            if len(some := selection.of(batch)):
                yield some.select(list(columns))


def group(plan: Sequence[Share], wanted: int = 0) -> Iterator[list[Share]]:
    """Yield neighbouring shares in about `wanted` groups, or in groups of about TASK_BYTES, at most MAX_RANGES."""
    whole = sum(share.stored.bytes for share in plan)
    most = whole / wanted if wanted else max(TASK_BYTES, whole / MAX_RANGES)
    some: list[Share] = []
    size = 0
    for share in plan:
        if some and size + share.stored.bytes > most:
            yield some
            some, size = [], 0
        some.append(share)
        size += share.stored.bytes
    if some:
        yield some


def split(wanted: Sequences, count: int = 0) -> Iterator[Sequences]:
    """Yield these sequences in about `count` parts, or in parts of RANGE, at most MAX_RANGES."""
    number = min(len(wanted), count or min(MAX_RANGES, -(-len(wanted) // RANGE)))
    cuts = [wanted.at(len(wanted) * one // number) for one in range(number)]
    for first, after in pairwise([*cuts, MAXIMUM]):
        yield wanted.within(first, after - 1)


async def _find_captured(natty: Natty, options: ReadOptions, created: str) -> CapturedStream:
    store = open_store(options.archive)
    name = await archive_name(store)
    return CapturedStream(
        store=store,
        look=make_look(store, options.stream, natty=natty, archive=name),
        natty=natty,
        config=CaptureConfig(stream=options.stream, durable=options.durable),
        created=created,
        keys=Keys.load(options.key_file),
    )


async def _read_archive(
    captured: CapturedStream, plan: list[Share], columns: Sequence[str]
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield these shares. An object that was compacted and deleted meanwhile is read from the table."""
    left, search = Sequences.union_of(share.given for share in plan), Search(captured)
    while left:
        try:
            async with aclosing(merge_shares(captured.store, plan, keys=captured.keys, columns=columns)) as batches:
                async for batch in batches:
                    yield batch
                    left -= Sequences.from_iterable(batch.column("sequence").to_pylist())
            return
        except GoneError as gone:
            search.note_deleted(gone.path)
            plan = narrow(shares(await search.look(left.first, left.last)), left)


def _selection(options: ReadOptions) -> Selection:
    return Selection(
        start_sequence=options.start_sequence or 1,
        end_sequence=options.end_sequence or MAXIMUM,
        since_ns=parse_time(options.start_time) if options.start_time else None,
        subjects=(options.subject,) if options.subject else (),
    )


def _pack(share: Share) -> tuple[bytes, str, str]:
    record = msgspec.json.encode(msgspec.structs.replace(share.stored, sequences=b""))
    return record, share.given.to_text(), share.withheld.to_text()


def _unpack(packed: tuple[bytes, str, str]) -> Share:
    record, given, withheld = packed
    return Share(msgspec.json.decode(record, type=Stored), Sequences.from_text(given), Sequences.from_text(withheld))


def _warn_missing(stream: str) -> None:
    log.warning("stream %s does not exist any more: its messages are the archive's alone", stream)


def _say(stream: str, gone: Sequences) -> str:
    count, were = write_count(len(gone), "message"), "was" if len(gone) == 1 else "were"
    return f"{count} left stream {stream} while it was read, and {were} not captured: {gone.describe()}"


def _warn(stream: str, gone: Sequences) -> None:
    log.warning("%s", _say(stream, gone), extra={"action": "data_loss"})


def _fail(stream: str, gone: Sequences) -> None:
    raise DataLossError(f"{_say(stream, gone)}; {LEAVE}")
