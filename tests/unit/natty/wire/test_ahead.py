"""What follows is fetched ahead: errors wait for their turn, and nothing is left at the end."""

import asyncio

import pytest

from natty.wire.background import Ahead, cancel_all


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


class Results:
    """Fetches numbers; negative ones are missing."""

    def __init__(self):
        self.begun, self.discarded = [], []

    async def fetch(self, number):
        self.begun.append(number)
        if number < 0:
            raise LookupError(f"{number} is gone")
        return number

    def ahead(self, things, **options):
        return Ahead(things, self.fetch, **{"most": 3, "discard": self.discarded.append, **options})


async def broken(*numbers, closed=None):
    try:
        for one in numbers:
            yield one
        raise ValueError("the plan is damaged")
    finally:
        if closed is not None:
            closed.append(True)


async def test_an_error_of_the_things_hides_none_of_those_before_it():
    coming = aiter(Results().ahead(broken(1, 2)))
    assert [await anext(coming), await anext(coming)] == [(1, 1), (2, 2)]
    with pytest.raises(ValueError, match="the plan is damaged"):
        await anext(coming)
    coming = aiter(Results().ahead(broken(1, -1)))
    assert await anext(coming) == (1, 1)
    with pytest.raises(LookupError, match="-1 is gone"):
        await anext(coming)


async def test_what_nobody_took_is_discarded_and_the_things_are_closed():
    results, closed = Results(), []
    async with results.ahead(broken(1, -2, 3, 4, closed=closed)) as ahead:
        assert await ahead.first() == 1
        await settled()
        assert results.begun == [1, -2, 3]
        assert await ahead.take() == 1
    assert results.discarded == [3]
    assert closed == [True]
    assert len(asyncio.all_tasks()) == 1


async def test_the_next_one_may_be_looked_at_and_waited_for_again():
    loop = asyncio.get_running_loop()
    answers = {one: loop.create_future() for one in "ab"}
    async with Ahead("ab", answers.get, most=1) as ahead:
        assert [await ahead.first(), await ahead.first()] == ["a", "a"]
        taking = asyncio.create_task(ahead.take())
        await settled()
        taking.cancel()
        await asyncio.wait([taking])
        assert taking.cancelled()
        assert not answers["a"].cancelled()
        answers["a"].set_result("A")
        assert await ahead.take() == "A"
        assert await ahead.first() == "b"
    assert answers["b"].cancelled()


async def test_cancelled_tasks_have_ended_and_their_errors_are_ignored():
    ended = []

    async def work(error):
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append(error)
            raise error

    tasks = [asyncio.create_task(work(one)) for one in (ValueError(), LookupError())]
    await settled()
    await cancel_all(iter(tasks))
    assert len(ended) == 2
    assert all(one.done() for one in tasks)


async def test_what_is_skipped_is_cancelled_or_never_begun():
    results = Results()
    async with results.ahead([1, 2, 3, 4, 5, 6, 7]) as ahead:
        assert await ahead.first() == 1
        await settled()
        await ahead.skip_to(lambda one: one == 6)
        assert await ahead.first() == 6
        assert await ahead.take() == 6
        assert results.begun[:3] == [1, 2, 3]
        assert results.discarded == [1, 2, 3]
        assert {4, 5}.isdisjoint(results.begun)
        await ahead.skip_to(lambda one: one == 100)
        assert await ahead.first() is None


@pytest.mark.parametrize(("least", "most_bytes", "begun"), [(1, 0, 1), (2, 0, 2), (1, 25, 2), (2, 25, 2), (2, 90, 3)])
async def test_so_many_of_any_size_are_fetched_and_more_within_the_bytes(least, most_bytes, begun):
    results = Results()
    async with results.ahead([10, 11, 12, 13], least=least, most_bytes=most_bytes, size=lambda one: one) as ahead:
        await ahead.first()
        await settled()
        assert len(results.begun) == begun
