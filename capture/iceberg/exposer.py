"""Keeps an Iceberg table for each stream: its metadata is written before the archive's commit, and announced after."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from uuid import UUID

import msgspec
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from capture.archive.chain import Retired
from capture.archive.iceberg_state import (
    Expiry,
    Exposable,
    Iceberg,
    Snapshot,
    archive_location,
    folder,
    hint_path,
    list_expired,
    version_path,
    without,
)
from capture.archive.manifest import Stored, is_block
from capture.archive.stored_formats import is_open
from capture.archive.table import Exposed, Table, TableChange
from capture.errors import CompactionError, ManifestError, NotStoredError
from capture.iceberg.derived_columns import name_as, without_unknown_specs
from capture.iceberg.facts import Facts, data_file, fit, read_facts
from capture.iceberg.manifest_list import Listed, read_list
from capture.iceberg.manifest_plan import LARGEST, list_holding, list_to_merge
from capture.iceberg.memory_catalog import MemoryFiles, one_file
from capture.iceberg.position_deletes import mask
from capture.iceberg.shapes import Shape, partition_types, shape_of
from capture.iceberg.snapshot import Added, NewFile, NewSnapshot, Opened, without_snapshots
from capture.maintenance.compaction_plan import new_name
from capture.maintenance.merge.schema_evolution import read_columns, write_columns
from capture.stores.contract import Store
from capture.stores.recent import Recent
from natty.wire.background import map_concurrently

AT_ONCE = 16
"""Objects that are read concurrently."""

log = logging.getLogger("capture.iceberg.exposer")


@dataclass(frozen=True)
class _StreamChange(TableChange[Exposed]):
    """The part of a commit that is about one stream."""

    stream: str

    @cached_property
    def shape(self) -> Shape:
        """What the stream's table is like."""
        return shape_of(self.table.layout(self.stream))


