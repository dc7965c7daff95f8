"""Publish later and schedules, on a real server."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from scheduling import make_scheduling, passed, published, waiting

from natty import BadNameError, MessageNotFoundError, PublishError, StreamNotFoundError, UnsupportedError
from natty.streams import schedules
from natty.streams.contents import delete_message

SOON = 1.0  # seconds


@pytest.fixture
async def stream(natty, natty_name):
    return await make_scheduling(natty, natty_name("LATER"), allow_msg_ttl=True)


def text_of(message):
    return message.data.decode()


async def test_a_message_is_published_at_its_time_with_its_headers(natty, stream):
    at = datetime.now(UTC) + timedelta(seconds=SOON)
    ack = await natty.publish(f"{stream}.a", b"1", at=at, headers={"Colour": "red"}, ttl="1h")
    assert (ack.stream, ack.schedule.rpartition(".")[0]) == (stream, f"schedules.{stream}")
    [message] = await published(natty, stream, 1)
    assert message.time_ns >= at.timestamp() * 1e9
    assert (message.subject, message.data) == (f"{stream}.a", b"1")
    assert message.headers == {
        "Colour": ["red"],
        "Nats-Scheduler": [ack.schedule],
        "Nats-Schedule-Next": ["purge"],
        "Nats-TTL": ["3600"],
    }
    assert await waiting(natty, stream) == []


async def test_many_messages_for_one_subject_wait_at_once(natty, stream):
    acks = [await natty.publish(f"{stream}.a", b"%d" % number, after="1h") for number in range(20)]
    assert sorted(await waiting(natty, stream)) == sorted(ack.schedule.rpartition(".")[2] for ack in acks)
    for number in range(20):
        await natty.publish(f"{stream}.a", b"%d" % number, after=SOON)
    assert {text_of(one) for one in await published(natty, stream, 20)} == {str(number) for number in range(20)}


async def test_a_time_in_the_past_is_at_once(natty, stream):
    await natty.publish(f"{stream}.a", b"1", at=datetime(2009, 11, 10, tzinfo=UTC))
    assert text_of((await published(natty, stream, 1))[0]) == "1"


async def test_after_counts_on_the_servers_clock(natty, stream, monkeypatch):
    """The server says that it is in 2050."""
    request = natty.jetstream.request

    async def ahead(*args, **options):
        answer = await request(*args, **options)
        return answer | ({"ts": f"2050{answer['ts'][4:]}"} if "ts" in answer else {})

    monkeypatch.setattr(natty.jetstream, "request", ahead)
    ack = await natty.publish(f"{stream}.a", b"1", after="1h")
    assert (await natty.scheduler.get(stream, ack.schedule)).at.year == 2050


async def test_a_message_id_is_stored_once_and_names_the_schedule(natty, stream):
    one = await natty.publish(f"{stream}.a", b"1", after="1h", msg_id="order/7")
    again = await natty.publish(f"{stream}.a", b"2", after="2h", msg_id="order/7")
    assert (one.duplicate, again.duplicate) == (False, True)
    assert one.schedule == again.schedule
    assert (await natty.scheduler.get(stream, one.schedule)).data == b"1"
    assert (await natty.publish(f"{stream}.b", b"", msg_id="order/7")).duplicate


async def test_a_message_id_replaces_what_waits_when_the_duplicate_window_is_over(natty, natty_name):
    stream = await make_scheduling(natty, natty_name("LATER"), duplicate_window="100ms")
    one = await natty.publish(f"{stream}.a", b"1", after="1h", msg_id="7")
    while (again := await natty.publish(f"{stream}.a", b"2", after="1h", msg_id="7")).duplicate:
        await asyncio.sleep(0.1)
    assert one.schedule == again.schedule
    assert [schedule.data async for schedule in natty.scheduler.list(stream)] == [b"2"]


async def test_a_message_that_waits_is_canceled_and_never_published(natty, stream):
    number, canceled = 0, False
    while not canceled:  # this machine may stand still until it is published
        number += 1
        ack = await natty.publish(f"{stream}.a", b"%d" % number, after=SOON)
        canceled = await natty.scheduler.cancel(stream, ack.schedule)
    assert await natty.scheduler.cancel(stream, ack.schedule) is False
    await natty.publish(f"{stream}.a", b"last", after=2 * SOON)
    assert [text_of(one) for one in await published(natty, stream, number)] == [*map(str, range(1, number)), "last"]
    with pytest.raises(MessageNotFoundError, match=f"has no schedule {ack.schedule}: it was published or canceled"):
        await natty.scheduler.get(stream, ack.schedule)


async def test_cancel_removes_what_replaced_the_message_meanwhile(natty, stream, monkeypatch):
    """Another program replaces it between the read and the removal."""
    await natty.schedule("report", f"{stream}.a", b"1", after="1h")
    replaced = []

    async def late(jetstream, name, sequence):
        if not replaced:
            replaced.append(await natty.schedule("report", f"{stream}.a", b"2", after="2h"))
        return await delete_message(jetstream, name, sequence)

    monkeypatch.setattr(schedules, "delete_message", late)
    assert await natty.scheduler.cancel(stream, "report") is True
    assert (len(replaced), await waiting(natty, stream)) == (1, [])


@pytest.mark.long
async def test_a_schedule_repeats_until_it_is_canceled(natty, stream):
    await natty.schedule("tick", f"{stream}.tick", b"t", every=1, headers={"Colour": "red"}, ttl=60)
    ticks = await published(natty, stream, 2)
    assert [text_of(one) for one in ticks] == ["t", "t"]
    assert ticks[0].headers["Colour"] == ["red"]
    assert ticks[0].headers["Nats-TTL"] == ["60"]
    assert await waiting(natty, stream) == ["tick"]
    assert await natty.scheduler.cancel(stream, "tick")
    await passed(natty, stream)
    before = (await natty.stream_info(stream))["state"]["last_seq"]
    await natty.publish(f"{stream}.b", b"", after=2.5)
    assert (await published(natty, stream, 1, f"{stream}.b"))[0].sequence == before + 2


async def test_cron_counts_in_its_time_zone_and_replaces_the_schedule_of_its_name(natty, stream):
    await natty.schedule("report", f"{stream}.old", b"1", cron="0 3 * * *")
    await natty.schedule("report", f"{stream}.new", b"2", cron="* * * * * *", timezone="Europe/Berlin")
    [one] = await published(natty, stream, 1)
    assert (one.subject, one.data) == (f"{stream}.new", b"2")
    found = await natty.scheduler.get(stream, "report")
    assert (found.name, found.target, found.data) == ("report", f"{stream}.new", b"2")
    assert (found.timezone, found.at, found.timing) == ("Europe/Berlin", None, "cron * * * * * * Europe/Berlin")


async def test_a_source_gives_its_last_message_and_the_data_if_it_has_none(natty, stream):
    await natty.schedule("sample", f"{stream}.sampled", b"none", every=1, source=f"{stream}.raw")
    assert text_of((await published(natty, stream, 1, f"{stream}.sampled"))[0]) == "none"
    await natty.publish(f"{stream}.raw", b"42")
    async with asyncio.timeout(60):
        async for message in natty.read(stream, subjects=f"{stream}.sampled", follow=True):
            if message.data == b"42":
                break


async def test_a_consumer_whose_filter_leaves_schedules_out_gets_only_what_was_published(natty, stream):
    """One without a filter gets the schedule at once, as a message with the header Nats-Schedule."""
    await natty.publish(f"{stream}.a", b"1", after=SOON)
    await published(natty, stream, 1)
    await natty.publish(f"{stream}.a", b"2", after="1h")
    everything = [message.subject async for message in natty.read(stream)]
    assert [subject.split(".")[0] for subject in everything] == [stream, "schedules"]
    assert [text_of(message) async for message in natty.read(stream, subjects=f"{stream}.>")] == ["1"]


async def test_a_stream_that_can_not_hold_schedules_is_named_with_the_command_that_changes_it(natty, natty_name):
    name = natty_name("PLAIN")
    await natty.create_stream(name, subjects=[f"{name}.>"], discard="new")
    wanted = f"`natty stream edit {name} --allow-schedules --discard old --subjects '{name}.>,schedules.{name}.>'`"
    with pytest.raises(PublishError, match=f"stream {name} can't hold the schedule") as caught:
        await natty.publish(f"{name}.a", b"1", after=SOON)
    assert wanted in str(caught.value)
    settings = {"subjects": [f"{name}.>", f"schedules.{name}.>"], "discard": "old", "allow_msg_schedules": True}
    await natty.ensure_stream(name, allow_destructive=True, **settings)
    await natty.publish(f"{name}.a", b"1", after=SOON)
    assert len(await published(natty, name, 1)) == 1


async def test_a_stream_with_retention_interest_would_lose_schedules_and_is_refused(natty, natty_name):
    stream = await make_scheduling(natty, natty_name("INTEREST"), retention="interest")
    with pytest.raises(PublishError, match="retention interest"):
        await natty.publish(f"{stream}.a", b"1", after=SOON)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cron": "0 3 * * 7"}, "refused '0 3 \\* \\* 7'.*weekdays as 0 to 6"),
        ({"cron": "0 0 31 2 *"}, "a time that exists"),
        ({"cron": "@daily", "timezone": "Europe/Berlun"}, "does not know the time zone 'Europe/Berlun'"),
        ({"every": 1, "source": "elsewhere.a"}, "refused the source 'elsewhere.a'"),
        ({"after": 1, "ttl": 5}, "allow_msg_ttl"),
    ],
)
async def test_what_the_server_refuses_is_said_in_words(natty, natty_name, options, text):
    stream = await make_scheduling(natty, natty_name("LATER"))
    with pytest.raises(PublishError, match=text):
        await natty.schedule("a", f"{stream}.a", b"", **options)
    assert await waiting(natty, stream) == []


async def test_an_unknown_target_or_stream_is_an_error(natty, stream):
    with pytest.raises(PublishError, match="no stream takes"):
        await natty.publish("nowhere.at.all", b"", after=1)
    with pytest.raises(StreamNotFoundError):
        await natty.scheduler.cancel("NOWHERE", "a")
    with pytest.raises(StreamNotFoundError):
        await waiting(natty, "NOWHERE")


async def test_an_older_server_is_named_before_anything_is_sent(natty, stream):
    natty.connection._session.info = natty.connection.server_info | {"version": "2.11.9"}
    with pytest.raises(
        UnsupportedError, match=r"publishing later needs nats-server 2.12 or later and this one is 2.11"
    ):
        await natty.publish(f"{stream}.a", b"1", after=1)
    natty.connection._session.info = natty.connection.server_info | {"version": "2.12.8"}
    with pytest.raises(UnsupportedError, match=r"a repeating schedule needs nats-server 2.14"):
        await natty.schedule("a", f"{stream}.a", every=1)
    assert (await natty.stream_info(stream))["state"]["last_seq"] == 0


async def test_what_another_program_scheduled_is_listed_shown_and_canceled_by_its_subject(natty, natty_name):
    name = natty_name("OTHER")
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_msg_schedules=True)
    holds = f"{name}.later.7"
    headers = {"Nats-Schedule": "@at 2100-01-01T01:00:00+01:00", "Nats-Schedule-Target": f"{name}.a"}
    await natty.publish(holds, b"1", headers=headers)
    await natty.publish(f"{name}.later.8", b"not a schedule")
    assert await waiting(natty, name) == []
    assert await waiting(natty, name, f"{name}.later.*") == [holds]
    found = await natty.scheduler.get(name, holds)
    assert (found.at, found.target) == (datetime(2100, 1, 1, tzinfo=UTC), f"{name}.a")
    assert await natty.scheduler.cancel(name, f"{name}.later.8") is False
    assert await natty.scheduler.cancel(name, holds) is True


@pytest.mark.parametrize("name", ["a.b", "orders.a", "schedules.OTHER.a"])
async def test_a_name_with_a_dot_is_refused_since_a_subject_is_only_for_what_waits(natty, stream, name):
    with pytest.raises(BadNameError, match=rf"schedule name '{name}' has a dot: write '{name.replace('.', '-')}'"):
        await natty.schedule(name, f"{stream}.a", b"", every=60)
    with pytest.raises(TypeError, match="the schedule's name is 5"):
        await natty.schedule(5, f"{stream}.a", b"", every=60)
    assert await waiting(natty, stream, ">") == []


async def test_what_waits_is_replaced_by_the_subject_that_its_ack_names(natty, stream):
    ack = await natty.publish(f"{stream}.a", b"1", after="1h")
    again = await natty.schedule(ack.schedule, f"{stream}.a", b"2", after="2h")
    assert again.schedule == ack.schedule
    assert [schedule.data async for schedule in natty.scheduler.list(stream)] == [b"2"]


async def test_thousands_that_wait_are_listed_in_order_also_in_a_work_queue(natty, natty_name):
    stream = await make_scheduling(natty, natty_name("MANY"), retention="workqueue")
    async with natty.publisher(stream) as publisher:
        for number in range(3000):
            headers = {"Nats-Schedule": "@at 2100-01-01T00:00:00Z", "Nats-Schedule-Target": f"{stream}.a"}
            await publisher.publish(f"schedules.{stream}.{number:04}", b"%d" % number, headers=headers)
    assert await waiting(natty, stream) == [f"{number:04}" for number in range(3000)]


async def test_the_stream_of_a_subject_is_remembered_for_a_minute(natty, stream, monkeypatch):
    asked = []
    stream_of = natty.jetstream.stream_of
    monkeypatch.setattr(natty.jetstream, "stream_of", lambda subject: asked.append(subject) or stream_of(subject))
    for _ in range(3):
        await natty.publish(f"{stream}.a", b"", after="1h")
    assert asked == [f"{stream}.a"]
    monkeypatch.setattr(natty.scheduler, "_homes", schedules.TTLCache(9, 0.0))
    await natty.publish(f"{stream}.a", b"", after="1h")
    assert len(asked) == 2


async def test_the_longest_ttl_keeps_what_is_published_now_and_later(natty, stream):
    await natty.publish(f"{stream}.now", b"", ttl="36500d")
    await natty.publish(f"{stream}.later", b"", after=0, ttl="36500d")
    await published(natty, stream, 1, f"{stream}.later")
    assert len(await published(natty, stream, 1, f"{stream}.now")) == 1
    with pytest.raises(ValueError, match="is too long: write at most 36500d"):
        await natty.publish(f"{stream}.now", b"", ttl="36501d")  # with 86000d the server deletes it at once
