import pytest

from natty.wire import ack

STATUS = b""  # a status has no ack subject
PLAIN = b"$JS.ACK.ORDERS.billing.3.17.4.1795262022442657374.5"
LONG = b"$JS.ACK.hub.Zx81hash.ORDERS.billing.3.17.4.1795262022442657374.5.x7Kq"


@pytest.mark.parametrize("reply", [PLAIN, LONG])
def test_both_forms_of_an_ack_subject_say_the_same(reply):
    assert ack.ack_tokens(reply) == PLAIN.split(b".")
    assert ack.sequence_of(reply) == 17
    assert ack.delivery_of(reply) == 4
    assert ack.identity_of(reply) == b"17.1795262022442657374"


@pytest.mark.parametrize("reply", [PLAIN, LONG])
def test_a_first_delivery_is_found_by_what_its_ack_subject_contains(reply):
    first = ack.first_delivery("ORDERS", "billing")
    assert first not in reply
    assert first in reply.replace(b"billing.3.", b"billing.1.")
    assert reply.replace(b"billing.3.", b"billing.1.").startswith(ack.start_of_first_delivery(reply))


def test_a_composed_ack_subject_is_parsed_like_one_of_the_server():
    at = 1795262022442657374
    reply = ack.ack_subject("ORDERS", "billing", 17, at)
    assert reply == b"$JS.ACK.ORDERS.billing.1.17.0.1795262022442657374.0"
    assert ack.identity_of(reply) == ack.identity_of(PLAIN)
    assert reply.startswith(ack.start_of_first_delivery(PLAIN))
    assert ack.Acks([ack.ack_subject("ORDERS", "billing", 18, deliveries=3), PLAIN]).column(4) == [b"3", b"3"]


def test_what_is_sent_to_have_a_message_again_names_its_delay_in_nanoseconds():
    assert ack.nak() == b"-NAK"
    assert ack.nak(1.5) == b'-NAK {"delay": 1500000000}'


def test_what_is_sent_to_give_a_message_up_names_the_reason():
    assert ack.term() == b"+TERM"
    assert ack.term("no such customer") == b"+TERM no such customer"
    with pytest.raises(TypeError, match="must be a str and is of type int"):
        ack.term(7)


@pytest.mark.parametrize("head", [b"$JS.ACK.ORDERS.d", b"$JS.ACK.hub.Zx81hash.ORDERS.d"])
def test_the_ack_subject_of_a_first_delivery_is_told_from_a_later_one_in_both_forms(head):
    tail = b".17.4.1795262022442657374.0" + (b".x7Kq" if b"hub" in head else b"")
    first = ack.line_of_first_deliveries([STATUS, head + b".3" + tail])
    assert (b"\n" + head + b".1" + tail).startswith(first)
    assert not (b"\n" + head + b".3" + tail).startswith(first)
    assert not (b"\n" + head + b".11" + tail).startswith(first)


@pytest.mark.parametrize("other", [STATUS, b"$KV.leaders.a.b.c.d.e.f", b"_INBOX.x.y"])
def test_what_is_no_delivery_tells_nothing_of_it(other):
    assert ack.line_of_first_deliveries([other]) == b""
    assert ack.line_of_first_deliveries([other, b"$JS.ACK.S.d.2.1.1.1.0"]) == b"\n$JS.ACK.S.d.1."
