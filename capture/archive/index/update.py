"""Makes the next version of an index: the tree with its totals by stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from capture.archive.index.change import change
from capture.archive.index.held import Keep, change_held, read_held
from capture.archive.index.page import Entry, SetPage, encode, place_of
from capture.archive.index.tree import Index, Where
from capture.archive.index.version import Name, Place, Total, Version
from capture.archive.manifest import Stored
from capture.archive.sequences import WIDEST, Sequences, SetSum
from capture.errors import ManifestError


@dataclass(frozen=True)
class Update:
    """A new version, the pages to store, by name, and the stored pages that it no longer needs."""

    version: Version
    pages: Mapping[Name, bytes]
    replaced: frozenset[Name]


async def update(
    index: Index, before: Version, adds: Sequence[Stored], removes: Sequence[Stored], *, token: int, number: int
) -> Update:
    """Return the version with `adds` and without `removes`, for commit `number` of term `token`; stores nothing.

    ManifestError if one to remove is not in the index, one to add is, or a page is missing or was changed; StoreError.
    """
    index.admit(before)
    places = {place_of(one) for one in removes}
    made = await change(index, before.root, adds, places, token=token, number=number)
    if made.overwritten:
        raise ManifestError(f"{made.overwritten[0][-1]} is in the index already, and can't be added to it")
    pages, replaced = dict(made.pages), set(made.replaced)

    streams = dict(before.streams)
    for stream, (came, gone) in sorted(_by_stream(adds, removes).items()):
        was = streams.pop(stream, Total())
        keep = _keeper(pages, stream, token=token, number=number)
        found = await _total(index, before, stream, was, came, gone, keep)
        if found.objects:
            streams[stream] = found
        replaced |= set(was.held.apart.values()) - set(found.held.apart.values())
    leaf = before.leaf if made.root == before.root else b""
    root = pages.get(made.root, b"")
    if root and len(root) <= index.sizes.inline and not index.read_page(made.root, root).level:
        leaf = pages.pop(made.root)
    if before.leaf:
        replaced.discard(before.root)
    version = Version(root=made.root, leaf=leaf, streams=dict(sorted(streams.items())))
    return Update(version, pages, frozenset(replaced))


async def update_held(
    index: Index, before: Version, came: Mapping[str, Sequences], gone: Iterable[str], *, token: int, number: int
) -> Update:
    """Return a version that has no entries, only sets by name: with `came` added, after those in `gone` were emptied.

    ManifestError if a page is missing or was changed; StoreError.
    """
    streams, pages, replaced = dict(before.streams), dict[Name, bytes](), set[Name]()
    for name in gone:
        replaced |= set(streams.pop(name, Total()).held.apart.values())
    for name, sequences in sorted(came.items()):
        was = streams.get(name, Total())
        keep = _keeper(pages, name, token=token, number=number)
        held, _ = await change_held(was.held, Sequences(), sequences, index.set_page, keep)
        streams[name] = Total(held=held)
        replaced |= set(was.held.apart.values()) - set(held.apart.values())
    kept = {name for one in streams.values() for name in one.held.apart.values()}
    return Update(Version(streams=dict(sorted(streams.items()))), pages, frozenset(replaced - kept))


def _keeper(pages: dict[Name, bytes], stream: str, *, token: int, number: int) -> Keep:
    """Return a function that adds the page of a chunk to `pages`."""

    def keep(chunk: int, part: Sequences) -> Name:
        page = SetPage(token=token, number=number, of=f"{stream} {chunk}", sequences=part.to_bytes())
        name, data = encode(page)
        pages[name] = data
        return name

    return keep


async def held_of(index: Index, version: Version, stream: str) -> Sequences:
    """Return the sequences that a version holds of a stream. ManifestError; StoreError."""
    held = version.streams.get(stream, Total()).held
    if (many := sum(last - first + 1 for first, last in held.runs)) > WIDEST:
        raise ManifestError(
            f"the total of {stream} is damaged: it has {many:,} sequences, and at most {WIDEST:,} are read"
        )
    return await read_held(held, index.set_page)


def _by_stream(adds: Iterable[Stored], removes: Iterable[Stored]) -> dict[str, tuple[list[Stored], list[Stored]]]:
    found: dict[str, tuple[list[Stored], list[Stored]]] = defaultdict(lambda: ([], []))
    for one in adds:
        found[one.stream][0].append(one)
    for one in removes:
        found[one.stream][1].append(one)
    return found


async def _total(
    index: Index, before: Version, stream: str, was: Total, came: Sequence[Stored], gone: Sequence[Stored], keep: Keep
) -> Total:
    """Return the total of a stream with these changes; `before` is the version before."""
    left = Sequences.union_of([await _set_of(index, one) for one in gone])
    twice = Sequences.from_text(was.twice)
    others = await _sets_of_others(index, before, stream, left & twice, {place_of(one) for one in gone})
    doubtful = left & twice
    kept = Sequences.union_of(others) & doubtful
    twice = (twice - doubtful) | (Sequences.find_repeated(others) & doubtful)
    sums = SetSum()
    for one in came:
        sums.add(await _set_of(index, one), len(one.sequences))
    held, again = await change_held(was.held, left - kept, sums.all, index.set_page, keep)
    return Total(
        objects=was.objects + len(came) - len(gone),
        messages=was.messages + sum(one.count for one in came) - sum(one.count for one in gone),
        bytes=was.bytes + sum(one.bytes for one in came) - sum(one.bytes for one in gone),
        held=held,
        twice=(twice | again | sums.repeated).to_text(),
        formats=_count_formats(was.formats, came, gone),
    )


def _count_formats(was: Mapping[str, int], came: Sequence[Stored], gone: Sequence[Stored]) -> dict[str, int]:
    counts = Counter(was)
    counts.update(one.format for one in came)
    counts.subtract(one.format for one in gone)
    return {name: count for name, count in sorted(counts.items()) if count}


async def _sets_of_others(
    index: Index, before: Version, stream: str, wanted: Sequences, gone: set[Place]
) -> list[Sequences]:
    """Return the sets of the entries that are not removed and may hold some of these sequences."""
    if not wanted:
        return []
    where = Where(stream=stream, sequences=(wanted.first, wanted.last))
    return [
        await _set_of(index, one)
        async for part in index.scan(before, where)
        for one in part
        if place_of(one) not in gone
    ]


async def _set_of(index: Index, one: Stored) -> Sequences:
    whole = await index.whole(one) if isinstance(one, Entry) else one
    return Sequences.from_bytes(whole.sequences)
