"""Reading a stream in order while it is deleted and made again at the worst moment."""

from contextlib import aclosing

import pytest
from consuming import fill

from natty.message import Batch
from natty.ordered import Began, CaughtUp, Ordered, OrderedOptions


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
