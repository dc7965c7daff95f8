import json

import pytest

from natty.pulling.requests import read_status, request_body


def status(text, **headers):
    lines = [f"NATS/1.0 {text}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return read_status((b"_INBOX.x", b"", "\r\n".join([*lines, "", ""]).encode(), b""))


def test_a_request_says_only_what_it_limits():
    assert json.loads(request_body(5, 0.5)) == {"batch": 5, "expires": 500_000_000}
    pinned = request_body(1, 1.0, heartbeat=0.5, max_bytes=9, pin={"group": "PCG", "id": "x"})
    assert json.loads(pinned) == {
        "batch": 1,
        "expires": 1_000_000_000,
        "idle_heartbeat": 500_000_000,
        "max_bytes": 9,
        "group": "PCG",
        "id": "x",
    }


def test_a_heartbeat_is_no_end_and_names_the_last_delivery():
    heartbeat = status("100 Idle Heartbeat", Nats_Last_Consumer=7, Nats_Last_Stream=9)
    assert heartbeat.is_heartbeat
    assert not heartbeat.is_end
    assert heartbeat.last_delivery == 7
    assert heartbeat.messages is None


@pytest.mark.parametrize("text", ["404 No Messages", "408 Request Timeout", "409 Batch Completed"])
def test_a_request_that_ended_says_what_is_left_of_it(text):
    end = status(text, Nats_Pending_Messages=3, Nats_Pending_Bytes=100)
    assert end.is_end
    assert (end.messages, end.size_bytes) == (3, 100)
    assert end.is_timeout == text.startswith("408")


def test_a_message_that_is_too_large_is_told_from_other_refusals():
    assert status("409 Message Size Exceeds MaxBytes", Nats_Pending_Messages=1).is_too_large
    refused = status("409 Consumer Deleted")
    assert not refused.is_too_large
    assert not refused.is_end
    assert not status("503").is_end
    assert status("423 Nats-Wrong-Pin-Id").is_pin_refused
