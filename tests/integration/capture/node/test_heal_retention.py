"""Healing where the stream removes messages by itself: interest, TTLs of messages, max_age, discard old; and at R3."""

import asyncio

import pytest
from consuming import until
from healing import (
    COUNT,
    HELD,
    SHORT,
    is_captured,
    lose,
    published_state,
    rows,
    stream_copy,
    stream_state,
)
from patient import PATIENCE

from capture.config.load import load
from capture.ingest.board import Board
from capture.stores import open_store
from capture.verification.check import check

FORGOTTEN, STORED, EXPIRING = set(range(1, HELD)), {1, 2}, {4, 6, 8}


async def again(fleet, **settings):
    """Make the stream of the fleet again, with other settings."""
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    await fleet.create(**settings)


async def acknowledge_all(fleet, durable):
    """Read and acknowledge all that a consumer is to get."""
    pending = (await fleet.natty.jetstream.request(f"CONSUMER.INFO.{fleet.stream}.{durable}"))["num_pending"]
    pull, taken = fleet.natty.pull(fleet.stream, durable, max_messages=pending), 0
    async for batch in pull:
        for message in batch:
            message.ack()
        if (taken := taken + len(batch)) >= pending:
            pull.stop()
    await fleet.natty.connection.flush()


async def is_empty(fleet):
    async def empty():
        return not (await stream_state(fleet))["messages"]

    await until(empty)


async def is_published(fleet, condition):
    """Return the published state of the stream that meets a condition."""
    async with asyncio.timeout(2 * PATIENCE):
        while not condition(state := await published_state(fleet)):
            await asyncio.sleep(0.05)
    return state


async def is_awaited(fleet, configured, start_beside, **how):
    """Have nine messages forgotten, and a leader that has seen them and waits for the nodes that may have them."""
    path = await lose(fleet, configured, **how)
    start_beside(path)
    await is_published(fleet, lambda one: one.awaited == len(FORGOTTEN))
    return path


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside"])
async def test_an_interest_stream_keeps_no_healed_message(fleet, configured, start_beside, others, caplog):
    await again(fleet, retention="interest")
    path = await lose(fleet, configured, stored=STORED, other=others)
    copy = await stream_copy(fleet)
    start_beside(path)
    await is_published(fleet, lambda one: one.awaited == len(FORGOTTEN) - len(STORED))
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=SHORT, allow_destructive=True)
    state = await is_published(fleet, lambda one: one.healed == len(FORGOTTEN) - len(STORED))
    found = await is_captured(fleet, path, gone={HELD})
    assert {*found.verdict.unexplained} == {HELD}  # it was purged
    stored = await rows(path)
    assert {sequence for sequence, some in stored.items() if any(not times for times, _ in some)} == FORGOTTEN - STORED
    assert {sequence: {content for _, content in some} for sequence, some in stored.items()} == {
        sequence: {content} for sequence, content in copy.items()
    }
    if others:
        await acknowledge_all(fleet, "other")
    await is_empty(fleet)
    assert "MISSING" not in caplog.text
    assert state.gone == 0


async def forgets(fleet):
    """Let the leader take what it awaits for lost from now on."""
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=SHORT, allow_destructive=True)


async def others_are_done(fleet):
    await acknowledge_all(fleet, "other")


async def older_go(fleet):
    await fleet.natty.ensure_stream(fleet.stream, max_age=0.1, duplicate_window=0.1, allow_destructive=True)


async def only_one_stays(fleet):
    await fleet.natty.ensure_stream(fleet.stream, max_msgs=1, allow_destructive=True)


async def is_removed(fleet):
    """Wait until the stream has none of the forgotten messages: what is still there is healed, and not gone."""
    async with asyncio.timeout(PATIENCE):
        for sequence in FORGOTTEN:
            while await fleet.natty.jetstream.read(fleet.stream, sequence=sequence):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("retention", "removal", "reason"),
    [
        pytest.param(
            "interest",
            others_are_done,
            "it keeps only what a consumer has not acknowledged (retention = interest)",
            marks=pytest.mark.long,
        ),
        ("limits", older_go, "it removes what is older than 0.1 s (max_age)"),
        pytest.param(
            "limits", only_one_stays, "it removes the oldest where max_msgs is reached", marks=pytest.mark.long
        ),
    ],
    ids=["interest", "max_age", "discard old"],
)
async def test_what_the_stream_removes_before_it_is_healed_is_accounted_as_gone_and_why(
    fleet, configured, start_beside, caplog, retention, removal, reason
):
    await again(fleet, retention=retention)
    path = await is_awaited(fleet, configured, start_beside, other=retention == "interest")
    await removal(fleet)
    await is_removed(fleet)
    await forgets(fleet)
    state = await is_published(fleet, lambda one: one.gone == len(FORGOTTEN))
    assert (state.gone_are, state.missing, state.awaited, state.healed) == ("1–9", 0, 0, 0)
    assert reason in state.gone_because
    swept = (await Board(fleet.natty, fleet.stream).read()).state.swept
    async with asyncio.timeout(PATIENCE):  # it is not looked for again
        while (await Board(fleet.natty, fleet.stream).read()).state.swept < swept + 0.4:
            await asyncio.sleep(0.05)
    lines = [record for record in caplog.records if getattr(record, "action", "") == "gone"]
    assert [record.getMessage() for record in lines] == [
        f"9 messages of {fleet.stream} left it before a node stored them (1–9), and are not in the archive: "
        + state.gone_because
    ]
    assert "MISSING" not in caplog.text
    assert "healed" not in {getattr(record, "action", "") for record in caplog.records}
    found = await check(fleet.natty, load(path, environment={}), open_store(str(fleet.store)))
    assert (len(found.verdict.missing), len(found.verdict.awaited)) == (0, 0)
    assert len(found.verdict.unproven) == (HELD if retention == "interest" else 0)


async def test_messages_that_expire_one_by_one_are_neither_missing_nor_read_for_ever(
    fleet, configured, start_beside, caplog
):
    await again(fleet, allow_msg_ttl=True)
    path = await lose(fleet, configured, expiring=EXPIRING)
    start_beside(path)

    async def expired():
        return not EXPIRING & {*await stream_copy(fleet)}

    await until(expired)
    await fleet.until(lambda one: one["ack_floor"]["stream_seq"] == COUNT)
    await forgets(fleet)
    state = await is_published(fleet, lambda one: one.healed == len(FORGOTTEN - EXPIRING) and not one.awaited)
    found = await is_captured(fleet, path)
    assert {*found.verdict.deleted} == EXPIRING | {HELD}
    assert {*await rows(path)} == set(range(1, COUNT + 1)) - EXPIRING - {HELD}
    assert (state.missing, state.gone <= len(EXPIRING)) == (0, True)
    assert "MISSING" not in caplog.text
