from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import msgspec

from capture import chain
from capture.chain import Head, HeadPointer, HeadReader, Retired, current, old_documents
from capture.errors import CompactionError, ConfigError, ManifestError, NotSwept
from capture.manifest import TABLE, Manifest, Stored, table_path
from capture.picture import Picture
from capture.retention import EVERYTHING, Retention
from capture.sequences import Sequences
from capture.stores.contract import Listing, Store
from capture.table import Table, first_table, unforgotten, without

SMALL = 0.75
"""A table file below this part of the target size is merged again when blocks of its bin arrive."""
MERGED = {"parquet", "ndjson"}
"""The formats of blocks that the table takes in. Blocks of others stay as they are: CSV lacks payloads."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One bin, one job, one output file.

    `output` is the path of the table file to write; `exclude` (`Sequences.to_text`) are sequences to leave out because
    the table holds them elsewhere.
    """

    stream: str
    key: str
    interval: int
    inputs: list[Stored]
    output: str
    exclude: str = ""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine made of a group: the file it wrote (None: no row was left), and how many rows it read and dropped.

    `duplicates` counts every dropped row, excluded ones too: `rows_in - duplicates` is the output's count.
    """

    output: Stored | None
    rows_in: int
    duplicates: int


class Engine(Protocol):
    """Who merges: Spark in production, pyarrow in `capture.testing`."""

    async def merge(self, store_url: str, groups: Sequence[Group]) -> list[Merged]:
        """Write each group's output: every sequence of its inputs once, without the excluded ones, ascending."""
        ...


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When blocks are merged, and into files of which size.

    A bin is due with `min_files` blocks, or when its oldest block has waited `max_wait` seconds (0: at once). A run
    takes at most `max_groups`.
    """

    target_bytes: int = 128 * 1024 * 1024
    min_files: int = 5
    max_wait: float = 300.0
    max_groups: int = 16

    def __post_init__(self) -> None:
        if min(self.target_bytes, self.min_files, self.max_groups) < 1 or self.max_wait < 0:
            raise ConfigError(f"a compaction needs sizes of 1 or more and a wait that is not negative: {self}")


@dataclass(frozen=True, kw_only=True)
class CompactReport:
    """What a compaction did; all zero if nothing was due. `head` is the committed one.

    `expired` are table files that retention removed.
    """

    head: Head
    expired: int = 0
    groups: int = 0
    inputs: int = 0
    outputs: int = 0
    rows_in: int = 0
    duplicates: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0


def new_name() -> str:
    """Return 32 hex digits that nobody else has."""
    return uuid4().hex


# --- what is due -----------------------------------------------------------------------------------------------------


def plan(
    picture: Picture,
    policy: Policy,
    *,
    now: float,
    token: int,
    unique: Callable[[], str] = new_name,
    leave: Container[str] = (),
) -> list[Group]:
    """Return what to merge, oldest first; pure but for the names that `unique` gives. Blocks to `leave` are no input.

    Each (stream, sequence) is in the table once, by construction: a group leaves out what table files that it does not
    replace hold, and what an earlier group of the plan takes. Any part of a plan may be carried out without the rest.
    """
    blocks = [one for one in picture.blocks if one.path not in leave]
    bins = _bins(blocks, picture.files, policy, now)
    cuts = [cut for one in bins for cut in _cut(one, policy.target_bytes)]
    tabled = {one.path for one in picture.files}
    due = [cut for cut in cuts if any(one.path not in tabled for one in cut)]
    due.sort(key=lambda cut: (min(one.stored_ns for one in cut if one.path not in tabled), cut[0].path))
    return _exclusive(picture.files, due[: policy.max_groups], token, unique)


def _bins(blocks: Iterable[Stored], files: Iterable[Stored], policy: Policy, now: float) -> list[list[Stored]]:
    """Return the due bins: all blocks of a (stream, key, interval), and its table files that are small."""
    waiting: dict[tuple[str, ...], list[Stored]] = defaultdict(list)
    for one in blocks:
        if one.format in MERGED:
            waiting[_bin(one)].append(one)
    due = {name: inputs for name, inputs in waiting.items() if _is_due(inputs, policy, now)}
    for one in files:
        if _bin(one) in due and one.bytes < SMALL * policy.target_bytes:
            due[_bin(one)].append(one)
    return list(due.values())


def _bin(one: Stored) -> tuple[str, ...]:
    """Name the bin, by its partition's folder too: intervals of another length may start at the same time."""
    return one.stream, one.key, str(one.interval), one.path.partition("/")[2].rpartition("/")[0]


def _is_due(blocks: Sequence[Stored], policy: Policy, now: float) -> bool:
    oldest = min(one.stored_ns for one in blocks) / 1e9
    return len(blocks) >= policy.min_files or now - oldest >= policy.max_wait


