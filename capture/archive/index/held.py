"""The exact set of sequences that an index holds of a stream, stored beside its root: it is read without the leaves.

The set is cut into chunks. Those of a few runs stand in the document itself; each of the others has a page, so that a
change writes only the chunks that it touches. pyroaring's bitmaps would need 12 bytes for each 65,536 sequences, also
of one run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator

from capture.archive.index.version import Held, Name, Runs
from capture.archive.sequences import Sequences
from natty.wire.background import map_concurrently

CHUNK = 1 << 20
"""Sequences of a chunk: its page has at most 128 kB."""
FEW = 4
"""The most runs of a chunk without a page: a billion sequences are 4,000 runs then, or 1,000 pages."""

Load = Callable[[Name], Awaitable[Sequences]]
"""Returns the set of a page."""
Keep = Callable[[int, Sequences], Name]
"""Takes a chunk's number and the set of its new page, and returns the page's name."""


async def read_held(held: Held, load: Load) -> Sequences:
    """Return the whole set."""
    pages = await map_concurrently(held.apart.values(), load)
    return Sequences.union_of([_union(held.runs), *pages])


async def read_lowest(held: Held, load: Load) -> int | None:
    """Return the lowest sequence; None if the set is empty."""
    found = [first for first, _ in held.runs[:1]]
    for name in list(held.apart.values())[:1]:
        found.append((await load(name)).first)
    return min(found, default=None)


async def change_held(held: Held, gone: Sequences, came: Sequences, load: Load, keep: Keep) -> tuple[Held, Sequences]:
    """Return the set without `gone` and with `came`, and those of `came` that were in it already.

    It reads and writes the pages of the chunks of these only.
    """
    touched = sorted({*_chunk_numbers(gone), *_chunk_numbers(came)})
    if not touched:
        return held, came
    names = [held.apart[number] for number in touched if number in held.apart]
    apart = await map_concurrently(names, load)
    inside, outside = _cut(held.runs, touched)
    before = Sequences.union_of([_union(inside), *apart])
    left = before - gone
    after = left | came
    runs, pages = outside, {number: name for number, name in held.apart.items() if number not in touched}
    for number in touched:
        part = after & _chunk(number)
        few = part.first_runs(FEW + 1)
        if len(few) > FEW:
            pages[number] = keep(number, part)
        else:
            runs = [*runs, *few]
    count = held.count + len(after) - len(before)
    return Held(count=count, runs=_join(runs), apart=dict(sorted(pages.items()))), left & came


def _chunk(number: int) -> Sequences:
    return Sequences.from_range(number * CHUNK, (number + 1) * CHUNK - 1)


def _chunk_numbers(held: Sequences) -> Iterator[int]:
    first = held.first_from(0)
    while first is not None:
        yield first // CHUNK
        first = held.first_from((first // CHUNK + 1) * CHUNK)


def _cut(runs: Runs, touched: list[int]) -> tuple[Runs, Runs]:
    """Return the parts of the runs that are in these chunks, and the others."""
    inside: Runs = []
    outside: Runs = []
    chunks = [(number * CHUNK, (number + 1) * CHUNK - 1) for number in touched]
    for first, last in runs:
        for low, high in chunks:
            if low > last:
                break
            if high < first:
                continue
            if low > first:
                outside.append((first, low - 1))
            inside.append((max(first, low), min(last, high)))
            first = high + 1
        if first <= last:
            outside.append((first, last))
    return inside, outside


def _join(runs: Iterable[tuple[int, int]]) -> Runs:
    """Return the runs in order, adjacent ones as one."""
    joined: Runs = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def _union(runs: Runs) -> Sequences:
    return Sequences.union_of(Sequences.from_range(first, last) for first, last in runs)
