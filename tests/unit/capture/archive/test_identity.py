import pytest

from capture.archive.identity import claim
from capture.errors import ConfigError, ManifestError
from capture.stores import MemoryStore


async def test_the_same_stream_may_be_claimed_again():
    store = MemoryStore("a")
    await claim(store, "orders", "ORDERS", "2026-11-21T03:00:00Z")
    await claim(store, "orders", "ORDERS", "2026-11-21T03:00:00Z")
    assert [one.path for one in await store.list()] == ["README.md", "_archive.json", "_streams/ORDERS.json"]


async def test_a_stream_that_was_made_again_is_refused_with_both_times():
    store = MemoryStore("a")
    await claim(store, "orders", "ORDERS", "2026-11-21T03:00:00Z")
    with pytest.raises(ConfigError, match=r"03:00:00Z.*04:00:00Z.*another store"):
        await claim(store, "orders", "ORDERS", "2026-11-21T04:00:00Z")


async def test_a_damaged_identity_is_named():
    store = MemoryStore("a")
    await store.put("_streams/ORDERS.json", b"{")
    with pytest.raises(ManifestError, match=r"_streams/ORDERS\.json .* is damaged"):
        await claim(store, "orders", "ORDERS", "2026-11-21T04:00:00Z")


async def test_a_store_of_another_archive_is_refused_and_told_how_to_add_to_it():
    store = MemoryStore("a")
    await claim(store, "orders", "ORDERS", "2026-11-21T03:00:00Z")
    with pytest.raises(ConfigError, match=r"holds the archive 'orders'.*archive = \"orders\""):
        await claim(store, "TICKS", "TICKS", "2026-11-21T03:00:00Z")
    await claim(store, "orders", "TICKS", "2026-11-21T03:00:00Z")
