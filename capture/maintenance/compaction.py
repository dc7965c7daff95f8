"""Runs a compaction: plan, merge, check, commit. Inputs are replaced only if the results add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, Retired, old_documents
from capture.archive.iceberg_state import ICEBERG
from capture.archive.index.contents import find_orphans, read_paths
from capture.archive.index.page import place_of
from capture.archive.manifest import TABLE, Manifest, Removed, Stored
from capture.archive.picture import Picture
from capture.archive.retention import EVERYTHING, Retention, sum_up
from capture.archive.retired_pages import RETIRED, RetiredPage, read_retired
from capture.archive.sequences import Sequences
from capture.archive.table import Table, list_still_named, without
from capture.errors import CompactionError
from capture.maintenance.compaction_input import read_input
from capture.maintenance.compaction_plan import Policy, find_held, find_held_by_stream, plan
from capture.maintenance.engine import Engine, FileGroup, Merged, Part
from capture.maintenance.read_back import Check, read_back
from capture.maintenance.schedule import AT_ONCE, Schedule
from capture.maintenance.table_commits import TableCommits, TableLeading
from capture.stores.contract import Listing, Store
from capture.stores.own_store import opening_url
from natty.config.units import write_count

MOST_DELETED = 20_000
"""Objects that a run deletes before it merges, in less than a minute; the next run deletes more."""


@dataclass(frozen=True, kw_only=True)
class CompactReport:
    """The result of a compaction; all zero if nothing was due. `head` is the committed one.

    `expired` counts table files that retention removed. `failed` says why file groups could not be merged: their blocks
    stay, and the results of the other groups are committed. `conflicts` counts, by column, values that did not fit the
    table's type. `files` is the number of the table's files.
    """

    head: Head
    files: int = 0
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
        counted = {name: value for name, value in vars(self).items() if isinstance(value, int | float)}
        counts = {name: value + getattr(other, name) for name, value in counted.items()} | {"files": other.files}
        conflicts = dict(Counter(self.conflicts) + Counter(other.conflicts))
        return replace(self, head=other.head, failed=other.failed or self.failed, conflicts=conflicts, **counts)


# --- the change of the table -----------------------------------------------------------------------------------------


def apply(
    picture: Picture,
    groups: Sequence[FileGroup],
    merged: Sequence[Merged],
    *,
    now: float,
    held: Mapping[str, Sequences] | None = None,
) -> Table:
    """Return the table with the outputs in place of their inputs; pure. `held` as in `plan`.

    Blocks among the inputs become consumed, table files retired. Consumed blocks that the manifest no longer names are
    forgotten. CompactionError if a result doesn't add up with its group, an input is not in the picture, or the table
    would hold a sequence twice.
    """
    if len(groups) != len(merged):
        raise CompactionError(
            f"{write_count(len(groups), 'group', 'was', 'were')} sent to the merge, and "
            f"{write_count(len(merged), 'result', 'was', 'were')} returned"
        )
    blocks, files = ({one.path: one for one in part} for part in (picture.blocks, picture.files))
    live = blocks | files
    for group, result in zip(groups, merged, strict=True):
        _check_result(group, result)
        for one in group.inputs:
            if live.pop(one.path, None) != one:
                raise CompactionError(f"{one.path} is not in the archive's picture, or has changed")
    outputs = [output for result in merged for output in result.outputs]
    table = [one for one in picture.files if one.path in live] + outputs
    held = find_held_by_stream(picture.files) if held is None else held
    _check_disjoint(outputs, [files[path] for path in files if path not in live], held)
    inputs = [one.path for group in groups for one in group.inputs]
    return msgspec.structs.replace(
        picture.table,
        files=table,
        consumed=[
            *list_still_named(picture.table, picture.manifest),
            *(place_of(blocks[path]) for path in inputs if path in blocks),
        ],
        retired=[*picture.table.retired, *(Retired(path, now) for path in inputs if path in files)],
        of_manifest=max(picture.table.of_manifest, picture.manifest.number),
        removed=_drop_summed_up(_add_repeated(picture.table.removed, groups, merged, now), picture.manifest, now),
        columns=_combine_columns(picture.table.columns, groups, merged),
        created=now,
    )


def _combine_columns(table: str, groups: Sequence[FileGroup], merged: Sequence[Merged]) -> str:
    """Return the table's typed columns with those of the results. CompactionError if they have other types.

    Fresh commits may have added columns since the merge began.
    """
    found = next((one.columns for one in merged if one.columns), "")
    if not found or all(one.columns == table for one in groups):
        return found or table
    from capture.maintenance.merge.schema_evolution import unite

    if (both := unite(table, found)) is None:
        raise CompactionError("a column got another type while the merge ran: nothing was committed, it runs again")
    return both


def _check_result(group: FileGroup, merged: Merged) -> None:
    """Raise CompactionError unless the outputs hold exactly the file group's sequences, and the rows add up."""
    repeated = Sequences.from_text(merged.repeated)
    wanted = group.wanted
    expected = wanted - repeated
    wrong: list[str] = []
    if repeated - wanted or (repeated and group.distinct != "message_id"):
        wrong.append(f"sequences {repeated.describe()} were left out for their message ids")
    if merged.rows_in != group.rows:
        wrong.append(f"{write_count(merged.rows_in, 'row', 'was', 'were')} read, the inputs have {group.rows}")
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
    held = Sequences.from_bytes(output.sequences)
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


