"""What the server refuses is one line a kind and session, however many subjects there are of it."""

import logging

import pytest

from natty.wire.repeated import MOST_STATES, REFUSAL_LASTS, REFUSALS_EVERY, Refusals

ACK = 'Permissions Violation for Publish to "$JS.ACK.ORDERS.capture.1.{0}.{0}.1795386947164339497.{1}"'
ACKS = 'Permissions Violation for Publish to "$JS.ACK.ORDERS.capture.>"'


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def refusals(clock):
    return Refusals(logging.getLogger("natty.test"), clock=clock)


def test_thousands_of_refused_acks_are_one_line_with_what_to_do_and_one_with_their_count(refusals, clock, caplog):
    for number in range(1, 5001):
        refusals.add(ACK.format(number, 5000 - number))
    assert caplog.messages == [
        f"the server refused: {ACKS}: give this user that permission (see `natty permissions`, `capture permissions`)"
    ]
    assert refusals.recent() == [ACKS]
    clock.now = REFUSALS_EVERY
    refusals.add(ACK.format(5001, 0))
    assert [getattr(record, "count", 0) for record in caplog.records] == [0, 4999, 0]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            'Publish to "$JS.ACK.hub.Ab12.ORDERS.d.1.2.3.1795386947164339497.5.x7"',
            'Publish to "$JS.ACK.hub.Ab12.ORDERS.d.>"',
        ),
        ('Publish to "$JS.API.CONSUMER.INFO.ORDERS.d"', 'Publish to "$JS.API.CONSUMER.INFO.ORDERS.d"'),
        ('Publish to "orders.1.2.3"', 'Publish to "orders.1.2.3"'),
        ('Subscription to "_INBOX.3bea209db7634c1da36bf6f6d26f4562.*"', 'Subscription to "_INBOX.*.*"'),
        ('Subscription to "a" (sid "17")', 'Subscription to "a"'),
        (
            'Publish to "$JS.API.CONSUMER.MSG.NEXT.KV_b.natty_3bea209db7634c1da36bf6f6d26f4562"',
            'Publish to "$JS.API.CONSUMER.MSG.NEXT.KV_b.natty_*"',
        ),
    ],
)
def test_what_only_numbers_and_random_names_tell_apart_is_one_kind(refusals, text, kind):
    refusals.add(text)
    assert refusals.recent() == [kind]


def test_a_refusal_that_did_not_come_again_is_over_and_a_new_session_logs_it_again(refusals, clock, caplog):
    refusals.add(ACKS)
    clock.now = REFUSAL_LASTS - 1.0
    assert refusals.recent() == [ACKS]
    clock.now = REFUSAL_LASTS
    assert refusals.recent() == []
    refusals.begin()
    refusals.add(ACKS)
    assert caplog.text.count("the server refused") == 2


def test_listeners_get_what_may_not_be_published_in_the_servers_words(refusals):
    heard = []
    refusals.listeners.append(heard.append)
    refusals.add('Permissions Violation for Subscription to "a"')
    refusals.add(ACK.format(1, 2))
    refusals.add(ACK.format(1, 2))
    refusals.listeners.remove(heard.append)
    refusals.add(ACK.format(1, 2))
    assert heard == [ACK.format(1, 2)] * 2


def test_a_server_that_refuses_different_things_without_end_takes_bounded_memory(refusals, clock):
    for number in range(1000):
        refusals.add(f"a{number}")
    assert len(refusals.recent()) == MOST_STATES
    clock.now = REFUSAL_LASTS
    refusals.add("later")
    assert refusals.recent() == ["later"]
