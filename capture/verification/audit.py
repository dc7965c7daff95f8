"""Tamper evidence: detects documents that were changed, removed, moved, or signed with another key.

A head, in NATS or noted elsewhere, names a document by its SHA-256, and each document names its predecessor. So no
existing document can be changed undetected. Documents name blocks and table files by an index, which
names its pages and the objects by their SHA-256: `index_audit` reads the pages, `objects` the objects. docs/archive.md
says which changes can't be detected.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple, TypeVar

from capture.archive.chain import KEPT, Document, Head, HeadReader, decode, document_parts, latest_offline, read
from capture.archive.history import PastHours, Prefetch
from capture.archive.iceberg_state import ANNOUNCED, Exposable, Iceberg
from capture.archive.identity import SIGNING, Signing, read_record
from capture.archive.manifest import Indexed, Manifest
from capture.archive.readme import README, VERSION, text, version_of
from capture.archive.recording import Recording
from capture.archive.signing import PublicKeys, split
from capture.archive.table import Table
from capture.archive.trust import check_vouched, describe_missing_manifest
from capture.errors import ManifestError, NotStoredError, SignatureError
from capture.stores.contract import Store
from capture.verification.iceberg_pointers import list_misleading
from capture.verification.index_audit import check_indexes, check_shown
from natty.wire.background import map_concurrently

CHAINS: tuple[type[Document], ...] = (Manifest, Table, Recording)

HeadReaders = Mapping[type[Document], HeadReader]
"""A reader for the committed head of each chain: `capture.archive.heads.head_readers` reads them from NATS."""

AT_ONCE = 8
"""Objects without a chain that are read together; the largest, Iceberg's manifests, have a few megabytes."""
ATTEMPTS = 3
"""How often an index is checked while leaders commit: its pages are deleted a grace time after they were replaced."""
UNVOUCHED = (
    "whether these are the newest documents was not checked: check with NATS, or give a signed archive's public key"
)

_NUMBER_FIELDS: dict[type[Document], tuple[tuple[type[Document], str], ...]] = {
    Manifest: ((Table, "of_manifest"), (Recording, "of_manifest")),
    Table: ((Manifest, "of_table"),),
}
"""For each chain, the documents and fields that record the number of its newest document when they were written."""

Kind = TypeVar("Kind", bound=Document)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result: `problems` are sentences that each name an object, `notes` say what no head or signature vouches for.

    `documents` is the number of documents that were read.
    """

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    documents: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no evidence of tampering."""
        return not self.problems


async def audit(
    store: Store,
    heads: HeadReaders | None = None,
    *,
    archive: str,
    keys: PublicKeys | None = None,
    noted: Iterable[Head] = (),
    deep: bool = False,
    chains: Iterable[type[Document]] = CHAINS,
    only: str = "",
) -> Audit:
    """Check the documents of an archive against each other. StoreError if the store can't be read.

    Without `heads`, or if NATS has none, the newest documents in the store are taken for the committed ones.
    With `keys`, one of these must have signed them, for the archive of this name.
    `noted` heads were recorded outside the archive by `capture head`: no chain may end before them. `deep` reads every
    document, every page of the newest indexes and the whole history; otherwise only the newest documents and the index
    of the shown blocks are read, and the others only have to exist. `chains` are the documents to check. `only` is the
    stream whose Iceberg table is checked; default: all.
    """
    auditor = _Auditor(store, heads or {}, keys, list(noted), deep, archive, only)
    for kind in chains:
        await auditor.look_at(kind)
    if keys is None and not heads:
        auditor.notes.append(UNVOUCHED)
    return Audit(problems=tuple(auditor.problems), notes=tuple(auditor.notes), documents=auditor.documents)


class _Link(NamedTuple):
    """The facts about a document of a chain that are kept in memory: a whole manifest may be large."""

    number: int
    token: int
    parent_sha256: str


