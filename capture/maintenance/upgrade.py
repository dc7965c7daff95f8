"""Brings the documents of an earlier format into this one, without a leader's other work; or shows what that writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from capture.archive import chain
from capture.archive.chain import HeadPointer, HeadReader, current, fetch, latest_offline
from capture.archive.index.contents import renew
from capture.archive.index.tree import Index
from capture.archive.manifest import Indexed, Manifest
from capture.archive.table import Table, first_table
from capture.errors import NotSweptError
from capture.stores.contract import Store

UNTABLED = 1
"""The format of manifests that also describe the table, which then has no document of its own."""


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """A document of `format` and `bytes` with its number of objects, and the same one in the present format.

    `new_bytes` are those of the new document and of the `pages` of its index. They are None if there is nothing to do.
    `path` is a folder if there is no such document yet, because a manifest of format 1 also has its contents.
    """

    path: str
    format: int
    objects: int
    bytes: int
    new_bytes: int | None = None
    pages: int | None = None


async def preview(store: Store, manifest_head: HeadReader, table_head: HeadReader) -> list[Upgrade]:
    """Return what the upgrade of manifest and table writes, as far as there are any; it changes nothing.

    ManifestError if a document is missing, was changed, is damaged, or is of a newer format; StoreError.
    """
    found: list[Upgrade] = []
    manifest = Manifest()
    if head := await manifest_head():
        manifest = await chain.read(store, head, Manifest)
        found.append(await _preview(store, manifest, head.path, len(await fetch(store, head))))
    if head := await table_head():
        table = await chain.read(store, head, Table)
        found.append(await _preview(store, table, head.path, len(await fetch(store, head))))
    elif manifest.format == UNTABLED:
        found.append(await _preview(store, first_table(manifest), Table.FOLDER, 0))
    return found


async def _preview(store: Store, document: Indexed, path: str, size: int) -> Upgrade:
    format_now = max(1, document.format)
    if format_now >= document.FORMAT:
        return Upgrade(path=path, format=format_now, objects=document.index.objects, bytes=size)
    renewed, pages = await renew(Index(store, document.PAGES), document)
    return Upgrade(
        path=path,
        format=format_now,
        objects=len(document.listed),
        bytes=size,
        new_bytes=len(msgspec.json.encode(renewed)) + _size(pages),
        pages=len(pages),
    )


def _size(pages: Mapping[str, bytes]) -> int:
    return sum(map(len, pages.values()))


async def upgrade_manifest(store: Store, pointer: HeadPointer, *, now: float) -> None:
    """Commit the manifest in the present format, as the sweep's leader at the beginning of its term.

    Without a head, it is the newest one in the store: see `current`. A leader that is killed leaves pages that its
    successor writes again under the same names. FencedError if the term is over; SignatureError if the archive is
    signed and the term can't sign; ManifestError; StoreError.
    """
    if await pointer.read() or await latest_offline(store, Manifest):
        await current(store, pointer, Manifest, now, renew=partial(renew, Index(store, Manifest.PAGES)))


async def upgrade_table(store: Store, pointer: HeadPointer, manifest_head: HeadReader, *, now: float) -> None:
    """Commit the table in the present format, as the compaction's leader at the beginning of its term.

    NotSweptError if the manifest was not upgraded before. Otherwise as `upgrade_manifest`.
    """
    manifest = await chain.read(store, await manifest_head(), Manifest)
    if manifest.format < Manifest.FORMAT:
        raise NotSweptError
    made = first_table(manifest)
    if not (await pointer.read() or await latest_offline(store, Table) or made.files or made.retired):
        return

    async def first() -> Table:
        return made

    await current(store, pointer, Table, now, first, partial(renew, Index(store, Table.PAGES)))
