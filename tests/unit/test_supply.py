import pytest

from natty.supply import _first_delivery

STATUS = (b"_INBOX.x", b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"")


def message(reply):
    return b"orders.eu", reply, b"", b""


@pytest.mark.parametrize("head", [b"$JS.ACK.ORDERS.d", b"$JS.ACK.hub.Zx81hash.ORDERS.d"])
def test_the_ack_subject_of_a_first_delivery_is_told_from_a_later_one_in_both_forms(head):
    tail = b".17.4.1795262022442657374.0" + (b".x7Kq" if b"hub" in head else b"")
    first = _first_delivery([STATUS, message(head + b".3" + tail)])
    assert message(head + b".1" + tail)[1].startswith(first)
    assert not message(head + b".3" + tail)[1].startswith(first)
    assert not message(head + b".11" + tail)[1].startswith(first)


def test_statuses_alone_tell_nothing_of_it():
    assert _first_delivery([STATUS]) == b""
