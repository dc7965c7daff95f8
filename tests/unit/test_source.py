from __future__ import annotations

from capture.source import Unsettled


def test_a_message_is_told_of_from_its_second_beat_on_until_it_is_settled() -> None:
    unsettled = Unsettled()
    unsettled.add([b"a", b"b"])
    assert unsettled.beat() == []
    unsettled.add([b"c"])
    assert sorted(unsettled.beat()) == [b"a", b"b"]
    unsettled.remove([b"a"])
    assert sorted(unsettled.beat()) == [b"b", b"c"]
    unsettled.remove([b"b", b"c"])
    assert unsettled.beat() == []


def test_messages_that_are_settled_between_two_beats_cost_the_server_nothing() -> None:
    unsettled = Unsettled()
    for turn in range(10):
        replies = [b"%d.%d" % (turn, number) for number in range(5)]
        unsettled.add(replies)
        assert unsettled.beat() == []
        unsettled.remove(replies)
    assert len(unsettled) == 0


def test_a_message_delivered_again_is_kept_alive_on_its_own() -> None:
    unsettled = Unsettled()
    unsettled.add([b"first delivery"])
    unsettled.beat()
    unsettled.add([b"second delivery"])
    unsettled.remove([b"first delivery"])
    assert unsettled.beat() == []
    assert unsettled.beat() == [b"second delivery"]


def test_what_is_left_in_the_end_is_taken_once() -> None:
    unsettled = Unsettled()
    unsettled.add([b"a"])
    unsettled.beat()
    unsettled.add([b"b"])
    assert repr(unsettled) == "Unsettled(1 new, 1 old)"
    assert sorted(unsettled.take()) == [b"a", b"b"]
    assert unsettled.take() == []
