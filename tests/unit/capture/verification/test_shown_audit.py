"""The index of the blocks that a table shows: each damage to it, and each block that is shown wrongly, is found."""

from hashlib import sha256

import msgspec
import pytest
from archived import store_block
from fresh_world import STREAM, Leader, World
from wide_index import DAMAGES, another, foreign

from capture.archive import chain
from capture.archive.index import tree
from capture.archive.index.page import decode, page_path
from capture.archive.index.tree import Index, Sizes
from capture.archive.index.update import update
from capture.archive.index.version import Version
from capture.archive.manifest import Manifest
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import ManifestError
from capture.testing import MemoryHead
from capture.verification.audit import audit as audit_of
from capture.verification.index_audit import check_shown

SMALL = Sizes(leaf=1500, inner=1500, apart=80, inline=0)


class Showing(World):
    """A world whose table has a file, and shows nine blocks."""

    async def make(self):
        await self.block([1, 2, 3])
        await self.sweep()
        await Leader(self).compact()
        for number in range(9):
            await self.block(sequences_of(number), key=f"k{number}")
        await self.sweep()
        assert (await Leader(self).step()).shown == 9
        return self

    async def audit(self, **options):
        heads = {Manifest: self.manifest.read, Table: self.table.read}
        return await audit_of(self.store, heads, archive="orders", **options)

    async def paths(self, prefix=""):
        return [one.path for one in await self.store.list(prefix)]

    async def change(self, path, data):
        await self.store.delete(path)
        if data is not None:
            await self.store.put(path, data)

    async def pages(self):
        """Return the paths of the pages of the shown blocks, by what they are."""
        table = await self.document(Table)
        index, found = Index(self.store, Table.PAGES), {"root": [], "inner": [], "leaf": [], "set": [], "held": []}
        found["held"] = [index.path(one) for one in table.shown.streams[STREAM].held.apart.values()]
        waiting = [table.shown.root]
        while waiting:
            page = decode(await self.store.get(path := index.path(waiting.pop())), path)
            waiting += [one.page for one in page.children]
            found["set"] += [index.path(one.apart) for one in page.entries if one.apart]
            what = "root" if path == index.path(table.shown.root) else "inner" if page.level else "leaf"
            found[what].append(path)
        return found

    async def document(self, kind):
        return await chain.read(self.store, {Manifest: self.manifest, Table: self.table}[kind].head, kind)

    async def show(self, blocks, **changes):
        """Commit the table with these shown blocks instead, as somebody who can sign and commit."""
        table = await self.document(Table)
        made = await update(Index(self.store, Table.PAGES), Version(), blocks, [], token=90, number=90)
        pages = {page_path(Table.PAGES, name): data for name, data in made.pages.items()}
        changed = msgspec.structs.replace(table, **{"shown": made.version} | changes)
        head = self.table.head
        return (await chain.commit(self.store, MemoryHead(head.token, self.table), head, changed, pages)).path


def sequences_of(number):
    return [10 + number + 20 * one for one in range(40 if number % 2 else 3)]


@pytest.fixture
async def world(monkeypatch):
    monkeypatch.setattr(tree, "SIZES", SMALL)
    return await Showing().make()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_page_of_any_kind_that_was_touched_is_named_by_each_audit(damage, world):
    how, said = DAMAGES[damage]
    found, document = await world.pages(), world.table.head.path
    assert all(found.values()), found
    for what, paths in found.items():
        path = paths[-1]
        data = await world.store.get(path)
        changed = await how(world, path) if how in (another, foreign) else how(data) if callable(how) else how
        await world.change(path, changed)
        for deep in (False, True):
            problems = (await world.audit(deep=deep)).problems
            assert [one for one in problems if one.startswith(f"{path} {said}") and document in one], (what, problems)
            assert len(problems) == 1
        await world.change(path, data)
    for deep in (False, True):
        assert (await world.audit(deep=deep)).ok


