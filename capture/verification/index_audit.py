"""Checks the indexes of a document: each page against its parent, and the totals beside a root against the leaves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from capture.archive.index.page import Entry, place_of
from capture.archive.index.tree import Index
from capture.archive.index.update import held_of
from capture.archive.index.version import Place, Total, Version
from capture.archive.manifest import Indexed, Manifest, Stored
from capture.archive.sequences import MOST_WAITING, MOST_WAITING_BYTES, Sequences, SetSum
from capture.archive.table import Table
from capture.errors import ManifestError
from capture.pipelines.document import Pipelines
from capture.stores.contract import Store


async def check_indexes(store: Store, path: str, document: Indexed, *, deep: bool = True) -> None:
    """Read every page of the indexes of the document at `path`. Memory grows with the sets of sequences, not the pages.

    Without `deep`, the index of its own objects is left out. ManifestError, which names a page, if it is missing, was
    changed, is damaged or of a newer format, or is not what its parent says; and if the totals in the document are not
    those of the entries. StoreError.
    """
    index = Index(store, document.PAGES)
    if isinstance(document, Pipelines):
        await _check_progress(index, path, document)
        if deep:
            await _check_version(index, path, document, document.index, has_sets=False)
        return
    for version in document.list_versions():
        if deep or version is not document.index:
            await _check_version(index, path, document, version)


async def check_shown(store: Store, path: str, table: Table, manifest: Manifest) -> None:
    """Compare the shown blocks of the table at `path` with its files, and with a manifest that was read after it.

    Each is a block of the manifest and not consumed. Its set has those of its sequences that it shows: files hold and
    shown blocks show each sequence once. A later manifest than that of the last comparison may be without a block: the
    sweep has removed it. ManifestError, which names the block or the sequences; StoreError.
    """
    index, blocks = Index(store, table.PAGES), Index(store, manifest.PAGES)
    for stream, total in table.shown.streams.items():
        shown = await held_of(index, table.shown, stream)
        for many, what in (
            (Sequences.from_text(total.twice), "in two shown blocks"),
            (shown & await held_of(index, table.index, stream), "in a shown block and in a file"),
        ):
            if many:
                raise ManifestError(f"{path} is wrong: the sequences {many.describe()} of {stream} are {what}")
    async for part in index.scan(table.shown):
        known = await _find(blocks, manifest, [place_of(one) for one in part])
        for one, whole in zip(part, await index.wholes(part), strict=True):
            block = known.get(place_of(one))
            if one.path in table.consumed_paths:
                raise ManifestError(f"{path} is wrong: it shows {one.path}, and its files replace this block")
            if block is None and manifest.number <= table.shown_of:
                raise ManifestError(f"{path} is wrong: it shows {one.path}, which is not a block of the manifest")
            if block is not None and not _is_shown_as(whole, block):
                raise ManifestError(f"{path} is wrong: it does not show {one.path} as the manifest describes it")


def _is_shown_as(shown: Stored, block: Stored) -> bool:
    """Return whether a shown block is this one of the manifest, with all or some of its sequences."""
    if msgspec.structs.replace(shown, sequences=block.sequences) != block:
        return False
    return not Sequences.from_bytes(shown.sequences) - Sequences.from_bytes(block.sequences)


async def _find(index: Index, manifest: Manifest, places: Sequence[Place]) -> dict[Place, Stored]:
    """Return the manifest's blocks at these places, as far as there are any."""
    if manifest.listed:
        return {place_of(one): one for one in manifest.listed}
    found = await index.find(manifest.index, places)
    return dict(zip(found, await index.wholes([*found.values()]), strict=True))


# --- totals ----------------------------------------------------------------------------------------------------------


@dataclass
class _Sums:
    """What the entries of a stream add up to, so far."""

    objects: int = 0
    messages: int = 0
    bytes: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    sets: SetSum = field(default_factory=SetSum)

    def add(self, one: Entry, held: Sequences) -> None:
        self.objects += 1
        self.messages += one.count
        self.bytes += one.bytes
        self.formats[one.format] += 1
        self.sets.add(held)


