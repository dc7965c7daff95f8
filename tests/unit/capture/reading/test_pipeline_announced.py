"""When readers without a catalog see a commit of a pipeline's table: `capture pipeline run` waits for it."""

import asyncio

import pytest

from capture.archive.iceberg_state import Iceberg, hint_path
from capture.config.settings import CaptureConfig
from capture.pipelines.document import Pipelines
from capture.reading.pipeline_view import PipelineView

TABLE = Iceberg(location="l", number=7, metadata="m", sha256="s", snapshots=[])


@pytest.mark.parametrize(
    ("hint", "announced"),
    [(None, False), (b"6", False), (b"7", True), (b"12", True), (b"", False), (b"v7", False)],
    ids=["none", "older", "this", "later", "empty", "foreign"],
)
async def test_a_table_is_announced_by_a_hint_of_its_version_or_a_later_one(tmp_path, hint, announced):
    config = CaptureConfig(stream="S", store=str(tmp_path / "archive"))
    view = PipelineView(config, None, None, Pipelines(iceberg={"t": TABLE}))
    if hint is not None:
        await view.store.put(hint_path("t"), hint)
    assert await view.is_announced("t") is announced
    await view.wait_until_announced("t", 0.1)  # returns, though no leader is there


async def test_who_waits_for_an_announcement_returns_once_it_is_made(tmp_path):
    config = CaptureConfig(stream="S", store=str(tmp_path / "archive"))
    view = PipelineView(config, None, None, Pipelines(iceberg={"t": TABLE}))
    waiting = asyncio.create_task(view.wait_until_announced("t", 30.0))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await view.store.put(hint_path("t"), b"7")
    await asyncio.wait_for(waiting, 10.0)


async def test_a_table_that_no_reader_can_open_keeps_nobody_waiting(tmp_path):
    config = CaptureConfig(stream="S", store=str(tmp_path / "archive"))
    assert await PipelineView(config, None, None, Pipelines()).is_announced("t")
