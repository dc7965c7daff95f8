"""The main side of one candidacy: hears from the renewer's thread, on the loop of the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from natty.config.units import clock
from natty.elections.renewer import renewer_of
from natty.elections.tenure import Tenure
from natty.elections.term import Term
from natty.elections.trail import note_begin, note_end
from natty.errors import ConnectionClosedError
from natty.wire.counters import ELECTION
from natty.wire.lifetime import Running

if TYPE_CHECKING:
    from natty.elections.driver import Driver
    from natty.elections.election import Election

log = logging.getLogger("natty.leader")

LEAVE_WITHIN = 1.0  # seconds for giving the lease back; after that, silence must do


class Candidacy:
    """Wanting the office, from `async with` to its end, over as many terms as come."""

    def __init__(self, election: Election) -> None:
        self.told_to_stop = asyncio.Event()
        self.reason = ""
        self._election = election
        self._loop = asyncio.get_running_loop()
        self._renewer = renewer_of(election.jetstream.connection)
        self._terms: asyncio.Queue[Tenure | None] = asyncio.Queue()  # None: the client is being closed
        self._left = asyncio.Event()
        self._began = 0.0
        self._notes: set[asyncio.Task[None]] = set()
        self._driver: Driver | None = None
        self._closed = False
        lifetime, within = election.jetstream.connection.lifetime, LEAVE_WITHIN + election.options.rules.lease
        self.running = Running(lifetime, self._end, within)

    async def __aenter__(self) -> Candidacy:
        options = self._election.options
        with ExitStack() as failing:
            failing.enter_context(self.running)
            self._driver = await self._renewer.join(options, self._election.node, self._tell, self._check)
            failing.pop_all()
        self._election.driver = self._driver
        self._election.jetstream.connection.observed.add(self._election, ELECTION, options.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._election.jetstream.connection.observed.retire(self._election)
        self._left.clear()
        self._post("withdraw")
        self._post("joined")  # a term that nobody has taken up
        leaving = asyncio.ensure_future(self._leave())
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:  # again: the thread must end all the same
            await asyncio.wait({leaving}, timeout=LEAVE_WITHIN)
            raise
        finally:
            self.running.__exit__()

    def _end(self) -> None:
        """The client is being closed: leave office, and campaign no more."""
        self._closed = True
        self._terms.put_nowait(None)
        self._resign("closed")

    async def _leave(self) -> None:
        await _within(self._left, min(LEAVE_WITHIN, self._election.options.rules.lease))
        if self._notes:
            await asyncio.wait(self._notes, timeout=LEAVE_WITHIN)
        assert self._driver is not None
        await self._renewer.leave(self._driver, self._check)

    async def elected(self) -> Term:
        """Wait for the office. ConnectionClosedError if the client is closed meanwhile."""
        election = self._election
        while True:
            tenure = await self._terms.get()
            if tenure is None or self._closed:
                text = (
                    f"the client was closed: {election.node} is not a candidate of {election.options.name!r} any more"
                )
                raise ConnectionClosedError(text)
            if tenure.remaining() > 0:
                break
            self._post("joined")
        self._left.clear()
        self.told_to_stop.clear()
        self.reason = tenure.stopping or tenure.ended
        if self.reason:  # meanwhile
            self.told_to_stop.set()
        self._began = clock()
        term = election.term = Term(
            election.jetstream,
            election.subjects,
            tenure,
            name=election.options.name,
            node=election.node,
            leave=self._resign,
        )
        election.elected += 1
        log.info("%s leads %r, token %d", election.node, election.options.name, term.token, extra={"action": "elected"})
        self._note(note_begin(election.jetstream, election.subjects, term))
        call_hook(election.options.on_elected, term.token)
        return term

    async def left_office(self) -> None:
        """The work has ended: release the lease, and return when that is done or not possible any more."""
        term, self._election.term = self._election.term, None
        assert term is not None
        name, reason = self._election.options.name, self.reason or "done"
        if term.remaining() > 0:
            self._note(note_end(self._election.jetstream, self._election.subjects, term, reason))
        self._post("joined")
        await _within(self._left, min(LEAVE_WITHIN, self._election.options.rules.lease))
        self._election.losses[reason] = self._election.losses.get(reason, 0) + 1
        log.info("%s led %r for %.1f s: %s", term.node, name, clock() - self._began, reason, extra={"action": "left"})
        call_hook(self._election.options.on_lost, reason)

    def _note(self, writing: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(_noted(writing))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    def _post(self, event: str, *arguments: Any) -> None:
        if self._driver is not None:
            self._driver.post(event, *arguments)

    def _resign(self, reason: str, to: str = "") -> None:
        self._post("resign", reason, to)

    def _check(self) -> None:
        """At every pulse: is the work well?"""
        health = self._election.options.health
        if health is None or self._election.term is None or self.told_to_stop.is_set():
            return
        try:
            well = health()
        except Exception:
            log.exception("the health check of %r failed", self._election.options.name)
            well = False
        if not well:
            self._resign("health")

    def _tell(self, event: str, about: Any) -> None:
        """In the renewer's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told, event, about)

    def _told(self, event: str, about: Any) -> None:
        if event == "elected":
            self._terms.put_nowait(about)
        elif event in ("stop", "lost"):
            self.reason = self.reason or about
            self.told_to_stop.set()
            if self._election.term is not None:
                self._election.term.lost.set()
        elif event == "left":
            self._left.set()
        elif event == "seen":
            call_hook(self._election.options.on_new_leader, about.id)


async def _noted(writing: Coroutine[Any, Any, None]) -> None:
    """The trail is for people: a term goes on without it."""
    try:
        await writing
    except Exception:
        log.exception("the trail of an election was not written", extra={"action": "election_failed"})


def call_hook(hook: Callable[..., None] | None, *arguments: Any) -> None:
    """Call a hook of the user's; what it raises is logged, the election goes on."""
    try:
        if hook is not None:
            hook(*arguments)
    except Exception:
        log.exception("a hook of an election failed", extra={"action": "hook_failed"})


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        log.info("the lease could not be given back in time: others wait for its end", extra={"action": "not_released"})