async def _check_progress(index: Index, path: str, document: Pipelines) -> None:
    """ManifestError unless each set of the progress has as many sequences as the document says."""
    for name, total in document.progress.streams.items():
        if (count := len(await held_of(index, document.progress, name))) != total.held.count:
            say = f"it says {total.held.count:,} sequences of {name}, and its progress has {count:,}"
            raise ManifestError(f"{path} is wrong: {say}")


async def _check_version(
    index: Index, path: str, document: Indexed, version: Version, *, has_sets: bool = True
) -> None:
    """Compare the totals of a version with its entries; without `has_sets`, an entry names no sequences."""
    streams = await _add_up(index, version, whole=version is document.index, has_sets=has_sets)
    name = next(name for name in document.__struct_fields__ if getattr(document, name) is version)
    for stream in sorted({*streams, *version.streams}):
        total, found = version.streams.get(stream, Total()), streams[stream]
        held, everything = await held_of(index, version, stream), found.sets.all
        for said, counted, what in (
            (total.objects, found.objects, "objects"),
            (total.messages, found.messages, "messages"),
            (total.bytes, found.bytes, "bytes"),
            (total.formats, dict(found.formats), "by formats"),
            (total.held.count, len(everything), "sequences"),
            (held, everything, "sequences"),
            (_read_twice(total, path), found.sets.repeated, "sequences that are stored twice"),
        ):
            if said != counted:
                say = f"it says {_describe(said)} {what} of {stream}, and its {name} has {_describe(counted)}"
                raise ManifestError(f"{path} is wrong: {say}")


async def _add_up(index: Index, version: Version, *, whole: bool, has_sets: bool) -> dict[str, _Sums]:
    """Read all pages of a version, and return what its entries add up to, by stream. `whole`: see `_read_set`."""
    streams = defaultdict[str, _Sums](_Sums)
    waiting = waiting_bytes = 0

    def join() -> None:
        for one in streams.values():
            one.sets.join()

    async def look(page: str, entries: Sequence[Entry]) -> None:
        nonlocal waiting, waiting_bytes
        for one in entries:
            held = await _read_set(index, page, one, whole=whole) if has_sets else Sequences()
            streams[one.stream].add(one, held)
            waiting, waiting_bytes = waiting + 1, waiting_bytes + len(one.sequences)
        if waiting >= MOST_WAITING or waiting_bytes >= MOST_WAITING_BYTES:
            waiting = waiting_bytes = 0
            join()

    await index.verify(version, look)
    return streams


async def _read_set(index: Index, page: str, one: Entry, *, whole: bool) -> Sequences:
    """Return the set of an entry. ManifestError if it is unreadable, or is not what the entry says of it.

    It has all sequences of the object if it is `whole`, otherwise some of them.
    """
    try:
        held = await index.set_page(one.apart) if one.apart else Sequences.from_bytes(one.sequences)
    except ValueError as error:
        raise ManifestError(f"{page} is damaged: the record of {one.path}: {error}") from error
    fits = held and one.first <= held.first and held.last <= one.last and len(held) <= one.count
    if not fits or (whole and (held.first, held.last) != (one.first, one.last)):
        says = f"{one.count:,} rows from {one.first:,} to {one.last:,}"
        raise ManifestError(
            f"{page} is damaged: the record of {one.path} says {says}, and has {len(held):,} sequences:"
            f" {held.describe()}"
        )
    return held


def _read_twice(total: Total, path: str) -> Sequences:
    try:
        return Sequences.from_text(total.twice)
    except ValueError as error:
        raise ManifestError(f"{path} is damaged: {error}") from error


def _describe(one: int | Sequences | Mapping[str, int]) -> str:
    if isinstance(one, Mapping):
        return ", ".join(f"{count:,} {name}" for name, count in sorted(one.items())) or "none"
    return f"{one:,}" if isinstance(one, int) else one.describe()
