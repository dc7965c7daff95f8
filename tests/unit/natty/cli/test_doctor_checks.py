from datetime import UTC, datetime, timedelta

import pytest

from natty.cli import checks
from natty.cli.checks import Status

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def worst(findings):
    return max((one.status for one in findings), key=list(Status).index)


@pytest.mark.parametrize(
    ("version", "status", "lacking"),
    [
        ((2, 15, 1), OK, []),
        ((2, 13, 9), WARN, ["fast ingest (2.14)"]),
        ((2, 10), WARN, ["a key-value bucket (2.11)", "streams (2.10.25)"]),
    ],
)
def test_an_old_server_is_told_what_it_lacks(version, status, lacking):
    finding = checks.check_version(version)
    assert finding.status is status
    assert all(text in finding.text for text in lacking)


@pytest.mark.parametrize(
    ("used", "limit", "status"), [(79, 100, OK), (80, 100, WARN), (100, 100, FAIL), (10**12, -1, OK), (5, 0, OK)]
)
def test_an_account_near_its_limits_is_told(used, limit, status):
    account = {"storage": used, "memory": 0, "streams": 1, "consumers": 0, "limits": {"max_storage": limit}}
    assert worst(checks.check_limits(account)) is status
    assert worst(checks.check_limits({"limits": {}, "tiers": {"R3": account}})) is status


def stream(cluster=None, state=None, **config):
    default = {"messages": 0, "bytes": 0}
    return {"config": {"name": "S", **config}, "state": default | (state or {}), "cluster": cluster or {}}


@pytest.mark.parametrize(
    ("cluster", "status", "said"),
    [
        ({"leader": "a", "replicas": [{"name": "b", "current": True}]}, OK, "1: replicas are complete"),
        (
            {"leader": "a", "replicas": [{"name": "b", "current": False, "lag": 7}]},
            WARN,
            "stream S on b is 7 operations behind",
        ),
        ({"leader": "a", "replicas": [{"name": "b", "offline": True}]}, FAIL, "stream S has lost its replica on b"),
        ({"leader": "a", "replicas": [{"name": "b", "current": True, "active": 9 * 10**9}]}, FAIL, "silent for 9 s"),
        ({"leader": "a", "replicas": [{"name": "b", "current": True, "active": 2 * 10**9}]}, OK, ""),
        ({"name": "c", "replicas": []}, FAIL, "stream S has no leader"),
    ],
)
def test_replicas_that_are_lost_or_late_are_told(cluster, status, said):
    (finding,) = checks.check_streams([stream(cluster)])
    assert finding.status is status
    assert said in finding.text


def test_what_nobody_answers_for_is_told():
    assert worst(checks.check_streams([], ["GONE"])) is FAIL
    assert worst(checks.check_consumers([], ["d of stream GONE"])) is FAIL


@pytest.mark.parametrize(("discard", "messages", "status"), [("new", 79, OK), ("new", 80, WARN), ("old", 100, OK)])
def test_a_stream_that_will_soon_refuse_messages_is_told(discard, messages, status):
    one = stream(state={"messages": messages}, discard=discard, max_msgs=100, max_bytes=-1)
    assert worst(checks.check_streams([one])) is status


def consumer(pending=0, **config):
    settings = {"ack_policy": "explicit", "ack_wait": 30 * 10**9, "max_ack_pending": 100} | config
    return {"name": "d", "stream_name": "S", "config": settings, "num_ack_pending": pending}


@pytest.mark.parametrize(
    ("one", "status", "said"),
    [
        (consumer(), OK, "1: replicas are complete"),
        (consumer(ack_wait=10**9), WARN, "waits 1 s for an ack: slower handlers"),
        (consumer(ack_wait=2 * 3600 * 10**9), WARN, "waits 7200 s for an ack: after a crash, its messages wait"),
        (consumer(ack_policy="none", ack_wait=0), OK, ""),
        (consumer(pending=99), OK, ""),
        (consumer(pending=100), WARN, "has 100 unacknowledged messages, its maximum"),
        (consumer(pending=100, max_ack_pending=-1), OK, ""),
    ],
)
def test_a_consumer_that_stalls_or_repeats_is_told(one, status, said):
    (finding,) = checks.check_consumers([one])
    assert finding.status is status
    assert said in finding.text


@pytest.mark.parametrize(
    ("skew", "doubt", "status", "said"),
    [
        (0.5, 0.0, OK, "0.500 s ahead of"),
        (-1.5, 0.0, WARN, "1.500 s behind"),
        (1.5, 1.0, OK, "± 1.000 s"),
        (-31.0, 0.1, FAIL, "set the clocks by NTP"),
    ],
)
def test_clocks_that_are_apart_are_told(skew, doubt, status, said):
    (finding,) = checks.check_clock({"n1": (skew, doubt)})
    assert finding.status is status
    assert said in finding.text


@pytest.mark.parametrize(("days", "status"), [(30, OK), (7.1, OK), (6.9, WARN), (-0.1, FAIL)])
def test_a_certificate_near_its_end_is_told(days, status):
    assert checks.check_certificate("the client certificate", NOW + timedelta(days=days), NOW).status is status


@pytest.mark.parametrize(
    ("settings", "filters", "count"),
    [
        ({"allow_msg_schedules": True, "retention": "workqueue"}, {}, 1),
        ({"allow_msg_schedules": True, "retention": "workqueue"}, {"filter_subject": "*.>"}, 1),
        ({"allow_msg_schedules": True, "retention": "workqueue"}, {"filter_subjects": ["schedules.S.a"]}, 1),
        ({"allow_msg_schedules": True, "retention": "workqueue"}, {"filter_subjects": ["orders.>"]}, 0),
        ({"allow_msg_schedules": True, "retention": "limits"}, {}, 0),
        ({"retention": "workqueue"}, {}, 0),
    ],
)
def test_a_consumer_of_a_work_queue_whose_acks_remove_schedules_is_named(settings, filters, count):
    consumers = [{"name": "c", "stream_name": "S", "config": filters}]
    findings = checks.check_schedules([{"config": {"name": "S", **settings}}], consumers)
    assert [one.status for one in findings] == [WARN] * count
    assert all(one.text.startswith("consumer c of stream S gets schedules.S.>, too") for one in findings)
