import asyncio
import json
import random

import pyarrow as pa
import pytest
from dying import DIES
from patient import NEVER, PATIENCE

from capture.archive.picture import read_picture
from capture.config.load import load
from capture.decoders import decoder
from capture.formats import parquet, writer
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.commit import Committer
from capture.ingest.pipeline import InFlight, capture
from capture.ingest.source import Source
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.partitioners import partitioner
from capture.stores import MemoryStore, open_store
from capture.testing import ArrowEngine, HeadState, MemoryHead
from capture.verification.check import check

READS = """
import sys
from dataclasses import replace
import capture.node.node
from capture.cli import main

chosen, wanted, read = capture.node.node.decoder, int(sys.argv[2]), 0

def counting(spec):
    decode = chosen(spec)

    def counted(batch):
        global read
        records = decode(batch)
        read += len(batch)
        if read == wanted:
            print("everything was read", flush=True)
        return records

    return replace(decode, decode=counted)

capture.node.node.decoder = counting
sys.argv = ["capture", "run", "--config", sys.argv[1], "--node-name", "reader"]
main()
"""

SMALL_FILES = """
import resource, signal, sys
from functools import partial
import capture.node.node, capture.ingest.source, natty.wire.connection, natty.pulling.pull
capture.node.node.CommitOptions = partial(capture.node.node.CommitOptions, backoff=0.01)
capture.ingest.source.END_TIMEOUT = natty.wire.connection.CLOSE_TIMEOUT = 60.0  # to hand back
natty.pulling.pull.DRAIN_TIMEOUT = 60.0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # more than the README of an archive
sys.argv = ["capture", "run", "--config", sys.argv[1], "--node-name", "full"]
from capture.cli import main
main()
"""


def order(number):
    return json.dumps({"n": number, "pad": "x" * 40}).encode()


def by_sequence(payloads):
    return dict(enumerate(payloads, start=1))


async def verdict_of(fleet, config):
    return await check(fleet.natty, load(config), open_store(str(fleet.store)), deep=True)


async def table_of(store):
    """Sweep and compact the archive as its only leader, and return (sequence, payload) of every row of the table."""
    manifest, table = HeadState(), HeadState()
    policy = Policy(min_files=1, max_wait=0.0, max_groups=10_000)
    await sweep(Leading(store, MemoryHead(1, manifest), table.read), now=0.0)
    await compact(TableLeading(store, MemoryHead(1, table), manifest.read, grace=1e9), ArrowEngine(), policy, now=0.0)
    picture = await read_picture(store, manifest.read, table.read)
    assert not picture.blocks
    files = [parquet.ParquetWriter().read(await store.get(one.path)) for one in picture.files]
    rows = pa.concat_tables([file.select(["sequence", "payload"]) for file in files])
    return list(zip(rows["sequence"].to_pylist(), rows["payload"].to_pylist(), strict=True))


async def test_after_sigterm_everything_that_was_read_is_stored_and_acked(fleet):
    config = fleet.configure(ack_wait=2 * NEVER, limits__max_age=NEVER)  # nothing but the stop seals a block
    node = fleet.start("reader", config, script=READS, arguments=[3000])
    await fleet.publish([order(number) for number in range(3000)])
    await fleet.said("reader", "everything was read")
    assert (await fleet.consumer())["num_ack_pending"] == 3000
    assert await fleet.stop(node) == 0
    state = await fleet.until_all_acked(3000)
    assert (state["num_pending"], state["num_redelivered"]) == (0, 0)
    verdict = await verdict_of(fleet, config)
    assert verdict.ok
    assert verdict.sentence() == "3,000 stored, 3,000 of them not compacted yet; nothing is missing"
    keys = {path.name for path in (fleet.store / "blocks" / f"stream={fleet.stream}").iterdir()}
    assert keys == {"key=eu", "key=us", "key=asia"}


async def test_a_message_that_is_no_json_is_stored_raw_with_the_reason_and_does_not_stop_the_flow(fleet):
    config = fleet.configure(limits__max_age=0.5)
    node = fleet.start("node-1", config)
    payloads = [b"no json" if number % 10 == 4 else order(number) for number in range(50)]
    await fleet.publish(payloads)
    await fleet.until_all_acked(50)
    assert await fleet.stop(node) == 0
    verdict = await verdict_of(fleet, config)
    assert verdict.ok
    assert verdict.sentence() == (
        "45 stored, 5 undecodable and kept raw, 50 of them not compacted yet; nothing is missing"
    )
    blocks = (fleet.store / "blocks" / f"stream={fleet.stream}" / "key=_undecodable").rglob("*.parquet")
    rows = pa.concat_tables([parquet.ParquetWriter().read(path.read_bytes()) for path in blocks]).to_pylist()
    assert {row["payload"] for row in rows} == {b"no json"}
    assert all(row["error"].startswith("DecodeError: JSON is malformed") for row in rows)


