"""The leader's loop: calls the work again and again while its node leads, by an interval or a cron expression."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

import msgspec

from natty.config.cron import Cron
from natty.config.units import clock, show_duration, show_time
from natty.elections.candidate import Candidate
from natty.elections.options import ElectionOptions
from natty.elections.record import Subjects
from natty.elections.term import Term
from natty.errors import BadRecordError, LeadershipLostError, NattyError, StaleTokenError
from natty.jetstream import JetStream
from natty.kv.json_records import Text, UnixTime, decode

log = logging.getLogger("natty.leader")

LAST_RUN = "natty_last_run"  # the commit that keeps the last success of a cron expression
LOOK = 1.0  # seconds between two looks at the clocks: one may be set, or the machine may sleep
FIRST_PAUSE = 1.0  # seconds after a failed run; doubles with each further one
LONGEST_PAUSE = 60.0  # seconds, or `every` if that is longer
LONGEST_CRON_PAUSE = 3600.0  # seconds; the next time of the expression may end it earlier
AFTER = 0.02  # seconds after a time of the expression that its run begins: coarse clocks show that time only then
SET_BACK = 3 * 3600.0  # seconds: a clock that is set back by more was wrong before, as in Debian's cron
BEHIND = 60.0  # seconds: a clock that is further behind the last success is logged; expressions count minutes


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The time of the cron expression for which the work last succeeded, in Unix time, and the node that ran it.

    Without a node no run has succeeded yet: times after `slot` count as missed.
    """

    slot: UnixTime
    node: Text


class Interval:
    """`every`: the work is due when a term begins, and then `every` seconds after the last run began."""

    def __init__(self, every: float) -> None:
        self.first_pause, self.longest_pause = min(FIRST_PAUSE, every), max(LONGEST_PAUSE, every)
        self._every = every
        self._due = -math.inf

    def begin_term(self) -> None:
        """Make the work due at once."""
        self._due = -math.inf

    def wait(self, now: float, wall: float) -> float:
        """Return the seconds until the work is due; not above 0 if it is."""
        return self._due - now

    def begin(self, now: float, wall: float) -> None:
        """Note that a run begins."""
        self._due = now + self._every

    def fail(self, pause: float, wall: float) -> float:
        """Make the work due again; return the seconds to pause before."""
        self._due = -math.inf
        return pause


class Timetable:
    """`cron`: the work is due when a time of the expression has passed since that of the last success.

    Any number of missed times counts as one. `done` is the time of the last success, None while it is not known. A time
    has passed `AFTER` seconds later.
    """

    first_pause, longest_pause = FIRST_PAUSE, LONGEST_CRON_PAUSE

    def __init__(self, cron: Cron) -> None:
        self.done: float | None = None
        self.slot = 0.0  # that of the run that began last
        self._cron = cron
        self._logged: float | None = None  # the last success that this node's clock is known to be behind

    def begin_term(self) -> None:
        """Forget the last success: another node may have run the work since."""
        self.done = None

    def last(self, wall: float) -> float:
        """Return the last time of the expression, in Unix time; 0 if there is none."""
        return max(0.0, self._cron.last(wall - AFTER))

    def next(self, wall: float) -> float:
        """Return the next time of the expression, in Unix time."""
        return self._cron.next(wall)

    def wait(self, now: float, wall: float) -> float:
        """Return the seconds until the work is due; not above 0 if it is."""
        assert self.done is not None, "a term begins by reading it"
        last = self.last(wall)
        if self.done > wall + SET_BACK:
            text = "the work last succeeded for %s, which is hours ahead of this node's clock: continuing from now"
            log.warning(text, _show(self.done), extra={"action": "clock_set_back"})
            self.done = last
        if last > self.done:
            return 0.0
        due = self.next(max(wall - AFTER, self.done))
        if self.done > wall + BEHIND and self.done != self._logged:
            self._logged = self.done
            text = "the work last succeeded for %s, which is ahead of this node's clock: it runs again at %s"
            log.warning(text, _show(self.done), _show(due), extra={"action": "clock_behind"})
        return due + AFTER - wall

    def begin(self, now: float, wall: float) -> None:
        """Note that a run begins, for the last time of the expression."""
        self.slot = self.last(wall)

    def fail(self, pause: float, wall: float) -> float:
        """Return the seconds to pause, at most until the next time of the expression; after that, the work is due."""
        return min(pause, self.next(wall - AFTER) + AFTER - wall)


