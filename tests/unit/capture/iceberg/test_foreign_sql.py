"""The table in pyiceberg's SQL catalog, in a file: registered, moved, contended for, read by other engines."""

import gc
import shutil
import sqlite3
import uuid

import msgspec
import polars
import pytest
from exposing import sequences_of
from foreign_catalogs import Registered
from pyiceberg.catalog.sql import SqlCatalog

from capture.archive.iceberg_state import Expiry
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.errors import CatalogAwayError, ForeignEntryError
from capture.iceberg.foreign import Address, Wanted, check_ours
from capture.iceberg.foreign_catalog import CURRENT, MOVED, REGISTERED, find_entry, open_catalog, set_entry
from capture.iceberg.foreign_sql import SqlEntries
from capture.node.user_catalog import UserCatalog

NAME = "0000000012-7-" + "ab" * 16 + ".metadata.json"


def open_connections():
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, sqlite3.Connection) and is_open(one)]


def is_open(connection):
    try:
        connection.cursor()
    except sqlite3.ProgrammingError as error:
        return "closed" not in str(error)
    return True


@pytest.fixture
def archive(tmp_path):
    world = Registered(tmp_path)
    yield world
    world.catalog.close()


@pytest.fixture
def reader(tmp_path):
    """Open the catalog as its users do."""
    with SqlCatalog("default", uri=f"sqlite:///{tmp_path}/catalog.db") as catalog:
        yield catalog


async def test_the_entry_names_the_table_after_each_commit_and_other_engines_read_it(archive, reader):
    await archive.commit()
    assert await archive.set() == REGISTERED
    assert sequences_of(reader.load_table("lake.S")) == [1]
    await archive.commit()
    assert await archive.set() == MOVED
    assert await archive.set() == CURRENT
    table = reader.load_table("lake.S")
    assert table.metadata_location == archive.location()
    assert sequences_of(table) == [1, 2]
    [(count, last)] = table.scan().to_duckdb("messages").sql("select count(*), max(sequence) from messages").fetchall()
    assert (count, last) == (2, 2)
    assert polars.scan_iceberg(table).select("sequence").collect()["sequence"].sort().to_list() == [1, 2]


async def test_each_stream_has_an_entry(archive, reader):
    await archive.commit()
    await archive.commit(stream="T")
    assert await archive.set("S") == await archive.set("T") == REGISTERED
    assert sorted(reader.list_tables("lake")) == [("lake", "S"), ("lake", "T")]
    assert sequences_of(reader.load_table("lake.T")) == [2]


async def test_nothing_is_written_into_the_archive(archive):
    await archive.commit()
    await archive.commit()
    before = {one.path for one in await archive.store.list()}
    await archive.set()
    assert {one.path for one in await archive.store.list()} == before


async def test_an_entry_that_somebody_else_changed_is_refused_by_name_and_left_as_it_is(archive, reader):
    await archive.commit()
    await archive.set()
    with reader.load_table("lake.S").transaction() as change:
        change.set_properties({"owner": "somebody else"})
    theirs = reader.load_table("lake.S").metadata_location
    await archive.commit()
    with pytest.raises(
        ForeignEntryError, match=r"lake\.S in the catalog names .*/metadata/00.*capture catalog register"
    ):
        await archive.set()
    assert reader.load_table("lake.S").metadata_location == theirs
    assert await archive.set(take_over=True) == MOVED
    assert reader.load_table("lake.S").metadata_location == archive.location()
    await archive.commit()
    assert await archive.set() == MOVED, "it is the archive's from now on"


async def test_an_entry_that_existed_before_is_not_touched(archive, reader, tmp_path):
    await archive.commit()
    other = Registered(tmp_path, archive="staging")
    await other.commit()
    assert await other.set() == REGISTERED
    with pytest.raises(ForeignEntryError, match="staging"):
        await archive.set()
    assert reader.load_table("lake.S").metadata_location == other.location()
    with pytest.raises(ForeignEntryError, match="staging"):
        await archive.catalog.remove(archive.table, "S")
    other.catalog.close()


@pytest.mark.parametrize("work", ["set", "remove"])
async def test_of_two_that_change_an_entry_at_once_one_is_refused(archive, reader, monkeypatch, work):
    """Between what we read and what we write, the row is changed: the database compares."""
    await archive.commit()
    await archive.set()
    await archive.commit()
    find = SqlEntries.find

    def find_before_the_other(entries, wanted):
        found = find(entries, wanted)
        with reader.load_table("lake.S").transaction() as change:
            change.set_properties({"owner": "somebody else"})
        return found

    monkeypatch.setattr(SqlEntries, "find", find_before_the_other)
    with pytest.raises(ForeignEntryError, match="at the same moment"):
        await getattr(archive.catalog, work)(archive.table, "S")
    assert reader.load_table("lake.S").properties["owner"] == "somebody else"


async def test_of_two_that_register_at_once_one_is_refused(archive, reader, tmp_path, monkeypatch):
    await archive.commit()
    other = Registered(tmp_path, archive="staging")
    await other.commit()
    await other.set()
    monkeypatch.setattr(SqlEntries, "find", lambda *_: None)
    with pytest.raises(ForeignEntryError, match="at the same moment"):
        await archive.set()
    assert reader.load_table("lake.S").metadata_location == other.location()
    other.catalog.close()


async def test_a_dropped_entry_is_registered_again(archive, reader):
    await archive.commit()
    await archive.set()
    reader.drop_table("lake.S")
    assert await archive.set() == REGISTERED


