import asyncio
import os
import re
import time
from pathlib import Path

import pytest
from deposed import elected_and_asleep
from electing import vacated_archive
from patient import PATIENCE, PATIENT

from capture.archive.chain import Head
from capture.archive.heads import COMPACTION, SWEEP, TermHead
from capture.archive.identity import claim
from capture.archive.picture import read_picture
from capture.config.settings import CaptureConfig, Compacting, Sweeping
from capture.errors import FencedError
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.record import Records
from capture.ingest.source import stream_info
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.node.leader_tasks import SWEPT_WITHIN, Duty
from capture.stores import FileStore
from capture.verification.check import check
from natty import Natty
from natty.elections import BUCKET, elections

LEASE = 0.6  # seconds, of those who sleep through its end
OFFICE = 10.0  # seconds, of those who stay awake


class Ignored:
    """Where acks go that nobody waits for."""

    def ack(self, messages):
        pass

    def nak(self, messages, delay=0.0):
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


async def deposed(natty, archive, office=SWEEP):
    """Return a term that its holder believes in for ever: it was elected, and slept through the end of its lease."""
    return await elected_and_asleep(natty.election(office.election(archive), lease=LEASE, node_name="old"))


async def in_office(natty, archive, work, node="new", office=SWEEP):
    """Be elected, return what `work(term)` returns."""
    async with asyncio.timeout(PATIENCE):
        return await natty.election(office.election(archive), lease=OFFICE, node_name=node).run(work)


@pytest.fixture
async def other(nats_server):
    async with Natty(**nats_server.connect_options(), **PATIENT) as client:
        yield client


@pytest.fixture
async def archive(other, natty_name):
    return await vacated_archive(other, natty_name("lake"))


@pytest.mark.parametrize("office", [SWEEP, COMPACTION], ids=["sweep", "compaction"])
async def test_the_server_refuses_the_commit_of_a_deposed_leader(natty, other, archive, office):
    old = TermHead(await deposed(natty, archive, office), office)
    assert await old.read() is None
    await old.commit(Head(1, old.token, "1", "aa"))

    async def take_over(term):
        new = TermHead(term, office)
        assert (await new.read()).number == 1
        assert new.token > old.token
        await new.commit(Head(2, new.token, "2", "bb"))

    await in_office(other, archive, take_over, office=office)
    with pytest.raises(FencedError, match="taken over by another term"):
        await old.commit(Head(2, old.token, "2-old", "cc"))
    with pytest.raises(FencedError, match="later term"):
        await old.read()
    assert (await office.reader(natty, archive)()).path == "2"


async def test_reading_the_head_is_enough_to_shut_an_earlier_leader_out(natty, other, archive):
    old = TermHead(await deposed(natty, archive), SWEEP)
    await old.read()
    await in_office(other, archive, lambda term: TermHead(term, SWEEP).read())
    with pytest.raises(FencedError):
        await old.commit(Head(1, old.token, "_manifest/1", "aa"))
    assert await SWEEP.reader(natty, archive)() is None


async def test_an_archive_that_nobody_ever_led_has_no_head(natty, archive):
    assert await SWEEP.reader(natty, archive)() is None
    assert await COMPACTION.reader(natty, archive)() is None


async def test_the_two_offices_are_two_elections_and_neither_fences_the_other(natty, other, archive):
    async def work(sweep_term):
        async def compact(term):
            await TermHead(term, COMPACTION).commit(Head(1, term.token, "table", "aa"))
            await TermHead(sweep_term, SWEEP).commit(Head(1, sweep_term.token, "manifest", "bb"))
            return [await elections_of(natty, archive), await natty.get_leader(COMPACTION.election(archive))]

        return await in_office(other, archive, compact, "compactor", COMPACTION)

    found = await in_office(natty, archive, work, "sweeper")
    assert found == [[f"capture.{archive}", f"capture.{archive}.compaction"], "compactor"]
    assert (await SWEEP.reader(natty, archive)()).path == "manifest"
    assert (await COMPACTION.reader(natty, archive)()).path == "table"


async def elections_of(natty, archive):
    return [name for name in await elections(natty.jetstream, BUCKET) if archive in name]


