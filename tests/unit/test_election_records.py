"""What stands on an election's key, whoever wrote it, and what a candidate makes of it."""

import asyncio
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.leader.actions import Elected, Lost, Phase, Read, Write
from natty.leader.driver import Driver
from natty.leader.follower import MOST_PUT_OFF
from natty.leader.machine import Candidate
from natty.leader.options import LONGEST_LEASE, ElectionOptions, Rules, silence
from natty.leader.record import ABSENT, Lease, Sight, hinted_revision, sight_of
from natty.message import encode_headers

HELD = {"id": "n", "inc": "i", "term": 7, "state": "held", "L": 2.0, "nonce": "i-1"}
DAMAGED = [
    b'{"id":"\xff"}',
    b'{"id":"\xff","inc":"i","state":"held","L":2,"nonce":"i-1"}',
    b"[" * 100_000,
    b'{"id":' + b"[" * 60_000,
    b"{",
    b"null",
    b"blind write",
    b'{"id":"' + b"x" * 70_000 + b'"}',
    *(
        msgspec.json.encode(HELD | change)
        for change in (
            {"L": 0},
            {"L": -1.0},
            {"L": "2"},
            {"term": -1},
            {"term": 2**53},
            {"term": 9_000_000_000_000_000_000},
            {"state": "elected"},
            {"prio": -1},
            {"addr": "a\r\nPUB orders 0\r\n\r\n"},
            {"addr": "a b"},
            {"addr": "_INBOX.>"},
            {"addr": "a\n"},
            {"id": "x" * 5000},
        )
    ),
    msgspec.json.encode(HELD).replace(b"2.0", b"1e400"),
    msgspec.json.encode(HELD).replace(b"2.0", b"NaN"),
    msgspec.json.encode(HELD).replace(b":7", b":1" + b"0" * 5000),
]


@pytest.mark.parametrize("data", DAMAGED, ids=lambda data: repr(data[:40]))
def test_a_damaged_lease_counts_as_deleted_and_says_why(data):
    sight = sight_of(5, b"", data)
    assert (sight.revision, sight.kind, sight.lease) == (5, "deleted", None)
    assert sight.damage


@given(st.binary(max_size=200))
def test_no_bytes_on_a_leases_key_raise_anything(data):
    assert sight_of(5, data, data).kind in ("held", "released", "deleted", "expired")
    assert hinted_revision((b"el.obs.b.k", b"", b"NATS/1.0\r\nNats-Sequence: " + data, data)) >= 0


def test_a_delete_is_not_damage():
    assert sight_of(5, encode_headers({"KV-Operation": "DEL"}), b"") == Sight(5, "deleted")


@pytest.mark.parametrize("number", [None, "", "x", "-1", "1.5", "9" * 5000, "\u0663"])
def test_what_no_server_republished_is_no_hint(number):
    headers = {} if number is None else {"Nats-Sequence": number}
    assert hinted_revision((b"el.obs.b.k", b"", encode_headers(headers), msgspec.json.encode(HELD))) == 0


@pytest.mark.parametrize("line", [b"Nats-Sequence: 17", b"Nats-Sequence:17"])
def test_the_revision_of_a_hint_is_told_whatever_else_it_holds(line):
    block = b"NATS/1.0\r\nNats-Stream: KV_b\r\n" + line + b"\r\nNats-Time-Stamp: x\r\n\r\n"
    assert hinted_revision((b"el.obs.b.k", b"", block, b"[" * 60_000)) == 17


def test_headers_that_no_server_adds_make_no_hint():
    block = b"NATS/1.0\r\n" + b"a:\r\n" * 20_000 + b"Nats-Sequence: 17\r\n\r\n"
    assert hinted_revision((b"el.obs.b.k", b"", block, b"")) == 0


@pytest.mark.parametrize(
    ("lease", "text"),
    [
        (0.2, "too short.* at least 0.3 s"),
        (float("nan"), "too short"),
        (3601.0, "too long.* at most 3600 s"),
        (float("inf"), "too long"),
    ],
)
def test_a_lease_is_between_two_named_bounds(lease, text):
    with pytest.raises(ValueError, match=text):
        ElectionOptions(name="x", lease=lease)
    assert ElectionOptions(name="x", lease=LONGEST_LEASE).rules.lease == 3600.0


