"""Checks the index of a document: each page against its parent, and the totals beside the root against the leaves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from capture.archive.index.page import Entry
from capture.archive.index.tree import Index
from capture.archive.index.update import held_of
from capture.archive.index.version import Total
from capture.archive.manifest import Indexed
from capture.archive.sequences import GrowingSet, Sequences
from capture.errors import ManifestError
from capture.stores.contract import Store


@dataclass
class _Sums:
    """What the entries of a stream add up to, so far."""

    objects: int = 0
    messages: int = 0
    bytes: int = 0
    sequences: GrowingSet = field(default_factory=GrowingSet)
    formats: Counter[str] = field(default_factory=Counter)


async def check_index(store: Store, path: str, document: Indexed) -> None:
    """Read every page of the index of the document at `path`. Memory grows with the sets of sequences, not the pages.

    ManifestError, which names a page, if it is missing, was changed, is damaged or of a newer format, or is not what
    its parent says; and if the totals in the document are not those of the entries. StoreError.
    """
    index, sums = Index(store, document.PAGES), defaultdict[str, _Sums](_Sums)
    await index.verify(document.index)
    async for part in index.scan(document.index):
        for one in part:
            await _add(index, sums[one.stream], one)
    for stream in sorted({*sums, *document.index.streams}):
        total, found = document.index.streams.get(stream, Total()), sums[stream]
        held, everything = await held_of(index, document.index, stream), found.sequences.all
        for said, counted, what in (
            (total.objects, found.objects, "objects"),
            (total.messages, found.messages, "messages"),
            (total.bytes, found.bytes, "bytes"),
            (total.formats, dict(found.formats), "by formats"),
            (total.held.count, len(everything), "sequences"),
            (held, everything, "sequences"),
            (_read_set(total.twice, path), found.sequences.repeated, "sequences that are stored twice"),
        ):
            if said != counted:
                say = f"it says {_describe(said)} {what} of {stream}, and its index has {_describe(counted)}"
                raise ManifestError(f"{path} is wrong: {say}")


def _describe(one: int | Sequences | Mapping[str, int]) -> str:
    if isinstance(one, Mapping):
        return ", ".join(f"{count:,} {name}" for name, count in sorted(one.items())) or "none"
    return f"{one:,}" if isinstance(one, int) else one.describe()


async def _add(index: Index, sums: _Sums, one: Entry) -> None:
    sums.objects += 1
    sums.messages += one.count
    sums.bytes += one.bytes
    sums.formats[one.format] += 1
    found = await index.set_page(one.apart) if one.apart else _read_set(one.sequences, f"the record of {one.path}")
    sums.sequences.add(found)


def _read_set(text: str, owner: str) -> Sequences:
    try:
        return Sequences.from_text(text)
    except ValueError as error:
        raise ManifestError(f"{owner} is damaged: {error}") from error