def _cut(inputs: Iterable[Stored], target_bytes: int) -> list[list[Stored]]:
    """Cut a bin, in order of its sequences, where the target size is reached: one output is never far larger."""
    cuts: list[list[Stored]] = []
    size = 0
    for one in sorted(inputs, key=lambda one: (one.first, one.path)):
        if not cuts or size + one.bytes > target_bytes:
            cuts.append([])
            size = 0
        cuts[-1].append(one)
        size += one.bytes
    return cuts


def _exclusive(
    files: Sequence[Stored], cuts: Sequence[list[Stored]], token: int, unique: Callable[[], str]
) -> list[Group]:
    """Make groups of the cuts, each with the sequences that it must leave out."""
    groups: list[Group] = []
    tabled = {one.path for one in files}
    streams = {cut[0].stream for cut in cuts}
    table = {stream: _held(one for one in files if one.stream == stream) for stream in streams}
    claimed: dict[str, Sequences] = defaultdict(Sequences)
    for cut in cuts:
        first, held = cut[0], _held(cut)
        elsewhere = table[first.stream] - _held(one for one in cut if one.path in tabled)
        exclude = held & (elsewhere | claimed[first.stream])
        claimed[first.stream] |= held - exclude
        groups.append(
            Group(
                stream=first.stream,
                key=first.key,
                interval=first.interval,
                inputs=cut,
                output=table_path(first.path, token, unique()),
                exclude=exclude.to_text(),
            )
        )
    return groups


def _held(objects: Iterable[Stored]) -> Sequences:
    return Sequences.union_of(Sequences.from_text(one.sequences) for one in objects)


# --- what it changes -------------------------------------------------------------------------------------------------


def apply(picture: Picture, groups: Sequence[Group], merged: Sequence[Merged], *, now: float) -> Table:
    """Return the table with the outputs in the place of their inputs; pure.

    Blocks among the inputs are consumed, table files retired, and what the manifest no longer names is forgotten.
    CompactionError if a result doesn't add up with its group, an input is not in the picture, or the table would hold a
    sequence twice.
    """
    if len(groups) != len(merged):
        raise CompactionError(f"{len(groups)} groups were to be merged, {len(merged)} results came back")
    blocks, files = ({one.path: one for one in part} for part in (picture.blocks, picture.files))
    live = blocks | files
    for group, result in zip(groups, merged, strict=True):
        _check_result(group, result)
        for one in group.inputs:
            if live.pop(one.path, None) != one:
                raise CompactionError(f"{one.path} is not in the archive's picture, or has changed")
    outputs = [result.output for result in merged if result.output is not None]
    table = [one for one in picture.files if one.path in live] + outputs
    _check_disjoint(table, {one.stream for one in outputs})
    inputs = [one.path for group in groups for one in group.inputs]
    return msgspec.structs.replace(
        picture.table,
        files=table,
        consumed=[*unforgotten(picture.table, picture.manifest), *(path for path in inputs if path in blocks)],
        retired=[*picture.table.retired, *(Retired(path, now) for path in inputs if path in files)],
        of_manifest=picture.manifest.number,
        created=now,
    )


def _check_result(group: Group, merged: Merged) -> None:
    """Raise CompactionError unless the output holds exactly the group's sequences, and the rows add up."""
    expected = _held(group.inputs) - Sequences.from_text(group.exclude)
    rows = sum(one.count for one in group.inputs)
    wrong: list[str] = []
    if merged.rows_in != rows:
        wrong.append(f"{merged.rows_in} rows were read, the inputs have {rows}")
    if merged.rows_in - merged.duplicates != len(expected):
        wrong.append(f"{merged.rows_in} rows less {merged.duplicates} duplicates are not {len(expected)} sequences")
    if merged.output is None:
        wrong += [f"nothing was written for sequences {expected.describe()}"] if expected else []
    else:
        wrong += _differences(group, merged.output, expected)
    if wrong:
        raise CompactionError(
            f"the merge into {group.output} doesn't add up, nothing was committed: {'; '.join(wrong)}"
        )


def _differences(group: Group, output: Stored, expected: Sequences) -> list[str]:
    if not expected:
        return ["a file was written for no sequence"]
    wanted = (group.output, group.stream, group.key, group.interval, expected.first, expected.last, len(expected))
    found = (output.path, output.stream, output.key, output.interval, output.first, output.last, output.count)
    wrong = [] if found == wanted else [f"the output is described as {found}, not {wanted}"]
    held = Sequences.from_text(output.sequences)
    if held != expected:
        missing, extra = expected - held, held - expected
        wrong.append(f"sequences missing: {missing.describe()}; too many: {extra.describe()}")
    return wrong


def _check_disjoint(table: Iterable[Stored], streams: set[str]) -> None:
    seen: dict[str, Sequences] = defaultdict(Sequences)
    for one in table:
        if one.stream in streams:
            held = Sequences.from_text(one.sequences)
            if not held.isdisjoint(seen[one.stream]):
                twice = (held & seen[one.stream]).describe()
                raise CompactionError(f"the table would hold sequences {twice} of {one.stream} twice, with {one.path}")
            seen[one.stream] |= held


# --- the run ---------------------------------------------------------------------------------------------------------


