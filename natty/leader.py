"""Leader election on a key-value bucket: by compare-and-set only, timed by our own clock, fenced by a token.

The lease is a record that its holder renews by compare-and-set. The holder's deadline counts from before the renewal
was sent; others take over when they have seen no new revision for a lease by their own clock, by compare-and-set on
the very revision they saw. Each term begins with an epoch record, written on condition that the lease is still ours:
its sequence is the fencing token. A term's commits are chained by compare-and-set, so that the server refuses a deposed
leader's. After Chubby's sequencers and Kubernetes' client-go leader election.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

import msgspec

from natty.errors import BucketNotFoundError, LeadershipLost, NattyError, StaleToken, WrongLastSequenceError
from natty.jetstream import JetStream, StoredMessage
from natty.kv import create_bucket

logger = logging.getLogger("natty.leader")

T = TypeVar("T")

DRIFT = 0.02  # how far two clocks' rates may differ
LEASE = 2.0  # seconds
READ_TIMEOUT = 1.0  # seconds: a stream without a leader does not answer, and is asked again
GRACE = 0.2  # of the lease: how long before the deadline the work is told to stop
BUCKET = "natty_leaders"


def clock() -> float:
    """Seconds of a clock that nobody sets and that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def default_node_name() -> str:
    """Host and process."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The record on the lease's key."""

    v: int = 1
    id: str
    inc: str
    state: str  # held, released
    L: float
    nonce: str


@dataclass(frozen=True, kw_only=True)
class ElectionOptions:
    """One election. The lease in seconds: how long a dead leader keeps its office."""

    name: str
    lease: float = LEASE
    bucket: str = BUCKET
    node_name: str = ""
    replicas: int | None = None

    def __post_init__(self) -> None:
        if self.lease < 0.3:
            raise ValueError(f"a lease of {self.lease:g} s is too short: renewing takes time; take at least 0.3 s")


class Term:
    """One stay in office. Work checks it before each step, and commits through it."""

    def __init__(self, election: Election, token: int, revision: int, deadline: float) -> None:
        self.token = token
        self.name = election.options.name
        self.node = election.node
        self._election = election
        self._revision = revision
        self._deadline = deadline
        self._over = False
        self._chain: dict[str, int] = {}
        self._committing = asyncio.Lock()

    def __repr__(self) -> str:
        state = "over" if self._over else f"{self.remaining():.2f} s left"
        return f"Term({self.name!r}, {self.node}, token={self.token}, {state})"

    def remaining(self) -> float:
        """Seconds until the deadline, as things stand; renewals move it. Safe to call from any thread."""
        return 0.0 if self._over else max(0.0, self._deadline - clock())

    def check(self) -> None:
        """LeadershipLost if the deadline has passed. Call it before every step; safe to call from any thread."""
        if self.remaining() <= 0:
            raise LeadershipLost(f"{self.node} does not lead {self.name!r} any more (token {self.token})")

    async def read(self, commit: str) -> bytes | None:
        """Return the last commit of this name and take it over: from now on no earlier leader can add to it.

        The read is confirmed by writing it again under this term's token, so that a stale answer can't be built upon.
        StaleToken if a later term has written.
        """
        async with self._committing:
            while True:
                self.check()
                last = await self._election.last_commit(commit)
                if last is not None and _token_of(last) > self.token:
                    raise StaleToken(f"{commit!r} was committed by a later term than {self.token}")
                value = last.data if last is not None else b""
                try:
                    self._chain[commit] = await self._write(commit, value, last.sequence if last else 0)
                    return value or None
                except WrongLastSequenceError:
                    continue

    async def commit(self, commit: str, data: bytes) -> None:
        """Store `data` as the last commit of this name, if this term still holds. The server decides, not a clock.

        StaleToken if another term has taken over; LeadershipLost past the deadline. `data` must not be empty.
        """
        if not data:
            raise ValueError("an empty commit would read as none")
        if commit not in self._chain:
            await self.read(commit)
        async with self._committing:
            self.check()
            expected = self._chain.pop(commit)  # in doubt until answered: the next commit reads it again
            try:
                self._chain[commit] = await self._write(commit, data, expected)
            except WrongLastSequenceError as error:
                raise StaleToken(f"{commit!r} was taken over by another term; {self.token} is stale") from error

    async def _write(self, commit: str, data: bytes, expected: int) -> int:
        election = self._election
        return await election.jetstream.compare_and_set(
            election.stream,
            election.commit_subject(commit),
            data,
            expected=expected,
            nonce=uuid.uuid4().hex,
            headers={"Natty-Token": str(self.token)},
            timeout=max(0.05, min(self.remaining(), election.options.lease)),
        )


