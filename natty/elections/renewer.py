"""The thread that keeps all elections of one connection alive, even while the event loop of the work is busy.

It has its own event loop and its own connection, and one subscription for each bucket. It does not keep a main side in
office that gives no sign of life: see `max_stall`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace

import msgspec

from natty.config.settings import Config
from natty.config.units import clock
from natty.elections.driver import Call, Driver, Report
from natty.elections.machine import Candidate
from natty.elections.options import PULSE, ElectionOptions
from natty.elections.record import hinted_revision, republish_subject
from natty.errors import BadRecordError, BadSubjectError, NattyError
from natty.jetstream import JetStream
from natty.kv.json_records import decode
from natty.wire.background import cancel_all, keep_up, wait_until_set
from natty.wire.connection import Connection
from natty.wire.message import Batch, RawMessage
from natty.wire.session import Subscription

log = logging.getLogger("natty.leader")

OPEN_AGAIN = 0.25  # seconds between two tries to connect
PING_AT_LEAST = 0.5  # seconds
CLOSE_WITHIN = 3.0  # seconds to wait for the end of the thread

_renewers: weakref.WeakKeyDictionary[Connection, Renewer] = weakref.WeakKeyDictionary()


def renewer_of(connection: Connection) -> Renewer:
    """Return the renewer of this connection: one for all its elections."""
    if connection not in _renewers:
        _renewers[connection] = Renewer(connection)
    return _renewers[connection]


class Renewer:
    """The renewer of one connection. The first candidacy starts it, the last one ends it.

    Call its public methods on the main side's event loop.
    """

    def __init__(self, main: Connection) -> None:
        self._config = main.config
        self._members = 0
        self._turn = asyncio.Lock()
        self._pulse_at = 0.0
        self._pulse: asyncio.Task[None] | None = None
        self._checks: list[Callable[[], None]] = []
        self._thread: RenewerThread | None = None

    def __repr__(self) -> str:
        return f"Renewer({self._members} candidacies)"

    async def join(self, options: ElectionOptions, node: str, report: Report, check: Callable[[], None]) -> Driver:
        """Begin a candidacy. `report` is called in the renewer's thread, `check` at every pulse of this loop."""
        async with self._turn:
            thread = await self._start()
            self._members += 1
        self._checks.append(check)  # no await from here on: a cancelled candidacy would stay in office
        return thread.begin(options, node, pulse=lambda: self._pulse_at, report=report)

    async def leave(self, driver: Driver, check: Callable[[], None]) -> None:
        """End a candidacy without another write; the last one ends the thread."""
        assert self._thread is not None
        self._checks.remove(check)
        self._members -= 1
        self._thread.forget(driver)
        await self._end_unused()

    async def _start(self) -> RenewerThread:
        if self._thread is None:
            self._pulse_at = clock()
            self._pulse = asyncio.create_task(keep_up("the pulse of elections", self._beat), name="natty pulse")
            self._thread = RenewerThread(self._config)
        try:
            await self._thread.started.wait()
        except asyncio.CancelledError:
            self._ending = asyncio.create_task(self._end_unused())
            raise
        return self._thread

    async def _end_unused(self) -> None:
        async with self._turn:
            if self._members == 0 and self._thread is not None:
                await self._thread.started.wait()
                await self._end()

    async def _end(self) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        assert self._pulse is not None
        self._pulse.cancel()
        await thread.end()

    async def _beat(self) -> None:
        """Record the time at each pulse, as long as the event loop is not blocked, and call the checks."""
        while True:
            self._pulse_at = clock()
            for check in list(self._checks):
                try:
                    check()
                except Exception:
                    log.exception("a candidacy could not be checked", extra={"action": "election_failed"})
            await asyncio.sleep(PULSE)


