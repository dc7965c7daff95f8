"""The leader of the pipelines commits tables with their Iceberg metadata: its documents have the files in an index."""

import pytest
from derived_tables import SALES, STEPS, Derived
from exposing import HOUR
from pyiceberg.table import StaticTable

from capture.archive.iceberg_state import Expiry
from capture.iceberg import Exposer
from capture.pipelines.commits import Change, PipelineLeading
from capture.testing import MemoryHead


class Led(Derived):
    """A pipeline's table whose runs are committed by the pipelines' leader."""

    def __init__(self, root):
        super().__init__(root)
        self.new_term()

    def new_term(self):
        """Let another leader begin, which knows nothing."""
        self.exposer = Exposer(self.store, Expiry(keep_for=100))
        pointer = MemoryHead(self.state.highest_token + 1, self.state)
        self.leading = PipelineLeading(self.store, pointer, grace=10, exposure=self.exposer, elapsed=lambda: self.now)

    async def run(self, came, gone=(), *, same_rows=False, **how):
        table = self.prepare(came, gone, **how).tables[self.name]
        await self.leading.commit(
            Change(tables={self.name: table}, came=came, gone=list(gone), same_rows=same_rows), self.now
        )
        files = await self.leading.list_files(self.name)
        self.document = (await self.leading.read(self.now)).with_listed(files)


@pytest.fixture
def table(tmp_path):
    return Led(tmp_path)


async def read(table):
    """Return the totals that a reader finds that knows only the folder."""
    return sorted(StaticTable.from_metadata(table.location).scan().to_arrow()["total"].to_pylist())


async def test_each_run_is_shown_by_each_leader_and_what_nothing_needs_is_deleted(table):
    for step in STEPS:
        expected = await step(table)
        table.new_term()
        table.now += 200
        document = await table.leading.read(table.now)
        assert list(document.iceberg) == ["daily"]
        if table.exposer.is_due(document, table.now):
            document = await table.leading.commit(Change(tables={}), table.now)
        assert not table.exposer.is_due(document, table.now)
        table.now += 200
        await table.leading.clean(table.now)
        found = await read(table)
        assert len(found) == len(expected)
        assert all(total in row for total, row in zip(found, expected, strict=True))
    kept = [one.path for one in await table.store.list("table/")]
    assert kept == []


async def test_a_table_whose_metadata_are_lost_is_made_again_of_the_files_in_the_index(table, caplog):
    await STEPS[0](table)
    await table.store.delete(table.shown.metadata)
    table.new_term()
    document = await table.leading.read(table.now)
    assert table.exposer.is_due(document, table.now)
    await table.leading.commit(Change(tables={}), HOUR + 1000)
    assert "is created again, without its history" in caplog.text
    assert await read(table) == [1, 2, 3, 4]
    more = [await table.file(SALES.empty_table(), partition=["de", None])]
    await table.run(more, columns=SALES, partition=["country", "day"])
    assert await read(table) == [1, 2, 3, 4]
