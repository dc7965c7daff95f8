"""Purges by subject, and messages of work queues that the server forgot by one."""

import asyncio
import logging
import re
import shlex

import pytest
from consuming import ACK_WAIT, Handler, fill, info, until
from forgetting import FORGOTTEN, forgotten, hold, messages_in
from patient import NEVER, PATIENT

from natty import AuthorizationError, DeadLetterOptions, DeadLetters, LetterFilter, Natty
from natty.cli import doctor
from natty.cli.checks import Status
from natty.cli.server_checks import check_stranded
from natty.consuming.dead_letters.letter import Original
from natty.streams import PurgeRefusedError
from natty.streams import stranded as module
from natty.streams.listing import Listing, all_consumers, all_streams
from natty.streams.stranded import QueueMender, find_stranded


async def test_a_service_handles_what_the_server_forgot_of_a_work_queue(natty, natty_name, monkeypatch, caplog):
    monkeypatch.setattr(module, "LOOK_EVERY", 0.1)
    name = await forgotten(natty, natty_name("queue"))
    assert await messages_in(natty, name) == FORGOTTEN
    handler = Handler()
    consumption = natty.consume(name, "d", handler, dead_letters=False)
    task = asyncio.create_task(consumption.run())
    await until(lambda: _emptied(natty, name))
    consumption.stop()
    await task
    assert sorted(handler.done) == list(range(FORGOTTEN))  # each once, and none that was acknowledged
    assert "nats-server forgot 9 unacknowledged messages" in caplog.text


async def _emptied(natty, name):
    return await messages_in(natty, name) == 0


@pytest.mark.long
async def test_three_replicas_deliver_what_they_forgot_once_their_consumer_is_reset(nats_cluster, natty_name):
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        name = await forgotten(natty, natty_name("queue"), replicas=3, ack_wait=5.0)
        mender = QueueMender(natty.jetstream, name, "d", None)
        await until(mender.look)
        held = await hold(natty, name, FORGOTTEN)
        assert sorted(held) == list(range(1, FORGOTTEN + 1))
        for message in held.values():
            message.ack()
        await until(lambda: _emptied(natty, name))


async def test_what_is_in_flight_is_not_called_forgotten(natty, natty_name):
    name = await fill(natty, natty_name("queue"), 5, retention="workqueue")
    await natty.ensure_consumer(name, "d", ack_wait=NEVER)
    held = await hold(natty, name, 5)
    assert await find_stranded(natty.jetstream, name, "d") == []
    held[5].ack()
    held[2].ack()
    await until(lambda: _held(natty, name, 3))
    assert await find_stranded(natty.jetstream, name, "d") == []


async def test_what_is_held_below_a_floor_that_a_purge_moved_is_not_called_forgotten(natty, natty_name):
    name = await fill(natty, natty_name("queue"), 6, retention="workqueue")
    await natty.ensure_consumer(name, "d", ack_wait=NEVER)
    held = await hold(natty, name, 6)
    await natty.purge_stream(name, subject=f"{name}.3", allow_pending=True)  # sequence 4
    held[5].ack()
    await until(lambda: _floor_is(natty, name, 5))
    assert await find_stranded(natty.jetstream, name, "d") == []


async def _floor_is(natty, name, sequence):
    return (await info(natty, name))["ack_floor"]["stream_seq"] == sequence


async def _held(natty, name, count):
    return (await info(natty, name))["num_ack_pending"] == count


def commands_in(text):
    """Return the words of each command that a log names, without `natty`."""
    return [shlex.split(one)[1:] for one in re.findall("`(natty [^`]*)`", text)]


async def test_dead_messages_are_named_with_the_commands_that_let_the_others_come_again(
    natty, natty_name, natty_commands, caplog
):
    name = await forgotten(natty, natty_name("queue"), max_deliver=3)
    letters = DeadLetters(natty.jetstream, DeadLetterOptions(letters=natty_name("DEAD")))
    await letters.ensure()
    for sequence in (4, 7):
        await letters.store(Original(name, sequence, f"{name}.x", deliveries=3), "d", "why")
    mender = QueueMender(natty.jetstream, name, "d", letters.find_letter)
    with caplog.at_level(logging.ERROR, "natty.consume"):
        for _ in range(4):
            assert not await mender.look()
    (told,) = caplog.messages  # once for the same messages
    assert "nats-server forgot or gave up 9 unacknowledged messages" in told
    assert commands_in(told) == [["stream", "rm-msg", name, one, "--force"] for one in ("4", "7")]
    for words in commands_in(told):
        assert (await asyncio.to_thread(natty_commands, *words)).status == 0
    await until(mender.look)
    assert sorted(await hold(natty, name, FORGOTTEN - 2)) == [1, 2, 3, 5, 6, 8, 9]


