"""What a candidate makes of hints, which anybody may send, of a key where nothing is, and of a key it may not write."""

import pytest
from election_walk import Walk, due, lease

from natty.elections.actions import Elected, Left, Lost, Mark, Phase, Read, Write
from natty.elections.machine import FORBIDDEN_PAUSE
from natty.elections.options import silence
from natty.elections.record import ABSENT, Sight

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


@pytest.mark.parametrize("revision", [4, 5])
def test_a_hint_at_what_is_known_is_not_read(revision):
    walk = Walk()
    walk.answer(1.0, Sight(5, "held", lease()))
    assert walk.do("saw", 1.5, Sight(revision, "released", lease(state="released"))) == []


def test_an_older_hint_hides_no_newer_one():
    walk = Walk()
    walk.answer(1.0, Sight(5, "held", lease()))
    for revision in (6, 8, 7):
        walk.do("saw", 1.5, Sight(revision, "held", lease()))
    assert [type(one) for one in walk.answer(1.6, Sight(7, "held", lease()))] == [Read]


def test_what_is_hinted_at_after_a_wrong_hint_is_read_once_and_when_the_pause_is_over():
    walk, held = Walk(), Sight(5, "held", lease())
    walk.answer(1.0, held)
    walk.do("saw", 1.5, Sight(10**15, "deleted"))
    walk.answer(1.5, held)
    over = 1.5 + walk.candidate.rules.retry
    for revision in (6, 7):
        assert walk.do("saw", 1.51, Sight(revision, "released", lease(state="released"))) == []
    assert walk.candidate.due == over
    assert walk.do("tick", over - 0.01) == []
    assert [type(one) for one in walk.do("tick", over)] == [Read]
    walk.answer(over, Sight(7, "released", lease(state="released")))
    assert due(walk, over) < 0.1


def test_a_read_that_no_hint_asked_for_begins_no_pause():
    walk, held = Walk(), Sight(5, "held", lease())
    walk.answer(1.0, held)
    walk.do("saw", 1.1, Sight(10**15, "deleted"))
    walk.answer(1.1, held)
    walk.do("connected", 1.5)
    walk.do("unread", 1.6, walk.reads[-1])
    walk.do("tick", walk.candidate.due)
    walk.answer(1.8, held)
    assert [type(one) for one in walk.do("saw", 1.8, Sight(6, "held", lease()))] == [Read]


def test_a_hint_whose_read_got_no_answer_waits_for_the_next_try_and_is_answered_by_it():
    walk, held = Walk(), Sight(5, "held", lease())
    walk.answer(1.0, held)
    walk.do("saw", 1.1, Sight(10**15, "deleted"))
    walk.do("unread", 1.2, walk.reads[-1])
    again = 1.2 + walk.candidate.rules.retry
    assert walk.candidate.due == again
    assert walk.do("saw", 1.25, Sight(6, "held", lease())) == []
    assert [type(one) for one in walk.do("tick", again)] == [Read]
    walk.answer(again, Sight(6, "held", lease()))
    assert walk.do("saw", again, Sight(7, "held", lease())) == []  # the first hint was wrong: a pause


def test_only_the_last_read_counts():
    """One that came before it may be older than what the last one is to show."""
    walk, held = Walk(), Sight(5, "held", lease())
    walk.do("connected", 0.5)
    first, last = walk.reads
    walk.do("unread", 0.9, first)
    walk.do("read", 1.0, first, Sight(4, "released", lease(state="released")))
    assert walk.candidate.due == float("inf")
    walk.do("read", 1.0, last, held)
    assert due(walk, 1.0) >= silence(2.0)


def refused():
    """Return a walk whose try for the office was refused, and what it had seen before."""
    walk, left = Walk(), Sight(5, "released", lease(state="released"))
    walk.answer(1.0, left)
    walk.do("tick", walk.candidate.due)
    assert [type(one) for one in walk.do("refused", 1.1, walk.writes[-1].record.nonce)] == [Read]
    return walk, left


def test_what_is_read_after_a_refusal_decides_also_at_the_second_try():
    walk, left = refused()
    walk.do("unread", 1.2, walk.reads[-1])
    walk.do("tick", walk.candidate.due)
    walk.answer(1.4, left)
    assert walk.candidate.phase is Phase.OBSERVING
    assert due(walk, 1.4) >= walk.candidate.rules.retry  # what was read is older than what refused


def test_what_is_read_after_a_refusal_decides_once():
    walk, left = refused()
    walk.answer(1.2, left)
    walk.do("tick", walk.candidate.due)
    walk.do("saw", 1.5, Sight(6, "held", lease()))
    walk.answer(1.5, left)  # a stale one
    assert walk.candidate.phase is Phase.ACQUIRING


def test_a_leader_whose_renewal_is_refused_by_an_empty_key_has_lost_its_office():
    walk = Walk()
    walk.elect()
    walk.candidate.alive(walk.candidate._renew_at)
    walk.do("connected", 10.2)
    assert walk.do("saw", 10.2, Sight(300, "held", lease()))
    assert walk.answer(10.2, ABSENT) == []  # may be stale
    walk.do("tick", walk.candidate._renew_at)
    walk.do("refused", 10.9, walk.writes[-1].record.nonce)
    assert Lost("superseded") in walk.answer(10.9, ABSENT)