class Exposer:
    """Maintains an Iceberg table for each stream of an archive, or for each pipeline, with the files that it has.

    `rule` limits the age of snapshots. `node` and the term's token are in the summary of each snapshot.
    """

    def __init__(
        self, store: Store, rule: Expiry | None = None, *, node: str = "", unique: Callable[[], str] = new_name
    ) -> None:
        self._store = store
        self._rule = rule or Expiry()
        self._base = archive_location(store, self._rule.location)
        self._node = node
        self._unique = unique
        self._recent = Recent[tuple[str, str | None]]()  # Iceberg's files by path and SHA-256
        self._lists: dict[str, tuple[str, list[Listed]]] = {}
        self._evolved: dict[str, tuple[UUID, int, int, Shape]] = {}
        self._facts: dict[tuple[str, bytes], Facts] = {}  # by path and sequences
        self._checked: set[str] = set()
        self._damaged: set[str] = set()

    def __repr__(self) -> str:
        return f"Exposer({self._base!r}, {self._rule!r})"

    def is_due(self, table: Exposable, now: float) -> bool:
        """Return whether a stream has no Iceberg table yet, a damaged one, one elsewhere, or expired snapshots."""
        return not table.list_open() <= table.iceberg.keys() or any(
            stream in self._damaged
            or one.location != self._place(stream)
            or list_expired(one.snapshots, self._rule, now)
            for stream, one in table.iceberg.items()
        )

    async def expose(self, change: TableChange[Exposed]) -> Exposed:
        """Write manifests and metadata of each stream whose files or snapshots change. Return the table with them."""
        table = change.table
        for stream in sorted(table.iceberg.keys() | table.list_open()):
            came, gone = (
                [one for one in part if one.stream == stream and is_open(one.format)]
                for part in (change.came, change.gone)
            )
            table = await self._expose_stream(
                _StreamChange(
                    table, came, gone, change.files, change.token, change.now, stream, same_rows=change.same_rows
                )
            )
        return table

    async def list_fitting(self, table: Table, blocks: Sequence[Stored]) -> tuple[list[Stored], str]:
        """Return the blocks whose columns the table has or can get, and whose rows can be masked; and its columns then.

        What was read of them is kept for `expose`, and for the next call with some of them.
        """
        columns, footers = read_columns(table.columns), {one: it.footer for (one, _), it in self._facts.items()}

        async def read(one: Stored) -> Facts | None:
            try:
                return await read_facts(self._store, one, footers.get(one.path))
            except (CompactionError, NotStoredError) as error:  # the merge reports it
                log.debug("%s is not shown: %s", one.path, error)
                return None

        self._facts, found, wider = {}, list[Stored](), columns
        for one, facts in zip(blocks, await map_concurrently(blocks, read, at_once=AT_ONCE), strict=True):
            if facts and (fitting := fit(facts.footer, wider)) is not None:
                self._facts[one.path, one.sequences], wider = facts, fitting
                found.append(one)
        return found, table.columns if wider.equals(columns) else write_columns(wider)

    async def _read_facts(self, files: Sequence[Stored]) -> list[Facts]:
        async def read(one: Stored) -> Facts:
            return self._facts.get((one.path, one.sequences)) or await read_facts(self._store, one)

        return await map_concurrently(files, read, at_once=AT_ONCE)

    async def announce(self, table: Exposable, *, check: Callable[[], None] = lambda: None) -> None:
        """Write two objects for readers without a catalog: a copy of the metadata under its number, then the number.

        The first call checks for each stream that all of Iceberg's files exist. If not, `is_due` returns True. `check`
        is called before each write, and raises FencedError if a successor may have written later ones.
        """
        for stream, one in table.iceberg.items():
            if stream not in self._checked or stream in self._damaged:
                await self._check_objects(stream, one)
            hint = str(one.number).encode()
            if stream in self._damaged or await _read_if_stored(self._store, hint_path(stream)) == hint:
                continue
            try:
                data = await self._read(one.metadata, one.sha256)
            except (ManifestError, NotStoredError) as error:
                self._report_damage(stream, one, error)
                continue
            for path, content in ((version_path(stream, one.number), data), (hint_path(stream), hint)):
                check()
                await self._store.put(path, content, if_absent=False)

    async def _check_objects(self, stream: str, exposed: Iceberg) -> None:
        listed = {one.path for one in await self._store.list(f"{folder(stream)}/")}
        missing = sorted(exposed.objects().keys() - listed)
        self._checked.add(stream)
        self._damaged.discard(stream)
        if missing:
            self._report_damage(stream, exposed, f"{missing[0]} is missing")

    def _report_damage(self, stream: str, exposed: Iceberg, reason: object) -> None:
        self._damaged.add(stream)
        log.error(
            "the Iceberg table in %s is created again, without its history: %s",
            exposed.location,
            reason,
            extra={"action": "iceberg_anew"},
        )

    def _place(self, stream: str) -> str:
        return f"{self._base}/{folder(stream)}"

    def _path(self, location: str) -> str:
        return location.removeprefix(f"{self._base}/")

    def _locate(self, one: Stored) -> str:
        return f"{self._base}/{one.path}"

    async def _expose_stream(self, change: _StreamChange[Exposed]) -> Exposed:
        """Return the table with this stream's new pointer; retire objects that are not needed any more.

        The archive's own documents are the authority: if Iceberg's are missing or changed, they are made again.
        """
        before = change.table.iceberg.get(change.stream)
        if before and before.location == self._place(change.stream) and change.stream not in self._damaged:
            expired = list_expired(before.snapshots, self._rule, change.now)
            if not (change.came or change.gone or expired):
                return change.table
            facts = await self._read_facts(change.came)
            try:
                return await self._continue(change, before, facts)
            except (ManifestError, NotStoredError) as error:
                self._report_damage(change.stream, before, error)
        return await self._start_anew(change, before)

    async def _continue(self, change: _StreamChange[Exposed], before: Iceberg, facts: Sequence[Facts]) -> Exposed:
        """Return the table with a new snapshot if files came or went, and without the expired ones."""
        metadata = TableMetadataUtil.parse_raw((await self._read(before.metadata, before.sha256)).decode())
        known, snapshots = metadata, before.snapshots
        if change.came or change.gone:
            metadata, snapshots = await self._add_snapshot(change, before, metadata, facts)
        if metadata is not known and change.shape.renames(known, metadata):
            expired = [one.id for one in snapshots[:-1]]
        else:
            expired = list_expired(snapshots, self._rule, change.now)
        left, let_go = without(snapshots, expired)
        metadata = without_unknown_specs(without_snapshots(metadata, expired))
        let_go += [before.metadata, version_path(change.stream, before.number)]
        return await self._write_pointer(change, metadata, left, let_go)

    async def _add_snapshot(
        self, change: _StreamChange[Exposed], before: Iceberg, metadata: TableMetadata, facts: Sequence[Facts]
    ) -> tuple[TableMetadata, list[Snapshot]]:
        """Return the metadata and the snapshots with a new one. Opens only the manifests that this commit touches."""
        current, files = metadata.current_snapshot(), MemoryFiles()
        assert current is not None, before
        opened = await self._open(change, before, metadata, current.manifest_list)
        gone = frozenset(self._locate(one) for one in change.gone)

        def write() -> Added:
            evolved = self._evolve(change, metadata, files)
            types = {**partition_types(metadata), **partition_types(evolved)}
            new = NewSnapshot(evolved, files, self._unique)
            new.change(replace(opened, types=types), self._describe(change, evolved, files, change.came, facts), gone)
            covered = change.shape.cover(evolved, (one.footer for one in facts))
            added = new.finish(change.now, self._summary(change), same_rows=change.same_rows)
            return replace(added, metadata=name_as(added.metadata, covered))

        added = await asyncio.to_thread(write)  # in a thread: it takes a second for thousands of files
        old, named = ({one.manifest.manifest_path for one in part} for part in (opened.manifests, added.manifests))
        dropped = {self._path(one) for one in (*added.removed, *(old - named), current.manifest_list)}
        dropped -= {one.path for one in change.came}  # a block that stays, with other rows masked
        last = msgspec.structs.replace(before.snapshots[-1], dropped=sorted(dropped))
        objects = await self._put_all(files)
        self._remember(change.stream, added)
        stay = {one.path for one in change.gone}
        new = self._describe_snapshot(change, added, objects, [one for one in change.came if one.path not in stay])
        return added.metadata, [*before.snapshots[:-1], last, new]

    def _describe_snapshot(
        self, change: _StreamChange[Exposed], added: Added, objects: dict[str, str], came: Iterable[Stored]
    ) -> Snapshot:
        """Return the record of a new snapshot."""
        return Snapshot(
            id=added.snapshot_id,
            made=change.now,
            objects=objects,
            came=[one.path for one in came if is_block(one.path)],
            is_brief=change.table.is_brief(change.stream),
        )

    def _remember(self, stream: str, added: Added) -> None:
        """Keep the list of a new snapshot in memory. Its name is unique: it is used only if it is committed."""
        current = added.metadata.current_snapshot()
        assert current is not None
        self._lists[stream] = (current.manifest_list, added.manifests)

    def _evolve(self, change: _StreamChange[Exposed], metadata: TableMetadata, files: MemoryFiles) -> TableMetadata:
        """Return the metadata with the table's columns; the last result is remembered, as this takes milliseconds."""

        def ids(one: TableMetadata) -> tuple[UUID, int, int, Shape]:
            return (one.table_uuid, one.current_schema_id, one.default_spec_id, change.shape)

        if self._evolved.get(change.stream) != ids(metadata):
            metadata = change.shape.evolve(metadata, files)
            self._evolved[change.stream] = ids(metadata)
        return metadata

    async def _open(
        self, change: _StreamChange[Exposed], before: Iceberg, metadata: TableMetadata, manifest_list: str
    ) -> Opened:
        """Read the manifest list, the manifests that may hold a file that goes, and small ones that are merged."""
        digests = before.objects()

        async def read(location: str) -> bytes:
            path = self._path(location)
            return await self._read(path, digests.get(path))

        known, listed = self._lists.get(change.stream, ("", []))
        if known != manifest_list:
            data = await read(manifest_list)
            listed = await asyncio.to_thread(read_list, data)
        manifests = [one.manifest for one in listed]
        holding = list_holding(manifests, change.gone, change.shape, partition_types(metadata))
        merge = list_to_merge(one for one in manifests if one not in holding)
        paths = [one.manifest_path for one in (*holding, *merge)]
        content = await map_concurrently(paths, read, at_once=AT_ONCE)
        return Opened(listed, dict(zip(paths, content, strict=True)), frozenset(one.manifest_path for one in merge))

    async def _start_anew(self, change: _StreamChange[Exposed], before: Iceberg | None) -> Exposed:
        """Return the table with an Iceberg table of all the stream's files, and one snapshot."""
        stream, files = change.stream, MemoryFiles()
        unneeded = {*before.objects(), *before.list_held(), version_path(stream, before.number)} if before else set()
        metadata = change.shape.evolve(change.shape.new_metadata(self._place(stream)), files)
        covered, new, objects = metadata, NewSnapshot(metadata, files, self._unique), dict[str, str]()
        blocks: list[Stored] = []
        async for part in _split(change.files(stream)):
            blocks += (one for one in part if is_block(one.path))
            unneeded -= {one.path for one in part}
            facts = await self._read_facts(part)
            described = await asyncio.to_thread(self._describe, change, metadata, files, part, facts)
            await asyncio.to_thread(new.add, described)
            covered = change.shape.cover(covered, (one.footer for one in facts))
            objects |= await self._put_all(files)
        added = await asyncio.to_thread(new.finish, change.now, self._summary(change))
        objects |= await self._put_all(files)
        made = self._describe_snapshot(change, added, objects, blocks)
        metadata = name_as(added.metadata, covered)
        return await self._write_pointer(change, metadata, [made], sorted(unneeded))

    def _describe(
        self,
        change: _StreamChange[Exposed],
        metadata: TableMetadata,
        files: MemoryFiles,
        came: Sequence[Stored],
        facts: Sequence[Facts],
    ) -> list[NewFile]:
        described, types = list[NewFile](), metadata.spec().partition_type(metadata.schema())
        for one, read in zip(came, facts, strict=True):
            entry = data_file(self._locate(one), one, read.footer, metadata.schema(), change.shape, types)
            location = f"{metadata.location}/metadata/{self._unique()}-deletes.parquet"
            described.append(NewFile(entry, one.first, mask(files, location, entry, read.masked)))
        return described

    async def _read(self, path: str, digest: str | None) -> bytes:
        """Return an object that the table names. NotStoredError; ManifestError if its SHA-256 is another one."""
        data = self._recent.get((path, digest))
        if data is None:
            data = await self._store.get(path)
            if sha256(data).hexdigest() != digest:
                raise ManifestError(f"{path} was changed: its SHA-256 is not the one that the table names")
            self._recent.add((path, digest), data)
        return data

    async def _put_all(self, files: MemoryFiles) -> dict[str, str]:
        """Store the new files, and forget them. Return their SHA-256, by path."""
        objects: dict[str, str] = {}

        async def put(location: str) -> None:
            path, data = self._path(location), files.content.pop(location)
            objects[path] = sha256(data).hexdigest()
            await self._store.put(path, data)
            self._recent.add((path, objects[path]), data)

        await map_concurrently(files.written, put, at_once=AT_ONCE)
        files.written.clear()
        return objects

    def _summary(self, change: _StreamChange[Exposed]) -> dict[str, str]:
        """Return the summary of a snapshot."""
        number = str(change.table.number + 1)
        return {"capture.epoch": str(change.token), "capture.leader": self._node, "capture.table": number}

    async def _write_pointer(
        self, change: _StreamChange[Exposed], metadata: TableMetadata, snapshots: list[Snapshot], let_go: Iterable[str]
    ) -> Exposed:
        """Store the metadata file. Return the table with a pointer to it.

        Retires what is not needed any more, but objects of past snapshots not before these expire.
        """
        number, data = change.table.number + 1, metadata.model_dump_json().encode()
        path = f"{folder(change.stream)}/metadata/{number:010d}-{change.token}-{self._unique()}.metadata.json"
        [(_, digest)] = (await self._put_all(one_file(f"{self._base}/{path}", data))).items()
        exposed = Iceberg(location=metadata.location, number=number, metadata=path, sha256=digest, snapshots=snapshots)
        held = exposed.list_held()
        retired = {one.path: one for one in change.table.retired if one.path not in held}
        retired = {path: Retired(path, change.now) for path in let_go} | retired
        return msgspec.structs.replace(
            change.table, iceberg={**change.table.iceberg, change.stream: exposed}, retired=list(retired.values())
        )


async def _split(pages: AsyncIterator[list[Stored]]) -> AsyncIterator[list[Stored]]:
    """Yield the files that other engines can open, in lists for a manifest each."""
    part: list[Stored] = []
    async for page in pages:
        part += (one for one in page if is_open(one.format))
        while len(part) >= LARGEST:
            yield part[:LARGEST]
            del part[:LARGEST]
    if part:
        yield part


async def _read_if_stored(store: Store, path: str) -> bytes | None:
    try:
        return await store.get(path)
    except NotStoredError:
        return None
