"""The fresh table after a power cut at any step on disk, and after a leader that died before the head."""

import time

import pytest
from disk_steps import KILLED, Disk, Steps
from fresh_world import GRACE, Leader, World

from capture.archive.iceberg_state import BRIEF
from capture.archive.index import tree
from capture.archive.index.tree import Sizes
from capture.archive.retention import Retention, Rule
from capture.errors import FencedError
from capture.stores import FileStore

STEPS = {"link blocks", "link _index", "link _table", "link _manifest", "link iceberg", "link table", "sync _index"}


class OnDisk(World):
    """The archive is in a real folder; the heads are on a server, which keeps what it has answered."""

    def __init__(self, folder):
        super().__init__(keep_for=0.0)
        self.now = time.time()  # files have the real time
        self.store = FileStore(folder)


async def live(world):
    """Show two blocks, merge them with a third one, and show a fourth one as the snapshots with blocks expire."""
    await world.block([3])
    await world.sweep()
    leader = Leader(world)
    await leader.step()
    await world.block([4])
    await world.sweep()
    await leader.compact()
    world.now += BRIEF
    await world.block([5])
    await world.sweep()
    await leader.step()


async def cut(folder, number):
    """Cut the power after this step; return the names of the steps, and whether there were so many."""
    world = OnDisk(folder / "archive")
    await world.block([1, 2])
    await world.sweep()
    await Leader(world).step()
    steps, graves = Steps(number, KILLED), folder / "graves"
    graves.mkdir()
    with Disk(folder / "archive", steps, graves) as disk:
        try:
            await live(world)
        except BaseException:  # of tasks that ran beside it, too
            if not steps.dead:
                raise
    disk.cut_power()
    world.store = FileStore(folder / "archive")
    rows = await world.seen()
    assert set(rows) >= {1, 2}
    stored, rows = set(world.stored), set(await world.settle())
    assert stored <= rows <= {1, 2, 3, 4, 5}, f"lost after a power cut at step {number}: {sorted(stored - rows)}"
    return steps.done, steps.dead


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """Keep indexes in pages, and play the disk without threads."""

    async def at_once(work, *arguments):
        return work(*arguments)

    monkeypatch.setattr("capture.stores.file.to_thread", at_once)
    monkeypatch.setattr(tree, "SIZES", Sizes(leaf=900, inner=2000, apart=60, inline=0))


async def test_without_a_power_cut_each_kind_of_object_is_linked_and_synced(tmp_path):
    done, is_dead = await cut(tmp_path, 0)
    assert not is_dead
    assert set(done) >= STEPS


@pytest.mark.parametrize("first", [20, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, 20))])
async def test_what_the_head_names_outlives_a_power_cut(tmp_path, first):
    for number in range(first, 2000, 20 if first < 20 else 160):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        _, is_dead = await cut(folder, number)
        if not is_dead:
            assert number > 200
            return
    raise AssertionError("there are fewer steps than that")


async def test_a_block_stays_that_only_an_uncommitted_table_shows_as_the_next_leader_commits_that():
    world = World()
    await world.block([1], key="short")
    await world.sweep()
    await Leader(world).compact()
    await world.block([2], key="short")
    await world.block([3])
    await world.sweep()
    leader = Leader(world)
    await leader.head.read()
    commit, took_over = leader.head.commit, []

    async def dies(head):
        if took_over:
            raise FencedError("it died before it reached the server")
        took_over.append(await commit(head))

    leader.head.commit = dies
    with pytest.raises(FencedError):
        await leader.step()
    rule = Retention((Rule(older_than=9000.0, key="short"),), 3600)
    await world.sweep(retention=rule, begins={"ORDERS": 4})
    world.now += 2 * GRACE
    await world.sweep()
    await Leader(world).step()
    assert await world.seen() == [1, 3]
    assert await world.settle() == [1, 3]
