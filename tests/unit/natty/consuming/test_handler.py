import asyncio
import contextvars
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest

from natty.consuming.handler import BodyError, HandlerTimeoutError, caller, is_async, takes_message, within
from natty.wire.message import Batch, Message

if TYPE_CHECKING:
    from natty.nowhere import Unknown


class Order(msgspec.Struct):
    id: int


def message(payload=b'{"id": 7}'):
    return Message((b"orders.eu", b"$JS.ACK.S.d.1.5.5.1.0", b"", payload))


@pytest.fixture
def call():
    """Call a handler as consuming does."""
    threads = ThreadPoolExecutor(2)

    async def run(handler, *messages, batch=False):
        await caller(handler, batch=batch, threads=threads)(list(messages) or [message()])

    yield run
    threads.shutdown()


def refused(handler, *, batch=False):
    with pytest.raises(TypeError) as error:
        caller(handler, batch=batch, threads=ThreadPoolExecutor())
    return str(error.value)


async def test_a_handler_gets_what_its_annotations_say(call):
    got = []

    async def bare(it):
        got.append(it)

    async def whole(it: Message):
        got.append(it)

    async def as_text(it: "Message"):
        got.append(it)

    async def body(it: Order):
        got.append(it)

    async def both(it: Order, message: Message):
        got.append((it, message))

    async def defaults(it: bytes, more: int = 3, *, other: str = "") -> None:
        got.append((it, more))

    one = message()
    for handler in (bare, whole, as_text, body, both, defaults):
        await call(handler, one)
    assert got == [one, one, one, Order(7), (Order(7), one), (one.data, 3)]


async def test_methods_partials_and_callable_objects_are_handlers(call):
    got = []

    class Service:
        async def handle(self, it: Order):
            got.append(it)

        async def __call__(self, it: bytes):
            got.append(it)

    async def with_client(client, it: Order):
        got.append((client, it))

    for handler in (Service().handle, Service(), functools.partial(with_client, "client")):
        assert is_async(handler)
        await call(handler)
    assert got == [Order(7), b'{"id": 7}', ("client", Order(7))]


async def test_a_function_runs_in_a_thread_with_the_context_of_its_caller(call):
    got, user = [], contextvars.ContextVar("user")
    user.set("ann")

    def handle(it: Order):
        got.append((it, threading.current_thread() is threading.main_thread(), user.get()))
        user.set("bob")

    await call(handle)
    assert got == [(Order(7), False, "ann")]
    assert user.get() == "ann"


async def test_a_function_that_gives_a_coroutine_has_it_awaited(call):
    got = []

    async def handle(it):
        got.append(it.data)

    await call(lambda it: handle(it))
    assert got == [b'{"id": 7}']


async def test_a_batch_handler_gets_a_list_or_a_batch_of_the_same_messages(call):
    got = []

    async def bare(messages):
        got.append(messages)

    async def listed(messages: list[Message]):
        got.append(messages)

    async def whole(batch: Batch):
        got.append(list(batch))
        assert batch.sequences == [5, 5]

    pair = [message(), message()]
    for handler in (bare, listed, whole):
        await call(handler, *pair, batch=True)
    assert got == [pair] * 3


async def test_a_body_that_does_not_fit_is_told_before_the_handler_runs(call):
    async def handle(it: Order):
        raise AssertionError

    with pytest.raises(BodyError, match="not a valid Order"):
        await call(handle, message(b"[]"))


async def test_a_call_that_takes_too_long_is_cancelled():
    ended = asyncio.Event()

    async def slow(messages):
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(HandlerTimeoutError, match=r"longer than 0\.01 s"):
        await within(0.01, slow)([])
    assert ended.is_set()


async def test_a_time_out_of_the_handlers_own_is_not_taken_for_ours():
    async def impatient(messages):
        raise TimeoutError("the database")

    with pytest.raises(TimeoutError, match="the database"):
        await within(60.0, impatient)([])


def test_what_can_not_be_called_is_refused_with_what_is_given():
    async def nothing():
        pass

    async def three(it: Order, message: Message, more):
        pass

    async def two(it: Message, body: Order):
        pass

    async def unknown(it: "Unknown"):
        pass

    async def body(it: Order):
        pass

    assert "takes no parameter" in refused(nothing)
    assert "takes Order, Message, Message; a handler takes a Message, a body, or both" in refused(three)
    assert "takes Message, Order" in refused(two)
    assert "name 'Unknown' is not defined" in refused(unknown)
    assert "a handler of batches takes a list[Message] or a Batch, not Order" in refused(body, batch=True)


@pytest.mark.parametrize("handler", [print, lambda *messages: None])
def test_a_handler_may_take_any_number_of_arguments(handler):
    assert takes_message(handler)
