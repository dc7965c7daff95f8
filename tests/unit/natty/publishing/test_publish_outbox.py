import asyncio
import contextlib

import pytest

from natty import PublishError
from natty.publishing.outbox import OutboxOptions, PublishErrors, _Routes, _Sender


def sender(name):
    return _Sender(name, None, contextlib.AsyncExitStack())


def test_a_subject_expires_when_it_is_not_used_and_lives_on_while_it_is():
    routes, one = _Routes(OutboxOptions(idle=10)), sender("S")
    routes.add("a", one, 0)
    routes.add("b", one, 0)
    for now in range(1, 30):
        assert routes.find("a", now) is one
    assert routes.find("b", 30) is None
    routes.expire(30)
    assert one.subjects == {"a"}
    routes.expire(50)
    assert (one.subjects, len(routes), one.idle) == (set(), 0, True)


def test_the_oldest_subject_makes_room_and_its_sender_hears_of_it():
    routes, one, two = _Routes(OutboxOptions(max_subjects=2)), sender("S"), sender("T")
    for number, (subject, to) in enumerate([("a", one), ("b", two), ("c", two)]):
        routes.add(subject, to, number)
    assert (one.subjects, two.subjects) == (set(), {"b", "c"})
    routes.add("c", one, 5)
    assert (one.subjects, two.subjects) == ({"c"}, {"b"})


def test_a_doubtful_subject_has_to_be_looked_up_again():
    routes, one = _Routes(OutboxOptions()), sender("S")
    routes.add("a", one, 0)
    routes.doubt("a")
    routes.doubt("unknown")
    assert routes.find("a", 1) is None
    assert routes.is_doubtful("a")
    routes.add("a", one, 2)
    assert routes.find("a", 3) is one


def test_options_that_make_no_sense_are_refused():
    for wrong in ({"idle": 0}, {"max_subjects": 0}, {"max_errors": 0}, {"window": 0}, {"path": "slow"}):
        with pytest.raises(ValueError):
            OutboxOptions(**wrong)


async def test_no_error_is_dropped_however_many_wait():
    """The ancestor drops what its channel has no room for."""
    errors = PublishErrors()
    for number in range(20_000):
        errors.add(PublishError(str(number)))
    errors._over = True
    assert [str(error) async for error in errors.read()] == [str(number) for number in range(20_000)]


async def test_each_error_goes_to_one_of_the_readers_and_closing_ends_them():
    errors, seen = PublishErrors(), []

    async def read():
        async for error in errors.read():
            seen.append(str(error))

    readers = [asyncio.create_task(read()) for _ in range(3)]
    for number in range(10):
        errors.add(PublishError(str(number)))
        await asyncio.sleep(0)
    errors.close(raises=True)
    await asyncio.gather(*readers)
    assert sorted(seen, key=int) == [str(number) for number in range(10)]


def test_a_callback_gets_what_came_before_it_and_keeps_what_it_fails_on(caplog):
    errors, seen = PublishErrors(), []
    errors.add(PublishError("first"))

    @errors.call
    def told(error):
        if str(error) == "bad":
            raise RuntimeError("the callback's own")
        seen.append(str(error))

    errors.add(PublishError("bad"))
    errors.add(PublishError("last"))
    assert seen == ["first", "last"]
    assert len(errors) == 1
    assert "the error is kept for publish_errors(): bad" in caplog.text


def test_closing_says_what_nobody_has_read(caplog):
    for raises in (True, False):
        errors = PublishErrors()
        errors.add(PublishError("a message of 1 bytes on a.b: full", subject="a.b"))
        with (
            pytest.raises(PublishError, match=r"1 message .* first: a message of 1 bytes")
            if raises
            else (contextlib.nullcontext())
        ):
            errors.close(raises=raises)
        errors.close(raises=True)  # told once
    assert "1 message published in the background was not stored" in caplog.text
