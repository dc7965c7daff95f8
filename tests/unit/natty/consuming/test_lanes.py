import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.consuming.lanes import Lanes, Turn
from natty.consuming.options import key_by
from natty.wire.message import Message


def message(number=0, subject=b"orders.eu", headers=b""):
    return Message((subject, b"$JS.ACK.S.d.1.%d.%d.1.0" % (number, number), headers, b"%d" % number))


def turn(number, key=None, *, again=False):
    return Turn(message(number), key, again=again)


def numbers(turns):
    return [one.message.sequence for one in turns]


def lanes_of(*turns, **options):
    lanes = Lanes(**options)
    lanes.add(turns)
    return lanes


def take_all(lanes):
    taken = []
    while lot := lanes.take():
        taken += lot
    return taken


def test_without_keys_all_can_be_taken_at_once_in_order():
    lanes = lanes_of(turn(1), turn(2), turn(3))
    assert numbers(take_all(lanes)) == [1, 2, 3]
    assert len(lanes) == 0


def test_one_of_a_key_at_a_time_and_the_others_pass_by():
    lanes = lanes_of(turn(1, "a"), turn(2, "a"), turn(3, "b"), turn(4))
    first, *others = take_all(lanes)
    assert numbers([first, *others]) == [1, 3, 4]
    lanes.finish(first)
    assert numbers(take_all(lanes)) == [2]


def test_a_key_that_arrives_while_one_of_it_is_handled_waits():
    lanes = lanes_of(turn(1, "a"))
    (first,) = take_all(lanes)
    lanes.add([turn(2, "a"), turn(3, "a")])
    assert take_all(lanes) == []
    lanes.finish(first)
    (second,) = take_all(lanes)
    assert second.message.sequence == 2


def test_a_key_is_forgotten_when_nothing_of_it_is_left():
    lanes = lanes_of(*(turn(number, number % 7) for number in range(100)))
    while taken := take_all(lanes):
        for one in taken:
            lanes.finish(one)
    assert repr(lanes) == "Lanes(0 ready, 0 behind, 0 keys)"


def test_what_is_tried_again_is_first_in_line_and_still_before_its_key():
    lanes = lanes_of(turn(1, "a"), turn(2, "a"))
    (first,) = take_all(lanes)
    lanes.add([turn(3)])
    lanes.again([first])
    assert numbers(take_all(lanes)) == [1, 3]
    lanes.finish(first)
    assert numbers(take_all(lanes)) == [2]


def test_clear_returns_what_was_not_taken_and_nothing_can_be_taken_any_more():
    lanes = lanes_of(turn(1, "a"), turn(2, "a"), turn(3, "b"))
    (first,) = lanes.take()
    assert sorted(numbers(lanes.clear())) == [2, 3]
    lanes.finish(first)
    assert lanes.take() == []


def test_a_lot_is_due_when_it_is_full():
    lanes = lanes_of(turn(1), turn(2), lot=3, wait=5.0)
    assert lanes.take(0.0) == []
    lanes.add([turn(3), turn(4)], 1.0)
    assert lanes.due_in(1.0) == 0.0
    assert numbers(lanes.take(1.0)) == [1, 2, 3]
    assert lanes.take(1.0) == []


def test_a_lot_that_is_not_full_is_due_when_its_first_message_has_waited():
    lanes = Lanes(lot=3, wait=5.0)
    assert lanes.due_in(0.0) is None
    lanes.add([turn(1)], 10.0)
    lanes.add([turn(2)], 14.0)
    assert lanes.due_in(14.0) == 1.0
    assert lanes.take(14.9) == []
    assert numbers(lanes.take(15.0)) == [1, 2]


def test_what_a_lot_left_waits_from_then_on():
    lanes = lanes_of(turn(1), turn(2), turn(3), lot=2, wait=5.0)
    assert numbers(lanes.take(3.0)) == [1, 2]
    assert lanes.due_in(3.0) == 5.0
    assert numbers(lanes.take(8.0)) == [3]


def test_one_that_came_before_is_a_lot_of_its_own_and_waits_for_nobody():
    lanes = lanes_of(turn(1, again=True), turn(2), turn(3, again=True), turn(4), turn(5), lot=2, wait=0.0)
    assert [numbers(lot) for lot in iter(lanes.take, [])] == [[1], [2], [3], [4, 5]]


def test_one_that_came_before_is_due_at_once_however_long_a_lot_may_wait():
    lanes = lanes_of(turn(1, again=True), turn(2), lot=3, wait=5.0)
    assert lanes.due_in(0.0) == 0.0
    assert numbers(lanes.take(0.0)) == [1]
    assert lanes.due_in(0.0) == 5.0
    (other,) = lanes.take(5.0)
    lanes.again([other])
    assert lanes.due_in(5.0) == 0.0


def test_a_lot_has_messages_of_one_key_in_order():
    lanes = lanes_of(turn(1, "a"), turn(2, "b"), turn(3, "a"), turn(4, "b"), turn(5, "a"), lot=2, wait=5.0)
    lots = [lanes.take(0.0), lanes.take(0.0)]
    assert [numbers(lot) for lot in lots] == [[1, 3], [2, 4]]
    assert lanes.take(100.0) == []
    lanes.finish(lots[0][0], 1.0)
    assert lanes.due_in(1.0) == 5.0
    assert numbers(lanes.take(6.0)) == [5]