@pytest.mark.long
async def test_nodes_killed_at_any_moment_lose_nothing_and_every_message_is_in_the_table_once(fleet):
    payloads = []
    config = fleet.configure(ack_wait=2.0, limits__max_age=0.3, limits__max_messages=150)
    deaths = [("blocks/", 1), ("blocks/", 7), ("_entries/", 1), ("_entries/", 9)]  # before the entry; before the ack
    chance = random.Random(20_001)

    async def one_life(node):
        """Run a node to a violent death: at a chosen put, or at a moment of chance."""
        if deaths:
            process = fleet.start(node, config, script=DIES, arguments=deaths.pop())
            assert await fleet.ended(process) == -9
            return
        lived = fleet.log(node).read_text().count(f"{node} captures")
        process = fleet.start(node, config)
        await fleet.said(node, f"{node} captures", lived + 1)
        await asyncio.sleep(chance.uniform(0.0, 0.8))
        process.kill()

    async def lives(node):
        for _ in range(5):
            await one_life(node)

    async def publish(living):
        """Go on, if need be slowly, until every death has been died: it takes blocks."""
        while len(payloads) < 20_000 or not all(life.done() for life in living):
            count = 500 if len(payloads) < 20_000 else 30
            fresh = [order(number) for number in range(len(payloads), len(payloads) + count)]
            await fleet.publish(fresh)
            payloads.extend(fresh)
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        living = [tasks.create_task(lives(node)) for node in ("node-1", "node-2")]
        tasks.create_task(publish(living))
    last = fleet.start("node-3", config)
    await fleet.until_all_acked(len(payloads), within=2 * PATIENCE)
    assert await fleet.stop(last) == 0
    assert (await verdict_of(fleet, config)).ok
    assert (await fleet.consumer())["delivered"]["consumer_seq"] > len(payloads)  # the deaths did cost something
    table = await table_of(open_store(str(fleet.store)))
    assert len(table) == len(payloads)
    assert dict(table) == by_sequence(payloads)


@pytest.mark.long
async def test_a_node_whose_store_is_full_says_so_once_hands_back_and_another_gets_everything(fleet):
    sizes = [400] * 10 + [80_000] * 50  # one of the large ones alone makes a block too large
    payloads = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    config = fleet.configure(decoder="raw", limits__max_age=0.5, ack_wait=NEVER, on_store_failure="stop")
    await fleet.publish(payloads, token=lambda number: "eu" if number < 10 else "us")
    full = fleet.start("full", config, script=SMALL_FILES)
    assert await fleet.ended(full) == 1
    said = [line for line in fleet.log("full").read_text().splitlines() if line[:2] != "20"]
    assert len(said) == 1
    assert said[0].startswith("capture: ")
    assert "is full (File too large;" in said[0]
    assert "free space there" in said[0]
    assert "another store" not in said[0]
    assert "None of them was acknowledged" in said[0]
    assert (await fleet.consumer())["ack_floor"]["stream_seq"] <= 10
    node = fleet.start("node-2", config)
    await fleet.until_all_acked(60)  # far below ack_wait: they were handed back
    assert await fleet.stop(node) == 0
    assert (await verdict_of(fleet, config)).ok
    assert dict(await table_of(open_store(str(fleet.store)))) == by_sequence(payloads)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["cut", "half_open"])
async def test_a_connection_that_is_away_for_longer_than_ack_wait_heals_and_nothing_is_lost(fleet, natty_proxy, fault):
    config = fleet.configure(
        ack_wait=2.0, limits__max_age=0.5, nats__servers=natty_proxy.options["servers"], nats__ping_interval=0.5
    )
    payloads = [order(number) for number in range(6000)]
    node = fleet.start("node-1", config)
    await fleet.publish(payloads[:2000])
    await fleet.until(lambda state: state["ack_floor"]["stream_seq"] > 0)
    await fleet.publish(payloads[2000:4000])
    if fault == "cut":
        await natty_proxy.cut()
    else:
        natty_proxy.half_open()
    await asyncio.sleep(3.0)
    await natty_proxy.restore()
    await fleet.publish(payloads[4000:])
    await fleet.until_all_acked(6000)
    assert await fleet.stop(node) == 0
    assert (await verdict_of(fleet, config)).ok
    assert dict(await table_of(open_store(str(fleet.store)))) == by_sequence(payloads)


