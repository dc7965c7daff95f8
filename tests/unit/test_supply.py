import pytest

from natty.supply import _first_delivery

STATUS = (b"_INBOX.x", b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"")


def message(reply):
    return b"orders.eu", reply, b"", b""


@pytest.mark.parametrize("head", [b"$JS.ACK.ORDERS.d", b"$JS.ACK.hub.Zx81hash.ORDERS.d"])
def test_the_ack_subject_of_a_first_delivery_is_told_from_a_later_one_in_both_forms(head):
    tail = b".17.4.1795262022442657374.0" + (b".x7Kq" if b"hub" in head else b"")
    first = _first_delivery([STATUS, message(head + b".3" + tail)])
    assert (b"\n" + head + b".1" + tail).startswith(first)
    assert not (b"\n" + head + b".3" + tail).startswith(first)
    assert not (b"\n" + head + b".11" + tail).startswith(first)


@pytest.mark.parametrize("other", [STATUS, message(b"$KV.leaders.a.b.c.d.e.f"), message(b"_INBOX.x.y")])
def test_what_is_no_delivery_tells_nothing_of_it(other):
    assert _first_delivery([other]) == b""
    assert _first_delivery([other, message(b"$JS.ACK.S.d.2.1.1.1.0")]) == b"\n$JS.ACK.S.d.1."
