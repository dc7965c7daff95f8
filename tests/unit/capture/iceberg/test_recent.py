"""Objects that a leader keeps in memory: only what has the recorded SHA-256, and not without limit."""

from hashlib import sha256

import pytest

from capture.errors import ManifestError
from capture.iceberg.recent import RecentObjects
from capture.stores import MemoryStore


def digest(data):
    return sha256(data).hexdigest()


async def test_an_object_is_read_once_while_it_is_in_memory_and_those_unused_for_longest_are_dropped():
    store, recent = MemoryStore(), RecentObjects(most_bytes=25)
    data = {name: name.encode() * 10 for name in "abc"}
    for name, content in data.items():
        await store.put(name, content)
    for name in "aba":
        assert await recent.read(store, name, digest(data[name])) == data[name]
    assert await recent.read(store, "c", digest(data["c"])) == data["c"]
    assert repr(recent) == "RecentObjects(2 objects, 20 of 25 bytes)"
    for name in "abc":
        await store.delete(name)
    assert await recent.read(store, "a", digest(data["a"])) == data["a"]
    assert await recent.read(store, "c", digest(data["c"])) == data["c"]
    with pytest.raises(Exception, match="there is no b"):
        await recent.read(store, "b", digest(data["b"]))


async def test_an_object_that_is_larger_than_the_limit_is_not_kept():
    store, recent = MemoryStore(), RecentObjects(most_bytes=5)
    await store.put("a", b"123456")
    assert await recent.read(store, "a", digest(b"123456")) == b"123456"
    assert repr(recent) == "RecentObjects(0 objects, 0 of 5 bytes)"


@pytest.mark.parametrize("recorded", [digest(b"other"), None])
async def test_an_object_whose_sha256_is_not_the_recorded_one_is_refused(recorded):
    store, recent = MemoryStore(), RecentObjects()
    recent.add("a", digest(b"first"), b"first")
    await store.put("a", b"second")
    with pytest.raises(ManifestError, match="a was changed"):
        await recent.read(store, "a", recorded)
