"""The messages of a stream, from Python: purged, looked at, deleted."""

import asyncio

import pytest

from natty import NattyError
from natty.errors import ConfigError, JetStreamError, StreamNotFoundError
from natty.streams import MessageNotFoundError
from natty.streams.ensure import change_document


@pytest.fixture
async def stream(natty, natty_name):
    name = natty_name("ADMIN")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    for number in range(6):
        await natty.publish(f"{name}.{('eu', 'us')[number % 2]}", b"%d" % number)
    return name


async def left(natty, name):
    found = await asyncio.gather(*(natty.jetstream.read(name, sequence=number + 1) for number in range(6)))
    return [int(one.data) for one in found if one]


async def test_a_purge_takes_what_every_limit_allows(natty, stream):
    assert await natty.purge_stream(stream, subject=f"{stream}.us", below=4) == 1
    assert await left(natty, stream) == [0, 2, 3, 4, 5]
    assert await natty.purge_stream(stream, below=3) == 1
    assert await natty.purge_stream(stream, subject=f"{stream}.eu", keep=1) == 1
    assert await left(natty, stream) == [3, 4, 5]
    assert await natty.purge_stream(stream, keep=2) == 1
    assert await natty.purge_stream(stream) == 2
    assert await left(natty, stream) == []


async def test_a_purge_that_contradicts_itself_is_refused_before_the_server_is_asked(natty, stream):
    with pytest.raises(ConfigError, match="choose one"):
        await natty.purge_stream(stream, below=2, keep=2)
    assert len(await left(natty, stream)) == 6
    with pytest.raises(StreamNotFoundError):
        await natty.purge_stream("NOWHERE")


async def test_a_message_is_read_by_sequence_or_subject(natty, stream):
    assert (await natty.get_message(stream, sequence=3)).data == b"2"
    assert (await natty.get_message(stream, last_for=f"{stream}.eu")).data == b"4"
    assert (await natty.get_message(stream, last_for=f"{stream}.*")).sequence == 6
    with pytest.raises(MessageNotFoundError, match=f"stream {stream} has no message at sequence 9; it holds 1 to 6"):
        await natty.get_message(stream, sequence=9)
    await natty.purge_stream(stream)
    with pytest.raises(MessageNotFoundError, match="it holds none"):
        await natty.get_message(stream, sequence=6)


@pytest.mark.parametrize("erase", [True, False])
async def test_a_message_is_deleted_once(natty, stream, erase):
    assert await natty.delete_message(stream, 2, erase=erase) is True
    assert await left(natty, stream) == [0, 2, 3, 4, 5]
    assert await natty.delete_message(stream, 2, erase=erase) is False


async def test_a_deleted_message_is_erased_on_the_disk_unless_told_not_to(natty, nats_server, natty_name):
    """The proof of "secure": its bytes are in the store's files before, and afterwards no more."""
    name = natty_name("SECRET")
    await natty.create_stream(name, subjects=[f"{name}.>"])

    def on_disk(secret):
        blocks = list(nats_server.folder.rglob(f"streams/{name}/msgs/*.blk"))
        assert blocks
        return any(secret in block.read_bytes() for block in blocks)

    async def deleted(secret, *, erase):
        ack = await natty.publish(f"{name}.x", secret)
        await natty.publish(f"{name}.x", b"later")  # the last block's last message is no special case
        assert on_disk(secret)
        await natty.delete_message(name, ack.seq, erase=erase)
        return on_disk(secret)

    assert await deleted(b"marked-and-kept", erase=False) is True
    assert await deleted(b"erased-for-good", erase=True) is False


async def test_a_change_makes_no_stream_that_is_gone(natty, natty_name):
    name = natty_name("GONE")
    with pytest.raises(StreamNotFoundError, match=f"there is no stream {name}"):
        await change_document(natty.jetstream, {"name": name, "max_msgs": 5})
    with pytest.raises(StreamNotFoundError):
        await natty.jetstream.request(f"STREAM.INFO.{name}")


async def test_what_the_stream_denies_is_an_error(natty, natty_name):
    name = natty_name("KEPT")
    await natty.create_stream(name, subjects=[name], deny_delete=True, deny_purge=True)
    await natty.publish(name, b"1")
    for attempt in (natty.delete_message(name, 1), natty.purge_stream(name)):
        with pytest.raises(JetStreamError, match="not permitted"):
            await attempt
    with pytest.raises(NattyError, match="stream name 'a b'"):
        await natty.purge_stream("a b")
