"""Metrics of publishes that are awaited one by one."""

import asyncio

import pytest
from patient import NEVER, PATIENCE, PATIENT, until

from natty import Natty, PublishError, WrongLastSequenceError
from natty.metrics import telemetry


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that keeps two messages at most and refuses more."""
    name = natty_name("AWAITED")
    await natty.ensure_stream(name, subjects=[f"{name}.*"], max_msgs=2, discard="new")
    return name


def published(natty, stream):
    """Return what a scrape shows of publishing for a stream: {metric and outcome: value}."""
    families = telemetry.collector(natty).collect()
    samples = [one for family in families if family.name.startswith("natty_publish_") for one in family.samples]
    return {
        one.name.removeprefix("natty_publish_") + one.labels.get("outcome", ""): one.value
        for one in samples
        if one.labels["stream"] == stream
    }


async def test_each_outcome_of_an_awaited_publish_is_counted(natty, stream, monkeypatch):
    monkeypatch.setattr("natty.jetstream.RETRY_DELAY", NEVER)  # no second try
    assert published(natty, stream) == published(natty, "") == {}
    for msg_id in ("1", "1", "2"):
        await natty.publish(f"{stream}.subject", b"", msg_id=msg_id)
    with pytest.raises(PublishError, match="maximum messages exceeded"):
        await natty.publish(f"{stream}.subject", b"")
    with pytest.raises(WrongLastSequenceError):
        await natty.publish(f"{stream}.subject", b"", expect_last_sequence=7)
    with pytest.raises(PublishError, match="no stream takes"):
        await natty.publish("nowhere", b"")
    stored = {"messages_totalstored": 3, "messages_totalfailed": 0, "duplicates_total": 1, "waiting": 0}
    assert published(natty, stream) == stored
    assert published(natty, "") == {
        "messages_totalstored": 0,
        "messages_totalfailed": 3,
        "duplicates_total": 0,
        "waiting": 0,
    }
    assert not any("subject" in str(family) for family in telemetry.collector(natty).collect())


async def test_each_message_of_an_atomic_batch_is_counted(natty, natty_name):
    stream = natty_name("ATOMIC")
    await natty.ensure_stream(stream, subjects=[f"{stream}.*"], allow_atomic=True)
    await natty.publish_atomic([(f"{stream}.a", b"1"), (f"{stream}.b", b"2")])
    with pytest.raises(WrongLastSequenceError):
        await natty.publish_atomic([(f"{stream}.a", b"3")] * 3, expect_last_sequence=7)
    assert published(natty, stream)["messages_totalstored"] == 2
    assert published(natty, "")["messages_totalfailed"] == 3
    assert published(natty, "")["waiting"] == 0


async def test_publishers_and_awaited_publishes_of_a_stream_are_one_figure(natty, stream):
    await natty.publish(f"{stream}.a", b"")
    async with natty.publisher(stream, path="window", ack_timeout=PATIENCE) as publisher:
        await publisher.publish(f"{stream}.a", b"")
    assert published(natty, stream)["messages_totalstored"] == 2


async def test_what_waits_for_its_ack_is_shown_and_has_failed_when_its_caller_gives_it_up(natty_proxy, stream):
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        natty_proxy.hold()
        publishing = [asyncio.create_task(far.publish(f"{stream}.a", b"")) for _ in range(2)]
        await until(lambda: published(far, "").get("waiting") == 2)
        publishing[0].cancel()
        await asyncio.gather(publishing[0], return_exceptions=True)
        assert (published(far, "")["waiting"], published(far, "")["messages_totalfailed"]) == (1, 1)
        natty_proxy.release()
        await publishing[1]
        assert published(far, "")["waiting"] == 0
        assert published(far, stream)["messages_totalstored"] == 1
