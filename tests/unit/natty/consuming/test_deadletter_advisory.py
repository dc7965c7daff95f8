import msgspec
import pytest

from natty.consuming.dead_letters.advisory import (
    RETRY_DELAY_MAX,
    Advisory,
    BadAdvisoryError,
    delay_of,
    durable_of,
    read_advisory,
)
from natty.jetstream import StoredMessage

GAVE_UP = b"""{"type":"io.nats.jetstream.advisory.v1.max_deliver","id":"LhQvGeG2lLVLQehfpOhZPu",
 "timestamp":"2026-11-21T11:51:45.021130966Z","stream":"ORDERS","consumer":"mailer","stream_seq":3,"deliveries":2}"""
TERMINATED = b"""{"type":"io.nats.jetstream.advisory.v1.terminated","id":"LhQvGeG2lLVLQehfpOhZLG",
 "timestamp":"2026-11-21T11:51:45.020316051Z","stream":"ORDERS","consumer":"mailer","consumer_seq":1,"stream_seq":1,
 "deliveries":1,"reason":"no such customer"}"""


def read(text):
    return msgspec.json.decode(text, type=Advisory)


def stored(time):
    return StoredMessage("orders.eu", 3, b"payload", b"", time)


def test_a_letter_says_why_the_server_gave_up():
    assert read(GAVE_UP).letter_reason == "max deliveries: the server gave up after 2"
    assert read(TERMINATED).letter_reason == "terminated: no such customer"
    assert read(TERMINATED.replace(b"no such customer", b"")).letter_reason == "terminated"


@pytest.mark.parametrize(
    ("time", "same"),
    [
        ("2026-11-20T11:51:45Z", True),
        ("2026-11-21T11:51:45.02Z", True),
        ("2026-11-21T11:51:50Z", True),  # the servers' clocks differ
        ("2026-11-21T11:53:00Z", False),  # stored after the server gave up: of a stream that was made again
    ],
)
def test_an_advisory_is_not_about_a_message_that_came_after_it(time, same):
    assert read(GAVE_UP).is_about(stored(time)) == same


def test_an_original_that_is_gone_is_known_by_its_place():
    gone = read(GAVE_UP).original(None)
    assert (gone.stream, gone.sequence, gone.deliveries, gone.subject) == ("ORDERS", 3, 2, "")
    there = read(GAVE_UP).original(stored("2026-11-21T11:51:45.02Z"))
    assert (there.subject, there.data, there.time_ns) == ("orders.eu", b"payload", 1_795_261_905_020_000_000)


def test_names_that_look_alike_have_watches_of_their_own():
    assert durable_of("A-B", "C") != durable_of("A", "B-C")
    assert len(durable_of("S" * 255, "C" * 255)) <= 255


def test_the_pause_before_another_look_is_bounded_however_often_there_was_one():
    assert [delay_of(deliveries) for deliveries in (1, 2, 3)] == [2.0, 4.0, 8.0]
    assert {delay_of(deliveries) for deliveries in (9, 1024, 10**18)} == {RETRY_DELAY_MAX}


@pytest.mark.parametrize("data", [b"", b"\xff", b'{"type":"\xff"}', b"[" * 100_000, b"{}", b'{"deliveries":1e400}'])
def test_what_is_no_advisory_is_told_by_our_own_error(data):
    with pytest.raises(BadAdvisoryError):
        read_advisory(data)
