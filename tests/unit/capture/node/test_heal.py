"""Which messages that no node has stored the sweep stores now, and where to look for them: decided without a server."""

import asyncio
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from capture.archive.coverage import Coverage
from capture.archive.scope import Asked
from capture.archive.sequences import Sequences
from capture.config.settings import CaptureConfig
from capture.ingest.board import StreamState
from capture.node.filtered import PROBES, Search, narrow
from capture.node.heal import Healer, Reading, Unstored, read_held_since
from capture.node.status.backlog import Backlog
from capture.node.status.progress import Missing, Progress, removal
from capture.reading.stream_times import Deletions
from capture.verification.explanation import _select_awaited
from natty import Batch, LeadershipLostError, NattyError
from natty.jetstream import StoredMessage

WAIT = 30.0
NOBODY = float("inf")  # since when nodes hold messages


def some(*sequences):
    return Sequences.from_iterable(sequences)


def test_what_is_not_stored_is_due_when_it_was_seen_for_so_long():
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    assert not unstored.due(129.9, WAIT, NOBODY)
    assert unstored.due(130.0, WAIT, NOBODY) == some(1, 2)


def test_each_message_waits_for_itself():
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    unstored.update(some(1, 2, 7), 120.0)
    assert unstored.due(130.0, WAIT, NOBODY) == some(1, 2)
    assert unstored.due(150.0, WAIT, NOBODY) == some(1, 2, 7)
    assert unstored.all == some(1, 2, 7)


def test_what_a_node_has_stored_meanwhile_is_forgotten_and_waits_anew():
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    unstored.update(some(2), 110.0)
    unstored.update(some(1, 2), 120.0)
    assert unstored.due(130.0, WAIT, NOBODY) == some(2)


@pytest.mark.parametrize(("held_since", "due"), [(99.0, ()), (100.0, ()), (100.1, (1, 2)), (float("-inf"), ())])
def test_nothing_is_due_while_a_node_holds_messages_that_it_may_have_been_given_before(held_since, due):
    unstored = Unstored()
    unstored.update(some(1, 2), 100.0)
    assert unstored.due(500.0, WAIT, held_since) == some(*due)


class Stream:
    """Counts as a server does, and how often it was asked."""

    def __init__(self, captured):
        self.captured, self.asked = captured, 0

    async def count(self, sequence):
        self.asked += 1
        return sum(one >= sequence for one in self.captured)


def found(stream, doubted, known):
    return asyncio.run(narrow(Sequences.from_iterable(doubted), Sequences.from_iterable(known), stream.count))


def test_where_all_captured_subjects_are_stored_two_questions_are_enough():
    stream = Stream(range(0, 100_000, 2))
    assert not found(stream, range(1, 100_000, 2), stream.captured)
    assert stream.asked == 2


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_stored_of_the_captured_subjects_is_among_what_is_found(seed):
    dice = random.Random(seed)
    captured = {one for one in range(1, 5000) if dice.random() < 0.5}
    lost = set(dice.sample(sorted(captured), dice.randint(1, 5)))
    stream = Stream(captured)
    suspected = found(stream, set(range(1, 5000)) - (captured - lost), captured - lost)
    assert lost <= {*suspected}
    assert len(suspected) <= 64 * len(lost)


def test_a_search_ends_after_so_many_questions_and_the_next_one_goes_on():
    captured = set(range(1, 1_000_001))
    lost = set(range(1, 1_000_001, 1000))
    stored = Sequences.from_range(1, 1_000_000) - Sequences.from_iterable(lost)
    asked = 0

    async def count(sequence):
        nonlocal asked
        asked += 1
        return len(captured) + 1 - sequence

    first = asyncio.run(narrow(Sequences.from_iterable(lost), stored, count))
    assert asked <= PROBES + 2
    assert first
    second = asyncio.run(narrow(Sequences.from_iterable(lost) - first, stored | first, count))
    assert second
    assert second.isdisjoint(first)


def test_what_a_sweep_has_just_stored_is_no_gap():
    progress = Progress("S", first=1, last=5, now=0.0, backlog=Backlog(pending=0, unacked=0, acked=5), asked=[])
    state = progress.state(Coverage(held=some(1, 2)), Missing(stored=some(3, 4), healed=2))
    assert (state.gaps, state.gaps_are) == (1, "5")


class Server:
    """Has messages of a stream by their sequences, each on its subject; keeps what it is sent and asked for."""

    def __init__(self, **subjects):
        self.subjects = {int(name[1:]): subject for name, subject in subjects.items()}
        self.sent, self.read_of, self.deleted = [], [], []
        self.natty = SimpleNamespace(jetstream=self, connection=self)

    async def read(self, stream, *, sequence):
        self.read_of.append(sequence)
        if sequence not in self.subjects:
            return None
        return StoredMessage(self.subjects[sequence], sequence, b"{}", b"", "2026-11-21T03:00:00Z")

    async def request(self, subject, body, *, led):
        assert (subject, body) == ("STREAM.INFO.S", {"deleted_details": True})
        return {"state": {"first_seq": 1, "last_seq": 9, "deleted": self.deleted}}

    def send_to_each(self, subjects, data):
        self.sent += [(subject, data) for subject in subjects]


