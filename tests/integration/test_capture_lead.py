import asyncio
import os
from pathlib import Path

import pytest
from deposed import elected_and_asleep

from capture.block import SealedBlock
from capture.commit import CommitOptions, Committer
from capture.config import CaptureConfig, Compacting, Sweeping
from capture.errors import Fenced
from capture.head import TermHead, election_name, read_head
from capture.lead import Duty
from capture.manifest import Head, read_manifest
from capture.record import Records
from capture.report import check
from capture.stores import FileStore
from capture.sweep import sweep
from capture.writers import writer
from natty import Natty

LEASE = 0.6  # seconds


class Ignored:
    """Where acks go that nobody waits for."""

    def ack(self, replies):
        pass

    def nak(self, replies, delay=0.0):
        pass


async def stored(store, *sequences):
    """Store a block with its entry, as a node does."""
    count = len(sequences)
    records = Records(
        "ORDERS",
        list(sequences),
        [1_792_540_800 * 10**9] * count,
        [b"orders.eu"] * count,
        [b""] * count,
        [b"{}"] * count,
        [1] * count,
        [b"reply"] * count,
        [None] * count,
    )
    block = SealedBlock("ORDERS", "eu", 1_792_540_800, records, "age")
    return await Committer(store, writer("parquet"), Ignored(), CommitOptions(node="node")).commit(block)


async def deposed(natty, archive):
    """Return a term that its holder believes in for ever: it was elected, and slept through the end of its lease."""
    return await elected_and_asleep(natty.election(election_name(archive), lease=LEASE, node_name="old"))


async def in_office(natty, archive, work, node="new"):
    """Be elected, return what `work(term)` returns."""
    async with asyncio.timeout(20):
        return await natty.election(election_name(archive), lease=LEASE, node_name=node).run(work)


@pytest.fixture
async def other(nats_server):
    async with Natty(**nats_server.connect_options()) as client:
        yield client


@pytest.fixture
def archive(natty_name):
    return natty_name("lake")


async def test_the_server_refuses_the_commit_of_a_deposed_leader(natty, other, archive):
    old = TermHead(await deposed(natty, archive))
    assert await old.read() is None
    await old.commit(Head(1, old.token, "_manifest/1", "aa"))

    async def take_over(term):
        new = TermHead(term)
        assert (await new.read()).number == 1
        assert new.token > old.token
        await new.commit(Head(2, new.token, "_manifest/2", "bb"))

    await in_office(other, archive, take_over)
    with pytest.raises(Fenced, match="taken over by another term"):
        await old.commit(Head(2, old.token, "_manifest/2-old", "cc"))
    with pytest.raises(Fenced, match="later term"):
        await old.read()
    assert (await read_head(natty, archive)).path == "_manifest/2"


async def test_reading_the_head_is_enough_to_shut_an_earlier_leader_out(natty, other, archive):
    old = TermHead(await deposed(natty, archive))
    await old.read()
    await in_office(other, archive, lambda term: TermHead(term).read())
    with pytest.raises(Fenced):
        await old.commit(Head(1, old.token, "_manifest/1", "aa"))
    assert await read_head(natty, archive) is None


async def test_an_archive_that_nobody_ever_led_has_no_head(natty, archive):
    assert await read_head(natty, archive) is None


async def test_a_deposed_leaders_sweep_is_fenced_and_deletes_nothing(natty, other, archive, tmp_path):
    store = FileStore(tmp_path)
    old = TermHead(await deposed(natty, archive))
    first = await stored(store, 1, 2)
    await sweep(store, old, now=0.0)
    await in_office(other, archive, lambda term: sweep(store, TermHead(term), now=0.0))
    await stored(store, 3, 4)
    await store.put("blocks/stream=ORDERS/key=eu/date=2026-10-20/hour=00/ORDERS-9-9-1-leftover.parquet", b"x")
    before = {one.path for one in await store.list() if not one.path.startswith("_manifest/")}
    with pytest.raises(Fenced):
        await sweep(store, old, now=1e12, grace=0.0)  # all that it may delete, it would delete now
    assert {one.path for one in await store.list() if not one.path.startswith("_manifest/")} == before
    manifest = await read_manifest(store, await read_head(natty, archive))
    assert [one.path for one in manifest.blocks] == [first.path]


