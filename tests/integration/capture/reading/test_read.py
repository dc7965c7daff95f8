"""From the archive to the live stream: every message once, in order, whatever becomes of the archive meanwhile."""

import asyncio

import pytest
from archiving import compact_once, store_all, sweep_once
from patient import PATIENCE

import capture
from capture.config.load import load
from capture.errors import CaptureError, ConfigError, DataLossError
from capture.reading import search
from capture.stores import open_store
from natty import StreamNotFoundError
from natty.config.units import parse_time


@pytest.fixture
def archive(natty, natty_name, tmp_path):
    """Return the configuration and the store of an archive of its own, and make its stream."""

    async def make(settings=None, **stream):
        name = natty_name("read")
        flags = {"stream": name, "store": str(tmp_path / name), **(settings or {})}
        config = load(None, flags, environment={})
        await natty.ensure_stream(name, subjects=[f"{name}.*"], allow_batched=True, **stream)
        return config, open_store(config.store)

    return make


async def publish(natty, stream, first, last, token="eu"):
    async with natty.publisher(stream, ack_timeout=PATIENCE, give_up=2 * PATIENCE) as publisher:
        for number in range(first, last + 1):
            await publisher.publish(f"{stream}.{token}", b"%d" % number, headers={"N": str(number)})
        await publisher.flush()


async def delete(natty, stream, sequence):
    await natty.jetstream.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})


async def numbers(config, **options):
    return [message.sequence async for message in capture.read(config, **options)]


async def test_from_archive_to_stream_and_each_message_is_what_was_published(natty, archive):
    config, store = await archive()
    await publish(natty, config.stream, 1, 10)
    await store_all(natty, config, store)
    await sweep_once(natty, config, store)
    await compact_once(natty, config, store)
    await publish(natty, config.stream, 11, 20)
    await store_all(natty, config, store)
    await publish(natty, config.stream, 21, 30)
    found = [message async for message in capture.read(config.store, natty=natty)]
    assert [one.sequence for one in found] == list(range(1, 31))
    assert [one.payload for one in found] == [b"%d" % number for number in range(1, 31)]
    assert all(one.headers["N"] == [str(one.sequence)] for one in found)
    assert {one.subject for one in found} == {f"{config.stream}.eu"}
    times = [one.time_ns for one in found]
    for sequence in (1, 15, 30):
        stored = await natty.jetstream.read(config.stream, sequence=sequence)
        assert parse_time(stored.time) == times[sequence - 1]
    assert await numbers(config) == list(range(1, 21))  # the archive alone
    assert await numbers(store, stream=config.stream, natty=natty, start_sequence=18, end_sequence=23) == list(
        range(18, 24)
    )
    middle = times[14] / 1e9
    late = [one.time_ns async for one in capture.read(config, natty=natty, since=middle + 1e-6)]
    assert late == [one for one in times if one >= round((middle + 1e-6) * 1e9)]


async def test_subjects_are_selected_in_both(natty, archive):
    config, store = await archive()
    for first in (1, 5, 9):
        await publish(natty, config.stream, first, first + 1, "eu")
        await publish(natty, config.stream, first + 2, first + 3, "us")
        if first == 1:
            await store_all(natty, config, store)
    assert await numbers(config, natty=natty, subjects=[f"{config.stream}.us"]) == [3, 4, 7, 8, 11, 12]
    assert await numbers(config, natty=natty, subjects=["nobody.>"]) == []


async def test_batches_have_the_columns_that_are_asked_for(natty, archive):
    config, store = await archive()
    await publish(natty, config.stream, 1, 3)
    await store_all(natty, config, store)
    await publish(natty, config.stream, 4, 5)
    columns = ["payload", "sequence"]
    batches = [one async for one in capture.read_batches(config, natty=natty, columns=columns, subjects=[">"])]
    assert {tuple(one.schema.names) for one in batches} == {("payload", "sequence")}
    assert [row for one in batches for row in one.to_pylist()] == [
        {"payload": b"%d" % number, "sequence": number} for number in range(1, 6)
    ]


async def test_what_left_the_stream_is_read_from_the_archive_and_what_is_nowhere_is_told(natty, archive):
    config, store = await archive()
    await publish(natty, config.stream, 1, 10)
    await delete(natty, config.stream, 3)  # before it is captured
    await store_all(natty, config, store)
    await delete(natty, config.stream, 5)  # after it
    await natty.jetstream.request(f"STREAM.PURGE.{config.stream}", {"seq": 8})
    await publish(natty, config.stream, 11, 14)
    await delete(natty, config.stream, 12)
    gaps = []
    found = await numbers(config, natty=natty, on_gap=lambda gap: gaps.extend(gap))
    assert found == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14]
    assert sorted(gaps) == [3, 12]


async def test_a_stream_that_was_purged_beyond_the_archives_end_is_an_error_or_told(natty, archive):
    config, store = await archive()
    await publish(natty, config.stream, 1, 5)
    await store_all(natty, config, store)
    await publish(natty, config.stream, 6, 9)
    await natty.jetstream.request(f"STREAM.PURGE.{config.stream}", {"seq": 9})
    with pytest.raises(DataLossError, match=r"3 messages of .* \(6–8\) are neither in the archive nor in the stream"):
        await numbers(config, natty=natty)
    gaps = []
    found = await numbers(config, natty=natty, gaps="skip", on_gap=lambda gap: gaps.extend(gap))
    assert (found, gaps) == ([1, 2, 3, 4, 5, 9], [6, 7, 8])