def asked(start=1, *filters):
    return Asked(stream="S", durable="capture", created=str(start), start=start, filter_subjects=list(filters))


def progress(*records, filters=(">",)):
    backlog = Backlog(pending=0, unacked=0, acked=9, filters=filters)
    return Progress("S", first=1, last=9, now=0.0, backlog=backlog, asked=list(records), work_queue=True)


def healing(server, of, wanted, **settings):
    config = CaptureConfig(stream="S", store="memory://healing", **settings)
    return Reading(server.natty, config, of, wanted, lambda: None)


@pytest.mark.parametrize(
    ("settings", "acknowledged"), [({}, True), ({"ack": "all"}, False), ({"group": "g"}, False)], ids=str
)
async def test_a_healed_message_is_acknowledged_only_where_that_counts_for_no_other(settings, acknowledged):
    server = Server(m3="S.eu", m5="S.eu")
    reading = healing(server, progress(), some(3, 5), **settings)
    batch = Batch.join([one async for one in reading])
    reading.ack(batch)
    assert reading.stored == reading.settled == some(3, 5)
    assert server.sent == [(reply, b"+ACK") for reply in batch.replies if acknowledged]


async def test_what_lies_before_the_start_of_every_durable_is_not_healed():
    """An archive that holds messages before every recorded start has gaps there, too."""
    of = progress(asked(5))
    wanted = of.gaps(Coverage(held=some(1, 6), removed=some()))
    assert wanted == some(2, 3, 4, 5, 7, 8, 9)
    reading = healing(Server(m3="S.eu", m5="S.eu"), of, wanted)
    assert [one for batch in [one async for one in reading] for one in batch.sequences] == [5]
    assert reading.settled == some(2, 3, 4, 7, 8, 9)


@pytest.mark.parametrize("earlier", [asked(1, "S.eu", "S.us"), asked(1)], ids=["some", "all"])
async def test_where_more_subjects_were_captured_before_it_can_not_be_told_what_is_missing(earlier):
    server, found = Server(m1="S.us", m2="S.eu"), Coverage(held=some(2), removed=some())
    narrow, find_unstored = asked(3, "S.eu"), Search(server.natty).find_unstored
    assert await find_unstored(progress(earlier, narrow, filters=("S.eu",)), found, some(1, 2)) is None
    assert await find_unstored(progress(narrow, filters=("S.eu",)), found, some(1, 2)) == some()


async def test_a_search_reads_a_message_of_another_subject_once_and_forgets_it_when_the_stream_has_it_no_more():
    server, of = Server(m1="S.us", m2="S.us", m3="S.eu"), progress(asked(1, "S.eu"), filters=("S.eu",))
    search, found = Search(server.natty), Coverage(held=some(), removed=some())
    assert await search.find_unstored(of, found, some(1, 2, 3)) == some(3)
    assert "1–2" in repr(search)
    assert await search.find_unstored(of, found, some(2, 3)) == some(3)
    assert server.read_of == [1, 2, 3, 3]
    assert "(2)" in repr(search)


async def test_where_the_board_may_not_be_read_nodes_may_have_held_messages_for_ever():
    class Denied:
        async def read(self):
            raise NattyError("you may not")

    assert await read_held_since(Denied(), lambda: 100.0) == -math.inf


@pytest.mark.parametrize(
    ("awaited", "published", "found"), [(5, "", (1, 2)), (0, "", ()), (1, some(2).to_text(), (2,))]
)
def test_all_is_awaited_where_what_is_awaited_is_too_much_to_be_published(awaited, published, found):
    told = {"first": 1, "last": 9, "acked": 9, "pending": 0, "unacked": 0}
    state = StreamState(stream="S", **told, awaited=awaited, awaited_set=published)
    assert _select_awaited(state, some(1, 2)) == some(*found)


class Healing:
    """A healer without a server: nodes hold nothing, and a clock that tests set."""

    def __init__(self, server, **settings):
        self.now, self.server = 0.0, server
        config = CaptureConfig(stream="S", store="memory://healing", **settings)
        self.healer = Healer(
            server.natty,
            config,
            self.store,
            check=lambda: None,
            held_since=lambda: asyncio.sleep(0, NOBODY),
            elapsed=lambda: self.now,
        )

    async def store(self, messages, acknowledger):
        async for batch in messages:
            acknowledger.ack(batch)

    async def state(self, of, held, present, at):
        self.now = at
        of = replace(of, work_queue=False, deleted=of.last - len(present))
        self.server.deleted = [*(Sequences.from_range(of.first, of.last) - present)]
        return await self.healer.state(of, Coverage(held=held))


