"""One node's part in an election: it runs work, or the body of an `async with`, while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from natty.config.units import parse_time
from natty.consuming.handler import is_async
from natty.elections.candidacy import Candidacy, call_hook
from natty.elections.candidate import Candidate
from natty.elections.election_bucket import make_bucket
from natty.elections.options import ElectionOptions
from natty.elections.record import Lease, sight_of
from natty.elections.term import Term
from natty.elections.work_loop import WorkLoop
from natty.errors import BucketNotFoundError, LeadershipLostError
from natty.jetstream import JetStream, StoredMessage

log = logging.getLogger("natty.leader")

P = ParamSpec("P")
T = TypeVar("T")
OVERRUN = 1.0  # seconds after which work that still runs is cancelled again, and reported


class Election(Candidate):
    """One node's part in an election: `await run(work)`, or `async with election as term`."""

    def __init__(self, jetstream: JetStream, options: ElectionOptions) -> None:
        super().__init__(jetstream, options)
        self._scope: _Scope | None = None

    def __repr__(self) -> str:
        return f"Election({self.options.name!r}, {self.node}, {self.term or 'not leading'})"

    def commit_subject(self, commit: str) -> str:
        """Return the subject of the commits of this name."""
        return self.subjects.commit(commit)

    async def prepare(self) -> None:
        """Create the bucket if it does not exist; raises the errors of `make_bucket`."""
        await make_bucket(self.jetstream, self.options)

    async def last_commit(self, commit: str) -> StoredMessage | None:
        """Return the last commit of this name: a hint; `Term.read` confirms it. BucketNotFoundError."""
        return await self.jetstream.read(self.stream, subject=self.subjects.commit(commit))

    async def leader(self) -> Lease | None:
        """Return the lease as last written, if it is held: a hint for people and dashboards."""
        try:
            last = await self.jetstream.read(self.stream, subject=self.subjects.lease)
        except BucketNotFoundError:  # there never was a candidate
            return None
        return _held_lease(last)

    async def holder(self, allowance: float = 0.0) -> Lease | None:
        """Return the lease if it is held and was renewed in time: a hint for people and dashboards.

        It is overdue when it was not renewed for its own length plus `allowance` seconds, by the server's clock.
        """
        try:
            now = parse_time((await self.jetstream.request(f"STREAM.INFO.{self.stream}"))["ts"])
            last = await self.jetstream.read(self.stream, subject=self.subjects.lease)
        except BucketNotFoundError:
            return None
        lease = _held_lease(last)
        if lease is None or last is None or now - parse_time(last.time) > (lease.lasts + allowance) * 1e9:
            return None
        return lease

    @overload
    async def run(self, work: Callable[Concatenate[Term, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def run(self, work: Callable[Concatenate[Term, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Campaign, run `work(term, *args, **kwargs)` while elected, and return its result.

        Campaigns again if the term is lost before the work returns. When the work returns or raises, this node leaves
        office and is no longer a candidate: another candidate is elected, and runs its work.

        With the option `every` or `cron` the work runs again and again, one run at a time, and this node stays a
        candidate until `run` is cancelled or the client is closed; results are dropped. An error of a run is logged and
        counted in `figures`, the next run begins after a growing pause, and this node stays in office. See `WorkLoop`.

        Any callable that is not a coroutine function runs in a thread. The work is cancelled before the deadline, and
        joined before the lease is released. Without `every` and `cron`, an error of the work releases the lease and is
        raised.
        ConnectionClosedError: the client was closed, which cancels the work and releases the lease like any other end.
        """

        async def run_once(term: Term) -> Any:
            return await _call_work(work, term, *args, **kwargs)

        lead = WorkLoop(self, run_once) if self.options.repeats else run_once
        await self.prepare()
        async with Candidacy(self) as candidacy:
            while True:
                term = await candidacy.wait_until_elected()
                try:
                    outcome = await self._serve(candidacy, partial(lead, term))
                finally:
                    await candidacy.leave_office()
                if outcome is not None:
                    return outcome[0]

    async def _serve(self, candidacy: Candidacy, work: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[Any] | None:
        """Run the work until it or the term ends; None if the term was lost meanwhile."""
        body = candidacy.running.around(lambda: asyncio.create_task(work()))
        stop = asyncio.create_task(candidacy.told_to_stop.wait())
        try:
            await asyncio.wait([body, stop], return_when=asyncio.FIRST_COMPLETED)
            if body.done() and not body.cancelled():
                return (body.result(),)
        except LeadershipLostError as error:
            log.info("the work of %s ended: %s", self.node, error)
        finally:
            stop.cancel()
            await _cancel_and_wait(body, self._report_overrun)
        return None

    def _report_overrun(self) -> None:
        log.error("the leader's work was cancelled and still runs", extra={"action": "overrun"})
        call_hook(self.options.on_stop_overrun)

    # The block form.

    async def __aenter__(self) -> Term:
        """Campaign until elected, and return the term.

        When the term ends, the block is cancelled and raises LeadershipLostError. ValueError with `every` or `cron`.
        """
        if self._scope is not None:
            raise RuntimeError("this election is in use: create another one for another block")
        if self.options.repeats:
            raise ValueError("a block runs once in a term: use every and cron with as_leader, or election(…).run(work)")
        await self.prepare()
        self._scope = _Scope(self)
        try:
            return await self._scope.enter()
        except BaseException:
            self._scope = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None
        await scope.exit(error)


class _Scope:
    """`async with election`: it cancels the task of the block, like `asyncio.timeout`."""

    def __init__(self, election: Election) -> None:
        self._election = election
        self._stack = contextlib.AsyncExitStack()
        self._cancelled = False

    async def enter(self) -> Term:
        async with contextlib.AsyncExitStack() as stack:
            candidacy = await stack.enter_async_context(Candidacy(self._election))
            term = await candidacy.wait_until_elected()
            stack.push_async_callback(candidacy.leave_office)
            self._stack = stack.pop_all()
        self._term, self._candidacy = term, candidacy
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        candidacy.running.reader, candidacy.running.cancels = task, True
        self._watch = asyncio.create_task(self._cancel())
        return term

    async def _cancel(self) -> None:
        await self._candidacy.told_to_stop.wait()
        self._cancelled = True
        self._task.cancel()

    async def exit(self, error: BaseException | None) -> None:
        self._watch.cancel()
        ours = self._cancelled and self._task.uncancel() <= self._cancelling
        reason = self._candidacy.reason
        await self._stack.aclose()
        if ours and (error is None or isinstance(error, asyncio.CancelledError)):
            election = self._election
            text = f"{election.node} does not lead {election.options.name!r} any more: {reason}"
            raise LeadershipLostError(text) from error


async def _call_work(work: Callable[..., Any], term: Term, *args: Any, **kwargs: Any) -> Any:
    if is_async(work):
        return await work(term, *args, **kwargs)
    result = await term.to_thread(work, term, *args, **kwargs)  # a plain callable may block
    return await result if inspect.isawaitable(result) else result


async def _cancel_and_wait(body: asyncio.Future[Any], overran: Callable[[], None]) -> None:
    """Cancel the work and wait until it has stopped, even if it swallows cancellations or we are cancelled, too."""
    cancelled = False
    while not body.done():
        body.cancel()
        try:
            await asyncio.wait({body}, timeout=OVERRUN)
        except asyncio.CancelledError:
            cancelled = True
            continue
        if not body.done():
            overran()
    if not body.cancelled():
        body.exception()  # retrieved, and dropped: the caller has its own reason to stop the work
    if cancelled:
        raise asyncio.CancelledError


def _held_lease(last: StoredMessage | None) -> Lease | None:
    sight = None if last is None else sight_of(last.sequence, last.header_block, last.data)
    return sight.lease if sight is not None and sight.kind == "held" else None
