"""What runs on a client, and who can't be waited for while the client is closed."""

import asyncio

from natty.wire.lifetime import Lifetime, Running


async def test_what_has_ended_is_not_known_any_more_and_may_end_again():
    lifetime = Lifetime()
    with Running(lifetime, lambda: None, 1.0) as running:
        assert lifetime.running == [running]
        running.__exit__()
        assert (lifetime.running, running.over.done()) == ([], True)
    assert lifetime.running == []


async def test_a_task_of_it_waits_for_itself_and_one_beside_it_does_not():
    lifetime = Lifetime()

    async def ended_by_its_own():
        return lifetime.is_ended_by_its_own

    with Running(lifetime, lambda: None, 1.0) as running:
        assert await running.around(lambda: asyncio.create_task(ended_by_its_own()))
        assert not await asyncio.create_task(ended_by_its_own())


async def test_a_task_of_something_inside_another_is_part_of_both():
    lifetime = Lifetime()
    waiting = []

    async def inner(outer):
        with Running(lifetime, lambda: None, 1.0) as running:
            await running.around(lambda: asyncio.create_task(innermost(outer, running)))

    async def innermost(outer, running):
        waiting.extend([outer.waits_for_caller, running.waits_for_caller])

    with Running(lifetime, lambda: None, 1.0) as outer:
        await outer.around(lambda: asyncio.create_task(inner(outer)))
    assert waiting == [True, True]


async def test_a_reader_is_waited_for_by_nobody_and_only_what_cancels_it_is_closed_in_another_task():
    lifetime = Lifetime()
    here = asyncio.current_task()
    with Running(lifetime, lambda: None, 1.0, reader=here) as reading:
        assert reading.waits_for_caller
        assert not lifetime.is_ended_by_its_own
    with Running(lifetime, lambda: None, 1.0, reader=here, cancels=True):
        assert lifetime.is_ended_by_its_own
    with Running(lifetime, lambda: None, 1.0, cancels=True):
        assert not lifetime.is_ended_by_its_own
