"""A catalog of the user whose client stands still: the archive's loop waits for nothing longer than the time limit."""

import asyncio
import threading

import msgspec
import pytest
from derived_tables import STEPS, Derived
from exposing import sequences_of
from foreign_catalogs import Registered
from patient import PATIENCE, until
from pyiceberg.catalog.sql import SqlCatalog

from capture.archive.table import Table
from capture.config.settings import Logging
from capture.errors import CatalogAwayError
from capture.iceberg.foreign_catalog import MOVED
from capture.iceberg.foreign_sql import SqlEntries
from capture.node import user_catalog
from capture.node.user_catalog import CatalogKeeper, UserCatalog


@pytest.fixture
async def archive(tmp_path):
    world = Registered(tmp_path, timeout=0.1)
    await world.commit()
    await world.set()
    yield world
    world.catalog.close()


@pytest.fixture
def standing(monkeypatch):
    """Let the driver stand still in each call until the event is set."""
    go_on, find = threading.Event(), SqlEntries.find

    def stand_and_find(entries, wanted):
        go_on.wait(60)
        return find(entries, wanted)

    monkeypatch.setattr(SqlEntries, "find", stand_and_find)
    yield go_on
    go_on.set()


async def test_a_call_that_stands_still_is_given_up_and_no_second_one_is_begun_beside_it(
    archive, standing, monkeypatch
):
    monkeypatch.setattr(user_catalog, "MARGIN", 0.0)
    await archive.commit()
    with pytest.raises(CatalogAwayError, match=r"has not answered within 0\.3 s"):
        await archive.set()
    with pytest.raises(CatalogAwayError, match="has not answered an earlier request yet"):
        await archive.set()
    standing.set()
    busy = archive.catalog._busy
    await until(lambda: not busy.is_alive())
    monkeypatch.setattr(user_catalog, "MARGIN", PATIENCE)
    assert await archive.set() in (MOVED, "current"), "the first call may have set it after all"


async def test_a_term_that_ends_waits_for_no_catalog(archive, standing):
    await archive.commit()
    async with archive.keeper.scope():
        archive.keeper.announce(archive.table)
        await until(lambda: archive.catalog._busy)
    assert archive.keeper.states == {}
    standing.set()
    busy = archive.catalog._busy
    await until(lambda: not busy.is_alive())
    assert archive.catalog._entries is None, "its connections are closed when it ends"


async def test_only_the_last_of_the_tables_announced_meanwhile_is_registered(archive, standing, tmp_path):
    locations = []
    async with archive.keeper.scope():
        for _ in range(3):
            await archive.commit()
            archive.keeper.announce(archive.table)
            await until(lambda: archive.catalog._busy)
            locations.append(archive.location())
        standing.set()
        await until(lambda: "S" in archive.keeper.states and archive.keeper.states["S"].number == archive.table.number)
    with SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db") as reader:
        table = reader.load_table("lake.S")
        earlier = [one.metadata_file for one in table.metadata.metadata_log]
        assert table.metadata_location == locations[-1]
        assert earlier == [], "the archive's metadata name no earlier ones"
        assert sequences_of(table) == [1, 2, 3, 4]


async def test_that_the_catalog_shows_the_table_again_is_logged_at_the_level_of_a_node_without_settings(
    archive, monkeypatch, caplog
):
    faults, find = [OSError("of a driver")], SqlEntries.find

    def fail_once(entries, wanted):
        if faults:
            raise faults.pop()
        return find(entries, wanted)

    monkeypatch.setattr(SqlEntries, "find", fail_once)
    caplog.set_level(Logging().level.upper())
    archive.keeper.announce(archive.table)
    assert not await archive.keeper.set_all()
    assert await archive.keeper.set_all()
    assert await archive.keeper.set_all()
    assert [one.message for one in caplog.records][1:] == ["the catalog shows the table again"]


async def test_a_table_without_streams_needs_no_catalog(archive):
    archive.keeper.announce(Table())
    assert await archive.keeper.set_all()
    assert archive.keeper.states == {}


async def test_an_unexpected_fault_does_not_end_the_keeper(archive, monkeypatch, caplog):
    faults = [ZeroDivisionError("of a driver")]
    find = SqlEntries.find

    def fail_once(entries, wanted):
        if faults:
            raise faults.pop()
        return find(entries, wanted)

    monkeypatch.setattr(SqlEntries, "find", fail_once)
    await archive.commit()
    async with archive.keeper.scope():
        archive.keeper.announce(archive.table)
        await until(lambda: "S" in archive.keeper.states and not archive.keeper.states["S"].trouble)
    assert "can't be used: ZeroDivisionError: of a driver" in caplog.text
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_entry_that_another_program_removed_is_registered_again_without_a_commit(archive, tmp_path):
    keeper = CatalogKeeper(archive.catalog, archive.failing, look=0.05)
    async with keeper.scope():
        keeper.announce(archive.table)
        await until(lambda: "S" in keeper.states)
        with SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db") as other:
            other.drop_table("lake.S")
            await until(lambda: other.table_exists("lake.S"))


async def test_tables_of_pipelines_are_registered_beside_those_of_streams(archive, tmp_path):
    derived = Derived(tmp_path / "pipelines")
    catalog = UserCatalog(derived.store, msgspec.structs.replace(archive.config, store=derived.store.url))
    catalog_keeper = CatalogKeeper(catalog, archive.failing)
    for step in STEPS:
        expected = await step(derived)
        catalog_keeper.announce(derived.document)
        assert await catalog_keeper.set_all()
        assert catalog_keeper.states["daily"].number == derived.shown.number
        with SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db") as other:
            assert other.list_tables("lake") == [("lake", "S"), ("lake", "daily")]
            rows = other.load_table("lake.daily").scan().to_arrow()["total"].to_pylist()
        assert len(rows) == len(expected)
        assert all(total in row for total, row in zip(sorted(rows), expected, strict=True))
    catalog.close()
