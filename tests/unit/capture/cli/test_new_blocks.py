"""The new blocks that `capture status` counts in the store while no node runs."""

import io

import msgspec
import pytest
from archive_states import STATE
from archived import Archived
from rich.console import Console

from capture.cli.status import READ_EVERY, Found, NewBlocks, StoreLook, _data, overview
from capture.config.settings import CaptureConfig
from capture.ingest.board import BoardState, Heard, NodeState
from capture.node.status.status import Status

NODE = NodeState(node="one", version="1", since=0.0, every=10.0)


def status(*nodes):
    return Status("S", BoardState(msgspec.structs.replace(STATE, archive="S"), 0.0, list(nodes)), "", "")


def shown(new):
    file = io.StringIO()
    Console(file=file, width=200, markup=False).print(overview(Found(status(), None, new)))
    return file.getvalue()


@pytest.fixture
async def archive(tmp_path):
    """An archive with a block that no sweep has adopted."""
    archived = Archived(folder=tmp_path / "lake")
    await archived.make()
    return archived


async def test_the_store_is_read_again_only_after_a_pause(archive, tmp_path):
    now = [1000.0]
    store = StoreLook(CaptureConfig(stream="S", store=str(tmp_path / "lake")), lambda: now[0])
    assert await store.count_new_blocks(status()) == NewBlocks(1)
    (tmp_path / "lake").rename(tmp_path / "away")
    (tmp_path / "lake").touch()  # the store can't be read now
    now[0] += READ_EVERY - 1
    assert await store.count_new_blocks(status()) == NewBlocks(1)
    now[0] += 1
    found = await store.count_new_blocks(status())
    assert found.blocks is None
    assert found.problem


async def test_while_a_node_runs_the_store_is_not_read():
    store = StoreLook(CaptureConfig(stream="S", store="/nowhere"))
    assert await store.count_new_blocks(status(Heard(NODE, 1.0))) is None


def test_new_blocks_are_shown_beside_those_that_the_sweep_could_not_adopt():
    assert "3 blocks that the next sweep of a node adopts" in shown(NewBlocks(3))
    assert "not known: the store is away" in shown(NewBlocks(None, "the store is away"))
    assert "could not adopt" not in shown(None)
    data = _data(Found(status(), None, NewBlocks(None, "the store is away")))
    assert (data["new"], data["state"]["unadopted"]) == ({"blocks": None, "problem": "the store is away"}, 0)
    assert "new" not in _data(Found(status(), None))
