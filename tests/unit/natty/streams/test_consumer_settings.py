from datetime import UTC, datetime, timedelta

import pytest

from natty.errors import BadSubjectError, ConfigError
from natty.streams.consumer import check_consumer, linear_backoff, on_wire, priority, start_at, time_of

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
STREAM = {"name": "ORDERS", "subjects": ["orders.*", "returns.>"]}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("all", {"deliver_policy": "all"}),
        ("next", {"deliver_policy": "new"}),
        ("last", {"deliver_policy": "last"}),
        ("subject", {"deliver_policy": "last_per_subject"}),
        ("17", {"deliver_policy": "by_start_sequence", "opt_start_seq": 17}),
        ("1h30m", {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-22T10:30:00Z"}),
        ("2026-11-21 06:00:00", {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-21T06:00:00Z"}),
        (
            "2026-11-21T06:00:00.123456789Z",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-21T06:00:00.123456789Z"},
        ),
        ("2026-11-21T06:00:00+02:00", {"deliver_policy": "by_start_time", "opt_start_time": "2026-11-21T04:00:00Z"}),
    ],
)
def test_a_start_is_named_as_in_the_nats_tool(text, settings):
    assert start_at(text, NOW) == settings


@pytest.mark.parametrize("text", ["", "soon", "0", "-3", "1x"])
def test_what_is_no_start_is_told(text):
    with pytest.raises(ValueError, match=r"is not a start|first sequence is 1"):
        start_at(text, NOW)


def test_a_moment_is_a_time_or_a_duration_from_now_on():
    assert time_of("90m", NOW) == NOW + timedelta(minutes=90)
    assert time_of("2030-01-01", NOW) == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("microsecond", "text"),
    [(0, "2026-11-22T12:00:00Z"), (467830, "2026-11-22T12:00:00.46783Z"), (100000, "2026-11-22T12:00:00.1Z")],
)
def test_a_moment_is_written_as_the_server_writes_it(microsecond, text):
    assert on_wire(NOW.replace(microsecond=microsecond)) == text


def test_a_linear_backoff_grows_evenly():
    assert linear_backoff(4, 1.0, 9.0) == [1.0, 3.0, 5.0, 7.0]
    assert linear_backoff(4, 9.0, 1.0) == [1.0, 3.0, 5.0, 7.0]
    assert linear_backoff(1, 2.0, 2.0) == [2.0]


def test_groups_are_of_one_kind():
    pinned = {"priority_policy": "pinned_client", "priority_groups": ["a"]}
    assert priority({"pinned_groups": ["a"]}, 30.0) == pinned | {"priority_timeout": 30.0}
    assert priority({"pinned_groups": ["a"]}) == pinned
    assert priority({"overflow_groups": ["a", "b"]})["priority_groups"] == ["a", "b"]
    assert priority({}) == {}
    with pytest.raises(ConfigError, match="pinned_groups and overflow_groups: a consumer has groups of one kind"):
        priority({"pinned_groups": ["a"], "overflow_groups": ["b"]})
    with pytest.raises(ConfigError, match="pinned_ttl 30s is for pinned groups"):
        priority({"overflow_groups": ["b"]}, 30.0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ack_wait": 30.0, "max_deliver": -1, "max_ack_pending": -1},
        {"backoff": [1.0, 5.0], "max_deliver": 2},
        {"backoff": [1.0, 5.0], "ack_wait": 1.0},
        {"backoff": [], "ack_wait": 30.0},
        {"ack_policy": "none", "max_deliver": -1},
        {"filter_subjects": ["orders.new", "returns.*.late"]},
        {"filter_subjects": ["*.new"]},
        {"filter_subjects": [">"]},
    ],
)
def test_what_can_be_meant_is_taken(settings):
    check_consumer(settings, STREAM)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"backoff": [1.0, 5.0], "ack_wait": 30.0}, "ack_wait 30s and a backoff that begins with 1s contradict"),
        ({"backoff": [1.0, 5.0, 9.0], "max_deliver": 2}, "max_deliver 2 is less than the 3 waits of backoff"),
        ({"ack_policy": "none", "ack_wait": 5.0, "max_ack_pending": 9}, "leave out ack_wait, max_ack_pending"),
        ({"max_ack_pending": 0}, "max_ack_pending 0 is not possible"),
        ({"max_deliver": -2}, "max_deliver -2 is not possible"),
        (
            {"filter_subjects": ["bills.>"]},
            "filter bills.> matches nothing that stream ORDERS stores: its subjects are",
        ),
        ({"filter_subjects": ["orders.a.b"]}, "filter orders.a.b matches nothing"),
        ({"filter_subjects": ["orders.*", "orders.a"]}, r"filters orders.\* and orders.a overlap"),
        ({"filter_subjects": ["orders..a"]}, "has an empty token at character 8"),
        ({"filter_subjects": ["orders.>.a"]}, "> stands for all that follows"),
        ({"filter_subjects": ["orders a"]}, "' ' at character 7 is not allowed"),
    ],
)
def test_what_can_not_be_meant_is_told_with_the_numbers(settings, said):
    with pytest.raises((ConfigError, BadSubjectError), match=said):
        check_consumer(settings, STREAM)


@pytest.mark.parametrize("other", ["mirror", "sources", "subject_transform"])
def test_a_filter_is_not_compared_with_the_subjects_of_a_stream_that_takes_in_others(other):
    check_consumer({"filter_subjects": ["bills.>"]}, STREAM | {other: {"name": "BILLS"}})
    check_consumer({"filter_subjects": ["bills.>"]}, {"name": "M"})