class Walk:
    """A candidate with a lease of two seconds, step by step at times that the test names."""

    def __init__(self):
        self.candidate = Candidate(Rules(lease=2.0), "me", "mine", random.Random(0), wall=1_700_000_000.0)
        self.reads = [one.number for one in self.candidate.campaign(0.0) if isinstance(one, Read)]
        self.writes = []

    def do(self, event, now, *arguments, **named):
        """Give an event, and return what is to be done."""
        actions = getattr(self.candidate, event)(now, *arguments, **named)
        self.reads += [one.number for one in actions if isinstance(one, Read)]
        self.writes += [one for one in actions if isinstance(one, Write)]
        return actions

    def answer(self, now, sight):
        """Answer the last read."""
        return self.do("read", now, self.reads[-1], sight, asked=now)

    def elect(self, at=10.0, revision=100):
        """Let the candidate be elected over a lease that somebody has left."""
        self.answer(at, Sight(revision, "released", lease(state="released")))
        self.do("tick", at + 0.1)
        self.do("stored", at + 0.1, self.writes[-1].record.nonce, revision + 1)
        return self.do("stored", at + 0.1, self.writes[-1].record.nonce, revision + 2)


def lease(**fields):
    return Lease(**HELD | fields)


def due(walk, now):
    """How long the candidate waits before it acts."""
    return walk.candidate._act_at - now


@pytest.mark.parametrize("gone", [ABSENT, Sight(9, "deleted")])
def test_a_bucket_emptied_under_a_leader_with_a_longer_lease_is_left_alone_for_that_lease(gone):
    walk = Walk()
    walk.answer(1.0, Sight(5, "held", lease(L=60.0)))
    walk.do("connected", 2.0)
    walk.answer(2.0, gone)
    assert due(walk, 2.0) >= silence(60.0)
    assert not isinstance(walk.do("tick", 60.0), Write)
    assert walk.writes == []


@pytest.mark.parametrize("kind", ["held", "released"])
def test_a_lease_that_no_options_allow_lasts_the_longest_one_and_is_forgotten_when_it_is_deleted(kind):
    walk = Walk()
    walk.answer(1.0, Sight(5, kind, lease(L=1e12, state=kind)))
    assert due(walk, 1.0) <= silence(LONGEST_LEASE) + 1
    walk.do("connected", 2.0)
    walk.answer(2.0, Sight(6, "deleted"))
    assert silence(2.0) <= due(walk, 2.0) <= silence(2.0) + 1


@pytest.mark.parametrize("term", [7, 2**53 - 1])
def test_the_next_term_is_one_that_every_reader_takes(term):
    walk = Walk()
    walk.answer(1.0, Sight(5, "released", lease(state="released", term=term)))
    walk.do("tick", 2.0)
    record = walk.writes[-1].record
    assert 1_700_000_000_000 <= record.term < 2**52
    assert sight_of(6, b"", msgspec.json.encode(record)).lease == record


def test_the_same_sight_while_acquiring_changes_nothing():
    walk = Walk()
    before = Sight(5, "released", lease(state="released"))
    walk.answer(1.0, before)
    walk.do("tick", 2.0)
    assert walk.candidate.phase is Phase.ACQUIRING
    walk.do("saw", 2.1, Sight(6, "deleted"))  # a hint: the key is read, and still shows what it did
    walk.answer(2.1, before)
    assert walk.candidate.phase is Phase.ACQUIRING
    walk.do("stored", 2.2, walk.writes[-1].record.nonce, 7)
    assert walk.candidate.phase is Phase.FENCING


FORGED = [
    Sight(10**15, "held", lease(inc="stranger", L=1e12)),
    Sight(10**15, "released", lease(state="released")),
    Sight(10**15, "deleted"),
    Sight(10**15, "expired"),
]


@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: forged.kind)
def test_a_leader_asks_the_key_before_it_believes_a_hint(forged):
    walk = Walk()
    assert any(isinstance(one, Elected) for one in walk.elect())
    ours = Sight(101, "held", walk.writes[-2].record)
    deadline = walk.candidate.deadline
    assert [type(one) for one in walk.do("saw", 10.3, forged)] == [Read]
    assert walk.answer(10.3, ours) == []
    assert walk.candidate.phase is Phase.LEADING
    assert walk.candidate.deadline == deadline
    walk.do("saw", 10.5, forged)
    assert Lost("superseded") in walk.answer(10.5, Sight(200, "held", lease(inc="other")))