async def test_what_the_stream_has_no_more_when_it_is_read_counts_as_healed_nowhere(caplog):
    healing, of = Healing(Server(m3="S.eu", m5="S.eu")), progress()
    missing = await healing.healer.tend(of, some(3, 4, 5))
    assert (missing.stored, missing.missing, missing.healed) == (some(3, 5), some(), 2)
    assert "stored 2 messages of S that the server counts as acknowledged and no node has stored (3, 5)" in caplog.text
    state = of.state(Coverage(held=some(1, 2, 6, 7, 8, 9)), missing)
    assert (state.gaps, state.gaps_are, state.healed) == (1, "4", 2)


async def test_what_was_seen_unstored_and_left_the_stream_is_gone_and_logged_once(caplog):
    healing, of = Healing(Server()), replace(progress(), removal=removal({"max_age": 5 * 10**9}))
    states = [
        await healing.state(of, held, present, at)
        for held, present, at in (
            (some(1, 9), some(1, 3, 4, 5, 9), 0.0),
            (some(1, 4, 9), some(1, 9), 1.0),  # 4 was stored meanwhile; 3 and 5 left
            (some(1, 4, 9), some(1, 9), 2.0),
            (some(1, 3, 4, 9), some(1, 9), 3.0),  # a node had 3, and stored it
        )
    ]
    assert [(one.gone, one.missing) for one in states] == [(0, 0), (2, 0), (2, 0), (1, 0)]
    assert states[-1].describe_gone() == (
        "1 message of S left it before a node stored them (5): it removes what is older than 5 s (max_age);"
        " or they were purged, rolled up or deleted"
    )
    assert [record.count for record in caplog.records if record.action == "gone"] == [2]


async def test_a_message_that_a_node_may_hold_is_not_gone_yet():
    healing, of = Healing(Server()), progress()
    healing.healer._held_since = lambda: asyncio.sleep(0, -math.inf)
    await healing.state(of, some(1), some(1, 2), 0.0)
    assert [(await healing.state(of, some(1), some(1), at)).gone for at in (1.0, 1000.0)] == [0, 0]


class WorkQueue(Server):
    """Deletes messages, except the one that it refuses to delete."""

    def __init__(self, refused):
        super().__init__()
        self.refused, self.deleted = refused, []

    async def request(self, subject, body):
        assert subject == "STREAM.MSG.DELETE.S"
        if body["seq"] == self.refused:
            raise NattyError("not now")
        self.deleted.append(body["seq"])


async def test_a_message_that_can_not_be_deleted_from_a_work_queue_stops_no_other(caplog):
    server = WorkQueue(refused=4)
    await Healing(server).healer.release(progress(), some(3, 4, 5))
    assert sorted(server.deleted) == [3, 5]
    assert [record.action for record in caplog.records] == ["release_failed", "released"]
    assert "its consumer has forgotten them: not now" in caplog.text


async def test_a_leader_whose_term_is_over_deletes_nothing_from_a_work_queue(caplog):
    server = WorkQueue(refused=0)
    healer = Healing(server).healer

    def check():
        raise LeadershipLostError("the term is over")

    healer._check = check
    with pytest.raises(LeadershipLostError):
        await healer.release(progress(), some(3, 4))
    assert (server.deleted, caplog.records) == ([], [])


async def test_what_was_never_asked_for_is_not_read_again_and_again():
    server = Server(m3="S.eu", m7="S.eu")
    healing, of = Healing(server), progress(asked(5))
    for at in (0.0, 1.0, 2.0):
        await healing.state(of, some(1, 9), some(1, 3, 7, 9), at)
    assert {*server.read_of} == {7}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"retention": "interest"}, "retention = interest"),
        ({"retention": "workqueue"}, "retention = workqueue"),
        ({"allow_msg_ttl": True}, "Nats-TTL"),
        ({"discard": "old", "max_msgs": 5, "max_bytes": 9}, "max_msgs or max_bytes is reached"),
        ({"discard": "old", "max_msgs": -1}, "they were purged or deleted"),
    ],
    ids=str,
)
def test_why_a_message_may_be_gone_follows_from_the_streams_settings(config, words):
    assert words in removal(config)


async def test_what_was_deleted_in_a_stream_that_was_restored_is_not_known_any_more():
    server = Server()
    server.deleted = [3, 4]
    deletions, of = Deletions(server.natty), replace(progress(), created="1", deleted=2)
    assert await of.present(deletions) == some(1, 2, 5, 6, 7, 8, 9)
    extent = of.extent
    assert deletions.known(extent) == deletions.known(extent._replace(deleted=3)) == some(3, 4)
    assert deletions.known(extent._replace(first=4, deleted=1)) == some(4)
    for other in (extent._replace(created="2"), extent._replace(deleted=1)):
        assert deletions.known(other) == some()
