"""The objects of documents that have an index: loads them for a program, and commits what it changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, HeadPointer, Retired
from capture.archive.index.tree import ALL, Index, Where
from capture.archive.index.update import Update, update
from capture.archive.index.version import Version
from capture.archive.manifest import Indexed, Manifest, Outdated, Stored
from capture.archive.table import Table
from capture.stores.contract import Listing, Store

Kind = TypeVar("Kind", bound=Indexed)


class Indexes:
    """The indexes of an archive: of its blocks, and of its table files."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.blocks, self.files = Index(store, Manifest.PAGES), Index(store, Table.PAGES)

    def __repr__(self) -> str:
        return f"Indexes({self.blocks!r}, {self.files!r})"


async def load(store: Store, document: Kind, where: Where = ALL) -> Kind:
    """Return the document with those of its objects in the list that `where` finds.

    ManifestError if a page is missing, was changed, is damaged or of a newer format; StoreError.
    """
    return await load_from(Index(store, document.PAGES), document, where)


async def load_from(index: Index, document: Kind, where: Where = ALL) -> Kind:
    """Return the document with those of its objects in the list that `where` finds, read by this index.

    Raises as `load` does. A document of an earlier format has all its objects in the list.
    """
    if document.listed:
        return document.with_listed([one for one in document.listed if where.finds(one)])
    found: list[Stored] = []
    async for part in index.scan(document.index, where):
        found += await index.wholes(part)
    return document.with_listed(found)


async def scan_from(index: Index, document: Indexed, where: Where = ALL) -> AsyncIterator[list[Stored]]:
    """Yield the objects of a document that `where` finds, a leaf at a time and in the index's order.

    If objects are in its list, these are the ones: those of an earlier format are listed, or they were loaded. Raises
    as `load` does.
    """
    if document.listed:
        yield [one for one in document.listed if where.finds(one)]
        return
    async for part in index.scan(document.index, where):
        yield [*part] if not any(one.apart for one in part) else await index.wholes(part)


async def renew(index: Index, document: Kind) -> tuple[Kind, Mapping[str, bytes]]:
    """Return a document of an earlier format with an index in place of its list, and the pages to store.

    The pages are the same each time, so a leader may be killed at any point, and another one begins again.
    """
    if not document.listed:
        return document, {}
    made = await update(index, Version(), document.listed, [], token=document.token, number=document.number)
    index.remember(made.pages)
    pages = {index.path(name): data for name, data in made.pages.items()}
    return msgspec.structs.replace(document.with_listed([]), index=made.version), pages


async def ensure_index(index: Index, document: Kind) -> Kind:
    """Return a document with an index: one of an earlier format gets one in memory."""
    if not document.listed:
        return document
    made = await update(index, Version(), document.listed, [], token=document.token, number=document.number)
    index.keep(made.pages)
    return msgspec.structs.replace(document.with_listed([]), index=made.version)


async def read_paths(index: Index, document: Indexed) -> set[str]:
    """Return the paths of all its objects. ManifestError; StoreError."""
    return {one.path async for part in index.scan(document.index) for one in part}


async def find_consumed(blocks: Index, manifest: Manifest, table: Table) -> list[Stored]:
    """Return the blocks that the table has consumed and that the manifest still names. ManifestError; StoreError."""
    found = [*(await blocks.find(manifest.index, (one for one in table.consumed if not isinstance(one, str)))).values()]
    if paths := {one for one in table.consumed if isinstance(one, str)}:  # by a version before format 3
        found += [one async for part in blocks.scan(manifest.index) for one in part if one.path in paths]
    return await blocks.wholes(found)


async def find_orphans(index: Index, document: Indexed, objects: Listing, before: float) -> list[str]:
    """Return the pages that were written before this time and that the document does not name: their writers failed.

    `document` is the committed one, and its leader commits no other one until the pages are deleted: a commit that is
    tried again has the same pages as the attempt that failed. `objects` were listed before the document was committed.
    """
    old = [one.path for one in objects if one.path.startswith(document.PAGES) and one.modified < before]
    if not old:
        return []
    named = {name for version in document.list_versions() for name in await index.reach(version)}
    named.update(name for one in document.outdated for name in one.pages)
    return sorted(set(old) - {index.path(name) for name in named})


async def commit(
    index: Index,
    pointer: HeadPointer,
    head: Head | None,
    before: Kind,
    after: Kind,
    *,
    now: float,
    grace: float,
    beside: Sequence[Update] = (),
) -> tuple[Head, Kind]:
    """Commit `after` as the successor of `before`, which the head names. Return the new head, and `after` as committed.

    Both have the objects in their lists that the program has loaded: what differs is changed in the index. `now` is the
    time of the commit (Unix seconds): pages that it replaces, and objects that it retires, count from then on. Pages
    that were replaced more than `grace` seconds before are deleted. `beside` are the changes of its other indexes in
    the same folder, made for the same commit; `after` has their versions. FencedError if the term is over;
    ManifestError; StoreError.
    """
    old, new = ({one.path: one for one in document.listed} for document in (before, after))
    adds = [one for path, one in new.items() if old.get(path) != one]
    removes = [one for path, one in old.items() if new.get(path) != one]
    number = (head.number if head else 0) + 1
    made = await update(index, before.index, adds, removes, token=pointer.token, number=number)
    over = [one for one in before.outdated if one.since < now - grace]
    await chain.delete(index.store, pointer, [index.path(name) for one in over for name in one.pages])
    kept = [one for one in before.outdated if one.since >= now - grace]
    names = sorted({name for one in (made, *beside) for name in one.replaced})
    replaced = [Outdated(now, names)] if names else []
    known = {one.path for one in before.retired}
    retired = [one if one.path in known else Retired(one.path, now) for one in after.retired]
    document = msgspec.structs.replace(
        after.with_listed([]), index=made.version, outdated=[*kept, *replaced], retired=retired
    )
    written = {name: data for one in (made, *beside) for name, data in one.pages.items()}
    pages = {index.path(name): data for name, data in written.items()}
    committed = chain.seal(document, pointer.token, head)
    head = await chain.commit(index.store, pointer, head, document, pages)
    index.remember(written)
    return head, committed.with_listed(after.listed)