@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: forged.kind)
def test_a_candidate_asks_the_key_before_it_believes_a_hint(forged):
    walk = Walk()
    held = Sight(5, "held", lease())
    walk.answer(1.0, held)
    act_at = walk.candidate._act_at
    assert [type(one) for one in walk.do("saw", 1.5, forged)] == [Read]
    assert walk.answer(1.5, held) == []
    assert walk.candidate._act_at == act_at
    walk.do("tick", act_at)
    assert walk.candidate.phase is Phase.ACQUIRING


def test_hints_of_what_is_not_there_hold_a_candidate_up_three_times_and_no_more():
    """What was hinted at may have been purged before it was read: whoever stored it may lead for a lease."""
    walk = Walk()
    walk.answer(1.0, ABSENT)
    for time in range(MOST_PUT_OFF):
        due_at = walk.candidate._act_at
        stranger = Sight(100 + time, "held", lease(inc="stranger"))
        assert [type(one) for one in walk.do("saw", due_at - 0.01, stranger)] == [Read]
        assert walk.do("tick", due_at) == []  # in doubt, it does not write
        walk.answer(due_at, ABSENT)
        assert due(walk, due_at) >= silence(walk.candidate.rules.lease)
    due_at = walk.candidate._act_at
    walk.do("saw", due_at - 0.01, Sight(500, "held", lease(inc="stranger")))
    walk.do("tick", due_at)
    assert walk.candidate.phase is Phase.ACQUIRING


async def test_a_flood_of_events_does_not_put_the_timer_off():
    """One that is cancelled and set again in every turn of the loop never runs."""
    ticks = []

    class Overdue(Candidate):
        due = 0.0

        def event(self, now):
            return []

        def tick(self, now):
            ticks.append(now)
            return []

    options = ElectionOptions(name="x")
    candidate = Overdue(options.rules, "me", "mine", random.Random(0))
    loop = asyncio.get_running_loop()
    driver = Driver(None, options, candidate, loop=loop, pulse=lambda: 0.0, tell=lambda *news: None)
    for _ in range(100):
        loop.call_soon(driver.input, "event")
        await asyncio.sleep(0)
    driver.close()
    assert ticks


def test_a_hint_is_followed_only_where_its_revision_is_news():
    walk = Walk()
    walk.answer(1.0, Sight(5, "held", lease()))
    assert [walk.candidate.follows(revision) for revision in (1, 5, 6)] == [False, False, True]
    walk.do("withdraw", 2.0)
    assert not walk.candidate.follows(6)


def test_a_hint_at_our_own_write_renews_nothing():
    """Its nonce can be guessed: only the answer to the write, or the key itself, says that it is stored."""
    walk = Walk()
    walk.elect()
    walk.candidate.alive(walk.candidate._renew_at)
    walk.do("tick", walk.candidate._renew_at)
    renewal, deadline = walk.writes[-1].record, walk.candidate.deadline
    assert renewal.state == "held"
    assert walk.do("saw", 10.9, Sight(500, "held", renewal)) == []
    assert (walk.candidate.revision, walk.candidate.deadline) == (101, deadline)


def test_a_flood_of_hints_costs_one_read_at_a_time_and_no_more_than_one_in_each_pause():
    walk = Walk()
    held = Sight(5, "held", lease(L=60.0))
    walk.answer(1.0, held)
    began = len(walk.reads)
    now = 1.0
    while now < 2.0:
        walk.do("saw", now, Sight(10**15, "deleted"))
        walk.do("saw", now, Sight(10**15 + 1, "deleted"))
        if walk.candidate._reading:
            walk.answer(now, held)
        walk.do("tick", now)
        now += 0.001
    assert 5 <= len(walk.reads) - began <= 1.0 / walk.candidate.rules.retry + 2


def test_what_is_hinted_at_while_a_read_is_under_way_is_read_after_it():
    walk = Walk()
    walk.answer(1.0, Sight(5, "held", lease()))
    walk.do("saw", 1.5, Sight(6, "held", lease()))
    walk.do("saw", 1.5, Sight(7, "released", lease(state="released")))
    began = len(walk.reads)
    walk.answer(1.6, Sight(6, "held", lease()))
    assert len(walk.reads) == began + 1
    walk.answer(1.7, Sight(7, "released", lease(state="released")))
    assert due(walk, 1.7) < 0.1
    assert len(walk.reads) == began + 1
