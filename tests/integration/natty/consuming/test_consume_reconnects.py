"""What becomes of what a handler settles itself while there is no connection."""

import asyncio
import threading

import pytest
from consuming import HANDED_BACK, fill, info, until, until_settled
from patient import PATIENCE, PATIENT, reconfigure

from natty import DeadLetterOptions, Message, Natty, NotConnectedError


@pytest.fixture
async def far(natty_proxy):
    """A client behind the proxy."""
    async with Natty(**PATIENT | natty_proxy.options) as client:
        yield client


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of two messages."""
    return await fill(natty, natty_name("LOST"), 2)


async def cut(natty_proxy, far):
    await natty_proxy.cut()
    await until(lambda: not far.connection.connected)


def gated(handle, go_on):
    """Return a handler that calls `handle` when the test goes on, and the messages that it gets."""
    got = []

    async def handler(message: Message) -> None:
        got.append(message.sequence)
        await go_on.wait()
        if asyncio.iscoroutine(answer := handle(message)):
            await answer

    return handler, got


def extend_and_ack(message):
    message.in_progress()
    message.ack()


def ack(message):
    message.ack()


def term(message):
    message.term()


def nak(message):
    message.nak()


AT_ONCE = [ack, extend_and_ack, term]


async def confirm_ack(message):
    await message.ack(confirm=True)


@pytest.mark.parametrize("settle", [*AT_ONCE, confirm_ack])
async def test_what_a_handler_settles_without_a_connection_is_settled_when_it_is_back(
    natty_proxy, natty, far, stream, start, settle
):
    go_on = asyncio.Event()
    handler, got = gated(settle, go_on)
    options = {"consumer": HANDED_BACK, "dead_letters": False, "concurrency": 2}
    consumption, _ = start(stream, handler, client=far, **options)
    await until(lambda: len(got) == 2)
    await cut(natty_proxy, far)
    go_on.set()
    if settle in AT_ONCE:
        await until(lambda: consumption.handled == 2)
    await natty_proxy.restore()
    await until_settled(natty, stream)
    await until(lambda: consumption.handled == 2)
    assert (sorted(got), consumption.failed) == ([1, 2], 0)


async def test_what_a_handler_in_a_thread_settles_without_a_connection_is_settled_when_it_is_back(
    natty_proxy, natty, far, stream, start
):
    go_on, got = threading.Event(), []

    def handle(message: Message) -> None:
        got.append(message.sequence)
        go_on.wait(PATIENCE)
        message.ack()

    consumption, _ = start(stream, handle, client=far, consumer=HANDED_BACK, dead_letters=False, concurrency=2)
    await until(lambda: len(got) == 2)
    await cut(natty_proxy, far)
    go_on.set()
    await until(lambda: consumption.handled + consumption.failed == 2)
    await natty_proxy.restore()
    await until_settled(natty, stream)
    assert (sorted(got), consumption.failed) == ([1, 2], 0)


async def test_a_nak_without_a_connection_is_not_a_failure(natty_proxy, natty, far, stream, start):
    go_on = asyncio.Event()
    handler, got = gated(nak, go_on)
    options = {"consumer": HANDED_BACK, "dead_letters": False, "concurrency": 2}
    consumption, _ = start(stream, handler, client=far, **options)
    await until(lambda: len(got) == 2)
    await cut(natty_proxy, far)
    go_on.set()
    await until(lambda: consumption.handled + consumption.failed == 2)
    assert consumption.failed == 0


async def test_a_failure_without_a_connection_is_handed_back(natty_proxy, natty, far, stream, start):
    def fail(message):
        raise LookupError

    async def on_error(message, error, step):
        steps.append(step.action)

    go_on, steps = asyncio.Event(), []
    handler, got = gated(fail, go_on)
    options = {"consumer": HANDED_BACK, "dead_letters": False, "concurrency": 2, "on_error": on_error}
    start(stream, handler, client=far, **options)
    await until(lambda: len(got) == 2)
    await cut(natty_proxy, far)
    go_on.set()
    await until(lambda: len(steps) == 2)
    assert steps == ["handed_back"] * 2


async def test_a_dead_letter_whose_connection_breaks_before_it_is_terminated_is_not_handled_again(
    natty_proxy, natty, far, stream, start
):
    got = []

    async def handle(message: Message) -> None:
        got.append(message.sequence)
        raise LookupError

    dead_letters = DeadLetterOptions(letters=f"L_{stream}")
    consumption, _ = start(stream, handle, client=far, retries=(), consumer=HANDED_BACK, dead_letters=dead_letters)
    letters = consumption._work.letters
    bury = letters.bury

    async def bury_and_cut(message, **more):
        letter = await bury(message, **more)
        if message.sequence == 1:
            await cut(natty_proxy, far)
        return letter

    letters.bury = bury_and_cut
    await until(lambda: consumption.buried)
    await natty_proxy.restore()
    await until_settled(natty, stream)
    assert got == [1, 2]
    assert [letter.sequence async for letter in natty.dead_letters(f"L_{stream}").ls()] == [1, 2]


async def unsettled(natty, far, stream):
    """Return the two messages of the stream, and what keeps their pull open."""
    await natty.create_consumer(stream, "d", **HANDED_BACK)
    batches, messages = far.pull(stream, "d", max_messages=2).__aiter__(), []
    async with asyncio.timeout(PATIENCE):
        while len(messages) < 2:
            messages += await anext(batches)
    return batches, messages


async def one_is_left(natty, stream):
    """Wait until the server has taken the ack of one of the two messages."""
    async with asyncio.timeout(PATIENCE):
        while (await info(natty, stream))["num_ack_pending"] != 1:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("options", [{}, {"confirm": True}])
async def test_an_awaited_ack_that_fails_without_a_connection_is_not_sent_later(
    natty_proxy, natty, far, stream, options
):
    batches, (first, second) = await unsettled(natty, far, stream)
    await cut(natty_proxy, far)
    reconfigure(far, timeout=0.05)
    with pytest.raises(NotConnectedError):
        await first.ack(**options)
    reconfigure(far, timeout=PATIENCE)
    second.ack()
    await natty_proxy.restore()
    await one_is_left(natty, stream)
    assert (await info(natty, stream))["ack_floor"]["stream_seq"] == 0  # it is the first
    await batches.aclose()


@pytest.mark.parametrize("answer", ["ack", "term"])
async def test_a_handler_whose_awaited_ack_fails_without_a_connection_keeps_its_message(
    natty_proxy, natty, far, stream, start, answer
):
    """It is tried again in its place: the next message of its key waits."""

    async def settle(message):
        await getattr(message, answer)()

    go_on = asyncio.Event()
    handler, got = gated(settle, go_on)
    options = {"consumer": HANDED_BACK, "dead_letters": False, "ordered_by": lambda _: "k", "retries": [0.05] * 1000}
    consumption, _ = start(stream, handler, client=far, **options)
    await until(lambda: got)
    await cut(natty_proxy, far)
    go_on.set()
    await until(lambda: consumption.retried > 2)
    assert set(got) == {1}
    await natty_proxy.restore()
    await until(lambda: consumption.handled == 2)
    assert sorted(got) == got
    await until_settled(natty, stream)


async def test_a_nak_that_is_awaited_without_a_connection_is_not_sent_later(natty_proxy, natty, far, stream):
    batches, (first, second) = await unsettled(natty, far, stream)
    await cut(natty_proxy, far)
    answer = first.nak()
    with pytest.raises(NotConnectedError, match="settled without a connection"):
        await answer
    second.ack()
    await natty_proxy.restore()
    await one_is_left(natty, stream)
    with pytest.raises(NotConnectedError, match="settled without a connection"):
        await answer
    await far.connection.flush()
    assert [(await info(natty, stream))[name] for name in ("num_ack_pending", "num_redelivered")] == [1, 0]
    await batches.aclose()