class RenewerThread:
    """One run of the thread. It shares nothing with the next one, which may begin before this one has ended."""

    def __init__(self, config: Config) -> None:
        self.started, self._ended = asyncio.Event(), asyncio.Event()
        self._config = config
        self._home = asyncio.get_running_loop()
        self._drivers: dict[bytes, list[Driver]] = {}  # by the subject where the server republishes their lease
        self._addresses: dict[bytes, Driver] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._thread = threading.Thread(target=self._run, name="natty renewer", daemon=True)
        self._thread.start()

    def begin(self, options: ElectionOptions, node: str, *, pulse: Callable[[], float], report: Report) -> Driver:
        """Begin a candidacy."""
        address = f"{self._inbox}.{uuid.uuid4().hex}"
        candidate = Candidate(
            options.rules, node, uuid.uuid4().hex, random.Random(), wall=time.time() - clock(), addr=address
        )
        driver = Driver(self._jetstream, options, candidate, loop=self._loop, pulse=pulse, report=report)
        self._loop.call_soon_threadsafe(self._begin, driver, options)
        return driver

    def forget(self, driver: Driver) -> None:
        """End a candidacy."""
        self._loop.call_soon_threadsafe(self._forget, driver)

    async def end(self) -> None:
        """End the thread, and wait until it has ended, for a limited time."""
        self._loop.call_soon_threadsafe(self._over.set)
        if await wait_until_set(self._ended, CLOSE_WITHIN):
            self._thread.join(CLOSE_WITHIN)  # it has nothing left to do

    # From here on: in the thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("the elections' thread failed", extra={"action": "election_failed"})
        with contextlib.suppress(RuntimeError):  # that loop is closed: no task waits
            self._home.call_soon_threadsafe(self._ended.set)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self.connection = Connection(replace(self._config, name=f"{self._config.name} elections"))
        self._jetstream = JetStream(self.connection)
        self.connection.listeners.append(self._on_event)
        self._inbox = self.connection.new_inbox().decode()
        self.connection.subscribe(f"{self._inbox}.*", self._answer_calls)
        opening = asyncio.create_task(keep_up("the connection of elections", self._open))
        self._home.call_soon_threadsafe(self.started.set)
        await self._over.wait()
        await cancel_all([opening])
        for drivers in self._drivers.values():
            for driver in drivers:
                driver.close()
        await self.connection.close()

    async def _open(self) -> None:
        while True:
            try:
                await self.connection.open()
                return self._on_event("connected")
            except NattyError as error:
                log.warning("elections wait for a server: %s", error, extra={"action": "no_server"})
            except Exception:
                log.exception("the elections' connection failed", extra={"action": "election_failed"})
            await asyncio.sleep(OPEN_AGAIN)

    def _begin(self, driver: Driver, options: ElectionOptions) -> None:
        self._addresses[driver.candidate.addr.encode()] = driver
        self._set_ping_interval()
        self._drivers.setdefault(republish_subject(options.bucket, options.lease_key).encode(), []).append(driver)
        if options.bucket not in self._subscriptions:
            subject = republish_subject(options.bucket)
            self._subscriptions[options.bucket] = self.connection.subscribe(subject, self._pass_on)
        driver.input("campaign")

    def _forget(self, driver: Driver) -> None:
        driver.close()
        self._addresses.pop(driver.candidate.addr.encode(), None)
        self._set_ping_interval()
        for subject, drivers in list(self._drivers.items()):
            if driver in drivers:
                drivers.remove(driver)
            if not drivers:
                del self._drivers[subject]

    def _set_ping_interval(self) -> None:
        """Notice a dead link within the shortest lease."""
        shortest = min((driver.candidate.rules.lease for driver in self._addresses.values()), default=float("inf"))
        self.connection.set_ping_interval(min(self._config.ping_interval, max(PING_AT_LEAST, shortest / 3)))

    def _on_event(self, event: str) -> None:
        if event == "connected":
            for drivers in self._drivers.values():
                for driver in drivers:
                    driver.input("connected")

    def _pass_on(self, batch: Batch) -> None:
        newest: dict[bytes, tuple[int, RawMessage]] = {}
        for raw in batch.raw:
            if raw[0] in self._drivers and (revision := hinted_revision(raw)):
                before = newest.get(raw[0])
                if before is None or revision > before[0]:
                    newest[raw[0]] = revision, raw
        for subject, (revision, raw) in newest.items():
            for driver in self._drivers[subject]:
                driver.on_hint(revision, raw)

    def _answer_calls(self, batch: Batch) -> None:
        for subject, reply, _, data in batch.raw:
            if reply and not self.connection.is_inbox(reply):
                continue  # our answer would be a write on a subject that the sender chose
            driver = self._addresses.get(subject)
            try:
                call: Call = decode(data, Call)
            except BadRecordError:
                continue
            leading = driver is not None and driver.on_call(call)
            if reply:
                with contextlib.suppress(BadSubjectError):  # too long: nobody waits there
                    self.connection.send(reply, msgspec.json.encode({"leading": leading}))
