"""Iceberg tables in object stores: written and read by the archive's own client, with absolute locations of theirs."""

import asyncio

import msgspec
import pytest
from exposing import HOUR, expose_files, sequences_of, table_file

from capture.archive import chain
from capture.archive.iceberg_state import hint_path
from capture.archive.table import Table
from capture.iceberg import ArchiveCatalog, Exposer
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead


@pytest.mark.parametrize("kind", ["s3", pytest.param("azure", marks=pytest.mark.long)])
async def test_a_table_in_an_object_store_is_read_by_its_head(kind, request):
    server = request.getfixturevalue(kind)
    store, state = open_store(server.url("a lake")), HeadState()
    exposer, head = Exposer(store), None
    for number, sequences in enumerate(([1, 2], [3]), start=1):
        one = await table_file(store, sequences, name=str(number), key="a/b %")
        table = await chain.read(store, head, Table)
        wanted = msgspec.structs.replace(table, files=[*table.files, one])
        table = await expose_files(exposer, table.files, wanted, now=HOUR + number)
        head = await chain.commit(store, MemoryHead(1, state), head, table)
        await exposer.announce(table)
    assert await store.get(hint_path("S")) == b"2"
    exposed = table.iceberg["S"]
    assert exposed.location.endswith("/a lake/iceberg/S")
    assert "?" not in exposed.location
    catalog = ArchiveCatalog({"orders": (store, state.read)})
    found = await asyncio.to_thread(lambda: catalog.load_table("orders.S"))
    assert await asyncio.to_thread(sequences_of, found) == [1, 2, 3]
    assert [one.summary["total-records"] for one in found.snapshots()] == ["2", "3"]