def swept(natty, archive, store, *, now=0.0, grace=900.0):
    """Return the work of a leader that sweeps once."""

    async def work(term):
        head = TermHead(term, SWEEP)
        leading = Leading(store, head, COMPACTION.reader(natty, archive), grace=grace)
        return await sweep(leading, now=now)

    return work


async def test_a_deposed_leaders_sweep_is_fenced_and_deletes_nothing(natty, other, archive, tmp_path):
    store = FileStore(tmp_path)
    term = await deposed(natty, archive)
    first = await stored(store, 1, 2)
    await swept(natty, archive, store)(term)
    await in_office(other, archive, swept(other, archive, store))
    await stored(store, 3, 4)
    await store.put("blocks/stream=ORDERS/key=eu/date=2026-10-20/hour=00/ORDERS-9-9-1-leftover.parquet", b"x")
    before = {one.path for one in await store.list() if not one.path.startswith("_manifest/")}
    with pytest.raises(FencedError):
        await swept(natty, archive, store, now=1e12, grace=0.0)(term)  # all that it may delete, it would delete now
    assert {one.path for one in await store.list() if not one.path.startswith("_manifest/")} == before
    picture = await read_picture(store, SWEEP.reader(natty, archive), COMPACTION.reader(natty, archive))
    assert [one.path for one in picture.blocks] == [first.path]


async def test_what_a_deposed_leader_could_not_commit_its_successor_does(natty, other, archive, tmp_path):
    store = FileStore(tmp_path)
    term = await deposed(natty, archive)
    await stored(store, 1, 2)
    await in_office(other, archive, lambda term: TermHead(term, SWEEP).read())
    with pytest.raises(FencedError):
        await swept(natty, archive, store)(term)
    report = await in_office(other, archive, swept(other, archive, store), node="third")
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
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_leaders_work_ends_with_its_term_and_leaves_no_spark(
    natty_proxy, other, archive, tmp_path, renewed_often
):
    store = FileStore(tmp_path)
    config = CaptureConfig(
        stream="ORDERS",
        store=str(tmp_path),
        archive=archive,
        sweep=Sweeping(every=0.2),
        compaction=Compacting(every=0.2, min_files=1, max_wait=0.0),
    )
    before, tokens, count = spark_processes(), [], 0

    async def rows():
        picture = await read_picture(store, SWEEP.reader(other, archive), COMPACTION.reader(other, archive))
        return sum(one.count for one in picture.files)

    async def compacted(count):
        async with asyncio.timeout(4 * PATIENCE):  # Spark is started meanwhile
            while await rows() < count:
                assert not candidacy.done(), candidacy.result()
                await asyncio.sleep(0.1)

    async with Natty(**natty_proxy.options, **PATIENT | {"ping_interval": 0.5}) as natty:
        sweeping = asyncio.create_task(
            other.election(SWEEP.election(archive), lease=PATIENCE).run(Duty(other, store, config, "").sweep)
        )
        duty, name = Duty(natty, store, config, "node"), COMPACTION.election(archive)
        election = natty.election(name, lease=8.0, node_name="node", on_elected=tokens.append)
        candidacy = asyncio.create_task(election.run(duty.compact))
        while not election.is_leader() or len(spark_processes() - before) < 2:  # again, if a stall has ended the term
            count += 2
            await stored(store, count - 1, count)
            await compacted(count)
        token = election.term.token
        async with asyncio.timeout(PATIENCE):
            while not duty.compaction.runs:  # it is noted after the commit
                await asyncio.sleep(0.02)
        run = duty.compaction.runs[-1]
        assert (run.error, run.rows >= run.inputs > 0, run.outputs) == ("", True, 1)
        natty_proxy.half_open()
        await stored(store, count + 1, count + 2)
        async with asyncio.timeout(PATIENCE):
            while election.term is not None:
                await asyncio.sleep(0.02)
        assert spark_processes() - before == set()  # joined: not only told to end
        await natty_proxy.restore()
        await compacted(count + 2)  # back in office, by a new election
        assert tokens[-1] > token
        candidacy.cancel()
        sweeping.cancel()
        await asyncio.gather(candidacy, sweeping, return_exceptions=True)
    assert spark_processes() - before == set()


