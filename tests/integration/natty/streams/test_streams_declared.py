import asyncio

import pytest
from patient import PATIENCE

from natty import ConsumerExistsError, StreamExistsError, StreamNotFoundError, UnsupportedError
from natty.errors import JetStreamError, WrongLastSequenceError
from natty.names import BadNameError
from natty.streams import stream_state


@pytest.fixture
async def stream(natty, natty_name):
    name = natty_name("DECLARED")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], max_age=3600, description="mine")
    return name


async def config(natty, stream):
    return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["config"]


async def test_declaring_a_stream_twice_is_fine(natty, stream):
    first = await config(natty, stream)
    again = await natty.ensure_stream(stream, subjects=[f"{stream}.>"], max_age=3600.0)
    assert again == first
    assert (first["storage"], first["max_age"]) == ("file", 3600 * 10**9)


async def test_a_stream_with_other_settings_is_refused_and_left_as_it_is(natty, stream):
    before = await config(natty, stream)
    with pytest.raises(StreamExistsError) as caught:
        await natty.ensure_stream(stream, subjects=["other"], max_age=60, description="theirs")
    assert str(caught.value) == (
        f"stream {stream} exists with another configuration: max_age is 3600 s, wanted 60 s (destructive: messages"
        f" beyond it are deleted); subjects is ['{stream}.>'], wanted ['other'] (destructive: messages on"
        f" {stream}.> would not be stored any more). Nothing was changed."
        " To keep it as it is, name the same values in your program."
        " To change it anyway: `natty stream apply --allow-destructive`, or"
        f' `ensure_stream("{stream}", …, allow_destructive=True)`.'
    )
    assert await config(natty, stream) == before


async def test_settings_that_are_not_named_are_left_alone(natty, stream):
    changed = await config(natty, stream) | {"max_msgs": 77, "metadata": {"team": "a"}}
    await natty.jetstream.request(f"STREAM.UPDATE.{stream}", changed)
    kept = await natty.ensure_stream(stream, subjects=[f"{stream}.>"])
    assert (kept["max_msgs"], kept["metadata"]["team"]) == (77, "a")


async def test_of_many_who_declare_at_once_all_agree(natty, natty_name):
    name = natty_name("RACE")
    made = await asyncio.gather(*(natty.ensure_stream(name, subjects=[name]) for _ in range(10)))
    assert all(one["subjects"] == [name] for one in made)


async def test_the_slower_of_two_with_other_settings_gets_the_difference(natty, natty_name):
    name = natty_name("RACE")
    outcomes = await asyncio.gather(
        *(natty.create_stream(name, subjects=[name], max_msgs=number) for number in (1, 2)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["StreamExistsError", "dict"]


async def test_a_setting_that_the_server_does_not_know_or_refuses_is_told(natty, natty_name):
    with pytest.raises(JetStreamError, match=r"num_replicas|replicas"):
        await natty.ensure_stream(natty_name("R"), subjects=["r3.on.one"], num_replicas=3)


async def test_declaring_a_consumer_twice_is_fine_and_other_settings_are_refused(natty, stream):
    first = await natty.ensure_consumer(stream, "d", ack_wait=5, filter_subjects=[f"{stream}.a", f"{stream}.b"])
    again = await natty.ensure_consumer(stream, "d", ack_wait=5.0, filter_subjects=[f"{stream}.a", f"{stream}.b"])
    assert again == first
    assert await natty.ensure_consumer(stream, "d") == first
    with pytest.raises(ConsumerExistsError) as caught:
        await natty.ensure_consumer(stream, "d", ack_wait=3, description="ours")
    text = str(caught.value)
    assert (
        f"consumer d of stream {stream} exists with another configuration: ack_wait is 5 s, wanted 3 s (destr" in text
    )
    assert await natty.ensure_consumer(stream, "d") == first


async def test_a_single_filter_in_the_plural_is_the_same_as_one_in_the_singular(natty, stream):
    await natty.ensure_consumer(stream, "one", filter_subjects=[f"{stream}.a"])
    await natty.ensure_consumer(stream, "one", filter_subjects=[f"{stream}.a"])


async def test_of_many_who_declare_a_consumer_at_once_all_agree(natty, stream):
    made = await asyncio.gather(*(natty.ensure_consumer(stream, "d", ack_wait=5) for _ in range(10)))
    assert all(one == made[0] for one in made)


async def test_a_consumer_of_no_stream_is_refused(natty, natty_name):
    with pytest.raises(StreamNotFoundError):
        await natty.ensure_consumer(natty_name("NONE"), "d")


async def test_bad_names_are_refused_with_the_place(natty, stream):
    with pytest.raises(BadNameError, match=r"stream name 'A B': ' ' at character 2"):
        await natty.ensure_stream("A B")
    with pytest.raises(BadNameError, match=r"consumer name 'a\.b': '\.' at character 2"):
        await natty.ensure_consumer(stream, "a.b")


async def test_the_state_tells_what_is_deleted(natty, stream):
    for _ in range(3):
        await natty.publish(f"{stream}.a", b"")
    await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": 2})
    state = await stream_state(natty.jetstream, stream, deleted=True)
    assert (state["messages"], state["last_seq"], state["deleted"]) == (2, 3, [2])
    assert "deleted" not in await stream_state(natty.jetstream, stream)


async def test_a_server_that_is_too_old_is_told_by_its_version(natty):
    natty.connection._session.info = natty.connection.server_info | {"version": "2.10.29"}
    with pytest.raises(
        UnsupportedError, match=r"^a key-value bucket needs nats-server 2\.11 or later .* 2\.10\.29: up"
    ):
        natty.jetstream.require("a key-value bucket", 2, 11)
    natty.jetstream.require("anything", 2, 10)
    natty.connection._session.info["version"] = "2.12.0-RC.1"
    assert natty.connection.server_version == (2, 12, 0)


async def test_a_message_is_read_by_sequence_or_as_the_last_of_its_subject(natty, stream):
    await natty.publish(f"{stream}.a", b"1", headers={"A": "b"})
    await natty.publish(f"{stream}.a", b"2")
    first = await natty.jetstream.read(stream, sequence=1)
    assert (first.data, first.headers, first.subject) == (b"1", {"A": ["b"]}, f"{stream}.a")
    assert (await natty.jetstream.read(stream, subject=f"{stream}.a")).sequence == 2
    assert await natty.jetstream.read(stream, sequence=99) is None
    with pytest.raises(StreamNotFoundError):
        await natty.jetstream.read("NO_SUCH", sequence=1)


async def test_a_compare_and_set_against_another_writer_fails_by_number(natty, stream):
    subject = f"{stream}.a"
    await natty.publish(subject, b"theirs")
    with pytest.raises(WrongLastSequenceError) as caught:
        await natty.jetstream.compare_and_set(stream, subject, b"ours", expected=0, nonce="n", timeout=PATIENCE)
    assert caught.value.err_code == 10071
