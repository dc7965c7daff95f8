import pytest

from natty.publishing.publisher import expect_stream
from natty.wire.message import encode_headers, parse_headers, publish_headers


def test_an_expected_stream_is_added_to_a_header_block_once():
    assert parse_headers(expect_stream("S", b"")) == {"Nats-Expected-Stream": ["S"]}
    both = expect_stream("S", encode_headers({"A": "b"}))
    assert parse_headers(both) == {"A": ["b"], "Nats-Expected-Stream": ["S"]}
    assert both.endswith(b"\r\n\r\n")
    assert expect_stream("T", both) == both


def test_conditions_become_headers_and_the_callers_are_left_alone():
    mine = {"A": "b"}
    made = publish_headers(mine, msg_id="x", expect_last_sequence=0, expect_last_subject_sequence=7, ttl=1.2)
    assert made == {
        "A": "b",
        "Nats-Msg-Id": "x",
        "Nats-Expected-Last-Sequence": "0",
        "Nats-Expected-Last-Subject-Sequence": "7",
        "Nats-TTL": "2",
    }
    assert mine == {"A": "b"}
    assert publish_headers(None) == {}


@pytest.mark.parametrize("ttl", [0, -1.0])
def test_a_ttl_that_is_not_positive_is_refused(ttl):
    with pytest.raises(ValueError, match="ttl is"):
        publish_headers(None, ttl=ttl)


@pytest.mark.parametrize("name", ["", "a:b", "A: b, Nats-Rollup", "a b", " a", "a\tb", "a\r\nB", "a\x00", "a\x7f"])
def test_a_header_name_that_would_be_read_as_something_else_is_refused(name):
    with pytest.raises(ValueError, match=r"header name .* is empty, or has a blank, a colon or a control character"):
        publish_headers({"Fine": "x", name: "y"})
