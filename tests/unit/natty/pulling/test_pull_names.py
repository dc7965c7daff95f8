import pytest

from natty import Natty
from natty.errors import BadSubjectError
from natty.names import BadNameError
from natty.pulling.pull import _first_delivery

STATUS = b""  # a status has no ack subject


@pytest.mark.parametrize("head", [b"$JS.ACK.ORDERS.d", b"$JS.ACK.hub.Zx81hash.ORDERS.d"])
def test_the_ack_subject_of_a_first_delivery_is_told_from_a_later_one_in_both_forms(head):
    tail = b".17.4.1795262022442657374.0" + (b".x7Kq" if b"hub" in head else b"")
    first = _first_delivery([STATUS, head + b".3" + tail])
    assert (b"\n" + head + b".1" + tail).startswith(first)
    assert not (b"\n" + head + b".3" + tail).startswith(first)
    assert not (b"\n" + head + b".11" + tail).startswith(first)


@pytest.mark.parametrize("other", [STATUS, b"$KV.leaders.a.b.c.d.e.f", b"_INBOX.x.y"])
def test_what_is_no_delivery_tells_nothing_of_it(other):
    assert _first_delivery([other]) == b""
    assert _first_delivery([other, b"$JS.ACK.S.d.2.1.1.1.0"]) == b"\n$JS.ACK.S.d.1."


@pytest.mark.parametrize(
    ("stream", "durable"), [("", "d"), ("s", ""), ("s.t", "d"), ("s", "a.b"), ("s", "*"), ("s", "a\nb")]
)
@pytest.mark.parametrize("make", [Natty.pull, Natty.consume])
def test_a_stream_or_consumer_that_none_can_be_called_is_refused_at_the_call(make, stream, durable):
    with pytest.raises(BadNameError):
        make(Natty("nats://localhost:1"), stream, durable)


@pytest.mark.parametrize("subject", ["", "STREAM.INFO.", "CONSUMER.INFO..d"])
async def test_the_api_is_asked_about_nothing_without_a_name(subject):
    with pytest.raises(BadSubjectError, match="has an empty name"):
        await Natty("nats://localhost:1").jetstream.request(subject)