class Held(MemoryStore):
    """A store whose puts wait until it is `open`."""

    def __init__(self):
        super().__init__("held")
        self.open = asyncio.Event()

    async def put(self, path, data, *, if_absent=True):
        await self.open.wait()
        await super().put(path, data, if_absent=if_absent)


@pytest.mark.long
async def test_a_store_slower_than_ack_wait_causes_no_redelivery(fleet):
    """That there is time left when the server is told, two thirds of `ack_wait`, is a matter of tests/unit."""
    ack_wait = 6.0
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=ack_wait, max_ack_pending=50_000)
    await fleet.publish([order(number) for number in range(3000)])
    store, source = Held(), Source(fleet.natty, fleet.stream, "capture", ack_wait=ack_wait / 10)
    blocks = OpenBlocks(Limits(max_messages=1000, max_age=NEVER, interval=86_400))
    committer = Committer(store, writer("parquet"), source)
    async with source:
        run = asyncio.create_task(
            capture(
                source,
                decoder("json"),
                partitioner("subject:0"),
                blocks,
                committer.commit,
                in_flight=InFlight(blocks, 2),
            )
        )
        await fleet.until(lambda _: source.read == 3000)  # two blocks are being stored, the third one waits
        await fleet.publish([order(number) for number in range(2000)])  # these are read ahead and wait, too
        await fleet.until(lambda state: state["num_ack_pending"] == 5000)
        await asyncio.sleep(ack_wait + 1.0)
        state = await fleet.consumer()
        assert (state["ack_floor"]["stream_seq"], state["num_ack_pending"], source.read) == (0, 5000, 3000)
        store.open.set()
        await fleet.until_all_acked(5000)
        source.stop()
        await run
    state = await fleet.consumer()
    assert (state["num_redelivered"], state["delivered"]["consumer_seq"]) == (0, 5000)


@pytest.fixture
def unhurried(monkeypatch):
    """Let what is handed back in the end take the time that a busy machine needs for it."""
    for limit in (
        "capture.ingest.source.END_TIMEOUT",
        "natty.pulling.pull.DRAIN_TIMEOUT",
        "natty.wire.connection.CLOSE_TIMEOUT",
    ):
        monkeypatch.setattr(limit, PATIENCE)


async def test_what_a_failed_flow_has_read_is_handed_back_at_once(fleet, unhurried):
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=NEVER, max_ack_pending=50_000)
    await fleet.publish([order(number) for number in range(500)])

    async def failing():
        async with Source(fleet.natty, fleet.stream, "capture", ack_wait=NEVER) as source:
            async for batch in source:
                if batch:
                    raise RuntimeError("the flow failed")

    with pytest.raises(RuntimeError, match="the flow failed"):
        await failing()
    come = set()
    async with asyncio.timeout(PATIENCE), Source(fleet.natty, fleet.stream, "capture", ack_wait=NEVER) as again:
        async for batch in again:
            again.ack(batch)
            come.update(batch.sequences)
            if len(come) == 500:
                again.stop()
    await fleet.until_all_acked(500)


async def test_a_flow_that_is_cancelled_at_any_moment_ends_at_once(fleet):
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=NEVER, max_ack_pending=50_000)
    await fleet.publish([order(number) for number in range(500)])

    async def flow():
        async with Source(fleet.natty, fleet.stream, "capture", ack_wait=NEVER) as source:
            committer = Committer(MemoryStore(), writer("parquet"), source)
            await capture(source, decoder("raw"), partitioner("time"), OpenBlocks(), committer.commit)

    for moment in range(20):
        run = asyncio.create_task(flow())
        await asyncio.sleep(moment / 1000)  # 0 to 19 ms: while it subscribes, asks, is sent messages, waits
        run.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(run, return_exceptions=True)
        assert run.cancelled()


@pytest.mark.long
async def test_a_node_waits_for_a_server_that_does_not_answer_yet(fleet, natty):
    """As a cluster does while it elects the leaders of the stream and of the consumer."""
    asked = []

    def answer_later(batch):
        for subject, reply, headers, payload in batch.raw:
            asked.append(subject)
            if len(asked) > 3:
                natty.connection.send(subject.replace(b"LATE.API", b"$JS.API"), payload, reply=reply, headers=headers)

    natty.connection.subscribe("LATE.API.>", answer_later)
    await fleet.publish([order(number) for number in range(30)])
    node = fleet.start("node-1", fleet.configure(nats__api_prefix="LATE.API", nats__timeout=1.0))
    await fleet.until_all_acked(30)
    assert "not ready to capture yet, waiting: no answer on LATE.API." in fleet.log("node-1").read_text()
    assert await fleet.stop(node) == 0
