"""What is captured, from where on, with which acknowledgements. Most nodes run in this process, over one connection."""

import asyncio
import json
from contextlib import aclosing
from functools import partial

import pyarrow as pa
import pytest
from dying import DIES
from patient import NEVER, PATIENCE, until

from capture.archive.scope import find_out_of_scope
from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.config.streams import each
from capture.errors import ConfigError, NotAloneError
from capture.formats.parquet import ParquetWriter
from capture.ingest import source
from capture.maintenance.sweep import read_entries
from capture.node import nodes as several
from capture.node.nodes import Several
from capture.stores import open_store
from capture.verification.check import check
from natty import ConsumerExistsError, Natty, NattyError, StreamNotFoundError

TOKENS = ("eu", "us", "asia")  # as Fleet.publish gives them


def orders(count):
    return [json.dumps({"n": number}).encode() for number in range(count)]


def rows_of(store):
    """Return every row of the archive's blocks."""
    blocks = sorted((store / "blocks").rglob("*.parquet"))
    return pa.concat_tables([ParquetWriter().read(path.read_bytes()) for path in blocks]).to_pylist()


async def verdict_of(fleet, path, stream=None):
    [config] = [one for one in each(load(path)) if one.stream == (stream or fleet.stream)]
    return (await check(fleet.natty, config, open_store(config.store))).verdict


async def stream_of(fleet):
    return await fleet.natty.jetstream.request(f"STREAM.INFO.{fleet.stream}")


@pytest.fixture
def start(start_beside):
    return start_beside


@pytest.fixture
async def other(fleet, natty_name):
    """The name of another stream that is not there yet, and what makes it."""
    name = natty_name("payments")
    return name, partial(fleet.natty.ensure_stream, name, subjects=[f"{name}.*"])


# --- several streams -------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_each_of_several_streams_is_an_archive_of_its_own(fleet, other):
    name, create = other
    await create()
    for number in range(5):
        await fleet.natty.publish(f"{name}.x", b"%d" % number)
    await fleet.publish(orders(30))
    config = fleet.configure(stream="", streams=[fleet.stream, name], decoder="raw", limits__max_age=0.2)
    node = fleet.start("node-1", config)
    await fleet.until_all_acked(30)
    fleet.stream = name
    await fleet.until_all_acked(5)
    assert await fleet.stop(node) == 0
    for stream, count in (("payments", 5), ("orders", 30)):
        [folder] = [path for path in fleet.store.iterdir() if path.name.startswith(stream)]
        assert json.loads((folder / "_archive.json").read_text())["archive"] == folder.name
        verdict = await verdict_of(fleet, config, folder.name)
        assert (verdict.ok, len(verdict.stored)) == (True, count)


async def test_where_one_stream_fails_the_others_store_what_they_have_read_and_the_process_ends(fleet, other):
    name, create = other
    await create()
    config = fleet.configure(stream="", streams=[fleet.stream, name], ack_wait=2 * NEVER, limits__max_age=NEVER)
    running = asyncio.ensure_future(Several(load(config)).run())
    await fleet.publish(orders(30))
    await fleet.until(lambda state: state["num_ack_pending"] == 30)
    captured, fleet.stream = fleet.stream, name
    await fleet.until(lambda state: state["num_waiting"])
    await fleet.natty.delete_stream(name)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StreamNotFoundError):
            await running
    fleet.stream = captured
    await fleet.until_all_acked(30)
    assert len((await verdict_of(fleet, config)).stored) == 30


async def test_with_keep_going_the_others_go_on_and_a_stream_that_is_missing_is_taken_up_when_it_is_there(
    fleet, other, monkeypatch
):
    monkeypatch.setattr(several, "RETRY_STREAM", 0.1)
    name, create = other
    config = fleet.configure(
        stream="", streams=[name, fleet.stream], keep_going=True, decoder="raw", limits__max_age=0.2
    )
    nodes = Several(load(config))
    running = asyncio.ensure_future(nodes.run())
    await fleet.publish(orders(30))
    await fleet.until_all_acked(30)
    await until(lambda: nodes.failing)
    assert nodes.failing[name].startswith(f"there is no stream {name!r} on this server")
    await create()
    await fleet.natty.publish(f"{name}.x", b"late")
    fleet.stream = name
    await fleet.until_all_acked(1)
    assert nodes.failing == {}
    assert len({id(node.natty) for node in nodes.nodes}) == 1  # one connection
    nodes.stop()
    async with asyncio.timeout(PATIENCE):
        await running
    assert (await verdict_of(fleet, config)).ok


