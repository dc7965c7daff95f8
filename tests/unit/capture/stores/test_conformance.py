"""`check_store` on stores of users, each of which breaks one promise, and on paths that leave a store."""

import asyncio
import time
from pathlib import Path

import pytest

from capture.errors import AlreadyStoredError, NotStoredError, StoreError, StoreFullError
from capture.stores import FileStore, MemoryStore, ObjectInfo, OwnStore, check_store, open_store
from capture.stores.deletion import delete_all


class Shelf:
    """A store as a user writes it: it leaves the checking of paths to capture."""

    url = "shelves:Shelf"

    def __init__(self):
        self.objects = {}

    async def put(self, path, data, *, if_absent=True):
        content = data.read_bytes() if isinstance(data, Path) else data
        if if_absent and path in self.objects:
            raise AlreadyStoredError(path)
        self.objects[path] = content

    async def get(self, path):
        if path not in self.objects:
            raise NotStoredError(path)
        return self.objects[path]

    async def get_range(self, path, start, length):
        return (await self.get(path))[start : start + length]

    async def list(self, prefix=""):
        found = sorted(path for path in self.objects if path.startswith(prefix))
        return [ObjectInfo(path, len(self.objects[path]), time.time()) for path in found]

    async def delete(self, path):
        self.objects.pop(path, None)

    async def remove_leftovers(self, older_than_seconds, now):
        return 0


async def test_a_users_store_passes_without_checks_of_paths_and_leaves_nothing():
    shelf = Shelf()
    await check_store(shelf)
    assert shelf.objects == {}


class Swept(Shelf):
    """Also deletes several objects at a time."""

    deletes_at_once = 3

    def __init__(self):
        super().__init__()
        self.batches = []

    async def delete_many(self, paths):
        self.batches.append(list(paths))
        for path in paths:
            await self.delete(path)


async def test_a_users_store_may_delete_several_at_a_time():
    shelf = Swept()
    await check_store(shelf)
    assert shelf.objects == {}
    assert max(len(batch) for batch in shelf.batches) == 3


class Halfway(Swept):
    async def delete_many(self, paths):
        await super().delete_many(paths[1:])


class Greedy(Swept):
    async def delete_many(self, paths):
        self.objects = {path: data for path, data in self.objects.items() if path.rpartition("/")[0] not in paths[0]}


class Fussy(Swept):
    async def delete_many(self, paths):
        for path in paths:
            del self.objects[path]


class Dict(Shelf):
    async def get(self, path):
        return self.objects[path]


class Unreadable(Shelf):
    async def get(self, path):
        raise KeyError(path)


class Ranged(Shelf):
    async def get_range(self, path, start, length):
        return self.objects[path][start : start + length]


class Short(Shelf):
    async def get_range(self, path, start, length):
        content = await self.get(path)
        if start + length > len(content):
            raise EOFError
        return content[start : start + length]


class Exclusive(Shelf):
    async def put(self, path, data, *, if_absent=True):
        if if_absent and path in self.objects:
            raise FileExistsError(path)
        await super().put(path, data, if_absent=if_absent)


class Strict(Shelf):
    async def delete(self, path):
        del self.objects[path]


class Loud(Shelf):
    async def list(self, prefix=""):
        return await super().list(prefix) or [][0]


class Ascii(Shelf):
    async def put(self, path, data, *, if_absent=True):
        path.encode("ascii")
        await super().put(path, data, if_absent=if_absent)


class BytesOnly(Shelf):
    async def put(self, path, data, *, if_absent=True):
        await super().put(path, data[:], if_absent=if_absent)


class Untidy(Shelf):
    async def remove_leftovers(self, older_than_seconds, now):
        self.objects.clear()


class Late(Shelf):
    async def get(self, path):
        if path.endswith("replaces/one"):
            raise NotStoredError(path)
        return await super().get(path)


class Bound(Shelf):
    loop = None

    async def get(self, path):
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        return await super().get(path)


class Nameless(Shelf):
    url = None


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Dict, "get raises NotStoredError for an object that does not exist; but .*KeyError"),
        (Unreadable, "each call that the contract allows succeeds; but get .*/one failed in the store .*KeyError"),
        (Ranged, "get_range raises NotStoredError for an object that does not exist; but .*KeyError"),
        (Short, r"get_range returns the bytes that there are of 95\+50, .*; but .*EOFError"),
        (Exclusive, "put with if_absent raises AlreadyStoredError .*; but .*FileExistsError"),
        (Strict, "delete does nothing if the object does not exist; but .*KeyError"),
        (Halfway, "delete_many left .*, or deleted another object"),
        (Greedy, r"delete_many left \[\], or deleted another object"),
        (Fussy, "delete_many ignores objects that do not exist; but .*KeyError"),
        (Loud, "list returns nothing for a prefix without objects; but .*IndexError"),
        (Ascii, "the name 'ÄÖ-漢字-🛫' works; but .*UnicodeEncodeError"),
        (BytesOnly, "put stores a copy of a local file, given as a Path; but .*TypeError"),
        (Untidy, "remove_leftovers returned NoneType, not a number"),
        (Late, "NotStoredError was raised for the wrong object"),
        (Bound, "calls may come from another event loop, in another thread; but .*attached to a different loop"),
        (Nameless, "store is a Nameless, whose url is NoneType, not a text"),
        (object, "store is a object, which has no put"),
    ],
)
async def test_a_promise_that_a_users_store_breaks_is_named(kind, sentence):
    with pytest.raises(AssertionError, match=sentence):
        await check_store(kind())


async def test_a_store_that_is_full_breaks_no_promise():
    class Full(Shelf):
        async def put(self, path, data, *, if_absent=True):
            raise StoreFullError

    with pytest.raises(StoreFullError):
        await check_store(Full())


class Reached(MemoryStore):
    """Fails the test if a path gets to it."""

    async def put(self, path, data, *, if_absent=True):
        raise AssertionError(path)

    async def get(self, path):
        raise AssertionError(path)

    async def get_range(self, path, start, length):
        raise AssertionError(path)

    async def list(self, prefix=""):
        raise AssertionError(prefix)

    async def delete(self, path):
        raise AssertionError(path)

    deletes_at_once = 2

    async def delete_many(self, paths):
        raise AssertionError(paths)


CALLS = {
    "put": lambda store, path: store.put(path, b"x"),
    "replace": lambda store, path: store.put(path, b"x", if_absent=False),
    "get": lambda store, path: store.get(path),
    "get_range": lambda store, path: store.get_range(path, 0, 1),
    "list": lambda store, path: store.list(f"{path}/"),
    "delete": lambda store, path: store.delete(path),
    "delete_many": lambda store, path: delete_all(store, ["sound", path]),
}
STORES = {
    "folder": lambda folder: FileStore(folder / "lake"),
    "memory": lambda folder: MemoryStore(),
    "own": lambda folder: OwnStore(Reached()),
    "own in a folder": lambda folder: OwnStore(Reached(), "shelves:Shelf/deep", "deep"),
    "objects": lambda folder: open_store("s3://lake/orders?endpoint=https://127.0.0.1:9"),
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "path", ["", "/a", "..", "../a", "a/../b", "a/..", "a/./b", "a//b", "a/", ".tmp/a", "a\\b", "a\nb"]
)
async def test_no_method_of_any_store_takes_a_path_outside_of_it(tmp_path, kind, call, path):
    with pytest.raises(StoreError, match="is not a path inside a store"):
        await CALLS[call](STORES[kind](tmp_path), path)
    assert list(tmp_path.iterdir()) == []
