"""The checks that every store must pass, ours and those of users."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast
from uuid import uuid4

from capture.errors import (
    AlreadyStoredError,
    CaptureError,
    ConfigError,
    NotStoredError,
    StoreError,
    StoreFullError,
    StoreUnfitError,
    StoreUnreadableError,
)
from capture.stores.contract import Store, list_in_parts
from capture.stores.deletion import DeletesMany, delete_all
from capture.stores.own_store import OwnStore, guard

LARGE_BYTES = 5 * 1024 * 1024
DAY = 86_400.0  # seconds that two clocks may differ
LONG_AGO = 1e9  # seconds: no store has leftovers that are so old
AWKWARD_NAMES = ("key=a%2Fb", "with space", "ÄÖ-漢字-🛫", "key=", "a.b..c", "-dash", "%", "plus+and&question?#hash")


async def check_store(store: Store) -> None:
    """Check that a store keeps the contract. AssertionError names the promise that it breaks.

    It works in a folder of its own and removes it at the end, so it can be run on a store that is in use. It uses your
    own store as capture does: behind `OwnStore`, which checks paths for it. StoreFullError, StoreUnfitError and
    StoreUnreadableError are raised as they are, and StoreError of a store of ours that is away.
    """
    try:
        store = guard(store)
    except ConfigError as error:
        raise AssertionError(str(error)) from error
    folder = f"conformance-{uuid4().hex}"
    checks = (
        _creates_once,
        _one_creator_wins,
        _replaces,
        _lists,
        _reads_ranges,
        _deletes,
        _deletes_many,
        _keeps,
        _copies_files,
        _is_atomic,
        _refuses,
        _removes_leftovers,
        _serves_threads,
    )
    try:
        for check in checks:
            with _promise(store, "each call that the contract allows succeeds"):
                await check(store, f"{folder}/{check.__name__.strip('_')}")
    except (AlreadyStoredError, NotStoredError) as error:
        raise AssertionError(f"{type(error).__name__} was raised for the wrong object: {error}") from error
    finally:
        with suppress(CaptureError):
            await delete_all(store, [one.path for one in await store.list(folder + "/")])
    assert await store.list(folder + "/") == [], "objects are still listed after every one was deleted"


async def _creates_once(store: Store, folder: str) -> None:
    path = f"{folder}/one"
    await store.put(path, b"first")
    assert await _is_refused(store, path, b"second"), (
        "put with if_absent replaced an object, or did not raise AlreadyStoredError"
    )
    assert await store.get(path) == b"first", "a refused put changed the object"


async def _one_creator_wins(store: Store, folder: str) -> None:
    contents = [f"writer {writer}".encode() * 1000 for writer in range(4)]

    async def contest(path: str) -> None:
        refused = await asyncio.gather(*(_is_refused(store, path, content) for content in contents))
        assert refused.count(False) == 1, f"{refused.count(False)} of 4 concurrent creators succeeded, not one"
        winner = contents[refused.index(False)]
        assert await store.get(path) == winner, "the object is not what its one successful creator wrote"

    await asyncio.gather(*(contest(f"{folder}/{number}") for number in range(10)))


async def _replaces(store: Store, folder: str) -> None:
    path = f"{folder}/one"
    await store.put(path, b"old", if_absent=False)
    await store.put(path, b"newer", if_absent=False)
    assert await store.get(path) == b"newer", "put without if_absent did not replace the object"
    assert [one.bytes for one in await store.list(path)] == [5], "the listing has the size of the replaced object"


async def _lists(store: Store, folder: str) -> None:
    names = ["b/2", "b/10", "a", "b-c", "b/1/deep/er", "c"]
    for name in names:
        await store.put(f"{folder}/{name}", name.encode())
    listed = await store.list(folder + "/")
    assert [one.path for one in listed] == sorted(f"{folder}/{name}" for name in names), (
        "the listing is not every object, by path"
    )
    assert all(one.bytes == len(one.path) - len(folder) - 1 for one in listed), "a listed size is wrong"
    assert all(abs(one.modified - time.time()) < DAY for one in listed), "a listed object's time is not in Unix seconds"
    parts = [one async for part in list_in_parts(store, folder + "/") for one in part]
    assert sorted((one.path, one.bytes) for one in parts) == [(one.path, one.bytes) for one in listed], (
        "list_parts finds other objects than list"
    )
    below = [one.path for one in await store.list(f"{folder}/b/1")]
    assert below == [f"{folder}/b/1/deep/er", f"{folder}/b/10"], "the prefix is a text, not a folder"
    with _promise(store, "list returns nothing for a prefix without objects"):
        assert await store.list(f"{folder}/nothing/") == [], "a prefix without objects must be an empty listing"


async def _reads_ranges(store: Store, folder: str) -> None:
    path = f"{folder}/one"
    await store.put(path, bytes(range(100)))
    for start, length in ((0, 100), (0, 0), (10, 5), (95, 50), (99, 1), (100, 1), (500, 5)):
        expected = bytes(range(100))[start : start + length]
        with _promise(store, f"get_range returns the bytes that there are of {start}+{length}, of an object with 100"):
            assert await store.get_range(path, start, length) == expected, f"range {start}+{length} is wrong"
    assert await _is_absent(store, f"{folder}/none"), (
        "reading an object that does not exist did not raise NotStoredError"
    )
    with suppress(NotStoredError), _promise(store, "get_range raises NotStoredError for an object that does not exist"):
        await store.get_range(f"{folder}/none", 0, 1)
        raise AssertionError("reading a range of an object that does not exist did not raise NotStoredError")


async def _deletes(store: Store, folder: str) -> None:
    path = f"{folder}/deep/one"
    await store.put(path, b"x")
    await store.delete(path)
    with _promise(store, "delete does nothing if the object does not exist"):
        await store.delete(path)
    assert await _is_absent(store, path), "a deleted object can still be read"
    assert await store.list(folder + "/") == [], "a deleted object is still listed"
    await store.put(path, b"again")
    assert await store.get(path) == b"again", "a path can't be reused after its object was deleted"


async def _deletes_many(store: Store, folder: str) -> None:
    if getattr(store, "deletes_at_once", 1) == 1:
        return  # capture deletes one by one
    names = [f"{folder}/{name}" for name in AWKWARD_NAMES]
    for path in (*names, f"{folder}/kept"):
        await store.put(path, b"x")
    most = cast("DeletesMany", store).deletes_at_once
    with _promise(store, "delete_many ignores objects that do not exist"):
        for start in range(0, len(names), most - 1):
            await cast("DeletesMany", store).delete_many([*names[start:][: most - 1], f"{folder}/none"])
    left = [one.path for one in await store.list(folder + "/")]
    assert left == [f"{folder}/kept"], f"delete_many left {left}, or deleted another object"


async def _keeps(store: Store, folder: str) -> None:
    large = bytes(range(256)) * (LARGE_BYTES // 256)
    await store.put(f"{folder}/empty", b"")
    await store.put(f"{folder}/large", large)
    assert await store.get(f"{folder}/empty") == b"", "an empty object is no longer empty"
    assert await store.get(f"{folder}/large") == large, "a large object came back changed"
    await store.delete(f"{folder}/empty")
    await store.delete(f"{folder}/large")
    for name in AWKWARD_NAMES:
        with _promise(store, f"the name {name!r} works"):
            await store.put(f"{folder}/{name}/{name}", name.encode())
            assert await store.get(f"{folder}/{name}/{name}") == name.encode(), f"the name {name!r} does not work"
    expected = sorted(f"{folder}/{name}/{name}" for name in AWKWARD_NAMES)
    assert [one.path for one in await store.list(folder + "/")] == expected, "awkward names are listed changed"
    for name in AWKWARD_NAMES:
        below = [one.path for one in await store.list(f"{folder}/{name}/")]
        assert below == [f"{folder}/{name}/{name}"], f"the folder {name!r} can't be listed"
        await store.delete(f"{folder}/{name}/{name}")
    assert await store.list(folder + "/") == [], "an object with an awkward name can't be deleted"


async def _is_atomic(store: Store, folder: str) -> None:
    """A reader sees nothing or the whole object while it is written."""
    path, contents = f"{folder}/one", [bytes([65 + version]) * LARGE_BYTES for version in range(3)]

    async def write() -> None:
        for content in contents:
            await store.put(path, content, if_absent=False)

    writing = asyncio.create_task(write())
    while not writing.done():
        listed = await store.list(folder + "/")
        assert all(one.bytes == LARGE_BYTES for one in listed), "a half-written object is listed"
        assert all(one.path == path for one in listed), "a half-written object is listed under another name"
        with suppress(NotStoredError):
            assert await store.get(path) in contents, "a half-written object can be read"
        await asyncio.sleep(0)
    await writing


async def _copies_files(store: Store, folder: str) -> None:
    path, content = f"{folder}/one", bytes(range(256)) * 4096
    with TemporaryDirectory() as local:
        file = Path(local) / "file"
        await asyncio.to_thread(file.write_bytes, content)
        with _promise(store, "put stores a copy of a local file, given as a Path"):
            await store.put(path, file)
        assert await asyncio.to_thread(file.read_bytes) == content, "put changed the local file that it was given"
    assert await store.get(path) == content, "a local file that was put came back changed"


async def _removes_leftovers(store: Store, folder: str) -> None:
    await store.put(f"{folder}/one", b"x")
    with _promise(store, "remove_leftovers returns a number"):
        found = await store.remove_leftovers(LONG_AGO, time.time())
    assert isinstance(found, int), f"remove_leftovers returned {type(found).__name__}, not a number"
    assert await store.get(f"{folder}/one") == b"x", "remove_leftovers changed an object"


async def _serves_threads(store: Store, folder: str) -> None:
    path = f"{folder}/one"
    await store.put(path, b"x")
    with _promise(store, "calls may come from another event loop, in another thread"):
        found = await asyncio.to_thread(lambda: asyncio.run(store.get(path)))
    assert found == b"x", "an object is another one in another thread"


async def _refuses(store: Store, folder: str) -> None:
    calls = {
        "put": lambda path: store.put(path, b"x"),
        "get": store.get,
        "get_range": lambda path: store.get_range(path, 0, 1),
        "list": lambda path: store.list(f"{path}/"),
        "delete": store.delete,
    }
    if getattr(store, "deletes_at_once", 1) > 1:
        calls["delete_many"] = lambda path: cast("DeletesMany", store).delete_many([path])
    for path in (
        "",
        "/absolute",
        f"{folder}/../up",
        "..",
        f"{folder}//twice",
        f"{folder}/./here",
        f"{folder}/",
        "a\0b",
        "a\nb",
        "a\\b",
    ):
        for method, call in calls.items():
            try:
                await call(path)
            except StoreError:
                continue
            except (AlreadyStoredError, NotStoredError):
                pass
            raise AssertionError(f"{method} accepted the path {path!r}")


async def _is_refused(store: Store, path: str, data: bytes) -> bool:
    try:
        with _promise(store, "put with if_absent raises AlreadyStoredError for an object that exists"):
            await store.put(path, data)
    except AlreadyStoredError:
        return True
    return False


async def _is_absent(store: Store, path: str) -> bool:
    try:
        with _promise(store, "get raises NotStoredError for an object that does not exist"):
            await store.get(path)
    except NotStoredError:
        return True
    return False


@contextmanager
def _promise(store: Store, sentence: str) -> Iterator[None]:
    """Turn a StoreError of a user's store into an AssertionError, unless it says what its owner can do.

    Behind `OwnStore` it is an error that breaks the contract; a store of ours raises it when it is away.
    """
    try:
        yield
    except (StoreFullError, StoreUnfitError, StoreUnreadableError):
        raise
    except StoreError as error:
        if not isinstance(store, OwnStore):
            raise
        raise AssertionError(f"{sentence}; but {error}") from error