def _token_of(message: StoredMessage) -> int:
    return int(message.headers.get("Natty-Token", ["0"])[0])


class Election:
    """One node's candidacy. `run(work)` campaigns, and runs `work(term)` while elected."""

    def __init__(self, jetstream: JetStream, options: ElectionOptions) -> None:
        self.jetstream = jetstream
        self.options = options
        self.node = options.node_name or default_node_name()
        self.stream = f"KV_{options.bucket}"
        self.term: Term | None = None
        self._incarnation = uuid.uuid4().hex
        self._subject = f"$KV.{options.bucket}.{options.name}"
        self._seen: tuple[int, float] = (-1, 0.0)  # the last revision seen, and when it was first seen

    def __repr__(self) -> str:
        return f"Election({self.options.name!r}, {self.node}, {self.term or 'not leading'})"

    def commit_subject(self, commit: str) -> str:
        """Where the commits of this name stand."""
        return f"{self._subject}.commit.{commit}"

    async def last_commit(self, commit: str) -> StoredMessage | None:
        """Return the last commit of this name: a hint, `Term.read` makes sure."""
        return await self.jetstream.read(self.stream, subject=self.commit_subject(commit), timeout=READ_TIMEOUT)

    async def prepare(self) -> None:
        """Make the bucket if there is none. UnsupportedError on a server before 2.12.14, or 2.14.0 to 2.14.3."""
        self.jetstream.require("leader election", *((2, 14, 4) if self._version() >= (2, 14) else (2, 12, 14)))
        bucket = await create_bucket(
            self.jetstream, self.options.bucket, replicas=self.options.replicas, description="natty leader elections"
        )
        status = await bucket.status()
        if status["replicas"] < 3 and self.jetstream.connection.server_info.get("cluster"):
            logger.warning(
                "bucket %s has %d replica(s): losing one server can lose the election", bucket.name, status["replicas"]
            )

    def _version(self) -> tuple[int, ...]:
        return self.jetstream.connection.server_version

    async def leader(self) -> Lease | None:
        """Return the lease as it was last written, if it is held: a hint for people and dashboards."""
        try:
            last = await self.jetstream.read(self.stream, subject=self._subject, timeout=READ_TIMEOUT)
        except BucketNotFoundError:  # nobody has ever been a candidate
            return None
        lease = _lease(last)
        return lease if lease is not None and lease.state == "held" else None

    async def run(self, work: Callable[[Term], Awaitable[T]]) -> T:
        """Campaign, run `work(term)` while elected, campaign again when office was lost; return what `work` returns.

        The work is cancelled before the deadline, and joined before the lease is released. An error of the work
        releases the lease and is raised.
        """
        await self.prepare()
        while True:
            async with self._office() as term:
                outcome = await self._work(term, work)
            if outcome is not None:
                return outcome[0]

    async def _work(self, term: Term, work: Callable[[Term], Awaitable[T]]) -> tuple[T] | None:
        """Run the work beside the renewals; None if office was lost meanwhile."""
        body = asyncio.ensure_future(work(term))
        keeper = asyncio.create_task(self._keep(term))
        try:
            await asyncio.wait({body, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if body.done():
                return (body.result(),)
            logger.warning("%s leads %r no more: %s", self.node, self.options.name, keeper.result())
            return None
        except LeadershipLost as error:
            logger.warning("%s leads %r no more: %s", self.node, self.options.name, error)
            return None
        finally:
            await _stopped(body)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _office(self) -> AsyncIterator[Term]:
        """Campaign until elected and yield the term; release on leaving. Renewing is the caller's."""
        term = self.term = await self._campaign()
        logger.info("%s leads %r, token %d", self.node, self.options.name, term.token, extra={"action": "elected"})
        try:
            yield term
        finally:
            if term.remaining() > 0:
                await self._release()
            term._over = True
            self.term = None

    async def _campaign(self) -> Term:
        while True:
            wait, expected = 0.25, None
            try:
                wait, expected = await self._observe()
                if expected is not None and (term := await self._acquire(expected)) is not None:
                    return term
            except NattyError as error:
                logger.info("campaign for %r goes on: %s", self.options.name, error, extra={"action": "campaign"})
            await asyncio.sleep(min(wait, self.options.lease / 8) * random.uniform(0.8, 1.0))

    async def _observe(self) -> tuple[float, int | None]:
        """Return (seconds to wait, revision to take over or None). Silence is measured by our own clock."""
        last = await self.jetstream.read(self.stream, subject=self._subject, timeout=READ_TIMEOUT)
        now = clock()
        revision = last.sequence if last is not None else 0
        if revision != self._seen[0]:
            self._seen = (revision, now)
        lease = _lease(last)
        if last is None or (lease is not None and lease.state == "released") or _expired(last):
            return 0.0, revision
        length = (
            lease.L if lease is not None else self.options.lease
        )  # a foreign delete: keep the distance of one lease
        due = self._seen[1] + length * (1 + DRIFT) + random.uniform(0, 0.01)
        return (0.0, revision) if now >= due else (due - now, None)

    async def _acquire(self, expected: int) -> Term | None:
        """Take the lease by compare-and-set, then open the epoch. None if somebody was faster."""
        sent = clock()
        deadline = sent + self.options.lease * (1 - DRIFT)
        try:
            revision = await self._write_lease("held", expected, nonce=uuid.uuid4().hex, timeout=self.options.lease / 2)
            epoch = await self.jetstream.publish(
                f"{self._subject}.epoch",
                msgspec.json.encode({"id": self.node, "inc": self._incarnation, "lease": revision}),
                headers={
                    "Nats-Expected-Last-Subject-Sequence": str(revision),
                    "Nats-Expected-Last-Subject-Sequence-Subject": self._subject,
                },
                timeout=max(0.05, deadline - clock()),
            )
        except WrongLastSequenceError:
            return None
        return Term(self, epoch.seq, revision, deadline) if clock() < deadline else None

    async def _keep(self, term: Term) -> str:
        """Renew until it can't be done in time; return why. The deadline counts from before the first send."""
        lease = self.options.lease
        due = clock() + lease / 3
        while True:
            await asyncio.sleep(max(0.0, due - clock()))
            sent, nonce = clock(), uuid.uuid4().hex  # one nonce for all tries: an earlier one may have landed
            while True:
                left = term._deadline - GRACE * lease - clock()
                if left <= 0:
                    return "the lease could not be renewed in time"
                try:
                    attempt = max(0.02, min(lease / 4, left))
                    term._revision = await self._write_lease("held", term._revision, nonce=nonce, timeout=attempt)
                    break
                except WrongLastSequenceError as error:
                    term._over = True
                    return f"another node has taken over ({error})"
                except NattyError as error:
                    logger.warning("renewing %r failed: %s", self.options.name, error, extra={"action": "renew"})
                    await asyncio.sleep(min(lease / 20, 0.25))
            term._deadline = sent + lease * (1 - DRIFT)
            due = sent + lease / 3 * random.uniform(0.9, 1.0)

    async def _release(self) -> None:
        timeout = min(1.0, self.options.lease / 2)
        with contextlib.suppress(NattyError):  # silence does it as well, a lease later
            last = await self.jetstream.read(self.stream, subject=self._subject, timeout=timeout)
            lease = _lease(last)
            if last is None or lease is None or lease.inc != self._incarnation:
                return
            # Not the revision we know of: a renewal that was cancelled on its way may have been stored.
            await self._write_lease("released", last.sequence, nonce=uuid.uuid4().hex, timeout=timeout)
            logger.info("%s released %r", self.node, self.options.name, extra={"action": "released"})

    async def _write_lease(self, state: str, expected: int, *, nonce: str, timeout: float) -> int:
        lease = self.options.lease
        record = Lease(id=self.node, inc=self._incarnation, state=state, L=lease, nonce=nonce)
        return await self.jetstream.compare_and_set(
            self.stream,
            self._subject,
            msgspec.json.encode(record),
            expected=expected,
            nonce=nonce,
            headers={"Nats-TTL": str(max(1, ceil(3 * lease)))},
            timeout=timeout,
        )


async def _stopped(body: asyncio.Future[T]) -> None:
    """Cancel the work and wait until it has stopped, however often it swallows that or we are cancelled ourselves."""
    cancelled = False
    while not body.done():
        body.cancel()
        try:
            await asyncio.wait({body}, timeout=1.0)
        except asyncio.CancelledError:
            cancelled = True
            continue
        if not body.done():
            logger.error("the leader's work has been told to stop and goes on", extra={"action": "overrun"})
    if not body.cancelled():
        body.exception()  # seen: whoever stopped it has a reason of its own
    if cancelled:
        raise asyncio.CancelledError


def _lease(message: StoredMessage | None) -> Lease | None:
    if message is None or message.is_marker:
        return None
    try:
        return msgspec.json.decode(message.data, type=Lease)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _expired(message: StoredMessage) -> bool:
    return message.headers.get("Nats-Marker-Reason") == ["MaxAge"]