async def test_more_are_dead_than_one_error_names(natty, natty_name, monkeypatch, caplog):
    async def dead(stream, sequence, consumer):
        return sequence

    monkeypatch.setattr(module, "SHOWN", 2)
    name = await forgotten(natty, natty_name("queue"), max_deliver=3)
    mender = QueueMender(natty.jetstream, name, "d", dead)
    for _ in range(2):
        assert not await mender.look()
    assert [words[3] for words in commands_in(caplog.text)] == ["1", "2"]
    assert "and more of them are" in caplog.text


async def test_without_dead_letters_the_command_that_brings_all_back_is_named(
    natty, natty_name, natty_commands, caplog
):
    name = await forgotten(natty, natty_name("queue"), max_deliver=3)
    gone = DeadLetters(natty.jetstream, DeadLetterOptions(letters=natty_name("DEAD")))  # nobody has made the stream
    for mender in (QueueMender(natty.jetstream, name, "d", one) for one in (None, gone.find_letter)):
        for _ in range(2):
            assert not await mender.look()
    told, again = caplog.messages
    assert told == again
    assert "some may have reached max_deliver, 3, and no dead letters show which" in caplog.text
    (words,) = commands_in(told)
    assert words == ["consumer", "rm", name, "d", "--force"]
    assert (await asyncio.to_thread(natty_commands, *words)).status == 0
    handler = Handler()
    consumption = natty.consume(name, "d", handler, dead_letters=False)
    task = asyncio.create_task(consumption.run())
    await until(lambda: _emptied(natty, name))
    consumption.stop()
    await task
    assert sorted(handler.done) == list(range(FORGOTTEN))


async def test_all_forgotten_messages_are_compared_with_dead_letters_however_many(natty, natty_name, monkeypatch):
    compared = []

    async def note(stream, sequence, consumer):
        compared.append((stream, sequence, consumer))

    monkeypatch.setattr(module, "MOST", 4)
    name = await forgotten(natty, natty_name("queue"), max_deliver=3)
    mender = QueueMender(natty.jetstream, name, "d", note, named="billing")
    assert not await mender.look()
    assert await mender.look()
    assert compared == [(name, sequence, "billing") for sequence in range(1, FORGOTTEN + 1)]
    assert sorted(await hold(natty, name, FORGOTTEN)) == list(range(1, FORGOTTEN + 1))


