"""What a reader sees while leaders go on, and of an archive of the layout before this one."""

import hashlib
import json

import pytest
from set_engine import SetEngine, described, read_back

from capture.archive.chain import Head, Retired
from capture.archive.manifest import Manifest, Partition, block_path, encode, entry_path
from capture.archive.picture import Picture, read_picture
from capture.archive.table import Table, first_table
from capture.errors import FencedError, ManifestError, NotSweptError
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import MemoryStore
from capture.testing import HeadState, MemoryHead

NOW, GRACE = 1e6, 1000.0


class Archive:
    """A store, its heads and one leader of each office."""

    def __init__(self):
        self.now = NOW
        self.store = MemoryStore(clock=lambda: self.now)
        self.manifest, self.table = HeadState(), HeadState()
        self.sweeper, self.compactor = MemoryHead(1, self.manifest), MemoryHead(1, self.table)

    async def block(self, *sequences):
        path = block_path(
            Partition("S", "k", 0, 3600), sequences[0], sequences[-1], len(sequences), "ab" * 32, ".parquet"
        )
        record = described(path, list(sequences))
        await self.store.put(path, json.dumps(sequences).encode())
        await self.store.put(entry_path(path), encode(record))
        return record

    async def sweep(self):
        leading = Leading(self.store, self.sweeper, self.table.read, "", GRACE, lambda: self.now)
        return await sweep(leading, now=self.now)

    async def compact(self):
        policy, engine = Policy(min_files=1), SetEngine(self.store)
        leading = TableLeading(self.store, self.compactor, self.manifest.read, "", GRACE, lambda: self.now)
        return await compact(leading, engine, policy, now=self.now, check=read_back)

    async def all_of_it(self):
        """Compact, let go, delete, forget: as much as leaders can do, in as long as it takes them."""
        for _ in range(4):
            await self.compact()
            await self.sweep()
            self.now += 1.1 * GRACE

    async def another(self):
        """Store one more block, and adopt it."""
        await self.block(4, 5)
        await self.sweep()

    async def seen(self, manifest_head=None, table_head=None):
        picture = await read_picture(self.store, manifest_head or self.manifest.read, table_head or self.table.read)
        return sorted([one.path.partition("/")[0] for one in (*picture.blocks, *picture.files)])


@pytest.fixture
async def archive():
    archive = Archive()
    await archive.block(1, 2, 3)
    await archive.sweep()
    return archive


STEPS = {
    "nothing": [],
    "compacted": ["compact"],
    "compacted and let go": ["compact", "sweep"],
    "let go and forgotten": ["all_of_it", "another", "compact"],
}


@pytest.mark.parametrize("steps", STEPS)
async def test_what_happens_between_a_readers_two_looks_shows_every_message_once(archive, steps):
    looks = 0

    async def table_head():
        nonlocal looks
        looks += 1
        for step in STEPS[steps] if looks == 1 else ():
            await getattr(archive, step)()
        return archive.table.head

    assert await archive.seen(table_head=table_head) == (["blocks"] if steps == "nothing" else ["table"])
    assert looks == (2 if "forgotten" in steps else 1)


async def test_the_other_way_round_the_reader_notices_that_it_would_see_nothing(archive):
    """Why the manifest is read first: here the answer about the table is older than the one about the manifest."""
    await archive.compact()
    await archive.sweep()
    answers = [None, archive.table.head]

    async def lagging():
        return answers.pop(0)

    assert await archive.seen(table_head=lagging) == ["table"]
    assert answers == []


async def test_heads_that_never_belong_together_are_an_error(archive):
    before = archive.manifest.head
    await archive.block(4)
    await archive.sweep()
    await archive.compact()

    async def stuck():
        return before

    with pytest.raises(ManifestError, match=r"manifest 2 and table 2 in memory:// don't belong together"):
        await archive.seen(manifest_head=stuck)


def test_blocks_that_the_table_names_are_left_out_and_entries_of_known_ones_too():
    one, two, three, four, five = (described(f"blocks/{number}", [number]) for number in range(5))
    manifest = Manifest(blocks=[one, two], retired=[Retired(three.path, 0.0)])
    picture = Picture(manifest, Table(consumed=[two.path, four.path]))
    assert picture.blocks == [one]
    assert picture.list_unadopted([one, two, three, four, five]) == [five]


class Unaware(MemoryHead):
    """A term whose end its holder learns from the authority alone."""

    def check(self):
        pass

    async def read(self):
        super().check()
        return self.state.head

    async def commit(self, head):
        super().check()
        self.state.head = head


