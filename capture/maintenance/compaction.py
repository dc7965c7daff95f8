"""Runs a compaction: plan, merge, check, commit. Inputs are replaced only if the results add up."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, HeadPointer, HeadReader, Retired, current, old_documents
from capture.archive.iceberg_state import ICEBERG
from capture.archive.manifest import TABLE, Manifest, Removed, Stored
from capture.archive.picture import Picture
from capture.archive.retention import EVERYTHING, Retention, sum_up
from capture.archive.sequences import Sequences
from capture.archive.table import Exposure, Table, Unexposed, first_table, list_still_named, without
from capture.errors import CompactionError, ManifestError, NotSweptError
from capture.maintenance.compaction_plan import Policy, new_name, plan
from capture.maintenance.engine import Engine, FileGroup, Merged, Part
from capture.maintenance.read_back import Check, read_back
from capture.maintenance.schedule import AT_ONCE, Schedule
from capture.stores.contract import Listing, Store
from capture.stores.own_store import opening_url

MOST_DELETED = 20_000
"""Objects that a run deletes before it merges, in less than a minute; the next run deletes more."""


@dataclass(frozen=True, kw_only=True)
class CompactReport:
    """The result of a compaction; all zero if nothing was due. `head` is the committed one.

    `expired` counts table files that retention removed. `failed` says why file groups could not be merged: their blocks
    stay, and the results of the other groups are committed. `conflicts` counts, by column, values that did not fit the
    table's type.
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
    failed: list[str] = field(default_factory=list)
    conflicts: dict[str, int] = field(default_factory=dict)

    def add(self, other: CompactReport) -> CompactReport:
        """Return the sum of two runs. `failed` is the second run's, or the first one's if that is empty."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, int | float)}
        counts = {name: value + getattr(other, name) for name, value in numbers.items()}
        conflicts = dict(Counter(self.conflicts) + Counter(other.conflicts))
        return replace(self, head=other.head, failed=other.failed or self.failed, conflicts=conflicts, **counts)


# --- the change of the table -----------------------------------------------------------------------------------------


def apply(picture: Picture, groups: Sequence[FileGroup], merged: Sequence[Merged], *, now: float) -> Table:
    """Return the table with the outputs in place of their inputs; pure.

    Blocks among the inputs become consumed, table files retired. Consumed blocks that the manifest no longer names are
    forgotten. CompactionError if a result doesn't add up with its group, an input is not in the picture, or the table
    would hold a sequence twice.
    """
    if len(groups) != len(merged):
        raise CompactionError(f"{len(groups)} groups were sent to the merge, {len(merged)} results were returned")
    blocks, files = ({one.path: one for one in part} for part in (picture.blocks, picture.files))
    live = blocks | files
    for group, result in zip(groups, merged, strict=True):
        _check_result(group, result)
        for one in group.inputs:
            if live.pop(one.path, None) != one:
                raise CompactionError(f"{one.path} is not in the archive's picture, or has changed")
    outputs = [output for result in merged for output in result.outputs]
    table = [one for one in picture.files if one.path in live] + outputs
    _check_disjoint(table, {one.stream for one in outputs})
    inputs = [one.path for group in groups for one in group.inputs]
    return msgspec.structs.replace(
        picture.table,
        files=table,
        consumed=[*list_still_named(picture.table, picture.manifest), *(path for path in inputs if path in blocks)],
        retired=[*picture.table.retired, *(Retired(path, now) for path in inputs if path in files)],
        of_manifest=picture.manifest.number,
        removed=_drop_summed_up(_add_repeated(picture.table.removed, groups, merged, now), picture.manifest, now),
        columns=next((result.columns for result in merged if result.columns), picture.table.columns),
        created=now,
    )


def _check_result(group: FileGroup, merged: Merged) -> None:
    """Raise CompactionError unless the outputs hold exactly the file group's sequences, and the rows add up."""
    repeated = Sequences.from_text(merged.repeated)
    wanted = group.wanted
    expected = wanted - repeated
    wrong: list[str] = []
    if repeated - wanted or (repeated and group.distinct != "message_id"):
        wrong.append(f"sequences {repeated.describe()} were left out for their message ids")
    if merged.rows_in != group.rows:
        wrong.append(f"{merged.rows_in} rows were read, the inputs have {group.rows}")
    if merged.rows_in - merged.duplicates != len(expected):
        wrong.append(f"{merged.rows_in} rows less {merged.duplicates} duplicates are not {len(expected)} sequences")
    outputs = {one.path: one for one in merged.outputs}
    for part in group.parts:
        wrong += _differences(group, part, outputs.pop(part.output, None), expected.within(part.first, part.last))
    wrong += [f"a file {path} was written without a request" for path in outputs]
    if wrong:
        raise CompactionError(
            f"the merge into {group.output} doesn't add up, nothing was committed: {'; '.join(wrong)}"
        )