@pytest.mark.long
async def test_the_first_of_several_filters_are_found_where_one_has_very_many(natty, natty_name, monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    name = natty_name("queue")
    filters = [f"{name}.{number}" for number in (8, 7, 6, 5, 4, 3, 2, 1, 0)]
    await forgotten(natty, name, filter_subjects=[*filters, *(f"{name}.{number}" for number in range(9, 20))])
    assert await find_stranded(natty.jetstream, name, "d") == [1, 2, 3, 4]


async def test_an_outcome_is_told_again_for_other_messages_or_another_reason_and_not_for_fewer(
    natty, natty_name, caplog
):
    dead = [1]

    async def buried(stream, sequence, consumer):
        return sequence if sequence in dead else None

    name = await forgotten(natty, natty_name("queue"), max_deliver=3)
    mender = QueueMender(natty.jetstream, name, "d", buried)
    looks = [([1], 0), ([1, 2], 1), ([1, 2], 1), ([2], 1), ([2, 9], 2), ([9], 2), ([], 2), ([9], 2), ([9], 3)]
    for found, told in looks:
        await mender.judge(found)
        assert len(caplog.messages) == told, found
    dead[:] = [3]
    await mender.judge([9])
    assert f"natty stream rm-msg {name} 3" in caplog.messages[3]
    dead.clear()
    assert await mender.judge([9]) is module.Outcome.AGAIN
    assert "the consumer is reset, and they are delivered again" in caplog.messages[4]


async def test_an_older_server_is_told_what_brings_them_back(natty, natty_name, caplog):
    name = await forgotten(natty, natty_name("queue"))
    mender = QueueMender(natty.jetstream, name, "d", None)
    natty.connection._session.info = natty.connection.server_info | {"version": "2.12.8"}
    assert not await mender.look()
    assert caplog.text == ""  # one look proves nothing: a cluster deletes acknowledged messages a little later
    assert not await mender.look()
    assert "needs nats-server 2.14 and this one is 2.12.8. Delete the consumer while no worker runs" in caplog.text


async def test_the_doctor_goes_on_where_a_consumer_is_deleted_between_its_two_looks(natty, natty_name, monkeypatch):
    name = await forgotten(natty, natty_name("queue"))
    streams, consumers = await all_streams(natty.jetstream), await all_consumers(natty.jetstream, name)

    async def once(jetstream, stream, consumer):
        found = await find_stranded(jetstream, stream, consumer)
        await natty.delete_consumer(stream, consumer)
        assert len(found) == FORGOTTEN
        return found

    monkeypatch.setattr(doctor, "LOOK_AGAIN", 0.0)
    monkeypatch.setattr(doctor, "find_stranded", once)
    assert await doctor._find_stranded(natty, streams.found, consumers.found) == ({(name, "d"): []}, {})


async def test_the_doctor_warns_of_a_consumer_that_it_can_not_look_at(natty, natty_name, monkeypatch):
    name = await fill(natty, natty_name("queue"), 1, retention="workqueue")
    await natty.ensure_consumer(name, "d", ack_wait=ACK_WAIT)
    streams, consumers = await all_streams(natty.jetstream), await all_consumers(natty.jetstream, name)

    async def denied(jetstream, stream, consumer):
        raise AuthorizationError("not permitted")

    monkeypatch.setattr(doctor, "find_stranded", denied)
    (finding,) = check_stranded(*await doctor._find_stranded(natty, streams.found, consumers.found))
    assert finding.status is Status.WARN
    assert finding.text == f"consumer d of work queue {name} could not be checked: not permitted"


async def test_the_doctor_goes_on_where_a_stream_is_deleted_while_it_looks(natty, natty_name, monkeypatch):
    name = await fill(natty, natty_name("short"), 1)
    await natty.ensure_consumer(name, "d", ack_wait=ACK_WAIT)

    async def then_deleted(jetstream):
        listing = await all_streams(jetstream)
        await natty.delete_stream(name)
        return Listing([one for one in listing.found if one["config"]["name"] == name])

    monkeypatch.setattr(doctor, "all_streams", then_deleted)
    findings = await doctor._jetstream(natty)
    assert [one for one in findings if one.status is Status.FAIL] == []


async def test_a_purge_by_subject_is_refused_while_messages_are_held(natty, natty_name):
    name = await fill(natty, natty_name("held"), 4)
    await natty.ensure_consumer(name, "d", ack_wait=NEVER)
    await natty.ensure_consumer(name, "only", ack_wait=NEVER, filter_subjects=[f"{name}.1"])
    held = await hold(natty, name, 2)
    with pytest.raises(PurgeRefusedError, match=r"consumer d holds 2 unacknowledged messages.*--allow-pending"):
        await natty.purge_stream(name, subject=f"{name}.1")
    assert await messages_in(natty, name) == 4
    assert await natty.purge_stream(name, below=2) == 1
    held[1].ack()
    held[2].ack()
    await until(lambda: _held(natty, name, 0))
    assert await natty.purge_stream(name, subject=f"{name}.1") == 1
    await hold(natty, name, 1)
    assert await natty.purge_stream(name, subject=f"{name}.3", allow_pending=True) == 1


async def test_letters_are_deleted_one_by_one_where_a_purge_would_harm_their_readers(natty, natty_name):
    name = natty_name("DEAD")
    dead, box = DeadLetters(natty.jetstream, DeadLetterOptions(letters=name)), natty.dead_letters(name)
    await dead.ensure()
    for number in range(1, 5):
        original = Original("S", number, "s.a", None, b"%d" % number, time_ns=number, deliveries=1)
        await dead.store(original, "even" if number % 2 == 0 else "odd", "why")
    await natty.ensure_consumer(name, "d", ack_wait=ACK_WAIT)
    held = await hold(natty, name, 4)
    assert await box.purge(LetterFilter(consumer="even")) == 2
    held[3].ack()
    await until(lambda: _held(natty, name, 1))
    assert await hold(natty, name, 1)  # letter 1 comes again
