"""What a table that is derived from a stream does not have yet: exactly these sequences, and what has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing

from capture.archive.index.tree import Where
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.pipelines.derivation import Part
from capture.reading.inventory import Inventory
from capture.reading.shares import Selection, Share, narrow, parse_sequences, shares

APART = 1 << 20
"""Sequences between two runs that are looked up apart: a late message does not open the whole index."""
MOST_SPANS = 64


async def find_new(inventory: Inventory, stream: str, progress: Sequences) -> Sequences:
    """Return the sequences of a stream that the archive holds and that are not in `progress`.

    ManifestError if a page of an index is missing, was changed or is damaged; StoreError.
    """
    return await inventory.find_held(stream) - progress


async def find_parts(inventory: Inventory, stream: str, wanted: Sequences) -> list[Part]:
    """Return what to read of which objects for these sequences: each once. They are in order of their first sequences.

    Raises as `find_new`, and FormatError if a record does not name the sequences of its object.
    """
    found: dict[str, Stored] = {}
    for first, last in _spans(wanted):
        async with aclosing(inventory.scan(Where(stream=stream, sequences=(first, last)))) as parts:
            async for part in parts:
                found.update((one.path, one) for one in part if not parse_sequences(one).isdisjoint(wanted))
    if not found:
        return []
    selection = Selection(start_sequence=wanted.first, end_sequence=wanted.last)
    return _parts(narrow(shares(found.values(), selection), wanted))


async def find_all_parts(inventory: Inventory, stream: str) -> list[Part]:
    """Return what to read for all messages of a stream that the archive has. Raises as `find_parts`."""
    objects: list[Stored] = []
    async with aclosing(inventory.scan(Where(stream=stream))) as parts:
        async for part in parts:
            objects += part
    return _parts(shares(objects))


def _parts(plan: Sequence[Share]) -> list[Part]:
    return [Part(stored=one.stored, given="" if one.is_whole else one.given.to_text()) for one in plan]


def _spans(wanted: Sequences) -> Iterator[tuple[int, int]]:
    """Yield ranges that together have all of these sequences, in order; runs that are close together share a range."""
    if not wanted:
        return
    start, end, count = wanted.first, wanted.first, 1
    for first, last in wanted.runs():
        if first - end > APART and count < MOST_SPANS:
            yield start, end
            start, count = first, count + 1
        end = last
    yield start, end
