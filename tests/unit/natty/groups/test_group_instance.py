import pytest

from natty.groups.instance import RETRY_MAX, UNCLAIMED, Do, Instance, Own, Seen, Step

ACK_WAIT = 5.0
RIGHT, OLD = ("0.>", "1.>"), ("0.>",)


@pytest.fixture
def instance():
    one = Instance(ACK_WAIT, elastic=True, tick=2.0)
    one.assign(RIGHT)
    return one


def consumer(filters=RIGHT, created="c1", **state):
    return Seen(created, filters, **state)


READING = Own("c1", pinned=False)
PINNED = Own("c1", pinned=True)


def test_a_consumer_that_is_missing_is_made_and_one_that_is_right_is_read(instance):
    assert instance.decide(0.0, None, Own()).do is Do.CREATE
    assert instance.decide(0.0, consumer(), Own()).do is Do.READ
    assert instance.decide(0.0, consumer(), READING) == Step(Do.WAIT, 2.0)


def test_who_has_no_partition_reads_nothing_and_leaves_what_others_read(instance):
    instance.assign([])
    assert instance.decide(0.0, None, Own()) == Step(Do.WAIT)
    assert instance.decide(0.0, consumer(pinned="x"), Own()).do is Do.WAIT


def test_the_pinned_one_drains_before_it_takes_its_old_consumer_away(instance):
    assert instance.decide(0.0, consumer(OLD, pinned="x"), PINNED).do is Do.DRAIN
    instance.note_drained("c1")
    assert instance.decide(0.1, consumer(OLD, pinned="x"), Own()).do is Do.DELETE
    assert instance.decide(0.2, None, Own()).do is Do.CREATE


FORGOT = Own("c1", pinned=True, forgot=True)


def test_the_pinned_one_drains_and_makes_again_a_consumer_whose_server_forgot_messages(instance):
    assert instance.decide(0.0, consumer(pinned="x"), FORGOT) == Step(Do.DRAIN, 0.0)
    instance.note_drained("c1", "x")
    assert instance.decide(0.1, consumer(pinned="x"), Own()) == Step(Do.DELETE, 0.0)
    assert instance.decide(0.2, None, Own()).do is Do.CREATE
    assert instance.decide(0.3, consumer(created="c2"), Own()).do is Do.READ


@pytest.mark.parametrize("pinned", ["", "y"])
def test_a_consumer_that_another_one_has_meanwhile_is_left_to_it(instance, pinned):
    assert instance.decide(0.0, consumer(pinned="x"), FORGOT).do is Do.DRAIN
    instance.note_drained("c1", "x")
    assert instance.decide(0.1, consumer(pinned=pinned), Own()).do is Do.READ
    assert instance.decide(0.2, consumer(pinned="x"), Own()).do is Do.READ


def test_a_standby_leaves_a_consumer_whose_server_forgot_messages_to_the_pinned_one(instance):
    assert instance.decide(0.0, consumer(pinned="x"), Own("c1", forgot=True)) == Step(Do.WAIT, 2.0)
    assert instance.decide(0.0, consumer(pinned="x"), FORGOT).do is Do.DRAIN  # then it lost the pin
    assert instance.decide(0.1, consumer(pinned="y"), Own("c1")) == Step(Do.WAIT, 2.0)
    instance.note_drained("c1", "x")
    assert instance.decide(0.2, consumer(pinned="x"), Own()).do is Do.READ


def test_a_static_consumer_whose_server_forgot_messages_is_made_again():
    static = Instance(ACK_WAIT, elastic=False, tick=2.0)
    static.assign(RIGHT)
    assert static.decide(0.0, consumer(pinned="x"), FORGOT).do is Do.DRAIN
    static.note_drained("c1", "x")
    assert static.decide(0.1, consumer(pinned="x"), Own()).do is Do.DELETE


def test_a_dropped_one_drains_and_deletes(instance):
    instance.assign([])
    assert instance.decide(0.0, consumer(pinned="x"), PINNED).do is Do.DRAIN
    instance.note_drained("c1")
    assert instance.decide(0.1, consumer(pinned="x"), Own()).do is Do.DELETE


@pytest.mark.parametrize(
    ("state", "do"),
    [({}, Do.DELETE), ({"waiting": 1}, Do.WAIT), ({"pinned": "x"}, Do.WAIT), ({"unfinished": 1}, Do.WAIT)],
)
def test_a_dropped_standby_deletes_only_what_nobody_reads(instance, state, do):
    assert instance.decide(0.0, consumer(), READING).do is Do.WAIT
    instance.assign([])
    assert instance.decide(0.1, consumer(), READING).do is Do.CLOSE
    assert instance.decide(0.2, consumer(**state), Own()).do is do


def test_a_standby_waits_for_the_pinned_one_to_take_the_old_consumer_away(instance):
    assert instance.decide(0.0, consumer(OLD, pinned="x"), READING).do is Do.CLOSE
    for now in (0.1, ACK_WAIT, 100 * ACK_WAIT):
        assert instance.decide(now, consumer(OLD, pinned="x"), Own()).do is Do.WAIT


@pytest.mark.parametrize(("unfinished", "patience"), [(0, UNCLAIMED), (3, ACK_WAIT)])
def test_an_old_consumer_without_a_pin_is_replaced_after_a_while(instance, unfinished, patience):
    old = consumer(OLD, unfinished=unfinished)
    assert instance.decide(10.0, old, Own()).do is Do.WAIT
    assert instance.decide(10.0 + 0.9 * patience, old, Own()).do is Do.WAIT
    assert instance.decide(10.0 + patience, old, Own()).do is Do.DELETE


def test_a_consumer_that_was_made_meanwhile_is_waited_for_anew(instance):
    assert instance.decide(0.0, consumer(OLD), Own()).do is Do.WAIT
    assert instance.decide(UNCLAIMED, consumer(OLD, "c2"), Own()).do is Do.WAIT


def test_the_pinned_one_makes_a_lost_consumer_again_at_once(instance):
    assert instance.decide(0.0, None, PINNED).do is Do.CLOSE
    assert instance.decide(0.0, None, Own()).do is Do.CREATE


def test_a_standby_lets_an_ack_wait_pass_when_its_consumer_is_lost(instance):
    assert instance.decide(10.0, None, READING).do is Do.CLOSE
    assert instance.decide(10.0, None, Own()).do is Do.WAIT
    assert instance.decide(10.0 + 0.9 * ACK_WAIT, consumer(created="c2"), Own()).do is Do.WAIT
    assert instance.decide(10.0 + ACK_WAIT, None, Own()).do is Do.CREATE


def test_a_standby_goes_on_as_soon_as_somebody_is_pinned_again(instance):
    assert instance.decide(10.0, consumer(created="c2"), READING).do is Do.CLOSE
    assert instance.decide(10.1, consumer(created="c2"), Own()).do is Do.WAIT
    assert instance.decide(10.2, consumer(created="c2", pinned="x"), Own()).do is Do.READ


def test_a_refused_consumer_is_tried_again_quickly_and_never_slower_than_once_a_second(instance):
    now = 0.0
    for tries in range(10):
        assert instance.decide(now, None, Own()).do is Do.CREATE, tries
        instance.note_overlap(now)
        assert instance.decide(now, None, Own()).do is Do.WAIT
        now += RETRY_MAX
    instance.note_created()
    assert not instance.refused


def test_a_static_consumer_of_other_partitions_is_never_taken_away():
    static = Instance(ACK_WAIT, elastic=False, tick=2.0)
    static.assign(RIGHT)
    assert static.decide(0.0, consumer(OLD), Own()).do is Do.FAIL