@dataclass
class _Auditor:
    """One audit of an archive. It follows each chain from its head, then checks the other documents in its folder."""

    store: Store
    heads: HeadReaders
    keys: PublicKeys | None
    noted: list[Head]
    deep: bool
    archive: str
    only: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    documents: int = 0

    async def look_at(self, kind: type[Kind]) -> None:
        """Check a chain of documents, and the objects that the newest one describes."""
        head = await self._head(kind)
        if head is None:
            self.problems += [_describe_unreached(one, None) for one in self._select_noted(kind)]
            if kind is Manifest and self.keys is not None and not self.heads:
                await self._check_without_manifest()
            return
        objects = await self.store.list(kind.FOLDER)  # after reading the head: it holds the head and later ones
        listed = {one.path: parts[0] for one in objects if (parts := document_parts(kind, one.path))}
        newest = await self._read_named(kind, head.path, head.sha256, "the head", must_be_signed=True)
        earlier = [one for one in reversed(objects) if listed.get(one.path, head.number) < head.number]
        async with Prefetch(self.store, earlier) as ahead:
            chain = await self._follow(kind, head.path, newest, ahead)
        self._check_noted(kind, head, chain.values())
        await self._check_numbers(kind, head, set(listed.values()))
        for path, number in listed.items():
            if path not in chain and path != head.path and (self.deep or number > head.number):
                await self._check_unnamed(kind, path, chain.values(), must_be_signed=number > head.number)
        if isinstance(newest, Recording):
            await self._check_recording(head.path, newest)
        if isinstance(newest, Indexed):
            await self._check_indexes(head.path, newest)
        if isinstance(newest, Exposable):
            until = time.monotonic() + ANNOUNCED
            for stream, exposed in newest.iceberg.items():
                if self.only in ("", stream):
                    await self._check_exposed(kind, head.path, stream, exposed, until)

    async def _check_without_manifest(self) -> None:
        try:
            await check_vouched(self.store)
        except ManifestError as error:
            self.problems.append(str(error))

    async def _head(self, kind: type[Document]) -> Head | None:
        head = await self.heads[kind]() if kind in self.heads else None
        return head or await latest_offline(self.store, kind)

    def _select_noted(self, kind: type[Document]) -> list[Head]:
        return [one for one in self.noted if document_parts(kind, one.path)]

    def _check_noted(self, kind: type[Document], head: Head, chain: Iterable[_Link]) -> None:
        """Check that the chain contains the noted heads, as far as its documents still exist."""
        digests = {one.number - 1: one.parent_sha256 for one in chain} | {head.number: head.sha256}
        for one in self._select_noted(kind):
            if one.number > head.number:
                self.problems.append(_describe_unreached(one, head))
            elif digests.get(one.number, one.sha256) != one.sha256:
                self.problems.append(f"{one.path} was noted, but the archive holds another document with its number")

    # Documents.

    async def _read_named(
        self,
        kind: type[Kind],
        path: str,
        digest: str,
        namer: str,
        *,
        must_be_signed: bool = False,
        ahead: Prefetch | None = None,
    ) -> Kind | None:
        """Return a document that is named with its SHA-256; None if it has a problem, or was cleaned up."""
        data = await self._read_unchanged(path, digest, namer, kind, ahead)
        return None if data is None else self._check_document(kind, path, data, must_be_signed=must_be_signed)

    def _check_document(self, kind: type[Kind], path: str, data: bytes, *, must_be_signed: bool) -> Kind | None:
        """Return the document if it is valid, belongs at its path, and is signed as required."""
        self.documents += 1
        try:
            document = decode(data, path, kind)
            if self.keys is not None and (must_be_signed or split(data)[1] is not None):
                self.keys.check(self.archive, path, data)
        except (ManifestError, SignatureError) as error:
            self.problems.append(str(error))
            return None
        return document

    async def _follow(self, kind: type[Kind], path: str, newest: Kind | None, ahead: Prefetch) -> dict[str, _Link]:
        """Return the newest document and, if `deep`, its predecessors, back to where clean-up has ended the chain.

        The predecessors of a document with a problem can't be checked.
        """
        chain: dict[str, _Link] = {}
        child = newest
        while child is not None:
            chain[path] = _Link(child.number, child.token, child.parent_sha256)
            if not self.deep or not child.parent:
                break
            parent = await self._read_named(kind, child.parent, child.parent_sha256, path, ahead=ahead)
            if parent is not None and (parent.number != child.number - 1 or parent.token > child.token):
                self.problems.append(f"{child.parent} is not the predecessor of {path}, which names it")
            path, child = child.parent, parent
        return chain

    async def _check_numbers(self, kind: type[Document], head: Head, numbers: set[int]) -> None:
        """Check by the numbers that none of the last documents is missing: a chain that ends early is invalid."""
        for number in range(max(1, head.number - KEPT + 1), head.number):
            path = f"{kind.FOLDER}{number:010d}-"
            if number in numbers or any(problem.startswith(path) for problem in self.problems):
                continue
            if not await self._is_over(kind, f"{path}0.json"):
                self.problems.append(f"{path}….json is missing, one of the last {KEPT}")

    async def _is_over(self, kind: type[Document], path: str) -> bool:
        """Return whether clean-up may have deleted a document by now: it continues during the audit.

        The newest document may be gone: documents of other chains that were written beside it record its number.
        """
        parts, newest = document_parts(kind, path), await self._head(kind)
        if parts is None:
            return False
        number = newest.number if newest else 0
        return parts[0] <= max(number, await self._read_recorded_number(kind)) - KEPT

    async def _read_recorded_number(self, kind: type[Document]) -> int:
        """Return the highest number of a document of this kind that other chains' newest ones name; 0 if none does."""
        highest = 0
        for other, field_name in _NUMBER_FIELDS.get(kind, ()):
            with suppress(ManifestError):  # its problems are reported when its own chain is checked
                highest = max(highest, getattr(await read(self.store, await self._head(other), other), field_name))
        return highest

    async def _check_unnamed(
        self, kind: type[Kind], path: str, chain: Iterable[_Link], *, must_be_signed: bool
    ) -> None:
        """Check a document that no other document names: a deposed leader wrote it, or it is about to be committed."""
        if (data := await self._read(path)) is None:
            return
        committed = {one.number: one.token for one in chain}
        document = self._check_document(kind, path, data, must_be_signed=must_be_signed)
        if document is not None and document.token > committed.get(document.number, document.token):
            self.problems.append(f"{path} is of a later term than the committed document: it was put there")

    async def _read_unchanged(
        self,
        path: str,
        digest: str,
        namer: str,
        kind: type[Document] | None = None,
        ahead: Prefetch | None = None,
    ) -> bytes | None:
        """Return an object that is named with its SHA-256; None, and report a problem, if it is missing or was changed.

        A document of this kind that was cleaned up is not a problem.
        """
        data = await self._read(path, ahead)
        if data is None:
            if kind is None or not await self._is_over(kind, path):
                self.problems.append(f"{path} is missing, and {namer} names it")
        elif sha256(data).hexdigest() != digest:
            self.problems.append(f"{path} was changed: its SHA-256 is not the one that {namer} names")
        else:
            return data
        return None

    async def _read_all_unchanged(self, digests: Mapping[str, str], namer: str) -> None:
        """Read objects that are named with their SHA-256, and report a problem of each that is missing or changed."""

        async def look(path: str) -> None:
            await self._read_unchanged(path, digests[path], namer)

        await map_concurrently(digests, look, at_once=AT_ONCE)

    async def _read(self, path: str, ahead: Prefetch | None = None) -> bytes | None:
        try:
            return await (ahead or self.store).get(path)
        except NotStoredError:
            return None

    # Other objects.

    async def _check_indexes(self, path: str, document: Indexed) -> None:
        """Check the indexes of the newest document. If pages are deleted meanwhile, it is not the newest any more."""
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                await check_indexes(self.store, path, document, deep=self.deep)
                if isinstance(document, Table) and document.shown.root:
                    await self._check_shown(path, document)
                return
            except ManifestError as error:
                problem = str(error) if path in str(error) else f"{error} (an index of {path})"
            newest = await self._head(type(document))
            if newest is None or newest.path == path:
                break
            found = await self._read_named(type(document), newest.path, newest.sha256, "the head")
            if found is None:
                return
            path, document = newest.path, found
        if problem not in self.problems:
            self.problems.append(problem)

    async def _check_shown(self, path: str, table: Table) -> None:
        """Compare the blocks that a table shows with the newest manifest, unless that one has a problem."""
        head = await self._head(Manifest)
        try:
            manifest = await read(self.store, head, Manifest)
        except ManifestError:  # reported when its own chain is checked
            return
        await check_shown(self.store, path, table, manifest)

    async def _check_recording(self, path: str, recording: Recording) -> None:
        """Check the other objects that the newest recording describes."""
        await self._read_all_unchanged(recording.fixed, path)
        if recording.readme:
            await self._check_description(recording.readme)
        newest = await self._head(Manifest)
        if missing := describe_missing_manifest(recording, path, newest.number if newest else 0):
            self.problems.append(missing)
        if self.keys is not None:
            await self._check_declared(self.keys)
        if self.deep:
            await self._check_history(path, recording)

    async def _check_exposed(
        self, kind: type[Document], path: str, stream: str, exposed: Iceberg, until: float
    ) -> None:
        """Check Iceberg's own files, and the pointers to them for readers without a catalog."""
        await self._read_all_unchanged(exposed.objects() if self.deep else {exposed.metadata: exposed.sha256}, path)

        async def is_newest() -> bool:
            newest = await self._head(kind)
            return newest is not None and newest.path == path

        wrong = await list_misleading(self.store, stream, exposed, is_newest, until)
        self.problems += [f"{one} points readers without a catalog to another table than {path}" for one in wrong]

    async def _check_description(self, recorded: int) -> None:
        if (found := await self._read(README)) is None:
            self.problems.append(f"{README} is missing: a node writes it when it starts")
        elif (version_of(found) or 0) > VERSION:
            self.notes.append(f"{README} is of a later version than this program can check")
        elif version_of(found) is None or (recorded == VERSION and found != text()):
            self.problems.append(f"{README} was changed, or belongs to another archive: remove it, and restart a node")

    async def _check_declared(self, keys: PublicKeys) -> None:
        try:
            declared = (await read_record(self.store, SIGNING, Signing)).keys
        except NotStoredError:
            self.problems.append(f"{SIGNING} is missing: a node writes it when it starts")
        except ManifestError as error:
            self.problems.append(str(error))
        else:
            given = keys.lines()
            if any(given.get(name, key) != key for name, key in declared.items()) or given.keys().isdisjoint(declared):
                self.problems.append(f"{SIGNING} was changed: the keys in it are not the given ones")
            elif others := sorted(declared.keys() - given):
                self.notes.append(f"{SIGNING} names more keys than were given: {', '.join(others)}")

    async def _check_history(self, namer: str, recording: Recording) -> None:
        """Follow the recordings of all hours. Later ones name each, some of them several times, by its SHA-256."""
        named: dict[str, str] = {}  # hours that pointers name and that were not reached yet: a few for each level
        async with PastHours(self.store) as hours:
            while True:
                self._check_skips(namer, recording, named)
                if (earlier := recording.earlier) is None:
                    break
                data = await self._read_unchanged(earlier.path, earlier.sha256, namer, ahead=hours)
                if data is None:
                    return
                self.documents += 1
                named.pop(earlier.path, None)
                namer, recording = earlier.path, decode(data, earlier.path, Recording)
        self.problems += [f"{path} is named by a pointer, and is not in the history" for path in named]

    def _check_skips(self, namer: str, recording: Recording, named: dict[str, str]) -> None:
        """Check that the pointers of a recording name the same hours as those of later ones."""
        for one in recording.list_hours():
            if named.setdefault(one.path, one.sha256) != one.sha256:
                self.problems.append(f"{namer} names another SHA-256 of {one.path} than later recordings do")


def _describe_unreached(noted: Head, head: Head | None) -> str:
    last = head.path if head else "nothing"
    return f"{noted.path} was noted, but the archive ends before it, with {last}: newer documents were removed"