def _check_disjoint(outputs: Iterable[Stored], gone: Iterable[Stored], held: Mapping[str, Sequences]) -> None:
    """Raise CompactionError if an output holds a sequence of a file that stays, or of another output."""
    replaced = find_held_by_stream(gone)
    seen = {stream: of_files - replaced.get(stream, Sequences()) for stream, of_files in held.items()}
    for one in outputs:
        mine, others = Sequences.from_bytes(one.sequences), seen.get(one.stream, Sequences())
        if not mine.isdisjoint(others):
            twice = (mine & others).describe()
            raise CompactionError(f"the table would hold sequences {twice} of {one.stream} twice, with {one.path}")
        seen[one.stream] = others | mine


# --- the run ---------------------------------------------------------------------------------------------------------


async def compact(
    leading: TableLeading,
    engine: Engine,
    policy: Policy,
    *,
    now: float,
    retention: Retention = EVERYTHING,
    schedule: Schedule = AT_ONCE,
    check: Check = read_back,
) -> CompactReport:
    """Merge the file groups that are due at `now` (Unix seconds), check and commit the results.

    First it retires the files that retention removes: without the engine, in a separate commit. A full run lists the
    files, and deletes those that no table has named for the grace. Fresh commits of the same leader may change the
    table while the engine runs.

    A sweep may commit meanwhile: its leader retires blocks only if a committed table names them as consumed.
    FencedError if this term is over. CompactionError if the results don't add up, or the store does not hold them as
    reported; the outputs are then leftovers that a later run removes. A file group that can't be merged is left out and
    reported; CompactionError if no group can be merged. NotSweptError until the sweep's leader has made a manifest.
    """
    store, indexes, full = leading.store, leading.indexes, leading.begin()
    clock, before = leading.start_clock(now), now - leading.grace
    objects = await _list_objects(store, full)
    async with leading.take_turn(clock, anew=True) as commits:
        manifest = await commits.read_manifest()
        if dropped := await commits.find_dropped(manifest):
            await commits.commit(lambda table: table, clock(), hide=dropped)
        table = commits.table
        superfluous = old_documents(table, objects, before)
        moved = await read_retired(store, table.retired_pages) if full else {}
        if full:
            named = table.list_named() | await read_paths(indexes.files, table)
            superfluous += _superfluous(table, named, moved, objects, before)
            superfluous += await find_orphans(indexes.files, table, objects, before)
        # no other commit has begun: see find_orphans
        await chain.delete(store, leading.pointer, superfluous[:MOST_DELETED])
    found = await read_input(indexes, manifest, table, policy, retention, now)
    listed, picture = {one.path for one in objects} if full else None, found.picture
    drop = partial(_drop_deleted, moved=moved, listed=listed, before=before)
    gone = len([one for one in picture.files if one.path in found.expired])
    async with leading.take_turn(clock) as commits:
        commits.table = commits.table.with_listed(picture.files)
        if gone or leading.exposure.is_due(commits.table, now):
            at = clock()
            await commits.commit(lambda table: drop(without(table, found.expired, at), now=at), at)
        picture = Picture(picture.manifest, commits.table)
    moment = schedule.moment(now, found.waiting, found.bytes)
    removed = find_held(one for one in found.picture.files if one.path in found.expired)
    held = {stream: of_files - removed for stream, of_files in found.held.items()}

    def due(leave: Set[str]) -> list[FileGroup]:
        plan_at = partial(plan, picture, policy, now=moment.now, stored_by=moment.stored_by, held=held)
        return plan_at(token=leading.pointer.token, leave=leave | found.expired | found.consumed)

    failed, groups, merged = await _merge_due(engine, opening_url(store), due)
    if groups:
        outputs = [output for one in merged for output in one.outputs]

        def change(table: Table) -> Table:
            at = clock()
            return drop(apply(Picture(picture.manifest, table), groups, merged, now=at, held=held), now=at)

        change(picture.table)  # before the outputs are read
        await check(store, outputs)
        async with leading.take_turn(clock) as commits:
            commits.table = commits.table.with_listed(picture.files)
            await commits.commit(change, clock())
    leading.end(commits.table.index.objects, len(objects) if full else None)
    return _report(commits, groups, merged, clock() - now if groups else 0.0, gone, failed)


