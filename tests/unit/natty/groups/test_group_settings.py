"""Names, timings and configurations as the protocol fixes them."""

import pytest

from natty.errors import BadGroupError
from natty.groups import ElasticRecord, PartitioningFilter
from natty.groups.settings import (
    Timings,
    bucket_settings,
    check_member,
    elastic_consumer,
    is_outdated,
    record_key,
    static_consumer,
    static_member_consumer,
    work_queue,
    work_queue_settings,
)
from natty.names import BadNameError


def test_names():
    assert record_key("ORDERS", "cg-1_a=b") == "ORDERS.cg-1_a=b"
    assert work_queue("ORDERS", "cg") == "ORDERS-cg"
    assert static_consumer("cg", "m1") == "cg-m1"


@pytest.mark.parametrize(
    ("stream", "group"), [("", "g"), ("S", ""), ("S", "a.b"), ("S", "a b"), ("Ö", "g"), ("S", "a/b")]
)
def test_a_name_that_no_key_can_hold_is_refused(stream, group):
    with pytest.raises(BadGroupError, match="can't be part of a group's key"):
        record_key(stream, group)


@pytest.mark.parametrize("member", ["", "a.b", "a b", "*", "a/b"])
def test_a_member_has_a_name_that_a_consumer_can_have(member):
    with pytest.raises(BadNameError, match="member"):
        check_member(member)


@pytest.mark.parametrize(
    ("member", "groups", "policy", "outdated"),
    [
        ("m1", ["m1"], "pinned_client", True),
        ("m1", ["PCG"], "pinned_client", False),
        ("PCG", ["PCG"], "pinned_client", False),
        ("m1", ["m2"], "pinned_client", False),
        ("m1", ["m1"], "overflow", False),
        ("m1", None, None, False),
    ],
)
def test_the_priority_group_tells_a_consumer_of_the_first_version(member, groups, policy, outdated):
    assert is_outdated({"priority_groups": groups, "priority_policy": policy}, member) is outdated


@pytest.mark.parametrize(
    ("ack_wait", "expected"),
    [
        (5.0, (5.0, 5.0, 2.5, 1.25, 5.5)),
        (2.0, (2.0, 2.0, 1.0, 0.5, 2.5)),
        (1.0, (1.0, 1.0, 1.0, 0.5, 1.5)),
        (30.0, (30.0, 30.0, 15.0, 7.5, 30.5)),
        (0.2, (1.0, 0.2, 1.0, 0.5, 0.7)),
    ],
)
def test_timings_follow_from_the_ack_wait(ack_wait, expected):
    one = Timings(ack_wait)
    assert (one.pinned_ttl, one.inactive_threshold, one.pull_expires, one.pull_heartbeat, one.reconcile) == expected


def test_an_elastic_members_consumer_is_gos_setting_by_setting():
    config = elastic_consumer("m1", ["0.foo.*", "1.foo.*"], {"max_ack_pending": 1, "ack_wait": 5.0})
    assert config == {
        "name": "m1",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 5000000000,
        "replay_policy": "instant",
        "max_ack_pending": 1,
        "inactive_threshold": 5000000000,
        "num_replicas": 0,
        "filter_subjects": ["0.foo.*", "1.foo.*"],
        "priority_policy": "pinned_client",
        "priority_timeout": 5000000000,
        "priority_groups": ["PCG"],
    }
    assert elastic_consumer("m1", ["0.foo.*", "1.foo.*"]) == config


def test_a_short_ack_wait_shortens_the_threshold_and_not_the_pin():
    config = elastic_consumer("m1", ["0.>"], {"ack_wait": 0.2, "inactive_threshold": 60.0})
    assert (config["inactive_threshold"], config["priority_timeout"]) == (200_000_000, 1_000_000_000)
    assert elastic_consumer("m1", ["0.>"], {"ack_wait": 0})["ack_wait"] == 5_000_000_000


def test_a_static_members_consumer_is_durable_and_stays():
    config = static_member_consumer("cg", "m1", ["0.>"], {"ack_wait": 2.0, "deliver_policy": "new"})
    assert (config["durable_name"], config["name"], config["deliver_policy"]) == ("cg-m1", "cg-m1", "new")
    assert "inactive_threshold" not in config
    assert config["priority_timeout"] == 2_000_000_000
    assert static_member_consumer("cg", "m1", ["0.>"], {"inactive_threshold": 60.0})["inactive_threshold"] == 60 * 10**9


@pytest.mark.parametrize(
    "settings",
    [
        {"filter_subject": "a"},
        {"deliver_subject": "a"},
        {"filter_subjects": ["a"]},
        {"durable_name": "a"},
        {"name": "a"},
    ],
)
def test_what_makes_the_server_refuse_a_member_is_refused_before(settings):
    for make in (
        lambda: elastic_consumer("m", ["0.>"], settings),
        lambda: static_member_consumer("g", "m", [], settings),
    ):
        with pytest.raises(BadGroupError, match=next(iter(settings))):
            make()


@pytest.mark.parametrize("settings", [{"deliver_policy": "new"}, {"ack_policy": "all"}, {"ack_policy": "none"}])
def test_an_elastic_member_reads_all_and_acks_each(settings):
    with pytest.raises(BadGroupError, match=f"{next(iter(settings))} .* is not possible in an elastic group"):
        elastic_consumer("m", ["0.>"], settings)


def test_the_work_queue_takes_the_source_and_nothing_else_is_set():
    record = ElasticRecord(partitions=4, filters=(PartitioningFilter("foo.*", (1,)),), max_messages=-1, max_bytes=10)
    assert work_queue_settings("S", "g", record, {"storage": "memory", "num_replicas": 3, "max_age": 5}) == {
        "name": "S-g",
        "retention": "workqueue",
        "discard": "new",
        "storage": "memory",
        "num_replicas": 3,
        "max_msgs": -1,
        "max_bytes": 10,
        "allow_direct": True,
        "sources": [
            {"name": "S", "subject_transforms": [{"src": "foo.*", "dest": "{{Partition(4,1)}}.foo.{{Wildcard(1)}}"}]}
        ],
    }
    assert work_queue_settings("S", "g", ElasticRecord(partitions=4), {"storage": "file", "num_replicas": 1})[
        "sources"
    ] == [{"name": "S", "subject_transforms": [{"src": ">", "dest": "{{Partition(4)}}.>"}]}]


def test_a_bucket_of_records_says_nothing_of_replicas_and_of_no_time_to_live():
    assert not {"num_replicas", "max_age", "allow_msg_ttl", "metadata"} & set(bucket_settings())
