"""`on_error`: each error of a handler is reported in the process, with what happens to its message next."""

import asyncio
import threading

import pytest
from consuming import HANDED_BACK, fill, info, until, until_settled
from patient import NEVER

from natty import (
    BodyError,
    DeadLetterOptions,
    HandlerCancelledError,
    HandlerTimeoutError,
    TerminatedError,
    TooManyDeliveriesError,
)
from natty.blocking import Natty as BlockingNatty


class Told:
    """An `on_error` that records its calls."""

    def __init__(self):
        self.calls = []

    async def __call__(self, message, error, step):
        self.calls.append((message.data, type(error), str(step)))
        self.last = message, error, step


def options(stream, **more):
    return {"dead_letters": DeadLetterOptions(letters=f"L_{stream}"), "retries": (0.05,)} | more


async def fail(message):
    raise LookupError(f"no {message.data.decode()}")


async def fail_with_all(messages):
    raise LookupError("no")


async def test_each_try_of_a_message_is_reported_with_its_retry_and_at_last_with_its_dead_letter(
    natty, natty_name, start
):
    stream, told = await fill(natty, natty_name("TOLD"), 1), Told()
    consumption, _ = start(stream, fail, on_error=told, **options(stream, retries=(0.05, 0.1)))
    await until(lambda: len(told.calls) == 3)
    assert [step for _, _, step in told.calls] == ["retry in 0.05 s", "retry in 0.1 s", "dead letter 1"]
    message, error, step = told.last
    assert (message.subject, message.deliveries, str(error), step.letter) == (f"{stream}.0", 3, "no 0", 1)
    counts = consumption.counts
    assert (counts["failed"], counts["retried"], counts["buried"], counts["unreported"]) == (3, 2, 1, 0)


async def test_a_plain_function_is_called_in_a_thread(natty, natty_name, start):
    stream, threads = await fill(natty, natty_name("PLAIN"), 1), []

    def on_error(message, error, step):
        threads.append(threading.current_thread())

    start(stream, fail, on_error=on_error, **options(stream, retries=()))
    await until(lambda: threads)
    assert threads[0] is not threading.main_thread()


async def test_each_message_of_a_failed_batch_is_reported(natty, natty_name, start):
    stream, told = await fill(natty, natty_name("BATCH"), 3), Told()
    start(stream, fail_with_all, on_error=told, batch=3, batch_wait=NEVER, **options(stream, retries=(NEVER,)))
    await until(lambda: len(told.calls) == 3)
    assert told.calls == [(b"%d" % number, LookupError, f"retry in {NEVER:g} s") for number in range(3)]


async def test_under_ordered_by_a_retry_here_is_reported_and_later_messages_of_the_key_wait(natty, natty_name, start):
    stream, told, done = await fill(natty, natty_name("ORDER"), 3, subject=lambda number: "k"), Told(), []

    async def handle(message):
        if message.data == b"0" and len(told.calls) < 2:
            raise LookupError
        done.append(message.data)

    start(stream, handle, on_error=told, ordered_by="subject", **options(stream, retries=(0.05, 0.05)))
    await until(lambda: len(done) == 3)
    assert told.calls == [(b"0", LookupError, "retry in 0.05 s")] * 2
    assert done == [b"0", b"1", b"2"]


async def test_a_timeout_and_a_body_that_does_not_fit_are_told_apart(natty, natty_name, start):
    stream, told = await fill(natty, natty_name("KINDS"), 2, payload=lambda number: [b"1", b"{"][number]), Told()

    async def handle(number: int):
        await asyncio.sleep(NEVER)

    consumption, _ = start(stream, handle, on_error=told, timeout=0.1, **options(stream, retries=()))
    await until(lambda: len(told.calls) == 2)
    assert {error for _, error, _ in told.calls} == {HandlerTimeoutError, BodyError}
    assert {step[:11] for _, _, step in told.calls} == {"dead letter"}
    assert (consumption.counts["timed_out"], consumption.counts["undecodable"]) == (1, 1)


async def test_a_message_that_its_handler_settled_before_it_failed_is_reported_as_settled(natty, natty_name, start):
    stream, told = await fill(natty, natty_name("SETTLED"), 1), Told()

    async def handle(message):
        message.ack()
        raise LookupError

    start(stream, handle, on_error=told, **options(stream))
    await until(lambda: told.calls)
    assert told.calls == [(b"0", LookupError, "settled")]


async def test_what_a_handler_terminates_is_reported_when_its_letter_is_stored(natty, natty_name, start):
    stream, told = await fill(natty, natty_name("TERM"), 1), Told()

    async def handle(message):
        message.term("no customer")

    consumption, _ = start(stream, handle, on_error=told, **options(stream))
    await until(lambda: told.calls)
    assert told.calls == [(b"0", TerminatedError, "dead letter 1")]
    message, error, _ = told.last
    assert (message.subject, message.sequence, str(error)) == (f"{stream}.0", 1, "terminated: no customer")
    with pytest.raises(RuntimeError, match="can't be settled"):
        message.ack()
    assert (consumption.counts["given_up"], consumption.buried) == (1, 0)