async def test_a_removed_entry_takes_no_file_along(archive, reader):
    await archive.commit()
    await archive.set()
    before = {one.path for one in await archive.store.list()}
    assert await archive.catalog.remove(archive.table, "S")
    assert not await archive.catalog.remove(archive.table, "S")
    assert reader.list_tables("lake") == []
    assert {one.path for one in await archive.store.list()} == before


async def test_an_archive_that_was_moved_keeps_its_entry(archive, reader, tmp_path):
    """Its metadata are written anew for the new place; the retired file is known by its path."""
    await archive.commit()
    await archive.set()
    moved = tmp_path / "mount"
    shutil.copytree(tmp_path / "orders", moved / "orders")
    await archive.commit(rule=Expiry(location=f"file://{moved}/orders"))
    assert str(moved) in archive.location()
    assert await archive.set() == MOVED
    shutil.copytree(tmp_path / "orders", moved / "orders", dirs_exist_ok=True)
    assert sequences_of(reader.load_table("lake.S")) == [1, 2]


async def test_the_doctor_says_whose_entry_it_is_with_the_archives_table_and_before_there_is_one(archive, reader):
    await archive.commit()
    assert (await archive.catalog.reach(archive.table, "S")).endswith("answers; lake.S is not registered yet")
    await archive.set()
    for table in (archive.table, Table()):
        assert (await archive.catalog.reach(table, "S")).endswith(f"answers; lake.S names {archive.location()}")
    with reader.load_table("lake.S").transaction() as change:
        change.set_properties({"owner": "somebody else"})
    for table in (archive.table, Table()):
        with pytest.raises(ForeignEntryError, match=r"lake\.S in the catalog names .*did not write"):
            await archive.catalog.reach(table, "S")


async def test_damaged_metadata_that_are_created_again_keep_the_entry(archive, reader):
    shown = await archive.commit()
    await archive.set()
    before = reader.load_table("lake.S").metadata.table_uuid
    await archive.store.put(shown.metadata, b"{}", if_absent=False)
    await archive.commit()
    assert await archive.set() == MOVED
    assert reader.load_table("lake.S").metadata.table_uuid != before


async def test_a_database_that_can_not_be_opened_is_a_catalog_that_is_away(tmp_path):
    world = Registered(tmp_path, uri=f"sqlite:///{tmp_path}/not/there/catalog.db")
    await world.commit()
    with pytest.raises(CatalogAwayError, match=r"the sql catalog at sqlite:.* does not answer: unable to open"):
        await world.set()


async def test_a_locked_database_is_a_catalog_that_is_away(archive, tmp_path):
    await archive.commit()
    await archive.set()
    await archive.commit()
    archive.catalog.close()
    settings = archive.config.table
    catalog = msgspec.structs.replace(settings.catalog, uri=f"{settings.catalog.uri}?timeout=0.1")
    table = msgspec.structs.replace(settings, catalog=catalog)
    config: CaptureConfig = msgspec.structs.replace(archive.config, table=table)
    other = UserCatalog(archive.store, config)
    locking = sqlite3.connect(tmp_path / "catalog.db")
    locking.execute("begin exclusive")
    try:
        with pytest.raises(CatalogAwayError, match="database is locked"):
            await other.set(archive.table, "S")
        assert open_connections() == [locking]
    finally:
        locking.close()
    assert await other.set(archive.table, "S") == MOVED, "it connects again"
    other.close()


@pytest.mark.parametrize(
    ("location", "ours"),
    [
        (f"s3://lake/iceberg/S/metadata/{NAME}", True),
        (f"s3://lake/iceberg/T/metadata/{NAME}", False),
        (f"s3://other/iceberg/S/metadata/{NAME}", False),
        ("s3://other/iceberg/S/metadata/retired.metadata.json", True),
        ("s3://lake/iceberg/S/metadata/v12.metadata.json", False),
        (f"s3://lake/iceberg/S/metadata/00012-{uuid.UUID(int=7)}.metadata.json", False),
        ("", False),
    ],
)
def test_an_entry_is_the_archives_if_only_the_archive_can_have_written_what_it_names(location, ours):
    former = frozenset(["iceberg/S/metadata/retired.metadata.json"])
    wanted = Wanted(("lake", "S"), f"s3://lake/iceberg/S/metadata/{NAME}", "s3://lake/iceberg/S", former)
    if ours:
        check_ours(location, wanted)
    else:
        with pytest.raises(ForeignEntryError, match=r"lake\.S in the catalog names (s3|no metadata)"):
            check_ours(location, wanted)


@pytest.mark.parametrize(
    ("found", "wanted", "later"),
    [
        ((9, 2), (7, 1), True),  # the call of a leader that is deposed
        ((8, 1), (7, 1), True),
        ((7, 1), (7, 1), True),
        ((7, 1), (9, 2), False),
        ((9, 2), (7, 3), False),  # the archive was restored to an earlier state
        ((9, 2), (10, 1), False),  # the bucket of the heads was lost, and terms are counted anew
    ],
)
async def test_an_entry_never_goes_back_to_an_earlier_table(tmp_path, found, wanted, later):
    def at(number, token):
        name = f"{number:010d}-{token}-{'ab' * 16}.metadata.json"
        return Wanted(("lake", "S"), f"s3://lake/iceberg/S/metadata/{name}", "s3://lake/iceberg/S")

    address = Address("sql", "default", {"uri": f"sqlite:///{tmp_path}/catalog.db"})
    entries = open_catalog(address)
    try:
        assert set_entry(address, entries, at(*found)) == REGISTERED
        assert set_entry(address, entries, at(*wanted)) == (CURRENT if later else MOVED)
        assert find_entry(address, entries, at(1, 1)) == at(*(found if later else wanted)).location
        assert set_entry(address, entries, at(1, 1), take_over=True) == MOVED
    finally:
        entries.close()