def test_a_full_lot_of_a_key_does_not_wait_for_one_that_is_not_full():
    lanes = lanes_of(turn(1, "a"), turn(2), turn(3, "b"), turn(4, "b"), lot=2, wait=5.0)
    assert lanes.due_in(0.0) == 0.0
    assert numbers(lanes.take(0.0)) == [3, 4]
    assert lanes.due_in(1.0) == 4.0
    assert [numbers(lot) for lot in (lanes.take(5.0), lanes.take(5.0))] == [[1], [2]]


def test_a_lot_that_is_put_back_keeps_its_place_and_is_taken_one_by_one():
    lanes = lanes_of(turn(1, "a"), turn(2, "a"), turn(3, "a"), lot=2, wait=5.0)
    lot = lanes.take()
    lanes.again(lot)
    seen = []
    while taken := lanes.take(100.0):
        seen.append(numbers(taken))
        lanes.finish(taken[0], 100.0)
    assert seen == [[1], [2]]
    assert numbers(lanes.take(105.0)) == [3]


def test_of_a_lot_that_failed_the_first_is_put_back_later_and_the_others_wait_behind_it():
    lanes = lanes_of(turn(1, "a"), turn(2, "a"), turn(3, "a"), lot=2, wait=0.0)
    first, *others = lanes.take()
    lanes.put_behind(first, others)
    assert lanes.take() == []
    lanes.again([first])
    order = []
    while taken := lanes.take():
        order += numbers(taken)
        lanes.finish(taken[0])
    assert order == [1, 2, 3]


def test_clear_forgets_the_keys_of_lots_that_were_not_taken():
    lanes = lanes_of(turn(1, "a"), turn(2, "a"), turn(3, "b"), lot=2, wait=5.0)
    (first, _) = lanes.take()
    assert numbers(lanes.clear()) == [3]
    lanes.add([turn(4, "b")])
    lanes.finish(first)
    assert numbers(lanes.take(5.0)) == [4]
    assert repr(lanes) == "Lanes(0 ready, 0 behind, 1 keys)"


@given(
    st.lists(st.sampled_from([None, "a", "b"]), max_size=40),
    st.lists(st.integers(0, 9), max_size=200),
    st.integers(1, 4),
)
def test_whatever_happens_lots_keep_the_order_of_their_keys_and_all_get_their_turn(keys, steps, lot):
    lanes, running, ended = Lanes(lot=lot, wait=1.0), [], []
    arriving, now = [turn(number, key) for number, key in enumerate(keys)], 0.0
    while arriving or running or len(lanes):
        step, now = steps.pop() if steps else 9, now + 0.3
        if arriving and step < 4:
            lanes.add([arriving.pop(0)], now)
        elif running and step == 4:
            lanes.again(running.pop())
        elif running and step == 5 and running[-1][0].key is not None:
            first, *others = running.pop()
            lanes.put_behind(first, others)
            lanes.again([first])
        elif running and step > 6:
            ended += (one := running.pop(step % len(running)))
            lanes.finish(one[0], now)
        elif taken := lanes.take(now):
            running.append(taken)
            assert len({one.key for one in taken}) == 1
        elif lanes.due_in(now) is None and arriving:
            lanes.add([arriving.pop(0)], now)
        busy = [taken[0].key for taken in running if taken[0].key is not None]
        assert len(busy) == len(set(busy))
    assert sorted(numbers(ended)) == list(range(len(keys)))
    for key in ("a", "b"):
        of_key = [one.message.sequence for one in ended if one.key == key]
        assert of_key == sorted(of_key)


@given(st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=40), st.lists(st.integers(0, 9), max_size=200))
def test_whatever_happens_keys_keep_their_order_and_run_alone_and_all_get_their_turn(keys, steps):
    lanes, running, ended = Lanes(), [], []
    arriving = [turn(number, key) for number, key in enumerate(keys)]
    while arriving or running or len(lanes):
        step = steps.pop() if steps else 0
        if arriving and step < 4:
            lanes.add([arriving.pop(0)])
        elif running and step == 9:
            lanes.again([running.pop()])
        elif running and (step > 6 or lanes.due_in(0.0) is None):
            ended.append(one := running.pop(step % len(running)))
            lanes.finish(one)
        else:
            running += lanes.take()
        busy = [one.key for one in running if one.key is not None]
        assert len(busy) == len(set(busy))
    assert sorted(numbers(ended)) == list(range(len(keys)))
    for key in ("a", "b", "c"):
        of_key = [one.message.sequence for one in ended if one.key == key]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize(
    ("ordered_by", "key"),
    [
        (None, None),
        ("subject", "orders.eu"),
        ("header:Customer", "c 7"),
        ("header:Absent", None),
        (lambda message: message.data[:1], b"4"),
    ],
)
def test_keys(ordered_by, key):
    one = message(42, headers=b"NATS/1.0\r\nCustomer: c 7\r\nCustomer: 8\r\n\r\n")
    assert key_by(ordered_by)(one) == key


@pytest.mark.parametrize("ordered_by", ["", "subjects", "header", "header:"])
def test_a_key_that_is_none_is_refused(ordered_by):
    with pytest.raises(ValueError, match="header:NAME"):
        key_by(ordered_by)