async def test_what_the_server_gives_up_on_is_reported_when_its_letter_is_stored(natty, natty_name, start):
    stream, told = await fill(natty, natty_name("GAVEUP"), 1), Told()
    settings = {"max_deliver": 1, "ack_wait": 0.5}

    async def handle(message):
        await asyncio.sleep(NEVER)

    start(stream, handle, on_error=told, consumer=settings, keep_alive=False, **options(stream))
    await until(lambda: told.calls)
    assert told.calls == [(b"0", TooManyDeliveriesError, "dead letter 1")]


async def test_a_handler_that_a_stop_cancels_is_reported_as_handed_back(natty, natty_name, start):
    stream, told, begun = await fill(natty, natty_name("STOP"), 1), Told(), asyncio.Event()

    async def handle(message):
        begun.set()
        await asyncio.sleep(NEVER)

    more = options(stream, shutdown_timeout=0.0, consumer=HANDED_BACK)
    consumption, task = start(stream, handle, on_error=told, **more)
    await begun.wait()
    consumption.stop()
    await task
    assert told.calls == [(b"0", HandlerCancelledError, "handed back")]
    assert consumption.counts["handed_back"] == 1
    assert (await info(natty, stream))["num_redelivered"] <= 1


async def test_a_failure_whose_dead_letter_a_stop_cuts_short_is_reported_as_handed_back(
    natty, natty_name, start, monkeypatch
):
    stream, told, begun = await fill(natty, natty_name("CUT"), 1), Told(), asyncio.Event()
    more = options(stream, retries=(), shutdown_timeout=0.0, consumer=HANDED_BACK)
    consumption, task = start(stream, fail, on_error=told, **more)

    async def bury(*arguments, **more):
        begun.set()
        await asyncio.sleep(NEVER)

    monkeypatch.setattr(consumption._work.letters, "bury", bury)
    await begun.wait()
    consumption.stop()
    await task
    assert told.calls == [(b"0", LookupError, "handed back")]
    assert (consumption.counts["failed"], consumption.counts["handed_back"]) == (1, 1)


async def test_a_dead_letter_that_can_not_be_stored_is_reported_with_the_reason(natty, natty_name, start, monkeypatch):
    stream, told = await fill(natty, natty_name("FULL"), 1), Told()
    consumption, _ = start(stream, fail, on_error=told, **options(stream, retries=()))

    async def refuse(*arguments, **more):
        raise OSError("full")

    monkeypatch.setattr(consumption._work.letters, "bury", refuse)
    await until(lambda: told.calls)
    _, error, step = told.last
    assert (type(error), str(step), str(step.refused)) == (LookupError, "retry in 5 s", "full")


async def test_an_error_in_on_error_is_logged_and_stops_nothing(natty, natty_name, start, caplog):
    stream = await fill(natty, natty_name("BROKEN"), 3)

    async def on_error(message, error, step):
        if message.data == b"1":
            raise asyncio.CancelledError
        raise ZeroDivisionError("of on_error")

    consumption, task = start(stream, fail, on_error=on_error, **options(stream, retries=()))
    await until_settled(natty, stream)
    await until(lambda: consumption.counts["unreported"] == 3)
    assert consumption.buried == 3
    assert caplog.text.count("on_error failed; its call was about") == 3
    assert "ZeroDivisionError: of on_error" in caplog.text
    assert not task.done()


async def test_an_on_error_that_hangs_ends_with_the_stop_and_is_counted(natty, natty_name, start, caplog):
    stream, begun = await fill(natty, natty_name("HANGS"), 1), asyncio.Event()

    async def on_error(message, error, step):
        begun.set()
        await asyncio.sleep(NEVER)

    more = options(stream, retries=(), shutdown_timeout=0.0)
    consumption, task = start(stream, fail, on_error=on_error, **more)
    await begun.wait()
    consumption.stop()
    await task
    assert "1 handlers, or calls of on_error, did not finish within 0 s: cancelled" in caplog.text
    assert consumption.counts["unreported"] == 1
    await until_settled(natty, stream)


async def test_on_error_of_the_wrong_form_is_refused_at_once(natty):
    with pytest.raises(TypeError, match=r"on_error is called with \(message, error, next_step\); .*<lambda>"):
        natty.consume("S", "d", fail, on_error=lambda message: None)
    with pytest.raises(TypeError, match="on_error is 'x'; write a function, or None"):
        natty.consume("S", "d", fail, on_error="x")
    with pytest.raises(TypeError, match="on_error reports errors of a handler: pass a handler"):
        natty.consume("S", "d", on_error=Told())


async def test_the_blocking_consume_reports_in_a_thread_that_may_use_the_client(nats_server, natty, natty_name):
    stream, answers = await fill(natty, natty_name("BLOCK"), 1), []

    def use():
        def handle(message):
            raise LookupError

        def on_error(message, error, step):
            answers.append((type(error), step.action, client.stream_info(stream)["state"]["messages"]))

        with BlockingNatty(**nats_server.connect_options()) as client:
            running = client.consume(stream, "d", handle, on_error=on_error, **options(stream, retries=()))
            with running:
                while not answers:
                    threading.Event().wait(0.01)
            assert running.counts["buried"] == 1

    await asyncio.to_thread(use)
    assert answers == [(LookupError, "dead_letter", 1)]
