"""What runs beside a node's flow, and beside a consumption: where it fails, the log says so and it begins again.

Whoever is told to stop before that leaves everything as it does at any other time.
"""

import asyncio
import logging

import pytest
from electing import LONG as LONG_LEASE
from electing import forever, vacated
from group_members import LONG, Notes, make, publish
from patient import NEVER, PATIENCE, until

from capture.config.load import load
from capture.ingest.board import Board
from capture.ingest.source import Source
from capture.node import node as capture_node
from capture.node.node import Node
from natty import Natty
from natty.consuming.consume import Consumption
from natty.elections.renewer import Renewer
from natty.groups import autojoin, reading
from natty.groups.roster import MEMBERS_BUCKET, Roster
from natty.streams.stranded import QueueMender
from natty.wire import background
from natty.wire.connection import Connection


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
        await until(lambda: "2 messages in 2 blocks" in caplog.text or "1 message in 1 block" in caplog.text)
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


@pytest.fixture
def paused(monkeypatch, caplog):
    """Let parts fail, `paused((class, name), …)`, so that nothing is begun again during the test; return a waiting."""
    monkeypatch.setattr(background, "AGAIN_AFTER", NEVER)

    def fail(*parts):
        for where, name in parts:
            failing_at_first(monkeypatch, where, name, times=1)
        return lambda: until(lambda: caplog.text.count("failed and restarts in") >= len(parts))

    return fail


async def test_a_node_that_is_stopped_before_its_failed_work_begins_again_leaves_the_board(
    fleet, paused, monkeypatch, start_beside
):
    pausing = paused((capture_node, "summarise"), (Source, "_keep_alive"))
    published = asyncio.Event()

    async def announce_once(board, state):
        await board.announce(state())
        published.set()
        raise KeyError("nobody thought of this")

    monkeypatch.setattr("capture.ingest.board.keep_announcing", announce_once)
    node = start_beside(fleet.configure(node="node-1", decoder="raw", limits__max_age=0.2))
    await fleet.publish([b"1", b"2"])
    await fleet.until_all_acked(2)
    await pausing()
    await published.wait()
    assert [one.node.node for one in (await Board(fleet.natty, fleet.stream).read()).nodes] == ["node-1"]
    await node.stop()
    assert (await Board(fleet.natty, fleet.stream).read()).nodes == []


async def test_a_consumption_that_is_stopped_before_its_failed_work_begins_again_hands_its_messages_back(
    natty, natty_name, start, paused
):
    pausing = paused((Consumption, "_keep_alive"), (QueueMender, "run"))
    stream, begun = natty_name("kept"), asyncio.Event()
    await natty.ensure_stream(stream, subjects=[f"{stream}.>"])

    async def handler(message):
        begun.set()

    options = {"consumer": {"ack_wait": NEVER}, "max_messages": 1}
    consumption, task = start(stream, handler, **options)
    await pausing()
    await natty.publish(f"{stream}.1", b"")
    await begun.wait()
    consumption.stop()
    async with asyncio.timeout(PATIENCE):
        await task
    state = await natty.jetstream.request(f"CONSUMER.INFO.{stream}.d")
    assert (state["ack_floor"]["stream_seq"], state["num_ack_pending"]) == (1, 0)


async def test_a_member_that_leaves_before_its_failed_work_begins_again_is_not_registered_any_more(
    natty, natty_name, paused
):
    pausing = paused((Roster, "stay"), (autojoin.AutoMembership, "_campaign"))
    group = await make(natty, natty_name("AUTO"))
    async with group.join(handler=Notes().handler(), ttl=600.0, **LONG):
        await pausing()
        assert len(await natty.keys(MEMBERS_BUCKET, group.key)) == 1
    assert await natty.keys(MEMBERS_BUCKET, group.key) == []


async def test_an_instance_that_leaves_before_its_failed_work_begins_again_gives_its_pin_up(natty, natty_name, paused):
    pausing = paused((reading.Reading, "_keep_pinned"), (reading.Reading, "_keep_waiting"))
    group, notes = await make(natty, natty_name("GROUP"), members=["m1"]), Notes()
    await publish(natty, group.stream, range(1))
    async with group.join("m1", notes.handler(), **LONG):
        await pausing()
    await publish(natty, group.stream, range(1, 2))
    async with group.join("m1", notes.handler(), **LONG):  # a pin that was kept would last for a minute
        await notes.have(16)
    assert notes.ordered


async def test_a_client_that_is_closed_before_its_failed_work_begins_again_leaves_office(
    nats_server, natty, natty_name, paused
):
    pausing, name = paused((Connection, "_watch"), (Renewer, "_beat")), await vacated(natty, natty_name("office"))
    client, terms = await Natty.connect(**nats_server.connect_options()), []
    running = asyncio.create_task(client.election(name, lease=LONG_LEASE).run(forever(terms)))
    await pausing()
    await until(lambda: terms)
    await client.close()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(PATIENCE), natty.leader(name, lease=LONG_LEASE):
        pass