@pytest.mark.parametrize("office", ["sweeper", "compactor"])
async def test_a_leader_that_stands_still_before_it_lists_deletes_nothing_of_its_successors(archive, office):
    """All that it finds is old by then, and was committed when it had looked for the last time."""
    old = Unaware(1, getattr(archive, office).state)
    setattr(archive, office, old)
    await archive.compact()
    listing = archive.store.list

    async def stands_still(prefix=""):
        if prefix in ("blocks/", "table/") and getattr(archive, office) is old:
            setattr(archive, office, MemoryHead(2, old.state))
            await archive.another()
            await archive.compact()
            await archive.block(7)
            await archive.sweep()
            archive.now += 1.1 * GRACE
        return await listing(prefix)

    archive.store.list = stands_still
    with pytest.raises(FencedError):
        await (archive.sweep() if office == "sweeper" else archive.compact())
    picture = await read_picture(archive.store, archive.manifest.read, archive.table.read)
    assert len(picture.blocks) == len(picture.files) == 1
    assert all([await archive.store.get(one.path) for one in (*picture.blocks, *picture.files)])


# --- the layout before this one --------------------------------------------------------------------------------------

FORMAT_1 = {
    "format": 1,
    "number": 41,
    "token": 9,
    "leader": "a",
    "created": 5.0,
    "parent": "_manifest/0000000040-9.json",
    "parent_sha256": "00",
}


async def old_archive():
    """An archive as the version before wrote it: one head, whose manifest tells of blocks and table."""
    archive = Archive()
    archive.sweeper, archive.compactor = MemoryHead(20, archive.manifest), MemoryHead(3, archive.table)
    waiting = await archive.block(5, 6)
    await archive.store.delete(entry_path(waiting.path))  # adopted
    tabled = described("table/stream=S/key=k/date=1970-01-01/hour=00/c-8-aa.parquet", [1, 2, 3, 4])
    replaced = "table/stream=S/key=k/date=1970-01-01/hour=00/c-7-bb.parquet"
    consumed = "blocks/stream=S/key=k/date=1970-01-01/hour=00/S-1-4-4-cc.parquet"
    for path in (tabled.path, replaced, consumed):
        await archive.store.put(path, b"[1, 2, 3, 4]")
    builtins = json.loads(f"[{encode(waiting).decode()}, {encode(tabled).decode()}]")
    manifest = FORMAT_1 | {
        "blocks": builtins[:1],
        "table": builtins[1:],
        "retired": [{"path": replaced, "since": NOW}, {"path": consumed, "since": NOW}],
    }
    data = json.dumps(manifest).encode()
    path = "_manifest/0000000041-9-1.json"
    await archive.store.put(path, data)
    archive.manifest.head = Head(41, 9, path, hashlib.sha256(data).hexdigest())
    archive.manifest.highest_token = 9
    return archive, waiting, tabled, replaced, consumed


async def test_an_archive_of_format_1_is_read_as_it_is():
    archive, waiting, tabled, _, _ = await old_archive()
    picture = await read_picture(archive.store, archive.manifest.read, archive.table.read)
    assert (picture.blocks, picture.files) == ([waiting], [tabled])


async def test_a_compaction_waits_until_no_leader_of_format_1_can_commit_any_more():
    archive, *_ = await old_archive()
    with pytest.raises(NotSweptError):
        await archive.compact()
    assert archive.table.head is None


@pytest.mark.parametrize("first", ["compact", "sweep"])
async def test_an_archive_of_format_1_is_brought_up_by_its_first_leaders(first):
    archive, waiting, tabled, replaced, _ = await old_archive()
    before = await archive.seen()
    await archive.sweep()
    assert await archive.seen() == before == ["blocks", "table"]
    assert (await archive.store.list(replaced)) != []
    if first == "compact":
        await archive.compact()
        picture = await read_picture(archive.store, archive.manifest.read, archive.table.read)
        assert picture.table.consumed_paths == {waiting.path}
        assert {one.path for one in picture.table.retired} == {replaced, tabled.path}
    else:
        await archive.sweep()
        await archive.compact()
    assert await archive.seen() == ["table"]
    await archive.all_of_it()
    picture = await read_picture(archive.store, archive.manifest.read, archive.table.read)
    assert (picture.manifest.table, picture.manifest.retired) == ([], [])
    rows = [row for one in picture.files for row in json.loads(await archive.store.get(one.path))]
    assert rows == [1, 2, 3, 4, 5, 6]
    left = await archive.store.list("table/") + await archive.store.list("blocks/")
    assert [one.path for one in left] == [one.path for one in picture.files]


async def test_a_leader_of_format_1_commits_nothing_once_the_archive_was_brought_up():
    """It is fenced in its own election, whose head the sweep has taken over; and reads no manifest of format 3."""
    archive, *_ = await old_archive()
    old = MemoryHead(9, archive.manifest)
    await archive.sweep()
    with pytest.raises(FencedError):
        await old.commit(Head(42, 9, "_manifest/42", "aa"))
    head = archive.manifest.head
    assert json.loads(await archive.store.get(head.path))["format"] == 3


def test_the_first_table_is_what_format_1_told():
    tabled, blocks = described("table/x", [1]), [described("blocks/y", [2])]
    old = Manifest(number=7, blocks=blocks, table=[tabled], retired=[Retired("table/z", 1.0), Retired("blocks/w", 1.0)])
    table = first_table(old)
    assert (table.files, table.retired, table.consumed) == ([tabled], [Retired("table/z", 1.0)], [])
    assert Picture(old, table).is_whole