def test_hints_of_what_is_not_there_hold_no_candidate_up():
    """What is conditional on a marker's revision is refused where somebody was elected meanwhile, purged or not."""
    walk = Walk()
    walk.answer(1.0, Sight(9, "deleted"))
    act_at = walk.candidate._act_at
    assert [type(one) for one in walk.do("saw", act_at - 0.01, Sight(100, "held", lease(inc="stranger")))] == [Read]
    assert [type(one) for one in walk.do("tick", act_at)] == [Write]
    assert walk.candidate.phase is Phase.ACQUIRING


def test_an_empty_key_is_marked_and_taken_over_a_lease_after_the_marker_was_seen():
    """Whoever led before the bucket was purged may act for a lease; the marker tells one emptiness from the next."""
    walk = Walk()
    walk.answer(1.0, ABSENT)
    marked_at = walk.candidate.due
    assert marked_at - 1.0 < 0.1
    assert walk.do("tick", marked_at) == [Mark(walk.candidate.rules.attempt)]
    assert [type(one) for one in walk.do("marked", marked_at)] == [Read]
    walk.answer(1.5, Sight(9, "deleted"))
    assert silence(2.0) <= due(walk, 1.5) <= silence(2.0) + 0.1
    walk.do("tick", walk.candidate._act_at)
    assert (walk.candidate.phase, walk.writes[-1].expected) == (Phase.ACQUIRING, 9)


def test_a_marker_that_is_not_seen_is_written_again_once_a_try_can_have_ended():
    walk = Walk()
    walk.answer(1.0, ABSENT)
    marked_at = walk.candidate.due
    walk.do("tick", marked_at)
    walk.do("marked", marked_at)
    walk.answer(marked_at, ABSENT)
    assert walk.do("tick", marked_at + 0.5) == []
    assert walk.do("tick", walk.candidate.due) == [Mark(walk.candidate.rules.attempt)]
    assert walk.writes == []


def test_who_leads_meanwhile_or_campaigns_no_more_does_not_look_for_a_marker():
    walk = Walk()
    assert any(isinstance(one, Elected) for one in walk.elect())
    assert walk.do("marked", 10.5) == []
    walk = Walk()
    walk.do("withdraw", 1.0)
    assert walk.do("marked", 1.5) == []


@pytest.mark.parametrize("before", [Sight(5, "deleted"), Sight(5, "expired"), Sight(5, "held", lease())])
def test_a_bucket_that_is_purged_while_a_candidate_waits_is_marked_anew(before):
    walk = Walk()
    walk.answer(1.0, before)
    walk.do("connected", 1.5)
    assert walk.answer(1.5, ABSENT) == []  # the stream has not lost its tail
    assert [type(one) for one in walk.do("tick", walk.candidate.due)] == [Mark]


def test_a_candidate_that_may_not_write_tries_again_only_after_a_pause():
    walk = Walk()
    before = Sight(5, "released", lease(state="released"))
    walk.answer(1.0, before)
    walk.do("tick", 2.0)
    walk.do("forbidden", 2.0, walk.writes[-1].record.nonce)
    walk.answer(2.1, before)
    assert walk.candidate.due >= 2.0 + FORBIDDEN_PAUSE
    walk.do("tick", walk.candidate.due)
    assert [one.expected for one in walk.writes] == [5, 5]
    assert walk.writes[0].record.nonce != walk.writes[1].record.nonce


def test_a_candidate_that_may_not_mark_an_empty_key_tries_again_only_after_a_pause():
    walk = Walk()
    walk.answer(1.0, ABSENT)
    assert [type(one) for one in walk.do("tick", 2.0)] == [Mark]
    assert [type(one) for one in walk.do("forbidden", 2.0, None)] == [Read]
    walk.answer(2.1, ABSENT)
    assert walk.candidate.due >= 2.0 + FORBIDDEN_PAUSE


def test_a_leader_that_may_not_write_for_a_moment_tries_on_and_keeps_its_office():
    walk = Walk()
    walk.elect()
    for at in (10.9, 11.1):
        walk.candidate.alive(at)
        walk.do("tick", at)
        walk.do("forbidden", at, walk.writes[-1].record.nonce)
    walk.do("tick", 11.3)
    assert walk.writes[-1] == walk.writes[-2]
    assert walk.candidate.phase is Phase.LEADING


def test_a_withdrawn_candidate_that_may_not_write_ends_at_once():
    walk = Walk()
    walk.answer(1.0, Sight(5, "released", lease(state="released")))
    walk.do("tick", 2.0)
    walk.do("withdraw", 2.1)
    assert walk.do("forbidden", 2.2, walk.writes[-1].record.nonce) == [Left(released=False)]
    assert walk.do("forbidden", 2.3, None) == []
