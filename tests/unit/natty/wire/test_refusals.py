"""What the server refuses is one line a kind and session, however many subjects there are of it."""

import logging

import pytest

from natty.wire.refusals import COUNTED_FOR, LASTS, Refusals

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
        refusals.add(ACK.format(number, 5000 - number), 100)
    assert caplog.messages == [
        f"the server refused: {ACKS}: give this user that permission (see `natty permissions`, `capture permissions`)"
    ]
    assert refusals.now() == [ACKS]
    clock.now = COUNTED_FOR
    refusals.add(ACK.format(5001, 0), 100)
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
        (
            'Publish to "$JS.API.CONSUMER.MSG.NEXT.KV_b.natty_3bea209db7634c1da36bf6f6d26f4562"',
            'Publish to "$JS.API.CONSUMER.MSG.NEXT.KV_b.natty_*"',
        ),
    ],
)
def test_what_only_numbers_and_random_names_tell_apart_is_one_kind(refusals, text, kind):
    refusals.add(text, 100)
    assert refusals.now() == [kind]


def test_a_refusal_that_did_not_come_again_is_over_and_a_new_session_logs_it_again(refusals, clock, caplog):
    refusals.add(ACKS, 100)
    clock.now = LASTS - 1.0
    assert refusals.now() == [ACKS]
    clock.now = LASTS
    assert refusals.now() == []
    refusals.begin()
    refusals.add(ACKS, 100)
    assert caplog.text.count("the server refused") == 2
