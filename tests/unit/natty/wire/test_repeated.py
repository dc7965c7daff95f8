"""A state that makes thousands of log lines makes one, and then one with a count."""

import asyncio
import logging

import pytest

from natty.wire.repeated import MOST_STATES, ONCE, Repeated


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def repeated(clock):
    return Repeated(logging.getLogger("natty.test"), every=10.0, clock=clock)


def test_the_first_line_is_logged_at_once_and_a_thousand_more_are_one_with_their_count(repeated, clock, caplog):
    for _ in range(1001):
        repeated.warning("no connection", "5 stored messages were not acked", messages=5)
    assert caplog.messages == ["5 stored messages were not acked"]
    clock.now = 12.0
    repeated.warning("no connection", "7 stored messages were not acked", messages=7)
    assert caplog.messages[1:] == [
        "no connection: 1000 more like the last one, about 5,000 messages within 12 s",
        "7 stored messages were not acked",
    ]
    assert caplog.records[1].count == 1000


def test_states_are_counted_each_for_itself_and_keep_their_level(repeated, clock, caplog):
    for _ in range(2):
        repeated.warning("a", "first")
        repeated.error("b", "second")
    clock.now = 10.0
    repeated.error("b", "third")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "first"),
        ("ERROR", "second"),
        ("ERROR", "b: 1 more like the last one within 10 s"),
        ("ERROR", "third"),
    ]


def test_a_single_line_is_followed_by_no_count(repeated, clock, caplog):
    repeated.warning("a", "first")
    clock.now = 10.0
    repeated.warning("a", "second")
    assert caplog.messages == ["first", "second"]


async def test_in_an_event_loop_the_count_comes_when_the_state_is_over(caplog):
    repeated = Repeated(logging.getLogger("natty.test"), every=0.3)
    for _ in range(3):
        repeated.warning("away", "the server is away")
    async with asyncio.timeout(60):
        while len(caplog.messages) < 2:
            await asyncio.sleep(0.01)
    assert caplog.messages[1].startswith("away: 2 more like the last one within")


async def test_a_state_that_lasts_is_logged_once_and_again_when_its_text_changes_or_after_it_was_over(clock, caplog):
    lasting = Repeated(logging.getLogger("natty.test"), every=ONCE, clock=clock)
    for day in range(3):
        clock.now = day * 86400.0
        lasting.warning("k", "k is bad: why", extra={"action": "tried"})
    lasting.warning("k", "k is bad: another reason", extra={"action": "tried"})
    lasting.forget("k")
    lasting.forget("unknown")
    lasting.warning("k", "k is bad: another reason", extra={"action": "tried"})
    assert caplog.messages == ["k is bad: why", "k is bad: another reason", "k is bad: another reason"]
    assert {record.action for record in caplog.records} == {"tried"}


def test_that_there_are_more_states_than_are_remembered_is_said_once(caplog):
    lasting = Repeated(logging.getLogger("natty.test"), every=ONCE)
    for number in range(MOST_STATES + 10):
        lasting.warning(f"k{number}", f"k{number} is bad", extra={"action": "tried"})
    assert caplog.messages[:MOST_STATES] == [f"k{number} is bad" for number in range(MOST_STATES)]
    assert caplog.messages[MOST_STATES:] == [
        f"{MOST_STATES} different lines of this kind were logged; no further ones are logged after this one:"
        f" k{MOST_STATES} is bad"
    ]
    lasting.warning("k0", "k0 is worse")
    lasting.forget("k1")
    lasting.warning("new", "new is bad")
    assert caplog.messages[MOST_STATES + 1 :] == ["k0 is worse", "new is bad"]
    assert {record.action for record in caplog.records[: MOST_STATES + 1]} == {"tried"}


def test_states_whose_time_is_up_make_room_for_others(repeated, clock, caplog):
    for number in range(MOST_STATES + 1):
        repeated.warning(f"k{number}", f"k{number}")
    clock.now = 10.0
    repeated.warning("new", "new")
    assert caplog.messages[-1] == "new"


def test_when_all_states_end_their_counts_are_logged_at_once_and_not_later(repeated, clock, caplog):
    for _ in range(3):
        repeated.warning("away", "away: why")
    repeated.warning("b", "b")
    clock.now = 1.0
    repeated.finish()
    repeated.finish()
    clock.now = 20.0
    repeated.warning("away", "away again")
    assert caplog.messages == ["away: why", "b", "away: 2 more like the last one within 1 s", "away again"]
