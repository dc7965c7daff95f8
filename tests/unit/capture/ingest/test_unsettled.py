from __future__ import annotations

import random

import pytest

from capture.ingest import unsettled as unsettled_module
from capture.ingest.record import Part
from capture.ingest.unsettled import Unsettled


def some(*sequences: int, times: int = 1) -> Part:
    return Part([*sequences], [b"%d.%d" % (times, one) for one in sequences])


def replies(*sequences: int) -> list[bytes]:
    return some(*sequences).replies


def test_a_message_is_told_of_from_its_second_beat_on_until_it_is_settled() -> None:
    unsettled = Unsettled()
    unsettled.add(some(1, 2))
    assert unsettled.beat() == []
    unsettled.add(some(3))
    assert unsettled.beat() == replies(1, 2)
    unsettled.remove(some(1))
    assert unsettled.beat() == replies(2, 3)
    unsettled.remove(some(2, 3))
    assert unsettled.beat() == []


def test_messages_that_are_settled_between_two_beats_cost_the_server_nothing() -> None:
    unsettled = Unsettled()
    for turn in range(10):
        messages = some(*range(5 * turn, 5 * turn + 5))
        unsettled.add(messages)
        assert unsettled.beat() == []
        unsettled.remove(messages)
    assert len(unsettled) == 0


def test_one_delivery_that_is_settled_settles_the_message() -> None:
    """To the server an acknowledgement of any of them does."""
    unsettled = Unsettled()
    unsettled.add(some(1, 2))
    unsettled.beat()
    unsettled.add(some(1, times=2))
    unsettled.remove(some(1))
    assert unsettled.beat() == replies(2)
    assert unsettled.beat() == replies(2)


def test_a_message_that_was_handed_back_and_delivered_again_is_kept_alive() -> None:
    unsettled = Unsettled()
    unsettled.add(some(1))
    unsettled.remove(some(1))
    unsettled.add(some(1, times=2))
    assert unsettled.beat() == []
    assert unsettled.beat()[-1:] == some(1, times=2).replies


def test_what_is_left_in_the_end_is_taken_once() -> None:
    unsettled = Unsettled()
    unsettled.add(some(1))
    unsettled.beat()
    unsettled.add(some(2))
    assert unsettled.take() == replies(1, 2)
    assert unsettled.take() == []
    assert len(unsettled) == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spare", [0, 50])
def test_whatever_is_settled_when_the_rest_is_told_of_and_little_else_is_kept(
    monkeypatch: pytest.MonkeyPatch, seed: int, spare: int
) -> None:
    monkeypatch.setattr(unsettled_module, "SPARE", spare)
    chance, unsettled = random.Random(seed), Unsettled()
    new: set[int] = set()
    old: set[int] = set()
    last = 0
    for _ in range(300):
        turn = chance.random()
        if turn < 0.5:
            read = range(last + 1, last + 1 + chance.randint(1, 20))
            last = read[-1]
            unsettled.add(some(*read))
            new.update(read)
        elif turn < 0.95:
            key = chance.randint(0, 2)  # blocks of several keys take from each read
            gone = [one for one in sorted(old | new) if one % 3 == key]
            unsettled.remove(some(*gone))
            old.difference_update(gone)
            new.difference_update(gone)
        else:
            assert sorted(unsettled.beat()) == sorted(replies(*old))
            old |= new
            new = set()
        assert len(unsettled) == len(old) + len(new)
        if turn >= 0.5:
            assert unsettled._kept <= max(2 * len(unsettled) + spare, len(unsettled))
    assert sorted(unsettled.take()) == sorted(replies(*old, *new))
