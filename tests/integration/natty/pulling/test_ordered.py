"""Reading a stream in order: while it is deleted and made again at the worst moment, and where it may not be read."""

import asyncio
from contextlib import aclosing

import pytest
from consuming import fill
from patient import PATIENCE

from natty import AuthorizationError, JetStreamError, Natty
from natty.pulling.ordered import Began, CaughtUp, Ordered, OrderedOptions
from natty.testing import NatsServer, ServerOptions
from natty.wire.message import Batch


@pytest.fixture
def remade(natty, monkeypatch):
    """Return a function after which the stream is another one, of so many messages, when the next consumer is made."""

    def arrange(stream, messages):
        request = natty.jetstream.request

        async def remade_before(subject, *arguments, **options):
            if subject.startswith(f"CONSUMER.CREATE.{stream}."):
                monkeypatch.setattr(natty.jetstream, "request", request)
                await natty.delete_stream(stream)
                await fill(natty, stream, messages)
            return await request(subject, *arguments, **options)

        monkeypatch.setattr(natty.jetstream, "request", remade_before)

    return arrange


@pytest.mark.parametrize("start", ["first", "new", 4])
async def test_a_stream_that_is_made_again_before_the_consumer_is_made_is_read_from_its_beginning(
    natty, natty_name, remade, start
):
    stream = await fill(natty, natty_name("AGAIN"), 5)
    remade(stream, 3)
    steps = []
    async with aclosing(Ordered(natty.jetstream, stream, OrderedOptions(start=start)).__aiter__()) as reader:
        async for step in reader:
            steps.append(step)
            if isinstance(step, CaughtUp):
                break
    read = [message.data for step in steps if isinstance(step, Batch) for message in step]
    assert read == [b"0", b"1", b"2"]
    assert [type(step) for step in steps[:2]] == [Began, Began]
    names = (await natty.jetstream.request(f"CONSUMER.NAMES.{stream}"))["consumers"]
    assert len(names or []) <= 1, "the one that was made on either stream is deleted"


async def test_an_answer_that_is_behind_once_is_no_rollback(natty, natty_name, monkeypatch):
    """A new leader may report fewer messages than were read, until it has caught up: it is asked a second time."""
    stream, behind = await fill(natty, natty_name("BEHIND"), 3), []
    request = natty.jetstream.request

    async def behind_once(subject, *arguments, **options):
        answer = await request(subject, *arguments, **options)
        if subject == f"STREAM.INFO.{stream}" and behind:
            answer["state"]["last_seq"] = behind.pop()
        return answer

    monkeypatch.setattr(natty.jetstream, "request", behind_once)
    steps = []
    async with asyncio.timeout(PATIENCE), aclosing(Ordered(natty.jetstream, stream).__aiter__()) as reader:
        async for step in reader:
            steps.append(step)
            if isinstance(step, CaughtUp) and steps.count(CaughtUp()) == 2:
                break
            if isinstance(step, CaughtUp):
                behind.append(1)
                (consumer,) = (await natty.jetstream.request(f"CONSUMER.NAMES.{stream}"))["consumers"]
                await natty.delete_consumer(stream, consumer)  # the session ends, and the next one looks at the stream
                await natty.publish(f"{stream}.3", b"3")
    assert not behind
    assert [type(step) for step in steps].count(Began) == 1
    read = [message.data for step in steps if isinstance(step, Batch) for message in step]
    assert read == [b"0", b"1", b"2", b"3"]


READERS = """authorization { users: [
  {user: owner, password: x},
  {user: looker, password: x, permissions: {publish: {deny: ["$JS.API.CONSUMER.CREATE.>"]}}},
  {user: blind, password: x, permissions: {publish: {deny: ["$JS.API.STREAM.MSG.GET.>"]}}}
]}"""


@pytest.fixture(scope="module")
def guarded(natty_tls, tmp_path_factory):
    options = ServerOptions(authorization=READERS)
    with NatsServer(options, folder=tmp_path_factory.mktemp("guarded"), tls_files=natty_tls) as server:
        yield server


@pytest.mark.parametrize("user", ["looker", "blind"])
async def test_who_may_look_at_a_stream_and_not_read_it_is_told_so_and_does_not_wait(guarded, user, natty_name):
    name = natty_name("SEEN")
    async with Natty(**guarded.connect_options(), user="owner", password="x") as owner:
        await fill(owner, name, 2)
        await owner.create_bucket(name)
    async with Natty(**guarded.connect_options(), user=user, password="x") as natty, asyncio.timeout(PATIENCE):
        with pytest.raises(AuthorizationError, match="not permitted"):
            async for _ in Ordered(natty.jetstream, name, OrderedOptions()):
                pass
        with pytest.raises(AuthorizationError, match="not permitted"):
            async for _ in natty.watch(name):
                pass


async def test_a_reader_that_the_server_refuses_at_first_is_told_what_is_wrong(natty, natty_name):
    stream = natty_name("NO")
    await natty.create_stream(stream, subjects=[f"{stream}.>"], max_consumers=1)
    await natty.create_consumer(stream, "only")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(JetStreamError, match="maximum consumers"):
            async for _ in Ordered(natty.jetstream, stream, OrderedOptions()):
                pass