async def test_a_compaction_that_failed_says_when_it_runs_again_and_is_logged_once(natty, natty_name, tmp_path, caplog):
    """No Spark is started: the manifest can't be read."""
    archive, store = natty_name("lake"), FileStore(tmp_path)
    config = CaptureConfig(
        stream="ORDERS", store=str(tmp_path), archive=archive, compaction=Compacting(every=0.2, min_files=1)
    )
    await stored(store, 1, 2)
    duty = Duty(natty, store, config, "node")

    async def damage(term):
        await sweep(Leading(store, TermHead(term, SWEEP), COMPACTION.reader(natty, archive), grace=900.0), now=0.0)
        head = await SWEEP.reader(natty, archive)()
        await store.put(head.path, b"{", if_absent=False)

    await vacated_archive(natty, archive)
    await natty.election(SWEEP.election(archive), lease=OFFICE).run(damage)
    candidacy = asyncio.create_task(natty.election(COMPACTION.election(archive), lease=OFFICE).run(duty.compact))
    said = re.compile(r"the compaction failed: .*; it runs again at \d\d:\d\d:\d\d UTC").fullmatch
    found, runs = set(), []
    async with asyncio.timeout(PATIENCE):
        while len(found) < 2:  # it has failed again
            assert not candidacy.done(), candidacy.result()
            await asyncio.sleep(0.02)
            found |= {text for text in duty.failing.values() if said(text)}
            runs = duty.compaction.runs if duty.compaction else runs
    assert runs
    assert all(one.error in found and (one.inputs, one.outputs) == (0, 0) for one in runs[:1])
    candidacy.cancel()
    await asyncio.gather(candidacy, return_exceptions=True)
    assert duty.compaction is None  # another node may lead it now
    assert len([one for one in caplog.records if "the compaction failed" in one.message]) == 1


@pytest.mark.long
async def test_a_compaction_without_a_manifest_says_when_it_looks_again(natty, natty_name, tmp_path):
    """No Spark is started: nothing was swept."""
    archive = natty_name("lake")
    config = CaptureConfig(stream="ORDERS", store=str(tmp_path), archive=archive, compaction=Compacting(every=900.0))
    duty = Duty(natty, FileStore(tmp_path), config, "node")
    candidacy = asyncio.create_task(natty.election(COMPACTION.election(archive), lease=OFFICE).run(duty.compact))
    async with asyncio.timeout(PATIENCE):
        while not (duty.compaction and duty.compaction.next):
            assert not candidacy.done(), candidacy.result()
            await asyncio.sleep(0.02)
    assert duty.compaction.next <= time.time() + SWEPT_WITHIN
    assert duty.compaction.runs == []
    candidacy.cancel()
    await asyncio.gather(candidacy, return_exceptions=True)


async def test_what_is_not_acknowledged_yet_is_not_called_missing(natty, natty_name, tmp_path):
    stream = natty_name("BEHIND")
    await natty.ensure_stream(stream, subjects=[f"{stream}.>"])
    await natty.ensure_consumer(stream, "capture")
    for number in range(3):
        await natty.publish(f"{stream}.{number}", b"{}")
    config = CaptureConfig(stream=stream, store=str(tmp_path), archive=natty_name("archive"))
    await claim(FileStore(tmp_path), config.name, stream, (await stream_info(natty, stream))["created"])
    found = await check(natty, config, FileStore(tmp_path))
    assert (found.ok, found.unacknowledged) == (True, 3)
    assert found.sentence() == "nothing stored; nothing is missing; 3 newer messages are not acknowledged yet"

    taken = 0
    async for batch in (pull := natty.pull(stream, "capture")):
        pull.ack(batch.replies)  # and nobody has stored them
        pull.finish(len(batch))
        if (taken := taken + len(batch)) >= 3:
            pull.stop()
    async with asyncio.timeout(PATIENCE):  # the server takes them in when it likes
        while (await natty.jetstream.request(f"CONSUMER.INFO.{stream}.capture"))["num_ack_pending"]:
            await asyncio.sleep(0.02)
    found = await check(natty, config, FileStore(tmp_path))
    assert (found.ok, len(found.verdict.missing), found.unacknowledged) == (False, 3, 0)