async def _list_objects(store: Store, full: bool) -> Listing:
    """List old documents; in a `full` run also what it deletes if no table names it."""
    folders = (TABLE, Table.FOLDER, ICEBERG, Table.PAGES) if full else (Table.FOLDER,)
    return [one for folder in folders for one in await store.list(folder)]  # see _superfluous


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
            raise CompactionError(
                f"{write_count(len(groups), 'group', 'was', 'were')} sent to the merge, and "
                f"{write_count(len(answers), 'result', 'was', 'were')} returned"
            )
        pairs = list(zip(groups, answers, strict=True))
        failed += [f"{group.output} could not be merged: {one.failed}" for group, one in pairs if one.failed]
        sound = [(group, one) for group, one in pairs if not one.failed]
        if sound:
            return failed, [group for group, _ in sound], [one for _, one in sound]
        left_out |= {one.path for group in groups for one in group.inputs}
    if failed:
        raise CompactionError("; ".join(failed))
    return [], [], []


def _superfluous(
    table: Table, named: Set[str], moved: Mapping[RetiredPage, list[str]], objects: Listing, before: float
) -> list[str]:
    """Return the paths to delete: objects retired before this time, and older ones than that which no table names.

    The latter are outputs that no leader has committed or will commit. They were listed before the table was read and
    taken over, so their writer was either deposed by now, or is a failed run of this term. `moved` are the retired
    objects in pages.
    """
    listed = {one.path for one in objects}
    retired = [(one.path, one.since) for one in table.retired]
    retired += [(path, page.since) for page, paths in moved.items() for path in paths]
    old = [one.path for one in objects if one.path.startswith((TABLE, ICEBERG, RETIRED)) and one.modified < before]
    kept = named | {path for path, _ in retired}
    return [
        *(path for path, since in retired if since < before and path in listed),
        *(path for path in old if path not in kept),
    ]


def _drop_deleted(
    table: Table, *, moved: Mapping[RetiredPage, list[str]], listed: Set[str] | None, before: float, now: float
) -> Table:
    """Remove retired objects from the table that did not exist when the store was listed (None: it was not).

    `moved` are those in pages, which were read before the table may have changed. A page is retired when none of its
    objects exists.
    """
    if listed is None:
        return table
    over = [page for page, paths in moved.items() if page.since < before and listed.isdisjoint(paths)]
    retired = [one for one in table.retired if one.since >= before or one.path in listed]
    return msgspec.structs.replace(
        table,
        retired=[*(Retired(one.path, now) for one in over if one in table.retired_pages), *retired],
        retired_pages=[one for one in table.retired_pages if one not in over],
    )


def _report(
    commits: TableCommits,
    groups: Sequence[FileGroup],
    merged: Sequence[Merged],
    seconds: float,
    expired: int,
    failed: list[str],
) -> CompactReport:
    outputs = [output for one in merged for output in one.outputs]
    return CompactReport(
        head=commits.head,
        files=commits.table.index.objects,
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
