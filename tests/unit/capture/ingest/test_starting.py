from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from itertools import islice

import pytest

from capture import errors as capture_errors
from capture.errors import ConfigError, NotStartedError, StoreError, StoreFullError
from capture.ingest.startup import FIRST_PAUSE, LOG_AGAIN, LONGEST_PAUSE, Start, may_pass, pauses
from natty import ConnectError, JetStreamError, NotConnectedError, RequestTimeoutError
from natty import errors as natty_errors
from natty.errors import ConnectionClosedError, NoRespondersError, PublishError, TLSClosedError

PASSING = [
    ConnectError(),
    NotConnectedError(),
    RequestTimeoutError(),
    NoRespondersError(),
    PublishError(),
    TLSClosedError(),
    JetStreamError(code=503, err_code=10008),
    JetStreamError("there are not 3 servers that could take it", code=400, err_code=10005),
    natty_errors.DomainUnreachableError(code=503),
    StoreError(),
    StoreFullError(),
]
STAYING = [
    natty_errors.AuthorizationError(),
    natty_errors.TLSRequiredError(),
    natty_errors.TLSHandshakeError(),
    natty_errors.TLSError(),
    natty_errors.ConfigError(),
    natty_errors.UnsupportedError(),
    natty_errors.StreamNotFoundError(code=404),
    natty_errors.ConsumerExistsError(code=400),
    natty_errors.JetStreamNotEnabledError(code=503, err_code=10039),
    natty_errors.JetStreamNotEnabledError(),
    ConnectionClosedError(),
    capture_errors.StoreUnreadableError(),
    capture_errors.StoreUnfitError(),
    capture_errors.ManifestError(),
    capture_errors.CipherError(),
    ConfigError(),
]


def name_of(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", PASSING, ids=name_of)
def test_what_is_away_is_waited_for(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize("error", STAYING, ids=name_of)
def test_what_somebody_has_to_change_is_not_waited_for(error: Exception) -> None:
    assert not may_pass(error)


def test_pauses_grow_up_to_a_limit_and_differ_from_node_to_node() -> None:
    first, second = (list(islice(pauses(), 12)) for _ in range(2))
    assert first != second
    for number, pause in enumerate(first):
        longest = min(FIRST_PAUSE * 2**number, LONGEST_PAUSE)
        assert longest / 2 <= pause <= longest
    assert first[-1] >= LONGEST_PAUSE / 2


class World:
    """A clock that stands still but for the pauses, and a step that fails in these ways before it succeeds."""

    def __init__(self, timeout: float, *failures: Exception) -> None:
        self.now, self.paused = 0.0, [0.0]
        self.failures = list(failures)
        self.tries = 0
        self.lacks: list[str] = []
        self.start = Start(timeout, clock=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.lacks.append(self.start.waits_for)
        self.paused.append(seconds)
        self.now += seconds

    async def attempt(self) -> str:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    async def run(self) -> str:
        return await self.start.step(self.attempt)


async def test_a_step_is_tried_until_what_it_needs_is_there_and_says_what_it_lacks() -> None:
    world = World(1e9, ConnectError("nobody listens"), StoreError("the store is away"))
    assert await world.run() == "done"
    assert (world.tries, world.lacks, world.start.waits_for) == (3, ["nobody listens", "the store is away"], "")


async def test_it_is_said_once_and_again_after_a_long_time_however_the_lacks_take_turns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(1e9, *(kind(name_of(kind())) for _ in range(200) for kind in (StoreError, RequestTimeoutError)))
    with caplog.at_level(logging.WARNING):
        await world.run()
    rounds = int(world.now / LOG_AGAIN)
    assert rounds >= 3
    for kind in (StoreError, RequestTimeoutError):
        told = [one for one in caplog.messages if one == f"not ready to capture yet, waiting: {kind.__name__}"]
        assert rounds <= len(told) <= rounds + 1


async def test_what_stays_is_raised_at_once() -> None:
    world = World(1e9, ConnectError(), ConfigError("the store is another archive's"))
    with pytest.raises(ConfigError, match="another archive's"):
        await world.run()
    assert world.tries == 2


async def test_without_patience_the_first_failure_is_raised_as_it_is() -> None:
    world = World(0.0, ConnectError("nobody listens"))
    with pytest.raises(ConnectError, match="nobody listens"):
        await world.run()
    assert (world.tries, world.paused) == (1, [0.0])


async def test_patience_counts_from_the_first_failure_over_all_steps_and_its_end_says_what_lacked() -> None:
    world = World(10.0)
    world.now = 500.0
    assert await world.run() == "done"
    world.failures = [ConnectError()] * 3
    await world.run()
    waited = sum(world.paused)
    world.failures = [StoreError("the store is away")] * 100
    with pytest.raises(NotStartedError, match=r"gave up after 10 s \(start_timeout\): the store is away"):
        await world.run()
    assert waited > 0
    assert sum(world.paused) == pytest.approx(10.0)


async def test_a_server_that_always_closes_the_connection_as_tls_comes_up_is_not_waited_for() -> None:
    """It refuses our certificate, and its reason got lost; one that is restarted does it once or twice."""
    closed = TLSClosedError("it closed the connection")
    world = World(1e9, closed, closed, ConnectError(), closed, closed)
    assert await world.run() == "done"
    world = World(1e9, closed, closed, closed)
    with pytest.raises(TLSClosedError):
        await world.run()
    assert world.tries == 3


async def test_a_cancelled_start_ends() -> None:
    start = Start(1e9)

    async def fails() -> None:
        raise ConnectError

    waiting = asyncio.create_task(start.step(fails))
    while not start.waits_for:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_is_entered_is_made_anew_for_each_try_and_left_once() -> None:
    world = World(1e9, ConnectError(), ConnectError())
    made: list[str] = []

    @asynccontextmanager
    async def connected():
        made.append("made")
        yield await world.attempt()
        made.append("left")

    async with world.start.enter(connected) as there:
        assert there == "done"
    assert made == ["made", "made", "made", "left"]
