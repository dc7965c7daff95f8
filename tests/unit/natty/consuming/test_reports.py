"""Each failure of a handler is reported to `on_error` with what happens next, however the handler's work ends."""

import asyncio
import logging

import pytest
from patient import PATIENCE, jump, until
from working import Leased, engine, raw

from natty.consuming import reports
from natty.consuming.reports import NextStep, Reports


class Told:
    """An `on_error` that records its calls."""

    def __init__(self):
        self.calls = []

    async def __call__(self, message, error, step):
        self.calls.append((message.sequence, type(error).__name__, str(step)))


class Letters:
    """Refuses some letters, stores the first of the others at once, and the next one not before `go_on`."""

    def __init__(self, first, refused):
        self.first, self.refused, self.stored = first, refused, 0
        self.burying, self.go_on = asyncio.Event(), asyncio.Event()

    async def bury(self, *arguments, **more):
        if self.refused:
            self.refused -= 1
            raise OSError("full")
        if self.stored == self.first:
            self.burying.set()
            await self.go_on.wait()
        self.stored += 1
        return self.stored


async def fail(message):
    raise LookupError


async def fail_with_all(messages: list):
    raise LookupError


def burying(handler, *, first=0, refused=0, **options):
    """Return an engine whose letter after the first ones hangs, with what it has reported."""
    told = Told()
    work, stint, sent = engine(handler, retries=(), dead_letters=True, on_error=told, **options)
    work.failures.letters = Letters(first, refused)
    return work, stint, sent, told


async def test_a_failure_whose_burial_a_stop_cancels_is_reported_as_handed_back():
    work, stint, sent, told = burying(fail)
    work.add(stint, [raw(1)])
    await work.letters.burying.wait()
    await work.close(0.0)
    assert told.calls == [(1, "LookupError", "handed back")]
    assert (work.counts["failed"], work.counts["handed_back"], len(sent.handed_back)) == (1, 1, 1)


async def test_a_stop_during_the_burial_of_a_batch_reports_its_letters_and_hands_back_the_rest():
    work, stint, sent, told = burying(fail_with_all, first=1, batch=3, batch_wait=0.0)
    work.add(stint, [raw(1), raw(2), raw(3)])
    await work.letters.burying.wait()
    await work.close(0.0)
    rest = [(number, "LookupError", "handed back") for number in (2, 3)]
    assert told.calls == [(1, "LookupError", "dead letter 1"), *rest]
    assert (work.counts["buried"], work.counts["handed_back"]) == (1, 2)
    assert sent.handed_back == [raw(2)[1], raw(3)[1]]
    assert sent.finished_messages == 3


async def test_a_message_of_a_stopped_batch_that_its_handler_had_settled_is_reported_as_settled():
    async def settle_the_last(messages: list):
        messages[-1].ack()
        raise LookupError

    work, stint, sent, told = burying(settle_the_last, batch=2, batch_wait=0.0)
    work.add(stint, [raw(1), raw(2)])
    await work.letters.burying.wait()
    await work.close(0.0)
    assert told.calls == [(1, "LookupError", "handed back"), (2, "LookupError", "settled")]
    assert (work.counts["handed_back"], sent.handed_back) == (1, [raw(1)[1]])


async def test_what_would_be_retried_is_handed_back_if_a_stop_comes_first():
    work, stint, sent, told = burying(fail_with_all, refused=1, batch=2, batch_wait=0.0)
    work.add(stint, [raw(1), raw(2)])
    await work.letters.burying.wait()
    await work.close(0.0)
    assert told.calls == [(number, "LookupError", "handed back") for number in (1, 2)]
    assert (work.counts["retried"], work.counts["handed_back"], len(sent.handed_back)) == (0, 2, 2)


async def test_a_fence_during_the_burial_of_a_batch_has_the_rest_handled_again_and_not_its_letters():
    lots = []

    async def handle(messages: list):
        lots.append([message.sequence for message in messages])
        raise LookupError

    work, stint, sent, told = burying(handle, first=1, stint=Leased, batch=3, batch_wait=0.0, ordered_by=lambda _: "k")
    work.add(stint, [raw(1), raw(2), raw(3)])
    await work.letters.burying.wait()
    work.fence(stint)
    work.letters.go_on.set()
    await until(lambda: len(told.calls) == 5)
    assert told.calls[:3] == [(1, "LookupError", "dead letter 1"), *((n, "LookupError", "retry") for n in (2, 3))]
    assert lots == [[1, 2, 3], [2], [3]]
    await until(lambda: sent.finished_messages == 3)
    await work.close(PATIENCE)


async def test_a_handler_that_a_fence_stops_is_reported_as_retried_at_once():
    told, gate, begun = Told(), asyncio.Event(), []

    async def handle(message):
        begun.append(message.sequence)
        await gate.wait()

    work, stint, _ = engine(handle, stint=Leased, ordered_by="subject", on_error=told)
    work.add(stint, [raw(1)])
    await until(lambda: begun)
    work.fence(stint)
    await until(lambda: told.calls and len(begun) == 2)
    gate.set()
    await work.close(PATIENCE)
    assert told.calls == [(1, "HandlerCancelledError", "retry")]
    assert work.counts["handed_back"] == 0


async def test_a_retry_that_can_not_be_requested_is_reported_as_handed_back():
    told = Told()
    work, stint, _ = engine(fail, on_error=told, retries=(0.5,))  # its connection is not open
    work.add(stint, [raw(1)])
    await until(lambda: told.calls)
    assert told.calls == [(1, "LookupError", "handed back")]
    assert work.counts["handed_back"] == 1
    await work.close(PATIENCE)


async def test_a_call_that_takes_too_long_is_ended_and_the_next_report_is_made(caplog):
    told, begun = [], asyncio.Event()

    async def on_error(message, error, step):
        if message == "1":
            begun.set()
            await asyncio.Event().wait()
        told.append(message)

    all_reports = Reports(on_error, "S/d", 1, logging.getLogger("natty.consume"))
    for message in ("1", "2"):
        all_reports.add(message, LookupError(), NextStep(action="retry", delay=1.0))
    sending = asyncio.create_task(all_reports.send())
    await begun.wait()
    jump(reports.REPORT_TIMEOUT)
    await until(sending.done)
    assert (told, all_reports.failed) == (["2"], 1)
    assert "on_error failed; its call was about '1'" in caplog.text


@pytest.mark.parametrize("cancelled", [False, True], ids=["too late", "cancelled"])
async def test_what_the_end_leaves_no_time_for_is_counted(cancelled, caplog):
    begun = asyncio.Event()

    async def on_error(message, error, step):
        begun.set()
        await asyncio.Event().wait()

    all_reports = Reports(on_error, "S/d", 1, logging.getLogger("natty.consume"))
    for message in ("1", "2", "3"):
        all_reports.add(message, LookupError(), NextStep(action="handed_back"))
    closing = asyncio.create_task(all_reports.close())
    await begun.wait()
    if cancelled:
        closing.cancel()
    else:
        jump(reports.LAST_REPORTS)
    await until(closing.done)
    assert all_reports.failed == 3
    assert "2 errors were not reported to on_error" in caplog.text