class WorkLoop:
    """Calls the work again and again while its node leads. Runs never overlap, and missed ones do not add up.

    **every**: a term begins with a run; from then on, a run begins `every` seconds after the one before began, or at
    once after it ended if it took longer.

    **cron**: a run begins at each time of the expression, by this node's clock. The time of the last success is kept
    by a fenced commit. If a time was missed (no node led, the leader died or lost its office in the middle, the run
    failed or took too long), the work runs once, as soon as a node can. The first leader of all begins with the next
    time of the expression.

    A run that raises has failed: it is logged and counted, and runs again after a pause. The pause is 1 s (or `every`,
    if that is shorter), and doubles with each failure in a row up to 60 s (or `every`, if that is longer), with cron
    up to an hour or the next time. A run that was told to stop has neither succeeded nor failed, even if it returns:
    the next leader repeats it. So the work must be able to run twice for the same time.
    """

    def __init__(self, candidate: Candidate, work: Callable[[Term], Awaitable[object]]) -> None:
        self._candidate = candidate
        self._work = work
        self._timing = _timing_of(candidate.options)
        self._in_a_row = 0  # failures
        self._not_before = -math.inf  # the end of a pause, by `clock`

    async def __call__(self, term: Term) -> NoReturn:
        """Run the work under this term until it ends; ends by a cancellation or LeadershipLostError."""
        self._timing.begin_term()
        self._not_before = -math.inf
        await self._recall(term)
        while True:
            try:
                await _sleep(lambda: self._not_before - clock())
                await _sleep(lambda: self._timing.wait(clock(), time.time()))
                _raise_if_told_to_stop(term)
                self._timing.begin(clock(), time.time())
                await self._work(term)
                _raise_if_told_to_stop(term)
            except asyncio.CancelledError as error:  # ours, or one that the work has let out
                _raise_if_told_to_stop(term)
                self._note_failure(error)
            except StaleTokenError:
                raise
            except Exception as error:
                _raise_if_told_to_stop(term)
                self._note_failure(error)
            else:
                await self._note_success(term)

    async def _recall(self, term: Term) -> None:
        """Read when the work last succeeded. Until that is known, no run begins: read again after a pause."""
        timing, in_a_row = self._timing, 0
        while isinstance(timing, Timetable) and timing.done is None:
            try:
                timing.done = await self._last_success(term, timing)
            except StaleTokenError:
                raise
            except Exception as error:
                _raise_if_told_to_stop(term)
                in_a_row += 1
                pause = _pause_after(in_a_row, FIRST_PAUSE, LONGEST_PAUSE)
                text = "no run begins: the last success of %r can't be read, natty tries again in %s: %s"
                _log_error("last_run_unread", text, self._candidate.options.name, show_duration(pause), error=error)
                await asyncio.sleep(pause)

    async def _last_success(self, term: Term, timing: Timetable) -> float:
        """Return the time of the last success; the first leader of all notes that nothing was missed."""
        kept = await term.read(LAST_RUN)
        if kept is not None:
            try:
                return decode(kept, LastRun).slot
            except BadRecordError as error:
                text = "the last success of %r can't be read, so no run counts as missed: %s"
                log.warning(text, self._candidate.options.name, error, extra={"action": "bad_record"})
        last = timing.last(time.time())
        await self._keep(term, LastRun(slot=last, node=""))
        text = "no last success of %r is known, so no run counts as missed: the next one is at %s"
        log.info(text, self._candidate.options.name, _show(timing.next(last)), extra={"action": "no_last_run"})
        return last

    async def _keep(self, term: Term, last: LastRun) -> None:
        await term.commit(LAST_RUN, msgspec.json.encode(last))

    async def _note_success(self, term: Term) -> None:
        timing = self._timing
        self._candidate.succeeded += 1
        if self._in_a_row:
            log.info("the work of %r succeeds again", self._candidate.options.name, extra={"action": "run_succeeded"})
        self._in_a_row = 0
        if not isinstance(timing, Timetable):
            return
        timing.done = timing.slot
        try:
            await self._keep(term, LastRun(slot=timing.slot, node=term.node))
        except LeadershipLostError:
            raise
        except Exception as error:
            text = "the work of %r succeeded, but that could not be kept: another leader would run it again: %s"
            _log_error("run_not_kept", text, self._candidate.options.name, error=error)

    def _note_failure(self, error: BaseException) -> None:
        """Log and count a failed run, and set when the next one may begin."""
        self._candidate.failed += 1
        self._in_a_row += 1
        timing = self._timing
        pause = timing.fail(_pause_after(self._in_a_row, timing.first_pause, timing.longest_pause), time.time())
        times = "once" if self._in_a_row == 1 else f"{self._in_a_row} times in a row"
        text = "the work of %r failed %s, and runs again in %s: %s"
        _log_error("run_failed", text, self._candidate.options.name, times, show_duration(pause), error=error)
        self._not_before = clock() + pause


async def last_success(jetstream: JetStream, subjects: Subjects) -> LastRun | None:
    """Return the last success of work that `cron` repeats, None if none is known: a hint. BucketNotFoundError.

    Logs a record that can't be read.
    """
    kept = await jetstream.read(subjects.stream, subject=subjects.commit(LAST_RUN))
    if kept is None or not kept.data:
        return None
    try:
        last: LastRun = decode(kept.data, LastRun)
    except BadRecordError as error:
        log.error("%s can't be read: %s", subjects.commit(LAST_RUN), error, extra={"action": "bad_record"})
        return None
    return last if last.node else None


def _timing_of(options: ElectionOptions) -> Interval | Timetable:
    if options.cron is not None:
        return Timetable(Cron(options.cron, options.timezone or "UTC"))
    assert options.interval is not None, "no work is repeated without it"
    return Interval(options.interval)


def _pause_after(in_a_row: int, first: float, longest: float) -> float:
    """Return the seconds to pause after so many failures in a row."""
    return min(longest, first * 2.0 ** min(in_a_row - 1, 64))


def _log_error(action: str, text: str, *about: str, error: BaseException) -> None:
    known = isinstance(error, NattyError)  # its text is a sentence
    said = error if known else repr(error)
    log.error(text, *about, said, exc_info=None if known else error, extra={"action": action})


def _show(seconds: float) -> str:
    return show_time(math.floor(seconds) * 10**9)


async def _sleep(rest: Callable[[], float]) -> None:
    """Sleep until nothing is left of `rest`, and look again every second."""
    await asyncio.sleep(0)  # work that never waits must not keep the event loop for itself
    while True:
        left = rest()
        if left <= 0:
            return
        await asyncio.sleep(min(left, LOOK))


def _raise_if_told_to_stop(term: Term) -> None:
    """Raise CancelledError if the term is over or ends, or the work was cancelled, even if it has swallowed that."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(LeadershipLostError):
        term.check()
        if not task.cancelling():
            return
    raise asyncio.CancelledError