# --- where it begins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("begin", "first"), [("new", 31), ("sequence", 21), ("time", 21)])
async def test_what_lies_before_the_start_is_not_missing(fleet, start, begin, first):
    await fleet.publish(orders(20))
    await fleet.publish(orders(10))
    message = (await fleet.natty.jetstream.request(f"STREAM.MSG.GET.{fleet.stream}", {"seq": 21}))["message"]
    wanted = {"new": "new", "sequence": 21, "time": message["time"]}[begin]
    config = fleet.configure(start=wanted, limits__max_age=0.2)
    running = start(config)
    await fleet.until(lambda state: True)
    await fleet.publish(orders(20))
    await fleet.until_all_acked(50)
    await running.stop()
    verdict = await verdict_of(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert list(verdict.stored.runs()) == [(first, 50)]
    again = start(config)  # the same start, found in the durable and in the archive's record
    await fleet.publish(orders(1))
    await fleet.until_all_acked(51)
    await again.stop()


async def test_a_durable_with_another_start_is_named_with_the_difference_and_not_changed(fleet, start):
    await fleet.natty.ensure_consumer(fleet.stream, "capture", deliver_policy="by_start_sequence", opt_start_seq=7)
    with pytest.raises(ConsumerExistsError, match=r"opt_start_seq is 7, wanted 8 .*Nothing was changed"):
        await start(fleet.configure(start=8, ack_wait=30.0)).ended()
    await fleet.publish(orders(10))
    await fleet.until(lambda state: state["num_pending"] == 4)  # the server counts a new message some time after it
    assert (await fleet.consumer())["config"]["opt_start_seq"] == 7


async def test_a_durable_whose_start_nobody_knows_any_more_is_refused(fleet, start):
    settings = {"ack_wait": 30.0, "max_ack_pending": 250_000}
    await fleet.natty.ensure_consumer(fleet.stream, "capture", deliver_policy="new", **settings)
    await fleet.publish(orders(3))
    async with aclosing(fleet.natty.pull(fleet.stream, "capture").__aiter__()) as batches:
        await anext(batches)
    with pytest.raises(ConfigError, match="delivered messages before this archive recorded it"):
        await start(fleet.configure(start="new")).ended()


async def test_of_a_filtered_stream_only_what_was_asked_for_can_be_missing(fleet, start):
    config = fleet.configure(filter_subjects=[f"{fleet.stream}.eu"], limits__max_messages=5, limits__max_age=0.2)
    running = start(config)
    await fleet.until(lambda state: True)
    await fleet.publish(orders(30))
    await fleet.until(lambda state: state["ack_floor"]["consumer_seq"] == 10)
    await running.stop()
    verdict = await verdict_of(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert (len(verdict.stored), len(verdict.unwanted)) == (10, 20)
    store, everything = open_store(str(fleet.store)), Sequences.from_range(1, 30)
    assert await find_out_of_scope(fleet.natty, store, fleet.stream, everything) == verdict.unwanted
    assert everything - verdict.unwanted == verdict.stored


# --- streams that delete what is acknowledged ------------------------------------------------------------------------


@pytest.mark.parametrize("retention", ["workqueue", pytest.param("interest", marks=pytest.mark.long)])
async def test_a_message_leaves_the_stream_only_when_it_is_durable_whoever_is_killed(
    fleet, start, natty_name, retention
):
    fleet.stream = natty_name("queue")
    await fleet.create(retention=retention)
    config = fleet.configure(ack_wait=1.0, limits__max_age=0.3)
    doomed = fleet.start("doomed", config, script=DIES, arguments=["_entries/", 1])
    await fleet.until(lambda state: True)
    await fleet.publish(orders(30))
    assert await fleet.ended(doomed) == -9  # a block and its entry are durable, and nothing is acknowledged
    assert (await stream_of(fleet))["state"]["messages"] == 30
    node = start(config)
    await fleet.until_all_acked(30)
    await node.stop()
    assert (await stream_of(fleet))["state"]["messages"] == 0
    verdict = await verdict_of(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert list(verdict.stored.runs()) == [(1, 30)]
    assert {row["sequence"] for row in rows_of(fleet.store)} == set(range(1, 31))


async def test_what_a_work_queue_does_not_allow_is_told_in_a_sentence(fleet, start, natty_name):
    fleet.stream = natty_name("queue")
    await fleet.create(retention="workqueue")
    with pytest.raises(ConfigError, match=r'is a work queue: it does not accept a consumer .* Use ack = "explicit"'):
        await start(fleet.configure(ack="all")).ended()
    with pytest.raises(ConfigError, match=r'is a work queue: each of its messages .* Use start = "all"'):
        await start(fleet.configure(start="new")).ended()
    await fleet.natty.ensure_consumer(fleet.stream, "billing", filter_subjects=[f"{fleet.stream}.eu"])
    taken = rf"every subject is taken already, by billing \({fleet.stream}\.eu\)\. Name that consumer"
    with pytest.raises(ConfigError, match=taken):
        await start(fleet.configure()).ended()


# --- one acknowledgement for all before it ---------------------------------------------------------------------------


async def test_a_killed_node_has_acked_nothing_that_is_not_stored_and_another_takes_up_the_rest_at_once(fleet, start):
    config = fleet.configure(ack="all", ack_wait=NEVER, limits__max_messages=40, limits__max_age=0.5)
    doomed = fleet.start("doomed", config, script=DIES, arguments=["_entries/", 4])
    await fleet.until(lambda state: True)
    await fleet.publish(orders(500), token=lambda number: "eu" if number % 7 else "us")
    assert await fleet.ended(doomed) == -9
    floor = (await fleet.consumer())["ack_floor"]["stream_seq"]
    entries, _ = await read_entries(open_store(str(fleet.store)))
    stored = Sequences.union_of(Sequences.from_bytes(one.sequences) for one in entries)
    assert not Sequences.from_range(1, floor) - stored
    node = start(config)
    await fleet.until_all_acked(500)  # far below ack_wait
    await node.stop()
    verdict = await verdict_of(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert len(verdict.stored) == 500


async def test_a_second_node_gives_up_and_the_first_goes_on(fleet, start, monkeypatch):
    config = fleet.configure(ack="all", limits__max_age=0.2)
    first = start(config)
    await fleet.until(lambda state: state["num_waiting"])
    monkeypatch.setattr(source, "ALONE_WITHIN", 0.5)
    with pytest.raises(NotAloneError, match=r"has another reader, .* it requests messages right now"):
        await start(config).ended()
    await fleet.publish(orders(50))
    await fleet.until_all_acked(50)
    await first.stop()
    assert (await verdict_of(fleet, config)).ok


async def test_what_went_to_somebody_else_is_never_acked(fleet, start):
    config = fleet.configure(ack="all", ack_wait=2 * NEVER, limits__max_age=NEVER)
    running = start(config)
    await fleet.until(lambda state: state["num_waiting"])
    await fleet.publish(orders(10))
    asking = (await fleet.until(lambda state: state["num_ack_pending"] == 10))["num_waiting"]
    pull, taken = fleet.natty.pull(fleet.stream, "capture", max_messages=5), []

    async def take():
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                taken.extend(batch.sequences)

    thief = asyncio.ensure_future(take())
    await fleet.until(lambda state: state["num_waiting"] > asking)
    async with asyncio.timeout(PATIENCE):
        while not running.task.done():
            await fleet.publish(orders(5))
            await asyncio.sleep(0.05)
    with pytest.raises(NotAloneError, match=r"delivery [0-9]+ was followed by .*\. Nothing from there on"):
        await running.ended()
    thief.cancel()
    await asyncio.gather(thief, return_exceptions=True)
    assert (await fleet.consumer())["ack_floor"]["stream_seq"] < min(taken)


async def test_what_gets_lost_with_a_connection_comes_again_though_acks_count_for_all_before(fleet, start, natty_proxy):
    config = fleet.configure(ack="all", ack_wait=NEVER, limits__max_age=0.2, limits__max_messages=200)
    async with Natty(**natty_proxy.options) as client:
        running = start(config, client)
        await fleet.publish(orders(2000))
        await fleet.until(lambda state: state["ack_floor"]["stream_seq"] > 0)
        publishing = asyncio.ensure_future(fleet.publish(orders(8000)))
        await natty_proxy.cut()
        await publishing
        await natty_proxy.restore()
        await fleet.until_all_acked(10_000)
        await running.stop()
    verdict = await verdict_of(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert len(verdict.stored) == 10_000


# --- mirrors and sources ---------------------------------------------------------------------------------------------


async def test_blocks_keep_where_a_sourced_message_comes_from_and_a_mirror_keeps_its_sequences(
    fleet, start, natty_name
):
    origin, sourced, mirror = fleet.stream, natty_name("sourced"), natty_name("mirror")
    await fleet.publish(orders(6))
    await fleet.natty.jetstream.request(f"STREAM.PURGE.{origin}", {"keep": 4})
    await fleet.natty.ensure_stream(sourced, sources=[{"name": origin}], subjects=[f"{sourced}.own"])
    await fleet.natty.ensure_stream(mirror, mirror={"name": origin})
    kept = {}
    for stream, last in ((sourced, 4), (mirror, 6)):
        fleet.stream, fleet.store = stream, fleet.folder / stream
        running = start(fleet.configure(limits__max_age=0.2))
        await fleet.until_all_acked(last)
        await running.stop()
        rows = rows_of(fleet.store)
        kept[stream] = sorted((row["sequence"], row["origin_stream"], row["origin_sequence"]) for row in rows)
    assert kept[sourced] == [(number, origin, number + 2) for number in range(1, 5)]
    assert kept[mirror] == [(number, None, None) for number in range(3, 7)]


@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_a_node_whose_stream_or_consumer_is_deleted_says_what_to_do(fleet, start, what):
    running = start(fleet.configure())
    await fleet.publish(orders(20))
    await fleet.until_all_acked(20)
    verb = f"CONSUMER.DELETE.{fleet.stream}.capture" if what == "consumer" else f"STREAM.DELETE.{fleet.stream}"
    await fleet.natty.jetstream.request(verb)
    with pytest.raises(NattyError) as ended:
        await running.ended()
    said = {
        "consumer": f"consumer capture of stream {fleet.stream} was deleted while this node read it: start",
        "stream": f"stream {fleet.stream} was deleted while this node captured it. The captured messages are",
    }
    assert str(ended.value).startswith(said[what])
