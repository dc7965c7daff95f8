"""Helpers for tests of elections: work that records its terms, and elections that are free at once with any lease."""

import asyncio
import contextlib

import msgspec
from patient import until

from capture.archive.heads import COMPACTION, SWEEP
from natty import BucketNotFoundError, LeadershipLostError, RequestTimeoutError
from natty.elections import BUCKET, clock
from natty.elections.election_bucket import make_bucket
from natty.elections.options import ElectionOptions
from natty.elections.record import Lease

LONG = 600.0  # seconds: a lease that no stall ends, and that no test can have waited for


async def vacated(natty, name, bucket=BUCKET):
    """Return the name of an election whose last leader has left: the next one leads at once, even with a long lease."""
    await make_bucket(natty.jetstream, ElectionOptions(name=name, bucket=bucket))
    left = Lease(id="nobody", inc="nobody", state="released", L=0.3, nonce="nobody")
    await natty.bucket(bucket).put(name, msgspec.json.encode(left))
    return name


async def vacated_archive(natty, archive):
    """Return the name of an archive whose last leaders, of the sweep and of the compaction, have left."""
    for office in (SWEEP, COMPACTION):
        await vacated(natty, office.election(archive))
    return archive


class Work:
    """Records its terms; `end` lets it return. A stubborn one ignores its cancellation until it is `let_go`."""

    def __init__(self, *, stubborn=False):
        self.terms, self.begun_at, self.ended_at, self.left = [], [], [], []
        self.end, self.let_go = asyncio.Event(), asyncio.Event()
        if not stubborn:
            self.let_go.set()

    async def __call__(self, term):
        self.terms.append(term)
        self.begun_at.append(clock())
        try:
            await self.end.wait()
        finally:
            self.left.append(term.remaining())
            while not self.let_go.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.let_go.wait()
            self.ended_at.append(clock())
        return term.token

    @property
    def in_office(self):
        """Whether it runs and was not cancelled."""
        return len(self.terms) > len(self.left)

    def begun_under(self, above):
        """The start of the first term with a token above this sequence; None if there was none."""
        return next((at for term, at in zip(self.terms, self.begun_at, strict=True) if term.token > above), None)


def forever(terms):
    """Work that records its term and never ends."""

    async def work(term):
        terms.append(term)
        await asyncio.Event().wait()

    return work


async def renewals(term, count=3):
    """Wait until a term was renewed `count` times."""
    for _ in range(count):
        deadline = term._tenure.deadline
        await until(lambda deadline=deadline: term._tenure.deadline > deadline)


async def committed(terms, name, data):
    """Commit under the newest of these terms, once a term is valid and its bucket exists; return the term.

    A commit gets no answer in time if the server stalls until its term is over: the next term commits again.
    """
    while True:
        term = terms[-1]
        try:
            await term.commit(name, data)
        except (LeadershipLostError, BucketNotFoundError, RequestTimeoutError):
            await asyncio.sleep(0.05)
        else:
            return term


def outlasting(work, lease):
    """The tokens of terms that were renewed one and a half leases after their start: until then no other took over."""
    told = zip(work.terms, work.begun_at, strict=True)
    return [term.token for term, begun in told if term._tenure.deadline > begun + 2.5 * lease]