async def test_what_a_deposed_leader_could_not_commit_its_successor_does(natty, other, archive, tmp_path):
    store = FileStore(tmp_path)
    old = TermHead(await deposed(natty, archive))
    await stored(store, 1, 2)
    await in_office(other, archive, lambda term: TermHead(term).read())
    with pytest.raises(Fenced):
        await sweep(store, old, now=0.0)
    report = await in_office(other, archive, lambda term: sweep(store, TermHead(term), now=0.0), node="third")
    assert (report.adopted, report.messages) == (1, 2)


def spark_processes():
    """Return the ids of our own processes' Spark drivers and Java machines: children of this process, and theirs."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    ours, found = {os.getpid()}, set()
    while more := {pid for pid, parent in parents.items() if parent in ours} - found:
        found |= more
        ours = more
    return {pid for pid in found if _command(pid) & {b"__main__.py", b"java"}}


def _command(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return set()
    return {word.rpartition(b"/")[2] for word in words}


@pytest.mark.spark
async def test_the_leaders_work_ends_with_its_term_and_leaves_no_spark(natty_proxy, other, archive, tmp_path):
    store = FileStore(tmp_path)
    config = CaptureConfig(
        stream="ORDERS",
        store=str(tmp_path),
        archive=archive,
        sweep=Sweeping(every=0.2),
        compaction=Compacting(every=0.2, min_files=1, max_wait=0.0),
    )
    await stored(store, 1, 2)
    before = spark_processes()

    async def rows():
        manifest = await read_manifest(store, await read_head(other, archive))
        return sum(one.count for one in manifest.table)

    async with Natty(**natty_proxy.options, ping_interval=0.5) as natty:
        duty = Duty(store, config, "node")
        election = natty.election(election_name(archive), lease=1.0, node_name="node")
        candidacy = asyncio.create_task(election.run(duty.lead))
        async with asyncio.timeout(60):
            while await rows() < 2:
                assert not candidacy.done(), candidacy.result()
                await asyncio.sleep(0.1)
        assert len(spark_processes() - before) >= 2
        token = election.term.token
        await stored(store, 3, 4)
        natty_proxy.half_open()
        async with asyncio.timeout(10):
            while election.term is not None:
                await asyncio.sleep(0.02)
        assert spark_processes() - before == set()  # joined: not only told to end
        await natty_proxy.restore()
        async with asyncio.timeout(30):  # back in office, by a new election
            while await rows() < 4:
                await asyncio.sleep(0.1)
        assert election.term.token > token
        candidacy.cancel()
        await asyncio.gather(candidacy, return_exceptions=True)
    assert spark_processes() - before == set()


async def test_a_manifest_that_comes_too_late_is_refused_even_in_its_own_term(natty, natty_name):
    archive = natty_name("LATE")

    async def work(term):
        head = TermHead(term)
        assert await head.read() is None
        await head.commit(Head(2, term.token, "_manifest/two", "ab"))
        with pytest.raises(Fenced, match="manifest 2 is committed; 1 came too late"):
            await head.commit(Head(1, term.token, "_manifest/one", "cd"))
        return (await head.read()).number

    assert await natty.election(election_name(archive), lease=LEASE).run(work) == 2


async def test_what_is_not_acknowledged_yet_is_not_called_missing(natty, natty_name, tmp_path):
    stream = natty_name("BEHIND")
    await natty.ensure_stream(stream, subjects=[f"{stream}.>"])
    await natty.ensure_consumer(stream, "capture")
    for number in range(3):
        await natty.publish(f"{stream}.{number}", b"{}")
    config = CaptureConfig(stream=stream, store=str(tmp_path), archive=natty_name("archive"))
    found = await check(natty, config, FileStore(tmp_path))
    assert (found.ok, found.unacknowledged) == (True, 3)
    assert found.sentence() == "nothing stored; nothing is missing; 3 newer ones are not acknowledged yet"

    taken = 0
    async for batch in (pull := natty.pull(stream, "capture")):
        pull.ack(batch.replies)  # and nobody has stored them
        pull.finished(len(batch))
        if (taken := taken + len(batch)) == 3:
            pull.stop()
    await natty.connection.flush()
    found = await check(natty, config, FileStore(tmp_path))
    assert (found.ok, len(found.verdict.missing), found.unacknowledged) == (False, 3, 0)
