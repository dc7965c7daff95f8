"""What stands on an election's key, whoever wrote it, and what a candidate makes of it."""

import asyncio
import random

import msgspec
import pytest
from election_walk import HELD, Walk, due, lease
from hypothesis import given
from hypothesis import strategies as st

from natty.elections.actions import Phase, Write
from natty.elections.driver import Driver
from natty.elections.machine import Candidate
from natty.elections.options import LONGEST_LEASE, ElectionOptions, silence
from natty.elections.record import ABSENT, Sight, hinted_revision, sight_of
from natty.wire.message import encode_headers

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
        (float("nan"), "lease is nan"),
        (3601.0, "too long.* at most 3600 s"),
        (float("inf"), "too long"),
    ],
)
def test_a_lease_is_between_two_named_bounds(lease, text):
    with pytest.raises(ValueError, match=text):
        ElectionOptions(name="x", lease=lease)
    assert ElectionOptions(name="x", lease=LONGEST_LEASE).rules.lease == 3600.0


@pytest.mark.parametrize("gone", [[ABSENT, Sight(9, "deleted")], [Sight(9, "deleted")]])
def test_a_bucket_emptied_under_a_leader_with_a_longer_lease_is_left_alone_for_that_lease(gone):
    walk = Walk()
    walk.answer(1.0, Sight(5, "held", lease(L=60.0)))
    for sight in gone:
        walk.do("connected", 2.0)
        walk.answer(2.0, sight)
    assert due(walk, 2.0) >= silence(60.0)
    assert not isinstance(walk.do("tick", 60.0), Write)
    assert walk.writes == []


def test_a_look_that_shows_what_is_written_over_does_not_give_up_the_write_that_is_under_way():
    walk = Walk()
    walk.answer(1.0, Sight(5, "released", lease(state="released")))
    walk.do("tick", 1.5)
    nonce = walk.writes[-1].record.nonce
    walk.do("saw", 1.6, Sight(6, "held", lease(nonce="forged")))
    walk.answer(1.7, Sight(5, "released", lease(state="released")))
    assert walk.candidate.phase is Phase.ACQUIRING
    walk.do("doubt", 1.8, nonce)
    walk.do("tick", walk.candidate.due)
    assert [one.record.nonce for one in walk.writes] == [nonce, nonce]


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
    driver = Driver(None, options, candidate, loop=loop, pulse=lambda: 0.0, report=lambda *news: None)
    for _ in range(100):
        loop.call_soon(driver.input, "event")
        await asyncio.sleep(0)
    driver.close()
    assert ticks
