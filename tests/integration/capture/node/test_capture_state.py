"""What leaders and nodes publish, on a real server; and what of it a deposed leader can't."""

import asyncio
import itertools
import logging
import time

import msgspec
import pytest
from deposed import elected_and_asleep
from electing import vacated_archive
from patient import PATIENCE, PATIENT, until
from troubles import texts

from capture.archive import chain
from capture.archive.heads import COMPACTION, SWEEP, TermHead
from capture.archive.manifest import Manifest
from capture.archive.retention import Rule
from capture.archive.sequences import Sequences
from capture.config.settings import CaptureConfig, Sweeping
from capture.formats import writer
from capture.ingest import board as state_of_archives
from capture.ingest.block import SealedBlock
from capture.ingest.board import (
    BUCKET,
    NODE_TTL,
    ArchiveState,
    Board,
    NodeState,
    announce,
    keep_announcing,
    server_time,
)
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.record import Records
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.table_commits import TableLeading
from capture.node.leader_tasks import Duty, Sweeps
from capture.stores import open_store
from capture.testing import ArrowEngine
from natty import BucketNotFoundError, Natty, NattyError

OFFICE = 30.0  # seconds
ACK_WAIT = 30.0  # seconds, the server's default
DAY = 86_400
STATE = ArchiveState(
    archive="",
    leader="old",
    token=1,
    term=1,
    since=0.0,
    swept=0.0,
    seconds=0.0,
    every=10.0,
    manifest=1,
    blocks=0,
    messages=0,
    bytes=0,
)


