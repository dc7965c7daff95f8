"""Keeps an Iceberg table for each stream: its metadata is written before the archive's commit, and announced after."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from capture.archive.chain import Retired
from capture.archive.iceberg_state import (
    Expiry,
    Iceberg,
    Snapshot,
    archive_location,
    count_expired,
    folder,
    hint_path,
    version_path,
    without_oldest,
)
from capture.archive.manifest import Stored
from capture.archive.stored_formats import is_open
from capture.archive.table import Table
from capture.errors import ManifestError, NotStoredError
from capture.iceberg.columns import evolve, new_metadata
from capture.iceberg.facts import data_file, read_footer
from capture.iceberg.memory_catalog import MemoryFiles
from capture.iceberg.snapshot import Added, Read, add_snapshot, without_snapshots
from capture.maintenance.compaction_plan import new_name
from capture.stores.contract import Store
from natty.wire.background import map_concurrently

AT_ONCE = 16
"""Objects that are read concurrently."""

log = logging.getLogger("capture.iceberg.exposer")


@dataclass(frozen=True)
class _State:
    """An Iceberg table that is being changed: its metadata, the files of its current snapshot, and its snapshots."""

    metadata: TableMetadata
    read: Read
    snapshots: list[Snapshot]

    @property
    def locations(self) -> set[str]:
        """The files that are in the table."""
        return {one.data_file.file_path for _, entries in self.read for one in entries}


@dataclass(frozen=True)
class _Change:
    """The commit that is being prepared."""

    table: Table
    token: int
    now: float


class Exposer:
    """Maintains an Iceberg table for each stream, with the same files as the archive's table.

    `rule` limits the age of snapshots. `node` and the term's token are in the summary of each snapshot.
    """

    def __init__(
        self, store: Store, rule: Expiry | None = None, *, node: str = "", unique: Callable[[], str] = new_name
    ) -> None:
        self._rule = rule or Expiry()
        self._base = archive_location(store, self._rule.location)
        self._node = node
        self._unique = unique

    def __repr__(self) -> str:
        return f"Exposer({self._base!r}, {self._rule!r})"

    def is_due(self, table: Table, now: float) -> bool:
        """Return whether a stream has no Iceberg table yet, or one in another place, or one with expired snapshots."""
        streams = {one.stream for one in table.files if is_open(one.format)}
        return not streams <= table.iceberg.keys() or any(
            one.location != self._place(stream) or count_expired(one.snapshots, self._rule, now)
            for stream, one in table.iceberg.items()
        )

    async def expose(self, store: Store, table: Table, *, token: int, now: float) -> Table:
        """Write manifests and metadata of each stream whose files or snapshots change. Return the table with them."""
        wanted: dict[str, list[Stored]] = {stream: [] for stream in table.iceberg}
        for one in table.files:
            if is_open(one.format):
                wanted.setdefault(one.stream, []).append(one)
        for stream, files in wanted.items():
            table = await self._expose_stream(store, _Change(table, token, now), stream, files)
        return table

    async def announce(self, store: Store, table: Table) -> None:
        """Write two objects for readers without a catalog: a copy of the metadata under its number, then the number."""
        for stream, one in table.iceberg.items():
            hint = str(one.number).encode()
            if await _read_if_stored(store, hint_path(stream)) != hint:
                await store.put(version_path(stream, one.number), await store.get(one.metadata), if_absent=False)
                await store.put(hint_path(stream), hint, if_absent=False)

    def _place(self, stream: str) -> str:
        return f"{self._base}/{folder(stream)}"

    def _path(self, location: str) -> str:
        return location.removeprefix(f"{self._base}/")

    async def _expose_stream(self, store: Store, change: _Change, stream: str, wanted: list[Stored]) -> Table:
        """Return the table with this stream's new pointer; retire objects that are not needed any more."""
        before = change.table.iceberg.get(stream)
        opened = await self._open(store, before) if before and before.location == self._place(stream) else None
        files = MemoryFiles()
        state = opened or _State(new_metadata(self._place(stream)), [], [])
        state = await self._apply_changes(store, change, state, wanted, files)
        expired = count_expired(state.snapshots, self._rule, change.now)
        if not expired and not files.written:
            return change.table
        snapshots, let_go = without_oldest(state.snapshots, expired)
        metadata = without_snapshots(state.metadata, [one.id for one in state.snapshots[:expired]])
        exposed = self._write_metadata(change, stream, metadata, snapshots, files)
        for location in files.written:
            await store.put(self._path(location), files.content[location])
        if before:
            let_go += [before.metadata, version_path(stream, before.number)]
            let_go += [] if opened else sorted({*before.objects(), *before.list_held()} - {one.path for one in wanted})
        return _with_pointer(change, stream, exposed, let_go)

    async def _open(self, store: Store, exposed: Iceberg) -> _State | None:
        """Return the Iceberg table as it was committed. None, with a log line, if its files are missing or changed.

        The archive's own documents are the authority: Iceberg's documents are then made again from them.
        """
        files, digests = MemoryFiles(), exposed.objects()

        async def fetch(location: str) -> None:
            files.content[location] = await _read_unchanged(store, self._path(location), digests)

        try:
            metadata = TableMetadataUtil.parse_raw((await _read_unchanged(store, exposed.metadata, digests)).decode())
            current = metadata.current_snapshot()
            assert current is not None, exposed
            await fetch(current.manifest_list)
            manifests = list(read_manifest_list(files.new_input(current.manifest_list)))
            await map_concurrently([one.manifest_path for one in manifests], fetch, at_once=AT_ONCE)
        except (ManifestError, NotStoredError) as error:
            log.error(
                "the Iceberg table in %s is created again, without its history: %s",
                exposed.location,
                error,
                extra={"action": "iceberg_anew"},
            )
            return None

        def read() -> Read:
            return [(one, one.fetch_manifest_entry(files)) for one in manifests]

        return _State(metadata, await asyncio.to_thread(read), exposed.snapshots)

    async def _apply_changes(
        self, store: Store, change: _Change, state: _State, wanted: list[Stored], files: MemoryFiles
    ) -> _State:
        """Return the table with a new snapshot if files were added or removed."""
        before, here = state.locations, {f"{self._base}/{one.path}": one for one in wanted}
        came = {location: one for location, one in here.items() if location not in before}
        gone = frozenset(before - here.keys())
        if not came and not gone and state.snapshots:
            return state
        footers = await map_concurrently(came.values(), lambda one: read_footer(store, one), at_once=AT_ONCE)

        def add() -> Added:
            metadata = evolve(state.metadata, change.table.columns, files)
            facts = [
                data_file(*of, footer, metadata.schema()) for of, footer in zip(came.items(), footers, strict=True)
            ]
            said, now = self._summary(change), change.now
            return add_snapshot(metadata, state.read, facts, gone, files, now=now, unique=self._unique, said=said)

        added = await asyncio.to_thread(add)  # in a thread: it takes a second for thousands of files
        return _State(added.metadata, [], self._snapshots(state, added, gone, files, change.now))

    def _summary(self, change: _Change) -> dict[str, str]:
        """Return the summary of a snapshot."""
        number = str(change.table.number + 1)
        return {"capture.epoch": str(change.token), "capture.leader": self._node, "capture.table": number}

    def _snapshots(
        self, before: _State, added: Added, gone: frozenset[str], files: MemoryFiles, now: float
    ) -> list[Snapshot]:
        """Return the snapshots with the new one and its objects; the previous one gets those that are dropped."""
        objects = {self._path(one): sha256(files.content[one]).hexdigest() for one in files.written}
        new = Snapshot(id=added.snapshot_id, made=now, objects=objects)
        current = before.metadata.current_snapshot()
        if current is None:
            return [new]
        unnamed = {one.manifest_path for one, _ in before.read} - added.manifests
        dropped = sorted(self._path(one) for one in (*gone, *unnamed, current.manifest_list))
        return [*before.snapshots[:-1], msgspec.structs.replace(before.snapshots[-1], dropped=dropped), new]

    def _write_metadata(
        self, change: _Change, stream: str, metadata: TableMetadata, snapshots: list[Snapshot], files: MemoryFiles
    ) -> Iceberg:
        """Add the metadata file to the files to store. Return the pointer to it."""
        number, data = change.table.number + 1, metadata.model_dump_json().encode()
        path = f"{folder(stream)}/metadata/{number:010d}-{change.token}-{self._unique()}.metadata.json"
        files.write(f"{self._base}/{path}", data)
        return Iceberg(
            location=metadata.location,
            number=number,
            metadata=path,
            sha256=sha256(data).hexdigest(),
            snapshots=snapshots,
        )


def _with_pointer(change: _Change, stream: str, exposed: Iceberg, let_go: Iterable[str]) -> Table:
    """Return the table with this pointer. Objects of past snapshots are not retired before these expire."""
    held = exposed.list_held()
    retired = {one.path: one for one in change.table.retired if one.path not in held}
    retired = {path: Retired(path, change.now) for path in let_go} | retired
    return msgspec.structs.replace(
        change.table, iceberg={**change.table.iceberg, stream: exposed}, retired=list(retired.values())
    )


async def _read_unchanged(store: Store, path: str, digests: Mapping[str, str]) -> bytes:
    """Return an object with a recorded SHA-256. Raises NotStoredError; ManifestError if the SHA-256 differs."""
    data = await store.get(path)
    if sha256(data).hexdigest() != digests.get(path):
        raise ManifestError(f"{path} was changed: its SHA-256 is not the one that the table names")
    return data


async def _read_if_stored(store: Store, path: str) -> bytes | None:
    try:
        return await store.get(path)
    except NotStoredError:
        return None
