"""Settings of streams and consumers as they are given in Python and in a file: units, kinds, names."""

import pytest

from natty.errors import ConfigError
from natty.groups import JoinOptions
from natty.streams.conversion import check_consumer_settings, check_stream_settings


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"max_age": "7d"}, {"max_age": 604800.0}),
        ({"max_age": 60, "duplicate_window": "90s"}, {"max_age": 60.0, "duplicate_window": 90.0}),
        ({"max_bytes": "1GiB", "max_msg_size": 512}, {"max_bytes": 2**30, "max_msg_size": 512}),
        ({"subjects": ("a", "b")}, {"subjects": ["a", "b"]}),
        ({"consumer_limits": {"inactive_threshold": "1h"}}, {"consumer_limits": {"inactive_threshold": 3600.0}}),
        ({"description": None, "max_msgs": 0}, {"max_msgs": 0}),
    ],
)
def test_a_stream_may_be_given_units(given, read):
    assert check_stream_settings(given) == read


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"ack_wait": "30s", "backoff": ["1s", 5]}, {"ack_wait": 30.0, "backoff": [1.0, 5.0]}),
        ({"inactive_threshold": "1h30m", "max_bytes": "64KB"}, {"inactive_threshold": 5400.0, "max_bytes": 65536}),
        ({"filter_subject": "a.>"}, {"filter_subjects": ["a.>"]}),
        ({"filter_subject": ""}, {}),
    ],
)
def test_a_consumer_may_be_given_units(given, read):
    assert check_consumer_settings(given) == read


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subject": "a.>"}, r"^stream S: there is no setting subject; did you mean subjects"),
        ({"max_mgs": 5}, "there is no setting max_mgs; did you mean max_msgs"),
        ({"zzz": 5}, "there is no setting zzz$"),
        ({"max_age": "soon"}, "max_age is 'soon', and must be seconds, or text as \"30s\""),
        ({"max_age": float("inf")}, "max_age is inf, and must be seconds"),
        ({"max_age": float("nan")}, "max_age is nan, and must be seconds"),
        ({"max_age": 10**12}, "max_age is 1000000000000, and must be seconds"),
        ({"max_age": True}, "max_age is True, and must be seconds"),
        ({"max_age": ["7d"]}, "max_age is .*, and must be seconds"),
        ({"max_bytes": "lots"}, "max_bytes is 'lots', and must be bytes, or text as \"512KB\""),
        ({"max_msgs": "5"}, "max_msgs is '5', and must be a whole number"),
        ({"subjects": "a.>"}, r"subjects is 'a\.>', and must be a list of strings"),
        ({"retention": "limit"}, "retention is 'limit', and must be one of limits, interest, workqueue"),
        ({"allow_direct": "yes"}, "allow_direct is 'yes', and must be true or false"),
        ({"metadata": {"a": 1}}, "metadata is {'a': 1}, and must be a table of strings"),
        ({"mirror": "OTHER"}, "mirror is 'OTHER', and must be a table"),
        ({"sources": [5]}, r"sources is \[5\], and must be a list of tables"),
        (
            {"consumer_limits": {"inactive_treshold": 5}},
            "consumer_limits: there is no setting inactive_treshold; did",
        ),
        (
            {"consumer_limits": {"inactive_threshold": "soon"}},
            "consumer_limits: inactive_threshold is 'soon', and",
        ),
    ],
)
def test_what_a_stream_can_not_be_given_is_told_in_a_sentence(given, said):
    with pytest.raises(ConfigError, match=said):
        check_stream_settings(given, "stream S")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ack_wiat": 5}, "there is no setting ack_wiat; did you mean ack_wait"),
        ({"backoff": ["1s", True]}, r"backoff is \['1s', True\], and must be a list of seconds"),
        ({"backoff": 5}, "backoff is 5, and must be a list of seconds"),
        ({"deliver_subject": "x.y"}, "deliver_subject is a setting of push consumers: natty makes durable pull"),
        ({"deliver_group": "q"}, "deliver_group is a setting of push consumers"),
    ],
)
def test_what_a_consumer_can_not_be_given_is_told_in_a_sentence(given, said):
    with pytest.raises(ConfigError, match=said):
        check_consumer_settings(given)
    with pytest.raises(ConfigError, match=said):
        JoinOptions(consumer=given)