async def test_what_lies_before_the_archive_and_the_stream_is_no_gap(natty, archive):
    config, store = await archive()
    await publish(natty, config.stream, 1, 6)
    await natty.jetstream.request(f"STREAM.PURGE.{config.stream}", {"seq": 4})
    await store_all(natty, config, store)
    gaps = []
    assert await numbers(config, natty=natty, on_gap=gaps.append) == [4, 5, 6]
    assert gaps == []


async def test_what_capture_was_given_and_the_stream_dropped_is_waited_for(natty, archive, running):
    config, store = await archive(max_msgs=4)
    await publish(natty, config.stream, 1, 2)
    await store_all(natty, config, store)
    pull = natty.pull(config.stream, config.durable)
    given = asyncio.Event()

    async def hold():
        async for batch in pull:
            if len(batch) and batch.sequences[-1] >= 5:
                given.set()

    running(hold())
    await publish(natty, config.stream, 3, 5)
    async with asyncio.timeout(PATIENCE):
        await given.wait()
    await publish(natty, config.stream, 6, 9)  # 3 to 5 are in nobody's hands but capture's
    reading = asyncio.create_task(numbers(config, natty=natty))
    await asyncio.sleep(2 * search.LOOK_AGAIN)
    assert not reading.done()
    await _store_by_hand(store, config, range(3, 6))
    async with asyncio.timeout(PATIENCE):
        assert await reading == list(range(1, 10))


async def _store_by_hand(store, config, sequences):
    from capture.formats import writer
    from capture.ingest.block import SealedBlock
    from capture.ingest.commit import Committer
    from capture.ingest.record import Records

    class Settled:
        def ack(self, messages):
            pass

        def nak(self, messages, delay=0.0):
            pass

    count = len(sequences)
    records = Records(
        config.stream, list(sequences), [1_795_230_000_000_000_000 + one for one in sequences],
        [f"{config.stream}.eu".encode()] * count, [b""] * count, [b"x"] * count,
        [1] * count, [b""] * count, [None] * count,
    )  # fmt: skip
    await Committer(store, writer("parquet"), Settled()).commit(SealedBlock(config.stream, "", 0, records, "stop"))


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
async def test_following_goes_on_with_what_is_published(natty, archive, retention):
    config, store = await archive(retention=retention)
    await natty.ensure_consumer(config.stream, config.durable, **config.consumer().settings())
    await publish(natty, config.stream, 1, 4)
    await store_all(natty, config, store)
    await publish(natty, config.stream, 5, 6)
    reader = capture.read(config, natty=natty, follow=True)
    found = []
    async with asyncio.timeout(PATIENCE):
        async for message in reader:
            found.append(message.sequence)
            if len(found) == 6:
                await publish(natty, config.stream, 7, 9)
            if len(found) == 9:
                await store_all(natty, config, store)  # a work queue has let go of them now
                await publish(natty, config.stream, 10, 11)
            if len(found) == 11:
                break
    await reader.aclose()
    assert found == list(range(1, 12))


async def test_a_stream_that_is_another_one_or_is_gone_is_not_read(natty, archive):
    config, store = await archive()
    await publish(natty, config.stream, 1, 3)
    await store_all(natty, config, store)
    await natty.delete_stream(config.stream)
    with pytest.raises(StreamNotFoundError):
        await numbers(config, natty=natty)
    assert await numbers(config) == [1, 2, 3]
    await natty.ensure_stream(config.stream, subjects=[f"{config.stream}.*"])
    with pytest.raises(CaptureError, match="it is another stream, with other sequences"):
        await numbers(config, natty=natty)


async def test_a_stream_that_is_made_again_while_it_is_followed_ends_the_reading(natty, archive):
    config, store = await archive()
    await publish(natty, config.stream, 1, 3)
    await store_all(natty, config, store)
    await publish(natty, config.stream, 4, 4)
    reader = capture.read(config, natty=natty, follow=True)
    async with asyncio.timeout(PATIENCE):
        assert [(await anext(reader)).sequence for _ in range(4)] == [1, 2, 3, 4]
        await natty.delete_stream(config.stream)
        with pytest.raises((CaptureError, StreamNotFoundError)):
            await anext(reader)


async def test_options_that_make_no_sense_are_refused(natty, archive, tmp_path):
    config, store = await archive()
    wrong = [
        ({"follow": True}, "give natty"),
        ({"follow": True, "natty": natty, "until": 1.0}, "give follow or until"),
        ({"stream": "OTHER"}, "there is no archive in"),
    ]
    for options, said in wrong:
        with pytest.raises(ConfigError, match=said):
            await numbers(config, **options)
    for options, said in (
        ({"start_sequence": "1"}, "start_sequence is '1'; write a whole number, 0 or more"),
        ({"subjects": [3]}, r"subjects is \[3\]; write text, or a list"),
        ({"strat_sequence": 1}, r"capture\.read\(\) has no option strat_sequence; did you mean start_sequence"),
    ):
        with pytest.raises(TypeError, match=said):
            await numbers(config, **options)
    await publish(natty, config.stream, 1, 1)
    await store_all(natty, config, store)
    with pytest.raises(ConfigError, match=f"is of {config.stream}, not of OTHER"):
        await numbers(config, stream="OTHER")
