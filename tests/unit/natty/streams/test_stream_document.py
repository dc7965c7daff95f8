import json
from typing import is_typeddict

import pytest

from natty import NattyError
from natty.errors import BadSubjectError, ConfigError
from natty.names import check_pattern
from natty.streams.conversion import check_consumer_settings, check_stream_settings, from_wire, to_wire
from natty.streams.document import check, complaints, copy_settings, load_document, strip_marks
from natty.streams.refusal import sentence
from natty.streams.schema import ConsumerConfig, Duration, StreamConfig, rows

SECOND = 1_000_000_000
ORDERS = {"name": "ORDERS", "subjects": ["orders.>"], "max_age": 3600 * SECOND, "max_bytes": 1024**3}

WRONG = [
    ({"name": "a b"}, "stream name 'a b': ' ' at character 2 is not allowed"),
    ({"name": "ORDERS.EU"}, "stream name 'ORDERS.EU': '.' at character 7 is not allowed"),
    (
        {"max_mgs": 5},
        "the configuration: there is no setting max_mgs; did you mean max_msgs or",
    ),
    ({"max_msgs": "many"}, "the configuration: max_msgs is 'many', and must be a whole number"),
    ({"max_age": "1d"}, "the configuration: max_age is '1d', and must be seconds"),
    ({"storage": "disk"}, "the configuration: storage is 'disk', and must be one of file, memory"),
    ({"max_msgs": -5}, "max_msgs is -5: write a limit, or -1 for none"),
    ({"max_msg_size": 2**31}, "max_msg_size is 2 GiB, and a server accepts less than 2 GiB"),
    ({"max_bytes": 100, "max_msg_size": 2048}, "max_bytes is 100 B, less than one message of max_msg_size 2 KiB"),
    ({"num_replicas": 6}, "num_replicas is 6: write 1 to 5, best an odd number"),
    ({"max_age": SECOND // 20}, "max_age is 50ms: the shortest is 100ms, and 0 is none"),
    ({"duplicate_window": 7200 * SECOND}, "duplicate_window is 2h and max_age 1h: deleted messages can't be compared"),
    ({"subjects": ["orders.*", "orders.eu"]}, "subjects orders.* and orders.eu overlap: the wider one is enough"),
    ({"subjects": ["orders..eu"]}, "subject 'orders..eu' has an empty token at character 8"),
    ({"subjects": ["orders.eu "]}, "subject 'orders.eu ': ' ' at character 10 is not allowed"),
    ({"subjects": ["orders.>.eu"]}, "subject 'orders.>.eu': > stands for all that follows and must be the last token"),
    ({"mirror": {"name": "HUB"}}, "a mirror has no subjects: it uses those of the stream that it mirrors"),
    ({"deny_purge": True, "allow_rollup_hdrs": True}, "allow_rollup_hdrs needs purging, and deny_purge forbids it"),
    (
        {"discard_new_per_subject": True, "max_msgs_per_subject": 1},
        "discard_new_per_subject needs discard new",
    ),
    (
        {"discard_new_per_subject": True, "discard": "new"},
        "discard_new_per_subject needs max_msgs_per_subject: that is the limit it applies to",
    ),
]


def test_a_sensible_configuration_has_nothing_wrong():
    assert list(complaints(ORDERS)) == []
    assert list(complaints({"name": "ORDERS"})) == []
    assert list(complaints(ORDERS | {"max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1})) == []
    assert list(complaints({"name": "COPY", "mirror": {"name": "HUB"}, "subjects": []})) == []


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_one_sentence(change, said):
    (found,) = complaints(ORDERS | change)
    assert found.startswith(said)
    assert "\n" not in found


def test_everything_that_is_wrong_is_told_at_once():
    with pytest.raises(ConfigError, match=r"max_msgs is -7: .*; num_replicas is 9: "):
        check(ORDERS | {"max_msgs": -7, "num_replicas": 9})
    with pytest.raises(ConfigError, match="the stream has no name"):
        check({"subjects": ["a"]})


def test_a_configuration_is_read_from_a_file_or_from_what_info_printed(tmp_path):
    path = tmp_path / "orders.json"
    path.write_text(json.dumps(ORDERS))
    assert load_document(path) == ORDERS
    path.write_text(json.dumps({"type": "…", "config": ORDERS, "state": {"messages": 5}}))
    assert load_document(path) == ORDERS


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"orders.json can't be read: No such file or directory; check --config"),
        ("{", r"orders.json is not valid JSON: "),
        ("[]", r"orders.json is not the configuration of a stream: it must be a JSON object with its name"),
        ('{"name": 5}', r"orders.json is not the configuration of a stream: it must be a JSON object with its name"),
        ('{"config": 5}', r"orders.json is not the configuration of a stream: it must be a JSON object with its name"),
    ],
)
def test_a_file_that_holds_none_is_told_with_its_name(tmp_path, content, said):
    path = tmp_path / "orders.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NattyError, match=said):
        load_document(path)


def test_the_marks_of_a_server_are_no_part_of_a_configuration(tmp_path):
    marked = ORDERS | {"metadata": {"_nats.level": "1", "owner": "us"}}
    assert strip_marks(marked) == ORDERS | {"metadata": {"owner": "us"}}
    assert strip_marks(ORDERS) == ORDERS
    (tmp_path / "orders.json").write_text(json.dumps(marked))
    assert load_document(tmp_path / "orders.json") == strip_marks(marked)


def test_a_copy_has_everything_but_what_belongs_to_the_one_stream():
    settings = {"max_age": 5 * SECOND, "metadata": {"owner": "us"}, "first_seq": 7}
    own = {"name": "ORDERS", "subjects": ["orders.>"], "sealed": True}
    assert copy_settings(own | settings | {"metadata": {"_nats.level": "1", "owner": "us"}}) == settings


def test_durations_come_back_as_they_went():
    settings = {"max_age": 3600.5, "duplicate_window": 120.0, "max_msgs": 5, "subjects": ["a"]}
    settings |= {"consumer_limits": {"inactive_threshold": 1.5, "max_ack_pending": 7}, "backoff": [1.0, 2.5]}
    assert from_wire(to_wire(settings)) == settings
    assert to_wire(settings)["consumer_limits"] == {"inactive_threshold": 1_500_000_000, "max_ack_pending": 7}


@pytest.mark.parametrize("kind", [StreamConfig, ConsumerConfig])
def test_every_duration_of_a_setting_is_nanoseconds_on_the_wire(kind):
    """Also a duration inside a table: a new one without its conversion fails here."""

    def durations(one):
        for name, (hint, _) in rows(one).items():
            if hint == Duration:
                yield {name: "1h"}, {name: 3600 * SECOND}
            elif is_typeddict(hint):
                yield from (({name: given}, {name: written}) for given, written in durations(hint))

    check = check_stream_settings if kind is StreamConfig else check_consumer_settings
    found = list(durations(kind))
    assert found
    for given, written in found:
        assert to_wire(check(given)) == written


@pytest.mark.parametrize("pattern", ["orders", "orders.>", "*.eu.*", ">", "größe.1"])
def test_patterns_that_a_stream_can_have(pattern):
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", ".a", "a.", "a..b", "a b", "a\tb", "a.>.b", "a\n"])
def test_patterns_that_no_stream_can_have(pattern):
    with pytest.raises(BadSubjectError):
        check_pattern(pattern)


def test_a_refusal_is_told_with_the_numbers_it_is_about():
    wanted = {"name": "X", "max_bytes": 5 * 1024**4, "num_replicas": 3, "placement": {"cluster": "eu", "tags": ["ssd"]}}
    assert sentence(10047, wanted) == (
        "the server does not have the storage that max_bytes 5 TiB reserves; lower max_bytes, or give it more"
    )
    assert "does not have the memory" in sentence(10028, wanted)
    assert sentence(10074, wanted) == "num_replicas is 3, and this server is not in a cluster: use 1"
    assert sentence(10005, wanted) == "there are not 3 servers with cluster eu, tag ssd that could take it"
    assert sentence(10005, {"name": "X"}) == "there are not 1 servers that could take it"
    assert sentence(10052, wanted) == ""