async def test_blocks_that_are_shown_wrongly_are_told(world):
    blocks = await world.shown()
    one, other = blocks[:2]
    held, changed = sorted(Sequences.from_bytes(one.sequences)), msgspec.structs.replace
    stranger = changed(one, path=other.path.replace(other.sha256[:8], "0" * 8))
    rewritten = Sequences.from_iterable([held[0], *(n + 10 for n in held[1:-1]), held[-1]]).to_bytes()
    low = changed(one, first=1, sequences=Sequences.from_iterable([1, *held]).to_bytes(), count=one.count + 1)
    more = changed(other, sequences=Sequences.from_iterable([other.first, other.first + 10]).to_bytes())
    [document] = {(await world.document(Manifest)).number, (await world.document(Table)).shown_of}
    for shown, changes, said in (
        (blocks, {}, ""),
        (blocks[1:], {}, ""),  # not every block is shown
        ([*blocks[1:], changed(one, sequences=Sequences.from_iterable(held[1:]).to_bytes())], {}, ""),  # nor every row
        ([*blocks[1:], stranger], {}, f"it shows {stranger.path}, which is not a block of the manifest"),
        ([*blocks[1:], stranger], {"shown_of": document - 1}, ""),  # the sweep may have removed it
        ([*blocks, stranger], {}, f"the sequences {Sequences.from_iterable(held).describe()} of {STREAM} are in two"),
        ([*blocks[1:], low], {}, f"the sequences 1 of {STREAM} are in a shown block and in a file"),
        ([*blocks[1:], changed(one, sequences=rewritten)], {}, f"it does not show {one.path} as the manifest"),
        ([one, *blocks[2:], more], {}, f"it does not show {other.path} as the manifest"),
        ([*blocks[1:], changed(one, sha256=sha256(b"").hexdigest())], {}, f"it does not show {one.path} as the"),
        (blocks, {"consumed": [one.path]}, f"it shows {one.path}, and its files replace this block"),
    ):
        path = await world.show(shown, **{"shown_of": document, "consumed": []} | changes)
        for deep in (False, True):
            problems = (await world.audit(deep=deep)).problems
            assert len(problems) == bool(said)
            assert all(text.startswith(f"{path} is wrong: {said}") for text in problems), problems


async def test_a_set_that_is_not_in_the_range_of_its_record_is_told(world):
    one, *others = await world.shown()
    held = Sequences.from_bytes(one.sequences)
    for wrong in (held.last + 2000, one.first - 9):
        sequences = Sequences.from_iterable([*held, wrong][1:]).to_bytes()
        await world.show([*others, msgspec.structs.replace(one, sequences=sequences)])
        for deep in (False, True):
            [problem] = (await world.audit(deep=deep)).problems
            assert (
                f" is damaged: the record of {one.path} says {one.count} rows from {one.first} to {one.last}" in problem
            )


async def test_totals_of_shown_blocks_that_are_not_those_of_the_pages_are_told(world):
    table = await world.document(Table)
    total = table.shown.streams[STREAM]
    for changes, said in (
        ({"objects": 3}, f"it says 3 objects of {STREAM}, and its shown has 9"),
        ({"twice": Sequences.from_range(1, 2).to_text()}, "it says 1–2 sequences that are stored twice of"),
    ):
        wrong = {STREAM: msgspec.structs.replace(total, **changes)}
        version = msgspec.structs.replace(table.shown, streams=wrong)
        path = await world.show([], shown=version)
        for deep in (False, True):
            [problem] = (await world.audit(deep=deep)).problems
            assert problem.startswith(f"{path} is wrong: {said}")


async def test_a_block_that_the_sweep_removed_since_may_still_be_shown(world):
    table, manifest = await world.document(Table), await world.document(Manifest)
    await check_shown(world.store, "t", table, msgspec.structs.replace(manifest, index=Version(), number=99))
    with pytest.raises(ManifestError, match=r"t is wrong: it shows .*, which is not a block of the manifest"):
        await check_shown(world.store, "t", table, msgspec.structs.replace(manifest, index=Version()))


async def test_what_leaders_show_and_merge_is_never_a_problem(world):
    for number in range(20, 23):
        await store_block(world.store, [500 + number], key=f"k{number}", clock=lambda: world.now)
        await world.sweep()
        assert (await world.audit()).ok
        leader = Leader(world)
        await leader.step()
        assert (await world.audit(deep=True)).ok
        if number == 21:
            await leader.compact()
            assert (await world.audit(deep=True)).ok
            await world.sweep()
            assert (await world.audit(deep=True)).ok
