import pytest

from natty.jetstream import StoredMessage
from natty.kv.entry import Entry, Gone, headers_to_keep, read_entry, stored_entry, ttl_header
from natty.kv.watch import WatchOptions
from natty.wire.message import encode_headers


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"KV-Operation": "DEL"}, "deleted"),
        ({"KV-Operation": "PURGE", "Nats-Rollup": "sub"}, "purged"),
        ({"Nats-Marker-Reason": "MaxAge"}, "expired"),
        ({"Nats-Marker-Reason": "Purge"}, "purged"),
        ({"Nats-Marker-Reason": "Remove"}, "deleted"),
        ({"Nats-Marker-Reason": "Newer"}, "Newer"),
    ],
)
def test_every_marker_is_an_absence(headers, reason):
    block = encode_headers(headers)
    assert read_entry("k", 7, block, b"", 1) == Gone("k", 7, reason)
    assert stored_entry("k", StoredMessage("", 7, b"", block, "2026-01-01T00:00:00Z")) is None


@pytest.mark.parametrize("headers", [{}, {"KV-Operation": "PUT"}, {"Owner": "ann"}])
def test_everything_else_is_a_value(headers):
    assert read_entry("k", 7, encode_headers(headers), b"v", 1) == Entry("k", b"v", 7)


@pytest.mark.parametrize(
    ("time", "nanoseconds"),
    [
        ("2026-11-21T11:54:49.31396181Z", 1795262089313961810),
        ("2026-11-21T11:54:49Z", 1795262089000000000),
        ("2026-11-21T11:54:49.000000001Z", 1795262089000000001),
    ],
)
def test_the_time_is_kept_to_the_nanosecond(time, nanoseconds):
    entry = stored_entry("k", StoredMessage("", 7, b"v", b"", time))
    assert entry.time_ns == nanoseconds


def test_what_belongs_to_one_write_is_not_kept_for_the_next():
    given = {
        "Natty-Nonce": "n",
        "Nats-Expected-Last-Subject-Sequence": "3",
        "Nats-Msg-Id": "once",
        "Nats-TTL": "5",
        "Owner": ["ann", "bob"],
    }
    entry = Entry("k", b"", 1, encode_headers(given))
    assert headers_to_keep(entry) == {"Nats-TTL": ["5"], "Owner": ["ann", "bob"]}
    assert entry.ttl == 5.0


@pytest.mark.parametrize(
    ("header", "ttl"),
    [
        ("5", 5.0),
        ("1m0s", 60.0),
        ("1h30m0s", 5400.0),
        ("2.9s", 2.0),
        ("never", None),
        ("", None),
        ("9" * 400, None),
        ("x", None),
    ],
)
def test_the_ttl_of_a_key(header, ttl):
    assert Entry("k", b"", 1, encode_headers({"Nats-TTL": header})).ttl == ttl


def test_a_ttl_is_never_shorter_than_asked_for():
    assert [ttl_header(seconds) for seconds in (None, 0.2, 1, 1.1)] == [
        {},
        {"Nats-TTL": "1"},
        {"Nats-TTL": "1"},
        {"Nats-TTL": "2"},
    ]


@pytest.mark.parametrize(("seconds", "said"), [(0, "write more than 0"), (36_501 * 86_400, "write at most 36500d")])
def test_a_ttl_with_which_the_server_keeps_no_key_is_refused(seconds, said):
    with pytest.raises(ValueError, match=said):
        ttl_header(seconds)


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="contradict"):
        WatchOptions(history=True, updates_only=True)