def _differences(group: FileGroup, part: Part, output: Stored | None, expected: Sequences) -> list[str]:
    if output is None:
        return [f"nothing was written for sequences {expected.describe()}"] if expected else []
    if not expected:
        return ["a file was written for no sequence"]
    wanted = (part.output, group.stream, group.key, group.interval, expected.first, expected.last, len(expected))
    found = (output.path, output.stream, output.key, output.interval, output.first, output.last, output.count)
    wrong = [] if found == wanted else [f"the output is described as {found}, not {wanted}"]
    held = Sequences.from_text(output.sequences)
    if held != expected:
        missing, extra = expected - held, held - expected
        wrong.append(f"sequences missing: {missing.describe()}; too many: {extra.describe()}")
    return wrong


def _add_repeated(
    removed: list[Removed], groups: Sequence[FileGroup], merged: Sequence[Merged], now: float
) -> list[Removed]:
    """Return the record of removals with the messages that were left out for their ids: they are not missing."""
    record = {one.stream: one for one in removed}
    for group, result in zip(groups, merged, strict=True):
        if result.repeated:
            before = record.get(group.stream) or Removed(stream=group.stream, sequences="", objects=0, bytes=0, at=now)
            both = Sequences.from_text(before.sequences) | Sequences.from_text(result.repeated)
            record[group.stream] = msgspec.structs.replace(before, sequences=both.to_text(), at=now)
    return sorted(record.values(), key=lambda one: one.stream)


def _drop_summed_up(removed: list[Removed], manifest: Manifest, now: float) -> list[Removed]:
    """Return the record without the exact sequences that the manifest has summed up."""
    below, recorded = {one.stream: one.below for one in manifest.removed}, {one.stream for one in removed}
    return sum_up(removed, {stream: first for stream, first in below.items() if stream in recorded}, now)


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
    exposure: Exposure | None = None,
    schedule: Schedule = AT_ONCE,
    check: Check = read_back,
) -> CompactReport:
    """Merge the file groups that are due at `now` (Unix seconds), check and commit the results.

    First it deletes files that no table has named for `grace`, and retires the files that retention removes: without
    the engine, in a separate commit.

    A sweep may commit meanwhile: its leader retires blocks only if a committed table names them as consumed.
    FencedError if this term is over. CompactionError if the results don't add up, or the store does not hold them as
    reported; the outputs are then leftovers that a later run removes. A file group that can't be merged is left out and
    reported; CompactionError if no group can be merged. NotSweptError until the sweep's leader has made a manifest.
    """
    elapsed = asyncio.get_running_loop().time
    started = elapsed()
    commits = _Commits(store, pointer, exposure or Unexposed(), node)
    objects = [one for folder in (TABLE, Table.FOLDER, ICEBERG) for one in await store.list(folder)]  # see _superfluous
    commits.head, picture = await _take_over(store, pointer, manifest_head, now)
    await commits.exposure.announce(store, picture.table)
    await chain.delete(store, pointer, _superfluous(picture.table, objects, now - grace)[:MOST_DELETED])
    expired = {one.object.path for one in retention.find_expired([*picture.blocks, *picture.files], now)}
    kept = without(picture.table, expired, now)
    gone = len(picture.files) - len(kept.files)
    if gone or commits.exposure.is_due(kept, now):
        kept = await commits.commit(_drop_deleted(kept, objects, now - grace), now)
        picture = Picture(picture.manifest, kept)
    moment = schedule.moment(now, picture.blocks)

    def due(leave: Set[str]) -> list[FileGroup]:
        plan_at = partial(plan, picture, policy, now=moment.now, stored_by=moment.stored_by)
        return plan_at(token=pointer.token, unique=unique, leave=leave | expired)

    failed, groups, merged = await _merge_due(engine, opening_url(store), due)
    if not groups:
        return _report(commits.head, [], [], 0.0, gone, [])
    table = apply(picture, groups, merged, now=now + elapsed() - started)
    await check(store, [output for one in merged for output in one.outputs])
    await commits.commit(_drop_deleted(table, objects, now - grace), now + elapsed() - started)
    return _report(commits.head, groups, merged, elapsed() - started, gone, failed)


