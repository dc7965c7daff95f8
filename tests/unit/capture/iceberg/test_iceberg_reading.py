"""The table from Python, through the archive's own store: whatever that is, and whoever has the credentials."""

import asyncio
from uuid import uuid4

import pytest
from derived_tables import STEPS, Derived
from exposing import HOUR, expose_files, sequences_of, table_file
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from capture.archive import chain
from capture.archive.table import Table
from capture.iceberg import ArchiveCatalog, Exposer
from capture.pipelines.document import Pipelines
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead


@pytest.fixture
async def committed():
    """A store that no other engine could read, its head, and what commits a further file."""
    store, state, heads = open_store(f"memory://{uuid4().hex}"), HeadState(), []
    files = []

    async def commit(*sequences):
        files.append(await table_file(store, list(sequences), name=str(len(files))))
        before = await chain.read(store, heads[-1] if heads else None, Table)
        table = Table(files=list(files), number=before.number, iceberg=before.iceberg)
        table = await expose_files(Exposer(store), before.files, table, now=HOUR + len(files))
        heads.append(await chain.commit(store, MemoryHead(1, state), heads[-1] if heads else None, table))

    await commit(1, 2)
    return store, state, commit


async def test_it_follows_the_head(committed):
    store, state, commit = committed
    catalog = ArchiveCatalog({"orders": (store, state.read)})

    def ask():
        assert catalog.list_namespaces() == [("orders",)]
        assert catalog.list_tables("orders") == [("orders", "S")]
        return catalog.load_table("orders.S")

    table = await asyncio.to_thread(ask)
    assert await asyncio.to_thread(sequences_of, table) == [1, 2]
    await commit(3)
    assert await asyncio.to_thread(sequences_of, table) == [1, 2]
    assert await asyncio.to_thread(lambda: sequences_of(table.refresh())) == [1, 2, 3]


async def test_tables_of_pipelines_are_read_as_those_of_archives():
    table = Derived(f"memory://{uuid4().hex}")
    catalog = ArchiveCatalog({"pipelines": (table.store, table.state.read)}, Pipelines)
    assert await asyncio.to_thread(catalog.list_tables, "pipelines") == []
    expected = await STEPS[0](table)
    assert await asyncio.to_thread(catalog.list_tables, "pipelines") == [("pipelines", "daily")]
    rows = await asyncio.to_thread(lambda: catalog.load_table("pipelines.daily").scan().to_arrow()["total"].to_pylist())
    assert sorted(rows) == [total for _, _, total in expected]


async def test_large_files_are_read_in_ranges(committed):
    store, state, commit = committed
    await commit(*range(10, 300_000))
    asked = []
    get_range = store.get_range

    async def noted(path, start, length):
        asked.append(length)
        return await get_range(path, start, length)

    store.get_range = noted
    catalog = ArchiveCatalog({"orders": (store, state.read)})

    def ask():
        return sequences_of(catalog.load_table("orders.S"))

    assert len(await asyncio.to_thread(ask)) == 2 + 299_990
    size = max(one.bytes for one in await store.list("table/"))
    assert max(asked) < size


async def test_what_is_not_there_and_what_would_write_is_refused(committed):
    store, state, _ = committed
    catalog = ArchiveCatalog({"orders": (store, state.read)})

    def ask():
        assert catalog.table_exists("orders.S")
        assert not catalog.table_exists("orders.T")
        assert not catalog.table_exists("payments.S")
        assert catalog.namespace_exists("orders")
        assert not catalog.namespace_exists("payments")
        with pytest.raises(NoSuchTableError):
            catalog.load_table("orders.T")
        with pytest.raises(NoSuchNamespaceError):
            catalog.list_tables("payments")
        table = catalog.load_table("orders.S")
        with pytest.raises(NotImplementedError):
            table.append(table.scan().to_arrow())
        with pytest.raises(NotImplementedError):
            catalog.drop_table("orders.S")

    before = [one.path for one in await store.list()]
    await asyncio.to_thread(ask)
    assert [one.path for one in await store.list()] == before