async def compact(
    store: Store,
    pointer: HeadPointer,
    manifest_head: HeadReader,
    engine: Engine,
    policy: Policy,
    *,
    now: float,
    grace: float,
    node: str = "",
    unique: Callable[[], str] = new_name,
    retention: Retention = EVERYTHING,
) -> CompactReport:
    """Merge what is due at `now` (Unix seconds), check it, commit it; remove files that no table names, after `grace`.

    Before that, let go of the files that retention removes: without the engine, in a commit of its own.

    A sweep may commit meanwhile: its leader lets go of blocks only where a committed table names them. Fenced if this
    term is over, and CompactionError if the results don't add up; the outputs are then leftovers that a later run
    removes. NotSwept before the sweep's leader has made a manifest.
    """
    elapsed = asyncio.get_running_loop().time
    started = elapsed()
    objects = await store.list(TABLE) + await store.list(Table.FOLDER)  # before the table is read: see _superfluous
    head, picture = await _taken_over(store, pointer, manifest_head, now)
    for path in _superfluous(picture.table, objects, now - grace):
        pointer.check()
        await store.delete(path)
    expired = {one.object.path for one in retention.expired([*picture.blocks, *picture.files], now)}
    kept = without(picture.table, expired, now)
    gone = len(picture.files) - len(kept.files)
    if gone:
        kept = _without_deleted(kept, objects, now - grace)
        head = await chain.commit(store, pointer, head, msgspec.structs.replace(kept, leader=node))
        picture = Picture(picture.manifest, await chain.read(store, head, Table))
    groups = plan(picture, policy, now=now, token=pointer.token, unique=unique, leave=expired)
    if not groups:
        return CompactReport(head=head, expired=gone)
    merged = await engine.merge(store.url, groups)
    await _check_outputs(store, merged)
    seconds = elapsed() - started
    table = _without_deleted(apply(picture, groups, merged, now=now + seconds), objects, now - grace)
    head = await chain.commit(store, pointer, head, msgspec.structs.replace(table, leader=node))
    return _reported(head, groups, merged, seconds, gone)


async def _taken_over(
    store: Store, pointer: HeadPointer, manifest_head: HeadReader, now: float
) -> tuple[Head, Picture]:
    """Return the table under this term's token, and what a manifest that was read later adds to it."""

    async def swept() -> Manifest:
        manifest = await chain.read(store, await manifest_head(), Manifest)
        if manifest.format < Manifest.FORMAT:  # a leader of an earlier version may still be about to change its table
            raise NotSwept
        return manifest

    async def first() -> Table:
        return first_table(await swept())

    head, table = await current(store, pointer, Table, now, first)
    picture = Picture(await swept(), table)
    if not picture.is_whole:  # an answer that lags behind, or a head that its leader has yet to mend
        raise ManifestError(f"manifest {picture.manifest.number} is older than the table: nothing was compacted")
    return head, picture


def _superfluous(table: Table, objects: Listing, before: float) -> list[str]:
    """Return what may be deleted: files that were retired before this time, and those that old that no table names.

    The latter are outputs that were never committed, and never will be: they were listed before the table was read and
    taken over, so whoever wrote them is either deposed by now, or we are, in a run of this term that has failed.
    """
    named = {one.path for part in (table.files, table.retired) for one in part}
    listed = {one.path for one in objects}
    old = [one.path for one in objects if one.path.startswith(TABLE) and one.modified < before]
    return [
        *(one.path for one in table.retired if one.since < before and one.path in listed),
        *(path for path in old if path not in named),
        *old_documents(table, objects, before),
    ]


def _without_deleted(table: Table, objects: Listing, before: float) -> Table:
    """Forget retired files that were gone when the objects were listed."""
    listed = {one.path for one in objects}
    retired = [one for one in table.retired if one.since >= before or one.path in listed]
    return msgspec.structs.replace(table, retired=retired)


async def _check_outputs(store: Store, merged: Iterable[Merged]) -> None:
    """Raise CompactionError unless every output lies in the store, with the size that was reported."""
    for output in (one.output for one in merged if one.output is not None):
        sizes = {one.path: one.bytes for one in await store.list(output.path)}
        if sizes.get(output.path) != output.bytes:
            raise CompactionError(
                f"{output.path} has {sizes.get(output.path, 'no')} bytes in {store.url}, not the {output.bytes} "
                f"reported; nothing was committed"
            )


def _reported(
    head: Head, groups: Sequence[Group], merged: Sequence[Merged], seconds: float, expired: int
) -> CompactReport:
    inputs = [one for group in groups for one in group.inputs]
    outputs = [one.output for one in merged if one.output is not None]
    return CompactReport(
        head=head,
        expired=expired,
        groups=len(groups),
        inputs=len(inputs),
        outputs=len(outputs),
        rows_in=sum(one.rows_in for one in merged),
        duplicates=sum(one.duplicates for one in merged),
        bytes_in=sum(one.bytes for one in inputs),
        bytes_out=sum(one.bytes for one in outputs),
        seconds=seconds,
    )
