"""What runs beside a node's flow, and beside a consumption: where it fails, the log says so and it begins again."""

import asyncio
import logging

import pytest
from patient import PATIENCE, until

from capture import node as capture_node
from capture.config import load
from capture.node import Node
from capture.source import Source
from capture.state import Board
from natty import Natty, background
from natty.connection import Connection
from natty.consume import Consumption


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(background, "AGAIN_AFTER", 0.01)


def failing_at_first(monkeypatch, where, name, times=2):
    """Let a part fail so often with an error that nobody expects, and do what it does after that; return its calls."""
    part, calls = getattr(where, name), []

    async def then(*arguments, **options):
        calls.append(arguments)
        if len(calls) <= times:
            raise KeyError("nobody thought of this")
        return await part(*arguments, **options)

    monkeypatch.setattr(where, name, then)
    return calls


async def test_a_nodes_summary_and_announcement_that_fail_are_logged_and_begin_again(fleet, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    failing_at_first(monkeypatch, capture_node, "summarise")
    failing_at_first(monkeypatch, Board, "announce")
    failing_at_first(monkeypatch, Source, "_keep_alive")
    settings = {"decoder": "raw", "limits__max_age": 0.2, "logging__summary_every": 0.05}
    node = Node(load(fleet.configure(node="node-1", **settings)))
    run = asyncio.create_task(node.run())
    try:
        await fleet.publish([b"1", b"2"])
        await until(lambda: "2 messages in 2 blocks" in caplog.text or "1 messages in 1 blocks" in caplog.text)
        async with asyncio.timeout(PATIENCE):
            while not (await Board(fleet.natty, fleet.stream).read()).nodes:
                await asyncio.sleep(0.02)
        await fleet.until_all_acked(2)
        node.stop()
        await run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    for work in ("the summary of node-1", "the announcement of node-1", "keeping messages of Source("):
        failures = [record for record in caplog.records if record.getMessage().startswith(work)]
        assert len(failures) == 2, work
        assert "nobody thought of this" in str(failures[0].exc_info[1])


async def test_a_consumption_that_can_not_keep_its_messages_says_so_and_keeps_them_again(
    natty, natty_name, start, monkeypatch, caplog
):
    calls = failing_at_first(monkeypatch, Consumption, "_keep_alive")
    stream = natty_name("kept")
    await natty.ensure_stream(stream, subjects=[f"{stream}.>"])
    start(stream, lambda message: None)
    await until(lambda: len(calls) == 3)
    assert caplog.text.count("KeyError: 'nobody thought of this'") == 2


async def test_a_connection_whose_supervision_fails_is_connected_again(natty_proxy, natty_name, monkeypatch, caplog):
    calls = failing_at_first(monkeypatch, Connection, "_watch", times=1)
    async with Natty(**natty_proxy.options) as natty:
        await until(lambda: len(calls) == 2)
        assert "the supervision of a connection failed" in caplog.text
        await natty_proxy.cut()
        await natty_proxy.restore()
        await until(lambda: natty.connection.reconnects == 1)
