"""When readers without a catalog see a commit of a pipeline's table: `capture pipeline run` waits for it."""

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


async def test_a_table_that_no_reader_can_open_keeps_nobody_waiting(tmp_path):
    config = CaptureConfig(stream="S", store=str(tmp_path / "archive"))
    assert await PipelineView(config, None, None, Pipelines()).is_announced("t")
