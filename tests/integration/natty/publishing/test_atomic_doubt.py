"""An atomic batch whose commit is not answered: settled where the server can tell, else told as doubt."""

import asyncio

import pytest
from patient import NEVER, PATIENCE, PATIENT, jump

from natty import AtomicMessage, Natty, PublishError, WrongLastSequenceError
from natty.publishing import atomic
from natty.wire.message import Batch


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that takes atomic batches, `<name>.>`."""
    await natty.ensure_stream(name := natty_name("DOUBT"), subjects=[f"{name}.>"], allow_atomic=True)
    return name


@pytest.fixture
async def far(natty_proxy):
    """A client behind a proxy, whose commit meets what the test does before it is sent."""
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        yield far


@pytest.fixture
def before_commit(monkeypatch):
    """Do something between the first message of a batch and the others; return the event of that."""

    def arrange(do):
        begin, reached = atomic._begin, asyncio.Event()

        async def begin_then(*arguments):
            await begin(*arguments)
            do()
            reached.set()

        monkeypatch.setattr(atomic, "_begin", begin_then)
        return reached

    return arrange


async def stored(natty, stream):
    """Every (subject, payload) of a stream, in order."""
    last = (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    messages = [await natty.jetstream.read(stream, sequence=one) for one in range(1, last + 1)]
    return [(one.subject.removeprefix(stream), one.data) for one in messages if one is not None]


async def reaches(natty, stream, count):
    """Wait until the stream has had so many messages."""
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["last_seq"] < count:
            await asyncio.sleep(0.02)


async def outcome(publishing):
    async with asyncio.timeout(PATIENCE):
        return await publishing


async def reconnect(natty_proxy):
    await natty_proxy.cut()
    await natty_proxy.restore()


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_a_batch_that_was_stored_is_found_when_its_ack_is_lost(
    natty_proxy, natty, far, stream, before_commit, count
):
    """Others publish on the same subject before and after it, and its messages share the subject."""
    await natty.publish(f"{stream}.a", b"before")
    before_commit(natty_proxy.mute)
    if count == 1:
        natty_proxy.mute()
    publishing = asyncio.create_task(far.publish_atomic([(f"{stream}.a", b"%d" % i) for i in range(count)]))
    await reaches(natty, stream, 1 + count)
    await natty.publish(f"{stream}.a", b"after")
    await reconnect(natty_proxy)
    ack = await outcome(publishing)
    assert (ack.stream, ack.seq) == (stream, 1 + count)
    payloads = [b"before", *(b"%d" % i for i in range(count)), b"after"]
    assert await stored(natty, stream) == [(".a", payload) for payload in payloads]


async def test_a_commit_that_did_not_arrive_is_sent_again(natty_proxy, natty, far, stream, before_commit):
    into_the_void = before_commit(natty_proxy.half_open)
    publishing = asyncio.create_task(far.publish_atomic([(f"{stream}.a", b"1"), (f"{stream}.b", b"2")]))
    await outcome(into_the_void.wait())
    assert await stored(natty, stream) == []
    await natty_proxy.restore()
    assert (await outcome(publishing)).seq == 2
    assert await stored(natty, stream) == [(".a", b"1"), (".b", b"2")]


async def test_a_commit_that_nobody_answers_is_sent_again_while_the_connection_stands(
    natty_proxy, natty, far, stream, monkeypatch
):
    """The leader that had to answer is gone, and another one answers: here the first answer is dropped."""
    monkeypatch.setattr(atomic, "SEND_AGAIN", 0.2)
    deliver, dropped = far.connection._requests.deliver, []

    def without_acks(batch):
        kept = [raw for raw in batch.raw if dropped or b'"batch"' not in raw[3]]
        dropped.extend(raw for raw in batch.raw if raw not in kept)
        deliver(Batch(kept))

    (requests,) = far.connection._subscriptions.values()
    requests.sink = without_acks
    assert (await outcome(far.publish_atomic([(f"{stream}.a", b"1"), (f"{stream}.b", b"2")]))).seq == 2
    assert len(dropped) == 1
    assert await stored(natty, stream) == [(".a", b"1"), (".b", b"2")]


@pytest.mark.parametrize(
    ("condition", "kind", "reason"),
    [
        ({"expect_last_subject_sequence": 0}, WrongLastSequenceError, "wrong last sequence: 1"),
        ({"msg_id": "x"}, PublishError, "a message id is in it twice, or in the stream already"),
    ],
)
async def test_a_commit_that_is_refused_when_it_is_sent_again_was_not_stored(
    natty_proxy, natty, far, stream, before_commit, condition, kind, reason
):
    into_the_void = before_commit(natty_proxy.half_open)
    last = AtomicMessage(subject=f"{stream}.b", data=b"2", **condition)
    publishing = asyncio.create_task(far.publish_atomic([(f"{stream}.a", b"1"), last]))
    await outcome(into_the_void.wait())
    await natty.publish(f"{stream}.b", b"faster", msg_id="x")
    await natty_proxy.restore()
    with pytest.raises(kind, match=f"no message of the batch was stored: {reason}"):
        await outcome(publishing)
    assert await stored(natty, stream) == [(".b", b"faster")]


async def test_a_batch_of_which_a_part_was_lost_stays_in_doubt_and_is_never_stored(
    natty_proxy, natty, far, stream, before_commit
):
    into_the_void = before_commit(natty_proxy.half_open)
    publishing = asyncio.create_task(far.publish_atomic([(f"{stream}.{i}", b"") for i in range(5)], timeout=NEVER))
    await outcome(into_the_void.wait())
    await natty_proxy.restore()
    with pytest.raises(PublishError, match="the server may have stored the batch or not") as caught:
        await outcome(publishing)  # long before its time: one server can't find it later
    assert caught.value.in_doubt
    assert await stored(natty, stream) == []


async def test_a_batch_that_somebody_removed_stays_in_doubt_and_is_not_stored_again(
    natty_proxy, natty, far, stream, before_commit
):
    before_commit(natty_proxy.mute)
    publishing = asyncio.create_task(far.publish_atomic([(f"{stream}.a", b"1"), (f"{stream}.b", b"2")]))
    await reaches(natty, stream, 2)
    await natty.purge_stream(stream)
    await natty.publish(f"{stream}.b", b"after")
    await reconnect(natty_proxy)
    with pytest.raises(PublishError, match="the server may have stored the batch or not") as caught:
        await outcome(publishing)
    assert caught.value.in_doubt
    assert await stored(natty, stream) == [(".b", b"after")]


async def test_without_an_answer_in_time_it_is_told_as_doubt(natty_proxy, natty, far, stream, before_commit):
    before_commit(natty_proxy.mute)
    batch = [AtomicMessage(subject=f"{stream}.{i}", msg_id=str(i)) for i in range(3)]
    publishing = asyncio.create_task(far.publish_atomic(batch))
    await reaches(natty, stream, 3)
    jump(2 * PATIENCE)
    with pytest.raises(PublishError, match="the server may have stored the batch or not") as caught:
        await publishing
    assert caught.value.in_doubt
    with pytest.raises(PublishError, match="in the stream already: an earlier attempt may have stored it"):
        await natty.publish_atomic(batch)
    assert len(await stored(natty, stream)) == 3
    await natty_proxy.cut()


async def test_who_reads_back_by_himself_is_told_at_once(natty_proxy, natty, far, stream, before_commit):
    before_commit(natty_proxy.mute)
    batch = [(f"{stream}.a", b"1"), (f"{stream}.b", b"2")]
    publishing = asyncio.create_task(atomic.store_batch(far.jetstream, batch, settle=False))
    await reaches(natty, stream, 2)
    await natty_proxy.cut()
    with pytest.raises(PublishError, match="may have stored the batch or not") as caught:
        await outcome(publishing)
    assert caught.value.in_doubt
