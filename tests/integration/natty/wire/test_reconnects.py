"""Tries to connect again: their pauses, and what is logged of them."""

import asyncio

from patient import NEVER, PATIENT, jump, until

from natty import Natty
from natty.wire import connection


async def test_a_lost_client_does_not_spin(natty_proxy, monkeypatch):
    tries, connect = [], connection.Connection._connect
    async with Natty(**PATIENT | natty_proxy.options) as natty:
        monkeypatch.setattr(connection.Connection, "_connect", lambda *given: (tries.append(given), connect(*given))[1])
        await natty_proxy.cut()
        await until(lambda: not natty.connection.connected)
        await asyncio.sleep(1)
        assert 1 <= len(tries) < 10
        await natty_proxy.restore()
        await natty.connection.ready()


async def test_after_sessions_that_ended_at_once_there_is_a_longer_and_longer_pause(natty, monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def noted(seconds, *more):
        if asyncio.current_task().get_name() == "natty connection":
            pauses.append(seconds)
        await sleep(seconds, *more)

    monkeypatch.setattr(connection, "SETTLED", NEVER)
    monkeypatch.setattr(connection.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(connection.asyncio, "sleep", noted)
    for count in range(1, 4):
        natty.connection._session._write(b"NONSENSE\r\n")
        await until(lambda count=count: natty.connection.reconnects == count)
    assert pauses == [0.1, 0.2, 0.4]
    jump(2 * NEVER)
    natty.connection._session._write(b"NONSENSE\r\n")
    await until(lambda: natty.connection.reconnects == 4)
    assert pauses == [0.1, 0.2, 0.4]


async def test_the_count_of_failed_tries_is_logged_before_the_reconnection(natty_proxy, caplog):
    caplog.set_level("INFO", "natty.connection")
    async with Natty(**PATIENT | natty_proxy.options) as natty:
        await natty_proxy.cut()
        await until(lambda: any(state.more for state in natty.connection._repeated._states.values()))
        await natty_proxy.restore()
        await until(lambda: natty.connection.reconnects)
        counts = [place for place, text in enumerate(caplog.messages) if "more like the last one" in text]
        (again,) = [place for place, text in enumerate(caplog.messages) if text.startswith("reconnected")]
        assert counts
        assert max(counts) < again
        assert natty.connection._repeated._states == {}
