"""A term of a leader: its token, its deadline, and writes that fail after its end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar, Unpack

import msgspec

from natty.elections.process import Program, ProgramSettings, run_guarded
from natty.elections.record import Subjects
from natty.elections.tenure import Tenure
from natty.errors import (
    ConnectionClosedError,
    LeadershipLostError,
    NotConnectedError,
    PublishError,
    RequestTimeoutError,
    StaleTokenError,
    WrongLastSequenceError,
)
from natty.jetstream import IN_FLIGHT, JetStream, StoredMessage
from natty.publishing.atomic import AtomicMessage, store_batch

READ_TIMEOUT = 1.0  # seconds: a stream without a leader does not answer; the read is retried
COMMIT_RETRY = 0.025  # seconds between two tries of a commit in doubt
TOKEN, NONCE = "Natty-Token", "Natty-Nonce"
# Set for the thread of the work.
_cancel_flag: ContextVar[threading.Event | None] = ContextVar("cancel_flag", default=None)
P = ParamSpec("P")
T = TypeVar("T")


class Term:
    """One stay in office. Work checks it before each step, and commits through it."""

    def __init__(
        self,
        jetstream: JetStream,
        subjects: Subjects,
        tenure: Tenure,
        *,
        name: str,
        node: str,
        leave: Callable[..., None],
    ) -> None:
        self.name = name
        self.node = node
        self.lost = asyncio.Event()  # set when the work has to stop
        self._jetstream = jetstream
        self._subjects = subjects
        self._tenure = tenure
        self._leave = leave
        self._chain: dict[str, int] = {}
        self._committing = asyncio.Lock()

    def __repr__(self) -> str:
        state = "over" if self._tenure.ended else f"{self.remaining():.2f} s left"
        return f"Term({self.name!r}, {self.node}, token={self.token}, {state})"

    @property
    def token(self) -> int:
        """The fencing token: it grows with each term, and the server checks it."""
        return self._tenure.token

    @property
    def number(self) -> int:
        """The number of the term, for commit points outside NATS: they store the highest seen and refuse lower ones."""
        return self._tenure.term

    def remaining(self) -> float:
        """Return the seconds until the deadline; renewals move it. Safe to call from any thread."""
        return self._tenure.remaining()

    def check(self) -> None:
        """LeadershipLostError if the deadline has passed, the work has to stop, or its `to_thread` was cancelled.

        Call it before every step. Safe to call from any thread.
        """
        cancel = _cancel_flag.get()
        if cancel is not None and cancel.is_set():
            raise LeadershipLostError(f"{self.name!r}: the work of {self.node} was cancelled (token {self.token})")
        self._tenure.check(f"{self.node} does not lead {self.name!r}")

    def step_down(self, to: str = "") -> None:
        """Cancel this work now, and leave office once it has ended; then the node `to` goes first."""
        self._leave("step_down", to)

    def transfer(self, to: str) -> None:
        """Hand over to the node `to`: it does not wait, the other nodes wait 50 ms longer."""
        self._leave("transfer", to)

    # Work that is not a coroutine.

    async def to_thread(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in a thread and wait for it, even if cancelled. It must call `check` between its steps."""
        cancel, context = threading.Event(), copy_context()
        context.run(_cancel_flag.set, cancel)
        running = _in_thread(partial(context.run, function, *args, **kwargs))
        cancelled = False
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                cancelled = True
                cancel.set()
        if cancelled:
            running.exception()  # retrieved, and dropped
            raise asyncio.CancelledError
        return running.result()

    async def run_process(
        self,
        command: Sequence[str],
        *,
        on_start: Callable[[Program], Any] | None = None,
        **options: Unpack[ProgramSettings],
    ) -> int:
        """Run a program for as long as the term lasts and return its exit status, negative for a signal.

        The program has its own process group. A guard process sends SIGTERM to it when the work has to stop, and
        SIGKILL to it and all its children a quarter of the grace before the deadline, even if this process is frozen,
        hung or dead. `on_start` is called with the program, which has `send_signal`, `kill` and the pipes. Options:
        `ProgramSettings`.
        """
        return await run_guarded(self._tenure, command, on_start=on_start, **options)

    # Commits.

    async def read(self, commit: str) -> bytes | None:
        """Return the last commit of this name and take it over.

        Confirms the read by writing the commit again under this term's token, so that a stale answer does no harm.
        StaleTokenError if a later term has begun; LeadershipLostError past the deadline.
        """
        async with self._committing:
            return await self._read(commit)

    async def commit(self, commit: str, data: bytes) -> None:
        """Store `data` as the last commit of this name if this term still holds. The server decides this, not a clock.

        StaleTokenError if another term has begun; LeadershipLostError past the deadline. `data` must not be empty.
        """
        await self.batch({commit: data})

    async def batch(self, commits: Mapping[str, bytes]) -> None:
        """Store several commits, all or none; otherwise like `commit`."""
        if not commits or not all(commits.values()):
            raise ValueError("a commit must not be empty: it would read as no commit")
        async with self._committing:
            for name in commits:
                if name not in self._chain:
                    await self._read(name)
            expected = {name: self._chain.pop(name) for name in commits}  # read again if in doubt
            self._chain |= await self._write(commits, expected)

    async def _read(self, commit: str) -> bytes | None:
        while True:
            self._in_time()
            last = await self._last(self._subjects.commit(commit))
            if last is not None and _token_of(last) > self.token:
                raise self._stale(f"{commit!r} was committed by a later term than {self.token}")
            value = last.data if last is not None else b""
            try:
                self._chain |= await self._write({commit: value}, {commit: last.sequence if last else 0})
            except _Moved:
                continue
            return value or None

    def _in_time(self) -> None:
        if self.remaining() <= 0:
            self.check()

    async def _last(self, subject: str) -> StoredMessage | None:
        """Return the last message on a subject; retry until the deadline."""
        while True:
            self._in_time()
            try:
                return await self._jetstream.read(self._subjects.stream, subject=subject, timeout=READ_TIMEOUT)
            except ConnectionClosedError:
                raise
            except (RequestTimeoutError, NotConnectedError):
                await asyncio.sleep(COMMIT_RETRY)

    async def _write(self, commits: Mapping[str, bytes], expected: Mapping[str, int]) -> dict[str, int]:
        """Store the commits and a fence in one batch, on condition of their last sequences and of the epoch."""
        nonce = uuid.uuid4().hex
        marks = {TOKEN: str(self.token), NONCE: nonce}
        fence = {
            "Nats-Expected-Last-Subject-Sequence": str(self.token),
            "Nats-Expected-Last-Subject-Sequence-Subject": self._subjects.epoch,
        }
        batch = [
            AtomicMessage(
                subject=self._subjects.commit(name),
                data=data,
                headers=marks,
                expect_last_subject_sequence=expected[name],
            )
            for name, data in commits.items()
        ]
        note = msgspec.json.encode({"token": self.token, "node": self.node, "commits": list(commits)})
        batch.append(AtomicMessage(subject=self._subjects.fence, data=note, headers=fence | marks))
        while True:
            self._in_time()
            doubt: Exception
            try:
                timeout = max(0.05, self.remaining())
                # `_find_stored` settles a batch in doubt
                last = await store_batch(self._jetstream, batch, timeout=timeout, settle=False)
                return {name: last.seq - len(commits) + place for place, name in enumerate(commits)}
            except (WrongLastSequenceError, PublishError, NotConnectedError) as error:
                if isinstance(error, PublishError) and not error.in_doubt:
                    raise
                doubt = error
            if (found := await self._find_stored(commits, nonce)) is not None:
                return found
            if isinstance(doubt, WrongLastSequenceError) and doubt.err_code != IN_FLIGHT:
                await self._explain(commits, expected, doubt)
            await asyncio.sleep(COMMIT_RETRY)

    async def _find_stored(self, commits: Mapping[str, bytes], nonce: str) -> dict[str, int] | None:
        found = {}
        for name in commits:
            last = await self._last(self._subjects.commit(name))
            if last is None or last.headers.get(NONCE) != [nonce]:
                return None
            found[name] = last.sequence
        return found

    async def _explain(self, commits: Mapping[str, bytes], expected: Mapping[str, int], error: Exception) -> None:
        """Raise the error for a refusal. Raises none if epoch and commits look unchanged: then the look was stale."""
        epoch = await self._last(self._subjects.epoch)
        if epoch is None or epoch.sequence != self.token:
            raise self._stale(f"{', '.join(map(repr, commits))} was taken over by another term; {self.token} is stale")
        for name in commits:
            last = await self._last(self._subjects.commit(name))
            if (last.sequence if last else 0) != expected[name]:
                raise _Moved(f"another client wrote {name!r}: {error}") from error

    def _stale(self, text: str) -> StaleTokenError:
        self._leave("fenced")
        return StaleTokenError(text)


def _token_of(commit: StoredMessage) -> int:
    """Return the token of a stored commit; 0 if no leader stored it, because a token is an earlier sequence."""
    text = commit.headers.get(TOKEN, [""])[0]
    token = int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else 0
    return token if token < commit.sequence else 0


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run it in its own thread: in a shared pool, work of one election would wait for the work of another."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="natty leader's work", daemon=True).start()
    return asyncio.wrap_future(done)


class _Moved(LeadershipLostError):
    """A commit is not where this term left it."""
