"""One candidacy in the renewer's event loop: it sends requests for the machine's actions, and passes on the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from natty.config.units import clock
from natty.elections.actions import Action, Ask, Elected, Left, Lost, Mark, Read, Seen, Stop, WentBack, Write
from natty.elections.election_bucket import make_bucket
from natty.elections.machine import Candidate
from natty.elections.options import ElectionOptions
from natty.elections.record import ABSENT, Sight, Subjects, sight_of
from natty.elections.tenure import Tenure
from natty.errors import AuthorizationError, BucketNotFoundError, NattyError, WrongLastSequenceError
from natty.jetstream import IN_FLIGHT, JetStream, read_ack
from natty.kv.json_records import Text
from natty.wire.message import RawMessage, encode_headers
from natty.wire.repeated import ONCE, Repeated

log = logging.getLogger("natty.leader")

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
BUCKET_TIMEOUT = 5.0  # seconds to create a deleted bucket again
Report = Callable[[str, Any], None]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the holder, sent to the address in its lease."""

    do: str  # ask, step_down
    id: Text = ""
    prio: int = 0


class Driver:
    """Runs one candidate. All its code runs in the renewer's thread; `report` passes news to the main side."""

    def __init__(
        self,
        jetstream: JetStream,
        options: ElectionOptions,
        candidate: Candidate,
        *,
        loop: asyncio.AbstractEventLoop,
        pulse: Callable[[], float],
        report: Report,
    ) -> None:
        self.candidate = candidate
        self.subjects = Subjects(options.bucket, options.lease_key)
        self.writes = self.failures = 0
        # Seconds: from sending a write to its ack; left of the lease when it was renewed; delay of a timer;
        # without a sight of the lease.
        self.slowest, self.least_left, self.latest, self.longest_silence = 0.0, float("inf"), 0.0, 0.0
        self._heard_at: float | None = None
        self._jetstream = jetstream
        self._options = options
        self._loop = loop
        self._pulse = pulse
        self._report = report
        self._tenure: Tenure | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._repeated, self._lasting = Repeated(log), Repeated(log, every=ONCE)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"Driver({self.subjects.lease}, {self.candidate.phase.value})"

    def post(self, event: str, *arguments: Any) -> None:
        """Give the candidate an event from another thread. Does nothing after the renewer's thread has ended."""
        with suppress(RuntimeError):  # that loop is closed, and the caller still has an old term
            self._loop.call_soon_threadsafe(self.input, event, *arguments)

    def input(self, event: str, *arguments: Any) -> None:
        """Give the candidate an event that happens now, and perform the actions that it returns."""
        if self._closed:
            return
        try:
            self.candidate.alive(self._pulse())
            self._perform(getattr(self.candidate, event)(clock(), *arguments))
        except Exception:  # a fault of ours: the deadline still holds, and the candidate continues
            log.exception("%s failed at %r", self, event, extra={"action": "election_failed"})
            self._set_timer(at_least=self._options.rules.retry)

    def close(self) -> None:
        """End without another write."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._end_tenure("closed")

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Write():
                    self._spawn(self._write(action), "doubt", action.record.nonce)
                case Mark():
                    self._spawn(self._mark(action), "marked")
                case Read():
                    self._spawn(self._read(action), "unread", action.number)
                case Elected():
                    self._tenure = Tenure(action.token, action.term, self._options.rules.stop_before)
                    self._tenure.extend(self.candidate.deadline)
                    self._report("elected", self._tenure)
                case Stop():
                    if self._tenure is not None:
                        self._tenure.stop(action.reason)
                    self._report("stop", action.reason)
                case Lost():
                    self._end_tenure(action.reason)
                    self._report("lost", action.reason)
                case Left():
                    self._end_tenure("released" if action.released else "left")
                    self._report("left", action.released)
                case Seen():
                    self._report("seen", action.lease)
                case Ask():
                    self._ask(action)
                case WentBack():
                    text = "the stream of %s went back from revision %d to %d: it lost its tail, or was created again"
                    log.error(text, self.subjects.lease, action.before, action.last, extra={"action": "went_back"})
        if self._tenure is not None and self._tenure.deadline != self.candidate.deadline:
            self.least_left = min(self.least_left, self._tenure.remaining())
            self._tenure.extend(self.candidate.deadline)
        self._set_timer()

    def _end_tenure(self, reason: str) -> None:
        if self._tenure is not None:
            self._tenure.end(reason)
            self._tenure = None

    def _set_timer(self, at_least: float = 0.0) -> None:
        """Schedule the next `tick`. An earlier timer stays: a flood of events must not delay it forever."""
        due = self.candidate.due
        if self._timer is not None:
            if not at_least and self._timer_due <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due < float("inf"):
            now = clock()
            at = max(due, now + at_least)  # what is due may have waited for an answer
            self._timer_due = due
            self._timer = self._loop.call_later(at - now, self._tick, at)

    def _tick(self, at: float) -> None:
        self._timer = None
        self.latest = max(self.latest, clock() - at)
        self.input("tick")

    def _spawn(self, request: Coroutine[Any, Any, None], event: str, *about: Any) -> None:
        task = self._loop.create_task(self._supervise(request, event, *about))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self, request: Coroutine[Any, Any, None], event: str, *about: Any) -> None:
        """Run a request. If it fails with an unexpected error, pass on `event`, which means "no answer"."""
        try:
            await request
        except Exception:
            log.exception("a request of %s failed", self, extra={"action": "election_failed"})
            self.input(event, *about)

    async def _write(self, write: Write) -> None:
        headers = {} if write.expected is None else {EXPECTED: str(write.expected)}
        if write.key == "epoch":
            headers[f"{EXPECTED}-Subject"] = self.subjects.lease
        if write.ttl is not None:
            headers["Nats-TTL"] = str(write.ttl)
        subject = self.subjects.epoch if write.key == "epoch" else self.subjects.lease
        nonce, sent = write.record.nonce, clock()
        try:
            sequence = await self._store(subject, msgspec.json.encode(write.record), headers, write.timeout)
        except WrongLastSequenceError as error:
            self.input("busy" if error.err_code == IN_FLIGHT else "refused", nonce)
        except AuthorizationError:
            self.input("forbidden", nonce)
        except NattyError as error:
            text = f"a write of {subject} is in doubt: {error}"
            self._repeated.info(text, text, extra={"action": "doubt"})
            self.input("doubt", nonce)
        else:
            self.writes += 1
            self.slowest = max(self.slowest, clock() - sent)
            self.input("stored", nonce, sequence)

    async def _mark(self, mark: Mark) -> None:
        headers = {EXPECTED: "0", "KV-Operation": "DEL"}
        try:
            await self._store(self.subjects.lease, b"", headers, mark.timeout)
        except AuthorizationError:
            self.input("forbidden", None)
            return
        except NattyError as error:  # usually because another candidate was faster
            log.info("%s was not marked as deleted: %s", self.subjects.lease, error, extra={"action": "not_marked"})
        self.input("marked")

    async def _store(self, subject: str, data: bytes, headers: dict[str, str], timeout: float) -> int:
        """Publish, and return the message's sequence."""
        try:
            wire = self._jetstream.write_subject(subject)
            block = encode_headers(headers)
            raw = await self._jetstream.connection.request(wire, data, headers=block, timeout=timeout)
            sequence = read_ack(raw[3], subject).seq
        except NattyError as error:
            self.failures += 1
            if isinstance(error, AuthorizationError):
                text = f"this node may not write {subject}: {error}"
                self._lasting.warning(f"writing {subject}", text, extra={"action": "may_not_write"})
            raise
        self._lasting.forget(f"writing {subject}")
        return sequence

    async def _read(self, read: Read) -> None:
        try:
            sight = await self._look(read.timeout)
        except BucketNotFoundError:
            await self._make_bucket()
            self.input("unread", read.number)
        except NattyError as error:
            text = f"{self.subjects.lease} could not be read: {error}"
            self._repeated.info(text, text, extra={"action": "unread"})
            self.input("unread", read.number)
        else:
            self.input("read", read.number, sight)

    async def _look(self, timeout: float) -> Sight:
        last = await self._jetstream.read(self.subjects.stream, subject=self.subjects.lease, timeout=timeout)
        sight = ABSENT if last is None else sight_of(last.sequence, last.header_block, last.data)
        if sight.damage:
            text = f"the lease {self.subjects.lease} can't be read and counts as deleted: {sight.damage}"
            self._lasting.warning("reading the lease", text, extra={"action": "bad_record"})
        else:
            self._lasting.forget("reading the lease")
        return sight

    async def _make_bucket(self) -> None:
        bucket = self._options.bucket
        try:
            async with asyncio.timeout(BUCKET_TIMEOUT):
                await make_bucket(self._jetstream, self._options)
        except (NattyError, TimeoutError) as error:
            text = f"bucket {bucket} was deleted and could not be created again: {error}"
            self._lasting.warning("making the bucket", text, extra={"action": "not_made_again"})
        else:
            self._lasting.forget("making the bucket")
            log.warning("bucket %s was deleted; it is created again", bucket, extra={"action": "made_again"})

    def _ask(self, action: Ask) -> None:
        call = Call(do="ask", id=self.candidate.id, prio=self.candidate.rules.priority)
        if not self._jetstream.connection.is_inbox(action.addr.encode()):
            text = "the holder of %s can't be asked: its address is not below our inbox prefix"
            log.info(text, self.subjects.lease)
            return
        try:
            self._jetstream.connection.send(action.addr, msgspec.json.encode(call))
        except (NattyError, ValueError) as error:
            log.info("the holder of %s could not be asked: %s", self.subjects.lease, error)

    # Messages of the subscriptions.

    def on_hint(self, revision: int, raw: RawMessage) -> None:
        """Handle a republished message: a hint that this was stored on the lease's key at this revision."""
        now = clock()
        if self._heard_at is not None:
            self.longest_silence = max(self.longest_silence, now - self._heard_at)
        self._heard_at = now
        if self.candidate.follows(revision):
            self.input("saw", sight_of(revision, raw[2], raw[3]))

    def on_call(self, call: Call) -> bool:
        """Handle another node's request to hand over; return whether we lead, and so will hand over."""
        leading = self._tenure is not None
        if call.do == "step_down":
            self.input("resign", "step_down", call.id)
        elif call.do == "ask":
            self.input("asked", call.id, call.prio)
        return leading