@pytest.fixture
async def archive(natty, natty_name):
    return await vacated_archive(natty, natty_name("lake"))


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of ten messages that a durable is to get."""
    name = natty_name("ORDERS")
    await natty.ensure_stream(name, subjects=[f"{name}.>"])
    await natty.ensure_consumer(name, "capture")
    for number in range(10):
        await natty.publish(f"{name}.eu", b"%d" % number)
    return name


class Captured:
    """A stream whose messages are stored, block by block, and acknowledged as a node does it."""

    def __init__(self, natty, stream, archive, folder, **settings):
        self.natty, self.stream, self.store = natty, stream, open_store(str(folder))
        self.config = CaptureConfig(
            stream=stream, store=str(folder), archive=archive, sweep=Sweeping(every=0.2), **settings
        )
        self.duty = Duty(natty, self.store, self.config, "node-1", elapsed=lambda: self.elapsed)
        self.elapsed = 0.0

    async def ack(self, last, messages=None):
        """Acknowledge so many messages, up to this sequence."""
        taken, count = 0, last if messages is None else messages
        pull = self.natty.pull(self.stream, "capture", max_messages=count)
        async for batch in pull:
            pull.ack(batch.replies[: count - taken])
            pull.finish(len(batch))
            if (taken := taken + len(batch)) >= count:
                pull.stop()
        async with asyncio.timeout(PATIENCE):  # the server takes them in when it likes
            while (await self.info())["ack_floor"]["stream_seq"] < last:
                await asyncio.sleep(0.02)

    async def info(self):
        return await self.natty.jetstream.request(f"CONSUMER.INFO.{self.stream}.capture")

    async def block(self, *sequences, age=0.0):
        """Store a block, its messages so many seconds old by the server's clock."""
        at = (await self.server_time()) - age
        count = len(sequences)
        columns = [int(at * 1e9)] * count, [b"s"] * count, [b""] * count, [b"{}"] * count, [1] * count
        records = Records(self.stream, list(sequences), *columns, [b"reply"] * count, [None] * count)
        block = SealedBlock(self.stream, "eu", int(at // 3600) * 3600, records, "age")
        return await Committer(self.store, writer("parquet"), Ignored(), CommitOptions(node="node-1")).commit(block)

    async def server_time(self):
        return server_time(await self.natty.jetstream.request(f"STREAM.INFO.{self.stream}"))

    async def lead(self, work, office=SWEEP):
        async with asyncio.timeout(PATIENCE):
            name = office.election(self.config.name)
            return await self.natty.election(name, lease=OFFICE, node_name="node-1").run(work)

    async def swept(self, *, wait=0.0):
        """Sweep once as the leader, and once more after so many seconds; return the published state."""

        async def work(term):
            sweeps = Sweeps(self.duty, term)
            await sweeps.run()
            if wait:
                self.elapsed += wait
                await sweeps.run()

        await self.lead(work)
        return (await self.view()).state

    async def view(self):
        return await Board(self.natty, self.config.name).read()


class Ignored:
    def ack(self, messages):
        pass

    def nak(self, messages, delay=0.0):
        pass


@pytest.fixture
def captured(natty, stream, archive, tmp_path):
    return lambda **settings: Captured(natty, stream, archive, tmp_path / "lake", **settings)


async def test_each_sweep_publishes_what_is_stored_and_what_lacks(captured):
    archive = captured()
    assert (await archive.view()).state is None
    await archive.block(2, 3)
    await archive.block(3, 5, 6)
    await archive.ack(8)
    state = await archive.swept()
    assert (state.archive, state.leader, state.adopted, state.unadopted) == (archive.config.name, "node-1", 2, 0)
    assert (state.manifest, state.blocks, state.messages, state.files) == (2, 2, 5, 0)
    assert state.token > 0
    (found,) = state.streams
    assert (found.first, found.last, found.acked, found.pending + found.unacked) == (1, 10, 8, 2)
    assert (found.held, found.overlaps, found.gaps, found.gaps_are) == (4, 1, 3, "4, 7–8")
    assert (found.missing, found.awaited, found.awaited_are) == (0, 3, "4, 7–8")
    assert found.lag is not None
    view = await archive.view()
    assert view.ago < PATIENCE
    assert view.troubles(leader="node-1") == []


async def test_what_no_node_has_stored_within_ack_wait_is_missing_if_the_sweep_can_not_store_it(captured):
    archive = captured()
    await archive.block(1, 3)
    await archive.ack(4)
    (found,) = (await archive.swept(wait=ACK_WAIT - 1)).streams
    assert (found.missing, found.awaited_are) == (0, "2, 4")
    (found,) = (await archive.swept(wait=ACK_WAIT)).streams
    assert (found.missing, found.missing_are, found.awaited) == (2, "2, 4", 0)
    assert texts((await archive.view()).troubles(leader="node-1")) == [
        f"2 acknowledged messages of {archive.stream} are MISSING (2, 4); the stream has them, and the next sweep tries"
        " again to store them: this node stores nothing"
    ]


async def test_nothing_is_missing_while_a_node_holds_messages_that_it_read_before(natty, captured):
    archive = captured()
    board, node = Board(natty, archive.config.name), NodeState(node="node-2", version="", since=0.0, every=10.0)
    await archive.block(1, 3)
    await archive.ack(4)
    await board.announce(msgspec.structs.replace(node, pending=2, oldest=10 * ACK_WAIT))
    (found,) = (await archive.swept(wait=ACK_WAIT)).streams
    assert (found.missing, found.awaited_are) == (0, "2, 4")
    await board.announce(msgspec.structs.replace(node, pending=2, oldest=ACK_WAIT / 10))
    (found,) = (await archive.swept(wait=ACK_WAIT)).streams
    assert (found.missing_are, found.awaited) == ("2, 4", 0)


async def test_what_the_stream_has_deleted_or_purged_is_a_gap_and_not_missing(natty, captured):
    archive = captured()
    await archive.block(1, 2, 5)
    await archive.ack(5)
    await natty.jetstream.request(f"STREAM.MSG.DELETE.{archive.stream}", {"seq": 4})
    (found,) = (await archive.swept(wait=ACK_WAIT)).streams
    assert (found.gaps, found.missing_are) == (2, "3")
    await natty.jetstream.request(f"STREAM.PURGE.{archive.stream}", {"seq": 5})
    (found,) = (await archive.swept()).streams
    assert (found.gaps_are, found.missing, found.missing_are) == ("3–4", 0, "")


async def test_of_a_stream_of_which_not_every_subject_is_captured_only_those_subjects_are_awaited(natty, captured):
    archive = captured()
    await natty.delete_consumer(archive.stream, "capture")
    for _ in range(3):
        await natty.publish(f"{archive.stream}.us", b"11 to 13")
    await natty.publish(f"{archive.stream}.eu", b"14")
    await natty.ensure_consumer(archive.stream, "capture", filter_subjects=[f"{archive.stream}.eu"])
    await archive.block(1, 3, 6, 7, 8, 9, 10)
    await archive.ack(14, messages=11)
    (found,) = (await archive.swept()).streams
    assert (found.gaps, found.missing, found.awaited_are) == (7, 0, "2, 4–5, 14")


async def test_what_is_wrong_is_logged_once_and_again_when_it_changes(captured, caplog):
    caplog.set_level(logging.INFO, "capture.lead")
    archive = captured()
    lost = await archive.block(1, 2)
    await archive.ack(3)
    await archive.store.delete(lost.path)

    def told():
        return [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "sweep_found"]

    async def work(term):
        sweeps = Sweeps(archive.duty, term)
        for _ in range(3):
            await sweeps.run()
        assert told() == [f"the sweep found: {lost.path} is named by an entry and missing"]
        await archive.block(3)
        for _ in range(2):
            await sweeps.run()
        assert told()[1:] == []  # nothing before the first that is held is a gap
        await archive.block(1)
        for _ in range(2):
            await sweeps.run()
        archive.elapsed += ACK_WAIT
        for _ in range(2):
            await sweeps.run()

    await archive.lead(work)
    assert told()[1:] == [
        f"the sweep found: 1 message of {archive.stream} counts as acknowledged and is not stored yet (2): the sweep"
        " stores those that no node has stored within 30 s",
        f"the sweep found: 1 acknowledged message of {archive.stream} is MISSING (2); the stream has them, and the"
        " next sweep tries again to store them: this node stores nothing",
    ]
    assert (await archive.view()).state.dangling == [lost.path]


async def test_a_deposed_leader_does_not_overwrite_its_successors_state(natty, nats_server, captured):
    archive = captured()
    election = natty.election(SWEEP.election(archive.config.name), lease=0.6, node_name="old")
    old = await elected_and_asleep(election)
    board = Board(natty, archive.config.name)
    assert await board.publish(msgspec.structs.replace(STATE, term=old.number, token=old.token))
    async with Natty(**nats_server.connect_options(), **PATIENT) as other:
        archive.natty = archive.duty.natty = other
        newer = await archive.swept()
        assert newer.term > old.number
        assert not await board.publish(msgspec.structs.replace(STATE, term=old.number, token=10**9))
        assert (await archive.view()).state == newer
        assert await board.publish(msgspec.structs.replace(newer, manifest=99))
        assert (await archive.view()).state.manifest == 99


async def test_a_state_that_can_not_be_published_stops_no_sweep_and_is_told_of(captured, caplog, monkeypatch):
    archive = captured()
    one = await archive.block(1)

    async def refused(board, state):
        raise NattyError("you may not")

    monkeypatch.setattr(Board, "publish", refused)
    await archive.swept()
    assert "the sweep found: the state is not published: you may not" in caplog.text
    assert await archive.store.list("_entries/") == []
    assert await archive.store.list(one.path) != []


async def test_retention_by_age_and_size_removes_blocks_and_files_and_is_published(natty, captured):
    archive = captured(retention=[Rule(key="eu", older_than=DAY)])
    old, young = await archive.block(1, 2, age=2 * DAY), await archive.block(3)
    await archive.ack(3)
    state = await archive.swept()
    assert (state.adopted, state.expired, state.blocks, state.removed_objects) == (2, 1, 1, 1)
    assert state.removed_bytes == old.bytes
    (found,) = state.streams
    assert (found.held, found.removed, found.gaps, found.missing) == (1, 2, 0, 0)
    assert await archive.store.list(old.path) != []  # for as long as the grace

    async def work(term):
        head, manifest = TermHead(term, COMPACTION), SWEEP.reader(natty, archive.config.name)
        leading, policy = TableLeading(archive.store, head, manifest, "node-1"), Policy(min_files=1, max_wait=0.0)
        await compact(leading, ArrowEngine(), policy, now=await archive.server_time())
        by_age = msgspec.structs.replace(archive.config, retention=[Rule(older_than=DAY / 2)])
        ahead = Duty(natty, archive.store, by_age, "", clock=lambda: time.time() + DAY)
        report = await ahead.compact_once(ahead.lead_compaction(term), ArrowEngine())
        assert report.expired == 0, "by its own clock alone"
        duty = Duty(natty, archive.store, msgspec.structs.replace(archive.config, retention=[Rule(keep_bytes=1)]), "")
        return await duty.compact_once(duty.lead_compaction(term), ArrowEngine())

    assert (await archive.lead(work, COMPACTION)).expired == 1
    state = await archive.swept()
    assert (state.files, state.removed_objects, state.compactor) == (0, 2, "")
    (found,) = state.streams
    assert (found.held, found.removed, found.missing) == (0, 3, 0)
    assert young.count == 1
    await natty.jetstream.request(f"STREAM.PURGE.{archive.stream}", {"seq": 6})  # it begins with 6 from now on
    await archive.block(5, age=2 * DAY)  # 4 was never stored
    (found,) = (await archive.swept()).streams
    assert (found.held, found.removed, found.gaps) == (0, 5, 0)
    manifest = await chain.read(archive.store, await SWEEP.reader(natty, archive.config.name)(), Manifest)
    assert [(one.below, list(Sequences.from_text(one.sequences))) for one in manifest.removed] == [(5, [5])]


async def test_a_leader_whose_clock_is_ahead_removes_nothing_too_early(captured):
    archive = captured(retention=[Rule(older_than=DAY)])
    archive.duty.clock = lambda: 4e9
    await archive.block(1)
    leftover = "blocks/leftover"
    await archive.store.put(leftover, b"x")
    state = await archive.swept()
    assert (state.expired, state.blocks) == (0, 1)
    assert await archive.store.list(leftover) != []


async def test_a_node_is_heard_of_while_it_runs_and_not_when_it_has_stopped(natty, archive):
    board = Board(natty, archive)
    messages = itertools.count()

    def state():
        return NodeState(node="a.b/ü 1", version="1", since=5.0, every=0.05, stored={"messages": next(messages)})

    async with announce(board, "a.b/ü 1", state), asyncio.timeout(PATIENCE):
        while not (view := await board.read()).nodes or view.nodes[0].node.stored["messages"] < 3:
            await asyncio.sleep(0.02)
        (heard,) = view.nodes
        assert (heard.node.node, heard.node.since) == ("a.b/ü 1", 5.0)
        (key,) = await natty.bucket(BUCKET).keys(f"node.{archive}.*")
        assert (await natty.bucket(BUCKET).get(key)).ttl == NODE_TTL
    assert (await board.read()).nodes == []


async def test_a_node_whose_announcement_fails_stays_on_the_board(natty, archive):
    board, calls = Board(natty, archive), itertools.count()

    def state():
        if next(calls) == 1:
            raise ValueError("unforeseen")
        return NodeState(node="a", version="", since=0.0, every=0.01)

    with pytest.raises(ValueError, match="unforeseen"):
        await keep_announcing(board, state)
    assert [one.node.node for one in (await board.read()).nodes] == ["a"]


BAD_NODES = {
    "text": b"junk",
    "utf8": b'{"node":"\xff"}',
    "nested": b"[" * 100_000,
    "future": b'{"node":"x","version":"1","since":1e300,"every":1}',
    "infinite": b'{"node":"x","version":"1","since":1e400,"every":1}',
    "negative": b'{"node":"x","version":"1","since":0,"every":1,"pending":-1}',
    "huge": b'{"node":"x","version":"1","since":0,"every":1,"stored":{"messages":1' + b"0" * 400 + b"}}",
}
NO_KEYS = b"\xff", "\N{GREEK SMALL LETTER BETA}".encode()  # ADR-8 allows neither


async def test_keys_that_can_not_be_read_are_named_and_logged_once_and_the_others_read(natty, archive, caplog):
    board = Board(natty, archive)
    await board.announce(NodeState(node="good", version="", since=0.0, every=1.0))
    for key, value in BAD_NODES.items():
        await natty.publish(f"$KV.{BUCKET}.node.{archive}.{key}", value)
    for name in NO_KEYS:
        natty.connection.send(f"$KV.{BUCKET}.node.{archive}.".encode() + name, b"under a name that is no key")
    await natty.connection.flush(PATIENCE)
    for _ in range(2):
        view = await board.read()
        assert [one.node.node for one in view.nodes] == ["good"]
        assert len(view.unreadable) == len(BAD_NODES)
        assert set(view.unreadable) <= set(texts(view.troubles(leader="one")))
    told = [one for one in caplog.records if getattr(one, "action", "") == "bad_record" and archive in one.getMessage()]
    assert len(told) == len(BAD_NODES)
    skipped = {one.args[1] for one in caplog.records if getattr(one, "action", "") == "bad_key"}
    assert {f"node.{archive}.".encode() + name for name in NO_KEYS} <= skipped


async def test_of_very_many_nodes_some_are_read_and_the_rest_is_counted(natty, archive, monkeypatch):
    monkeypatch.setattr(state_of_archives, "MOST_NODES", 25)
    board = Board(natty, archive)
    for number in range(30):
        await board.announce(NodeState(node=f"n{number:02}", version="", since=0.0, every=1.0))
    view = await board.read()
    assert [one.node.node for one in view.nodes] == [f"n{number:02}" for number in range(25)]
    assert view.unreadable == [f"bucket {BUCKET} has 30 nodes of {archive}: 25 were read"]


@pytest.mark.parametrize(
    "there",
    [
        b"\xff",
        b"[" * 100_000,
        b'{"term":9000000000000000000}',
        msgspec.json.encode(msgspec.structs.replace(STATE, term=2**53 - 1)),
        msgspec.json.encode({"term": 2000}),  # no more of a state than this
    ],
)
async def test_a_state_that_no_leader_can_have_published_is_overwritten(natty, archive, there):
    board, ours = Board(natty, archive), msgspec.structs.replace(STATE, archive=archive, term=1000)
    await natty.create_bucket(BUCKET)
    await natty.put(BUCKET, f"archive.{archive}", there)
    assert await board.publish(ours)
    assert (await board.read()).state == ours
    later = msgspec.structs.replace(ours, term=1001, leader="later")
    assert await board.publish(later)
    assert not await board.publish(ours)
    assert (await board.read()).state == later


async def test_an_archive_whose_name_begins_like_anothers_has_its_own_nodes(natty, archive):
    for name, node in ((archive, "b"), (f"{archive}.b", "c")):
        await Board(natty, name).announce(NodeState(node=node, version="", since=0.0, every=1.0))
    assert [one.node.node for one in (await Board(natty, archive).read()).nodes] == ["b"]
    assert [one.node.node for one in (await Board(natty, f"{archive}.b").read()).nodes] == ["c"]


async def test_whoever_is_first_makes_the_bucket(natty, archive):
    await natty.delete_bucket(BUCKET)
    board = Board(natty, archive)
    assert ((await board.read()).state, (await board.read()).nodes) == (None, [])
    with pytest.raises(BucketNotFoundError):
        await natty.status(BUCKET)
    await asyncio.gather(*(board.announce(NodeState(node=n, version="", since=0.0, every=1.0)) for n in "abc"))
    assert {one.node.node for one in (await board.read()).nodes} == set("abc")


async def test_a_node_that_can_not_be_heard_says_so_once_and_goes_on(natty, archive, caplog, monkeypatch):
    board, tries = Board(natty, archive), []

    async def refused(board, node):
        tries.append(node)
        raise NattyError("you may not")

    monkeypatch.setattr(Board, "announce", refused)
    talking = asyncio.create_task(
        keep_announcing(board, lambda: NodeState(node="a", version="", since=0.0, every=0.01))
    )
    await until(lambda: len(tries) > 3)
    talking.cancel()
    await asyncio.gather(talking, return_exceptions=True)
    assert caplog.text.count("the state of a is not published: you may not") == 1


async def test_sweeps_of_a_capture_without_a_consumer_ask_for_deleted_sequences_only_if_there_are_others(
    captured, monkeypatch
):
    """A stream may have millions of them."""
    archive, listings = captured(source="direct"), []
    request = archive.natty.jetstream.request

    async def note(subject, body=None, **options):
        listings.extend([subject] if body and "deleted_details" in body else [])
        return await request(subject, body, **options)

    monkeypatch.setattr(archive.natty.jetstream, "request", note)

    async def delete(sequence):
        await request(f"STREAM.MSG.DELETE.{archive.stream}", {"seq": sequence, "no_erase": True})

    async def work(term):
        sweeps = Sweeps(archive.duty, term)

        async def sweep():
            listings.clear()
            await sweeps.run()
            (state,) = (await archive.view()).state.streams
            return state.pending, len(listings)

        await delete(2)
        for sequence in (1, 3, 4, 6):
            await archive.block(sequence)
        assert await sweep() == (5, 1)
        await archive.block(7)
        assert await sweep() == (4, 0)
        await delete(5)
        assert await sweep() == (3, 1)
        assert await sweep() == (3, 0)

    await archive.lead(work)
