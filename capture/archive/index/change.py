"""Makes a new version of an index: it writes the pages on the way to what changes, and no others.

It knows nothing of heads. A caller stores the pages of a `Change`, then a document that names its root, commits that,
and retires the pages that were replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from capture.archive.index.page import (
    Entry,
    Item,
    Page,
    Ref,
    SetPage,
    decode,
    encode,
    place_of,
    ref_of,
    size_of,
)
from capture.archive.index.tree import Index, a_few_at_a_time, share_out
from capture.archive.index.version import Name, Place
from capture.archive.manifest import Stored
from capture.errors import ManifestError


@dataclass(frozen=True)
class Change:
    """A new version: its root (b"": it is empty), the pages to store, by name, and those that it no longer has.

    `overwritten` are places of added entries where there was another one.
    """

    root: Name
    pages: Mapping[Name, bytes]
    replaced: frozenset[Name]
    overwritten: tuple[Place, ...] = ()


async def change(
    index: Index,
    root: Name,
    adds: Iterable[Stored] = (),
    removes: Iterable[Place] = (),
    *,
    token: int,
    number: int,
) -> Change:
    """Return the version without `removes` and with `adds`, for commit `number` of term `token`; it stores nothing.

    An entry at the place of an added one is replaced. ManifestError if one to remove is not there, or a page is missing
    or was changed; StoreError.
    """
    removes = set(removes)
    made = _Making(index, token, number, frozenset(removes))
    added = {place_of(one): one for one in adds}
    changes: dict[Place, Entry | None] = dict.fromkeys(removes)
    changes |= {place: made.entry(one) for place, one in added.items()}
    if changes:
        root = await made.collapse(made.top(*await made.write_below(root, sorted(changes), changes)))
    return Change(root, made.pages, frozenset(made.replaced), tuple(made.overwritten))


@dataclass
class _Making:
    """A version that is being made: its new pages, and those of the earlier version that it does not have."""

    index: Index
    token: int
    number: int
    removes: frozenset[Place] = frozenset()
    pages: dict[Name, bytes] = field(default_factory=dict)
    replaced: set[Name] = field(default_factory=set)
    overwritten: list[Place] = field(default_factory=list)

    def write(self, level: int, items: Sequence[Entry] | Sequence[Ref]) -> Ref:
        parts = {"children": items} if level else {"entries": items}
        page = Page(level=level, token=self.token, number=self.number, **parts)  # type: ignore[arg-type]
        return ref_of(self.keep(page), page)

    def keep(self, page: Page | SetPage) -> Name:
        name, data = encode(page)
        self.pages[name] = data
        return name

    def drop(self, name: Name) -> None:
        """Leave a page out of the version."""
        if self.pages.pop(name, None) is None:
            self.replaced.add(name)

    def entry(self, one: Stored) -> Entry:
        """Return the entry of an object, with a large set in a page of its own."""
        fields = {name: getattr(one, name) for name in Stored.__struct_fields__}
        if len(one.sequences) > self.index.sizes.apart:
            apart = self.keep(SetPage(token=self.token, number=self.number, of=one.path, sequences=one.sequences))
            fields |= {"sequences": b"", "apart": apart}
        return Entry(**fields)

    async def write_below(
        self, name: Name, places: list[Place], changes: Mapping[Place, Entry | None], level: int | None = None
    ) -> tuple[int, list[Ref]]:
        """Return the level of a page, and what replaces it; several pages are read at a time."""
        if not name:
            return 0, self._write_leaf([], places, changes)
        page = await self.index.page(name, level)
        self.drop(name)
        if not page.level:
            return 0, self._write_leaf(page.entries, places, changes)
        shares = share_out(page, places)

        async def replacements(share: tuple[Ref, list[Place]]) -> list[Ref]:
            child, part = share
            return (await self.write_below(child.page, part, changes, page.level - 1))[1] if part else [child]

        results = await a_few_at_a_time(shares, replacements)
        fresh = {one.page for (_, part), came in zip(shares, results, strict=True) if part for one in came}
        children = await self._join_small(page.level - 1, [one for came in results for one in came], fresh)
        return page.level, self._cut(page.level, children)

    def _write_leaf(
        self, entries: Sequence[Entry], places: list[Place], changes: Mapping[Place, Entry | None]
    ) -> list[Ref]:
        held = {place_of(one): one for one in entries}
        appended = not held or places[0] > max(held)
        for place in places:
            entry, before = changes[place], held.pop(place, None)
            if entry is not None:
                held[place] = entry
                if before is not None and place not in self.removes:
                    self.overwritten.append(place)
            elif before is None:
                raise ManifestError(f"{place[4]} is not in the index, and can't be removed from it")
            if before is not None and before.apart:
                self.drop(before.apart)
        return self._cut(0, [held[place] for place in sorted(held)], appended=appended)

    async def _join_small(self, level: int, refs: list[Ref], fresh: set[Name]) -> list[Ref]:
        """Return the children with new small ones joined to a neighbour: a tree that shrinks stays shallow."""
        target, tidy = self.index.sizes.target(level), refs[:1]
        for ref in refs[1:]:
            last = tidy[-1]
            small = min(last.size, ref.size) < target // 4 and last.size + ref.size <= target
            if small and not fresh.isdisjoint((last.page, ref.page)):
                one, two = await self._page(last.page), await self._page(ref.page)
                self.drop(last.page)
                self.drop(ref.page)
                tidy[-1] = self.write(level, [*one.items, *two.items])  # type: ignore[arg-type]
                fresh.add(tidy[-1].page)
            else:
                tidy.append(ref)
        return tidy

    def _cut(self, level: int, items: Sequence[Item], *, appended: bool = False) -> list[Ref]:
        """Write pages of about the target size: full ones if items are appended, else equal ones with room to grow."""
        whole, target = sum(map(size_of, items)), self.index.sizes.target(level)
        goal = target if appended else whole / max(1, -(-whole // target))
        parts: list[list[Item]] = []
        least = 2 if level else 1  # a page above has two children, however long their keys are: so the tree ends
        size = 0
        for one in items:
            if not parts or (len(parts[-1]) >= least and size + size_of(one) // 2 > goal):
                parts.append([])
                size = 0
            parts[-1].append(one)
            size += size_of(one)
        return [self.write(level, part) for part in parts]

    def top(self, level: int, refs: list[Ref]) -> Name:
        """Write the levels above these pages, and return the root."""
        while len(refs) > 1:
            level += 1
            refs = self._cut(level, refs)
        return refs[0].page if refs else b""

    async def collapse(self, root: Name) -> Name:
        """Return the root without pages above it that have one child only."""
        while root and len(children := (await self._page(root)).children) == 1:
            self.drop(root)
            root = children[0].page
        return root

    async def _page(self, name: Name) -> Page:
        return decode(self.pages[name], self.index.path(name)) if name in self.pages else await self.index.page(name)
