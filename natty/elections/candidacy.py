"""The main side of one candidacy: it handles the news from the renewer's thread, on the event loop of the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from natty.config.units import clock
from natty.elections.audit_trail import note_begin, note_end
from natty.elections.candidate import Candidate
from natty.elections.renewer import renewer_of
from natty.elections.tenure import Tenure
from natty.elections.term import Term
from natty.errors import ConnectionClosedError
from natty.wire.counters import ELECTION
from natty.wire.lifetime import Running

if TYPE_CHECKING:
    from natty.elections.driver import Driver

log = logging.getLogger("natty.leader")

LEAVE_WITHIN = 1.0  # seconds to release the lease; after that, the others wait until it expires


class Candidacy:
    """One candidacy: it lasts as long as its `async with`, over any number of terms."""

    def __init__(self, candidate: Candidate) -> None:
        self.told_to_stop = asyncio.Event()
        self.reason = ""
        self._candidate = candidate
        self._loop = asyncio.get_running_loop()
        self._renewer = renewer_of(candidate.jetstream.connection)
        self._terms: asyncio.Queue[Tenure | None] = asyncio.Queue()  # None: the client is being closed
        self._left = asyncio.Event()
        self._began = 0.0
        self._notes: set[asyncio.Task[None]] = set()
        self._driver: Driver | None = None
        self._closed = False
        lifetime, within = candidate.jetstream.connection.lifetime, LEAVE_WITHIN + candidate.options.rules.lease
        self.running = Running(lifetime, self._end, within)

    async def __aenter__(self) -> Candidacy:
        options = self._candidate.options
        with ExitStack() as failing:
            failing.enter_context(self.running)
            self._driver = await self._renewer.join(options, self._candidate.node, self._report, self._check)
            failing.pop_all()
        self._candidate.driver = self._driver
        name = options.name
        log.info("%s is a candidate of %r", self._candidate.node, name, extra={"action": "candidate"})
        self._candidate.jetstream.connection.observed.add(self._candidate, ELECTION, options.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._candidate.jetstream.connection.observed.retire(self._candidate)
        self._left.clear()
        self._post("withdraw")
        self._post("joined")  # for a term that `elected` never returned
        leaving = asyncio.ensure_future(self._leave())
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:  # a second cancellation: the thread must end all the same
            await asyncio.wait({leaving}, timeout=LEAVE_WITHIN)
            raise
        finally:
            self.running.__exit__()

    def _end(self) -> None:
        """Leave office and end the campaign, because the client is being closed."""
        self._closed = True
        self._terms.put_nowait(None)
        self._resign("closed")

    async def _leave(self) -> None:
        await _within(self._left, min(LEAVE_WITHIN, self._candidate.options.rules.lease))
        if self._notes:
            await asyncio.wait(self._notes, timeout=LEAVE_WITHIN)
        assert self._driver is not None
        await self._renewer.leave(self._driver, self._check)

    async def wait_until_elected(self) -> Term:
        """Wait until this node is elected. ConnectionClosedError if the client is closed meanwhile."""
        candidate = self._candidate
        while True:
            tenure = await self._terms.get()
            if tenure is None or self._closed:
                text = (
                    f"the client was closed: {candidate.node} is not a candidate of {candidate.options.name!r} any more"
                )
                raise ConnectionClosedError(text)
            if tenure.remaining() > 0:
                break
            self._post("joined")
        self._left.clear()
        self.told_to_stop.clear()
        self.reason = tenure.stopping or tenure.ended
        if self.reason:  # the term was stopped or has ended meanwhile
            self.told_to_stop.set()
        self._began = clock()
        term = candidate.term = Term(
            candidate.jetstream,
            candidate.subjects,
            tenure,
            name=candidate.options.name,
            node=candidate.node,
            leave=self._resign,
        )
        candidate.elected += 1
        log.info(
            "%s leads %r, token %d", candidate.node, candidate.options.name, term.token, extra={"action": "elected"}
        )
        self._note(note_begin(candidate.jetstream, candidate.subjects, term))
        call_hook(candidate.options.on_elected, term.token)
        return term

    async def leave_office(self) -> None:
        """Release the lease after the work has ended; return when that is done or no longer possible."""
        term, self._candidate.term = self._candidate.term, None
        assert term is not None
        name, reason = self._candidate.options.name, self.reason or "done"
        if term.remaining() > 0:
            self._note(note_end(self._candidate.jetstream, self._candidate.subjects, term, reason))
        self._post("joined")
        await _within(self._left, min(LEAVE_WITHIN, self._candidate.options.rules.lease))
        self._candidate.losses[reason] = self._candidate.losses.get(reason, 0) + 1
        log.info("%s led %r for %.1f s: %s", term.node, name, clock() - self._began, reason, extra={"action": "left"})
        call_hook(self._candidate.options.on_lost, reason)

    def _note(self, writing: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(_write_note(writing))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    def _post(self, event: str, *arguments: Any) -> None:
        if self._driver is not None:
            self._driver.post(event, *arguments)

    def _resign(self, reason: str, to: str = "") -> None:
        self._post("resign", reason, to)

    def _check(self) -> None:
        """Call the health check, at every pulse; resign if it fails."""
        health = self._candidate.options.health
        if health is None or self._candidate.term is None or self.told_to_stop.is_set():
            return
        try:
            well = health()
        except (Exception, asyncio.CancelledError):
            log.exception("the health check of %r failed", self._candidate.options.name)
            well = False
        if not well:
            self._resign("health")

    def _report(self, event: str, about: Any) -> None:
        """Pass news to the event loop of the work. Called in the renewer's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._handle_news, event, about)

    def _handle_news(self, event: str, about: Any) -> None:
        if event == "elected":
            self._terms.put_nowait(about)
        elif event in ("stop", "lost"):
            self.reason = self.reason or about
            self.told_to_stop.set()
            if self._candidate.term is not None:
                self._candidate.term.lost.set()
        elif event == "left":
            self._left.set()
        elif event == "seen":
            if about.id != self._candidate.node:
                log.info("%s leads %r", about.id, self._candidate.options.name, extra={"action": "seen"})
            call_hook(self._candidate.options.on_new_leader, about.id)


async def _write_note(writing: Coroutine[Any, Any, None]) -> None:
    """Write a note of the trail. An error is only logged: the trail is for people, the term continues without it."""
    try:
        await writing
    except Exception:
        log.exception("the audit trail of an election was not written", extra={"action": "election_failed"})


def call_hook(hook: Callable[..., None] | None, *arguments: Any) -> None:
    """Call a hook of the user. An exception of the hook is logged, and the election continues."""
    try:
        if hook is not None:
            hook(*arguments)
    except (Exception, asyncio.CancelledError):
        log.exception("a hook of an election failed", extra={"action": "hook_failed"})


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        text = "the lease was not released in time: other candidates wait until it expires"
        log.info(text, extra={"action": "not_released"})