@dataclass
class _Commits:
    """Commits the tables of a run, one after the other; `head` is the last one."""

    store: Store
    pointer: HeadPointer
    exposure: Exposure
    node: str
    head: Head | None = None

    async def commit(self, table: Table, now: float) -> Table:
        """Commit the table, with its metadata for other engines; return it as committed. FencedError."""
        exposed = await self.exposure.expose(self.store, table, token=self.pointer.token, now=now)
        leading = msgspec.structs.replace(exposed, leader=self.node)
        self.head = await chain.commit(self.store, self.pointer, self.head, leading)
        committed = await chain.read(self.store, self.head, Table)
        await self.exposure.announce(self.store, committed)
        return committed


async def _merge_due(
    engine: Engine, store_url: str, due: Callable[[Set[str]], list[FileGroup]]
) -> tuple[list[str], list[FileGroup], list[Merged]]:
    """Merge the file groups that are due. Return the reasons of failures, the merged file groups, and their results.

    If all groups of a run fail, it plans again without their inputs, so that groups that always fail don't block the
    others. CompactionError if there are no others.
    """
    failed: list[str] = []
    left_out: set[str] = set()
    while groups := due(left_out):
        answers = await engine.merge(store_url, groups)
        if len(groups) != len(answers):
            raise CompactionError(f"{len(groups)} groups were sent to the merge, {len(answers)} results were returned")
        pairs = list(zip(groups, answers, strict=True))
        failed += [f"{group.output} could not be merged: {one.failed}" for group, one in pairs if one.failed]
        sound = [(group, one) for group, one in pairs if not one.failed]
        if sound:
            return failed, [group for group, _ in sound], [one for _, one in sound]
        left_out |= {one.path for group in groups for one in group.inputs}
    if failed:
        raise CompactionError("; ".join(failed))
    return [], [], []


async def _take_over(store: Store, pointer: HeadPointer, manifest_head: HeadReader, now: float) -> tuple[Head, Picture]:
    """Return the table under this term's token, and a picture with a manifest that was read after it."""

    async def swept() -> Manifest:
        manifest = await chain.read(store, await manifest_head(), Manifest)
        if manifest.format < Manifest.FORMAT:  # a leader of an earlier version may still change its table
            raise NotSweptError
        return manifest

    async def first() -> Table:
        return first_table(await swept())

    head, table = await current(store, pointer, Table, now, first)
    picture = Picture(await swept(), table)
    if not picture.is_whole:  # a stale answer, or a head that its leader has not repaired yet
        raise ManifestError(f"manifest {picture.manifest.number} is older than the table: nothing was compacted")
    return head, picture


def _superfluous(table: Table, objects: Listing, before: float) -> list[str]:
    """Return the paths to delete: files retired before this time, and files older than that which no table names.

    The latter are outputs that no leader has committed or will commit. They were listed before the table was read and
    taken over, so their writer was either deposed by now, or is a failed run of this term.
    """
    named = table.list_named()
    listed = {one.path for one in objects}
    old = [one.path for one in objects if one.path.startswith((TABLE, ICEBERG)) and one.modified < before]
    return [
        *(one.path for one in table.retired if one.since < before and one.path in listed),
        *(path for path in old if path not in named),
        *old_documents(table, objects, before),
    ]


def _drop_deleted(table: Table, objects: Listing, before: float) -> Table:
    """Remove retired files from the table that did not exist when the objects were listed."""
    listed = {one.path for one in objects}
    retired = [one for one in table.retired if one.since >= before or one.path in listed]
    return msgspec.structs.replace(table, retired=retired)


def _report(
    head: Head | None,
    groups: Sequence[FileGroup],
    merged: Sequence[Merged],
    seconds: float,
    expired: int,
    failed: list[str],
) -> CompactReport:
    assert head is not None
    outputs = [output for one in merged for output in one.outputs]
    return CompactReport(
        head=head,
        expired=expired,
        groups=len(groups),
        inputs=sum(len(group.inputs) for group in groups),
        outputs=len(outputs),
        rows_in=sum(one.rows_in for one in merged),
        duplicates=sum(one.duplicates for one in merged),
        bytes_in=sum(group.bytes for group in groups),
        bytes_out=sum(one.bytes for one in outputs),
        seconds=seconds,
        failed=failed,
        conflicts=dict(sum((Counter(one.conflicts) for one in merged), Counter[str]())),
    )
