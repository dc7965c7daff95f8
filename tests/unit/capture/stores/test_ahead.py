"""Objects come in their order, while those that follow are fetched already, some at a time."""

import asyncio
import threading
from contextlib import aclosing, closing

import msgspec
import pytest

from capture.archive.manifest import Stored
from capture.errors import NotStoredError
from capture.maintenance.merge.inputs import fetch_blocking
from capture.stores.contract import AHEAD_BYTES, AHEAD_OBJECTS, read_ahead


class Slow:
    """A store whose answers wait until they are let go."""

    def __init__(self):
        self.asked, self.answers, self.cancelled = [], {}, []

    async def get(self, path):
        self.asked.append(path)
        answer = self.answers[path] = asyncio.get_running_loop().create_future()
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancelled.append(path)
            raise


def objects(*sizes):
    facts = {"stream": "S", "key": "", "interval": 0, "first": 1, "last": 1, "count": 1, "format": "raw"}
    return [Stored(path=str(n), bytes=size, sha256="", sequences=b"", **facts) for n, size in enumerate(sizes)]


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_they_come_in_order_however_their_answers_do():
    store, found = Slow(), []

    async def read():
        async with aclosing(aiter(read_ahead(store, objects(1, 1, 1)))) as coming:
            async for one, data in coming:
                found.append((one.path, data))

    reading = asyncio.create_task(read())
    await settled()
    for path in ("2", "0", "1"):
        store.answers[path].set_result(path.encode())
        await settled()
    await reading
    assert found == [("0", b"0"), ("1", b"1"), ("2", b"2")]


@pytest.mark.parametrize(
    ("sizes", "at_once"),
    [
        ([1] * 80, AHEAD_OBJECTS),
        ([AHEAD_BYTES // 2] * 5, 2),
        ([AHEAD_BYTES - 1, 2, 1], 1),
        ([10 * AHEAD_BYTES, 1], 1),
    ],
    ids=["many small ones", "large ones", "none too many bytes", "one that is larger than all may be"],
)
async def test_so_many_are_fetched_at_once_and_the_next_when_one_was_taken(sizes, at_once):
    store = Slow()
    async with aclosing(aiter(read_ahead(store, objects(*sizes)))) as coming:
        first = asyncio.ensure_future(anext(coming))
        await settled()
        assert store.asked == [str(number) for number in range(at_once)]
        store.answers["0"].set_result(b"0")
        await first
        second = asyncio.ensure_future(anext(coming))
        await settled()
        assert len(store.asked) > at_once
        second.cancel()
        await asyncio.wait([second])


async def test_one_that_is_missing_is_told_when_its_turn_comes():
    store = Slow()
    async with aclosing(aiter(read_ahead(store, objects(1, 1)))) as coming:
        first = asyncio.ensure_future(anext(coming))
        await settled()
        store.answers["1"].set_exception(NotStoredError("1 is gone"))
        store.answers["0"].set_result(b"0")
        assert (await first)[1] == b"0"
        with pytest.raises(NotStoredError):
            await anext(coming)


async def test_what_is_on_its_way_is_given_up_at_the_end():
    store = Slow()
    async with aclosing(aiter(read_ahead(store, objects(1, 1, 1)))) as coming:
        first = asyncio.ensure_future(anext(coming))
        await settled()
        store.answers["0"].set_result(b"0")
        await first
    assert store.cancelled == ["1", "2"]


class Together:
    """A store that answers a read when so many are on their way."""

    def __init__(self, count):
        self.count, self.asked, self.enough = count, [], None

    async def get(self, path):
        self.enough = self.enough or asyncio.Event()
        self.asked.append(path)
        if len(self.asked) >= self.count:
            self.enough.set()
        await self.enough.wait()
        if path == "missing":
            raise NotStoredError("it is gone")
        return path.encode()


def test_a_caller_without_a_loop_gets_them_in_order_and_several_are_fetched_together():
    before = threading.active_count()
    store = Together(AHEAD_OBJECTS)
    with closing(fetch_blocking(store, objects(*[1] * 100))) as coming:
        assert [(one.path, data) for one, data in coming] == [(str(n), b"%d" % n) for n in range(100)]
    assert threading.active_count() == before


def test_a_caller_without_a_loop_may_stop_and_gets_errors():
    before = threading.active_count()
    with closing(fetch_blocking(Together(3), objects(1, 1, 1))) as coming:
        next(coming)
    [one] = objects(1)
    missing = msgspec.structs.replace(one, path="missing")
    with closing(fetch_blocking(Together(1), [missing])) as coming, pytest.raises(NotStoredError):
        next(coming)
    assert threading.active_count() == before
    assert list(fetch_blocking(Together(1), [])) == []
