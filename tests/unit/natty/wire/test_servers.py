"""The table of minimum versions and of known faults of nats-server: well formed, and told."""

import re
from pathlib import Path

import pytest

from natty.cli import server_checks
from natty.cli.checks import Status
from natty.elections.record import republish_subject
from natty.streams.contents import purge_hazard, purge_hazards
from natty.streams.listing import Listing
from natty.streams.origins import takes_part_of_queue
from natty.testing import ServerOptions
from natty.testing.server_options import render
from natty.wire.servers import FAULTS, NEEDS, faults_of, text_of

ROOT = Path(__file__).parents[4]
OLDEST = min(need.minimum for need in NEEDS.values())
HERE = {"", "sources", "filters", "stranded"}


@pytest.mark.parametrize("name", FAULTS)
def test_the_ranges_of_a_fault_are_in_order_and_do_not_overlap(name):
    fault = FAULTS[name]
    assert fault.ranges
    assert all(len(first) >= 2 and (fixed is None or first < fixed) for first, fixed in fault.ranges)
    for (_, fixed), (first, _) in zip(fault.ranges, fault.ranges[1:], strict=False):
        assert fixed is not None
        assert fixed <= first
    assert fault.here in HERE
    assert all((fault.effect, fault.remedy, fault.source))
    assert not fault.effect.endswith(".")


@pytest.mark.parametrize(
    ("name", "version", "affected"),
    [
        ("filtered sources of a work queue", (2, 12, 15), False),
        ("filtered sources of a work queue", (2, 14, 0), True),
        ("filtered sources of a work queue", (2, 14, 5), True),
        ("filtered sources of a work queue", (2, 14, 6), False),
        ("conditional publishes", (2, 12, 13), True),
        ("conditional publishes", (2, 12, 14), False),
        ("conditional publishes", (2, 14, 3), True),
        ("conditional publishes", (2, 14, 4), False),
        ("purge forgets deliveries", (2, 15, 1), True),
    ],
)
def test_a_fault_affects_the_versions_of_its_ranges(name, version, affected):
    assert FAULTS[name].affects(version) is affected
    assert (name in dict(faults_of(version))) is affected


@pytest.mark.parametrize(
    ("feature", "version", "met"),
    [
        ("leader election", (2, 12, 13), False),
        ("leader election", (2, 12, 14), True),
        ("leader election", (2, 14, 3), False),
        ("leader election", (2, 14, 4), True),
        ("leader election", (2, 15), True),
        ("a stream template", (2, 14, 5), False),
        ("a stream template", (2, 14, 6), True),
        ("a key-value bucket", (2, 11, 0), True),
    ],
)
def test_a_feature_needs_its_minimum_or_the_same_mends_in_an_older_line(feature, version, met):
    assert NEEDS[feature].is_met_by(version) is met


def test_no_minimum_version_has_a_fault_that_breaks_its_feature():
    broken = {"a stream template": "filtered sources of a work queue", "leader election": "conditional publishes"}
    for feature, fault in broken.items():
        need = NEEDS[feature]
        assert not any(FAULTS[fault].affects(one) for one in (need.minimum, *need.also))


def test_the_code_names_minimum_versions_in_one_place():
    version = re.compile(r"server_version\s*[<>]=?|\(2, ?1\d[,)]")
    files = [path for package in ("natty", "capture") for path in (ROOT / package).rglob("*.py")]
    own = {ROOT / "natty/wire/servers.py", ROOT / "natty/jetstream.py"}
    data = {ROOT / "capture/restoring/plan.py", ROOT / "capture/restoring/replay.py"}  # what a restore can keep
    data |= {ROOT / "natty/wire/connection.py"}  # a docstring
    assert [path.name for path in files if path not in own | data and version.search(path.read_text())] == []


def stream(name="S", **config):
    return {"config": {"name": name, **config}}


def texts(findings, status):
    return [one.text for one in findings if one.status is status]


def test_doctor_fails_a_stream_that_takes_part_of_a_work_queue_and_warns_of_the_version():
    queue = stream("Q", retention="workqueue", subjects=["q.>"])
    taker = stream("T", sources=[{"name": "Q", "filter_subject": "q.a"}])
    (text,) = texts(server_checks.check_faults((2, 14, 5), [queue, taker]), Status.FAIL)
    assert text.startswith("stream T sources part of work queue Q, nats-server 2.14.5: ")
    assert text.endswith("(nats-server#8423): upgrade nats-server to 2.14.6 or later")
    warned = texts(server_checks.check_faults((2, 14, 5), [queue]), Status.WARN)
    assert any("makes the server delete messages on the other subjects" in one for one in warned)
    assert server_checks.check_faults((2, 15, 1), [queue, taker]) == []


def test_doctor_warns_of_consumers_with_several_filters_where_a_purge_would_make_them_skip():
    consumer = {"name": "c", "stream_name": "S", "config": {"filter_subjects": ["a", "b"]}}
    warned = texts(server_checks.check_faults((2, 14, 6), [stream()], [consumer]), Status.WARN)
    assert any(one.startswith("consumer c of stream S, nats-server 2.14.6: ") for one in warned)
    closed = server_checks.check_faults((2, 14, 6), [stream(deny_purge=True)], [consumer])
    assert not any("consumer c" in one.text for one in closed)


def test_doctor_warns_of_async_persistence_and_of_elections_with_one_replica_in_a_cluster():
    bucket = stream("KV_natty_leaders", num_replicas=1, republish={"src": "$KV.natty_leaders.>", "dest": "el.obs.x"})
    bucket["config"]["republish"]["dest"] = republish_subject("natty_leaders")
    (text,) = texts(server_checks.check_durability([bucket], clustered=True), Status.WARN)
    assert text.startswith("elections' bucket natty_leaders has 1 replica in a cluster")
    assert server_checks.check_durability([bucket], clustered=False) == []
    assert server_checks.check_durability([stream("KV_plain", num_replicas=1)], clustered=True) == []
    (text,) = texts(server_checks.check_durability([stream(persist_mode="async")], clustered=False), Status.WARN)
    assert "stream S: persist_mode is async" in text


@pytest.mark.parametrize(
    ("origin", "config", "part"),
    [
        ({"filter_subject": "q.a"}, {"retention": "workqueue", "subjects": ["q.>"]}, True),
        ({"filter_subject": "q.>"}, {"retention": "workqueue", "subjects": ["q.>"]}, False),
        ({}, {"retention": "workqueue", "subjects": ["q.>"]}, False),
        ({"filter_subject": "q.a"}, {"retention": "limits", "subjects": ["q.>"]}, False),
        ({"subject_transforms": [{"src": "q.a"}]}, {"retention": "workqueue", "subjects": ["q.>"]}, True),
        (
            {"subject_transforms": [{"src": "q.a"}, {"src": "q.b"}]},
            {"retention": "workqueue", "subjects": ["q.a", "q.b"]},
            False,
        ),
        ({"filter_subject": "q.a"}, {}, False),
    ],
)
def test_a_source_takes_part_of_a_queue_if_a_subject_of_the_queue_is_not_covered(origin, config, part):
    assert takes_part_of_queue({"name": "Q", **origin}, config) is part


@pytest.mark.parametrize(
    ("filters", "subject", "held", "waiting", "version", "harmed"),
    [
        ([], "s.a", 3, 0, (2, 15, 1), True),
        ([], "s.a", 0, 3, (2, 15, 1), False),
        ([], ">", 3, 0, (2, 15, 1), False),
        (["s.a"], "s.a", 3, 0, (2, 15, 1), False),
        (["s.b"], "s.a", 3, 0, (2, 15, 1), False),
        (["s.*"], "s.a", 3, 0, (2, 15, 1), True),
        (["s.a", "s.b"], "s.a", 0, 3, (2, 14, 6), True),
        (["s.a", "s.b"], "s.a", 0, 3, (2, 15, 0), False),
        (["s.a", "s.b"], "s.*", 0, 3, (2, 14, 6), False),
    ],
)
def test_a_purge_by_subject_harms_consumers_that_hold_or_await_other_messages(
    filters, subject, held, waiting, version, harmed
):
    consumer = {"config": {"filter_subjects": filters}, "num_ack_pending": held, "num_pending": waiting}
    assert bool(purge_hazard(consumer, subject, version)) is harmed


def test_a_consumer_that_nobody_tells_of_may_be_harmed_by_a_purge():
    idle = {"name": "idle", "config": {}, "num_ack_pending": 0, "num_pending": 0}
    assert purge_hazards(Listing([idle]), "s.a", OLDEST) == []
    assert purge_hazards(Listing([idle], ["lost"]), "s.a", OLDEST) == ["no server answers for consumer lost"]


def test_versions_are_written_as_people_write_them():
    assert text_of((2, 14, 6)) == "2.14.6"
    assert str(NEEDS["leader election"]) == "2.12.14 or 2.14.4"
    assert OLDEST == (2, 10, 25)


@pytest.mark.parametrize(("interval", "said"), [("", "jetstream {"), ("always", 'sync_interval: "always" }')])
def test_a_test_server_syncs_its_files_as_asked(interval, said):
    options = ServerOptions(sync_interval=interval)
    text = render(options, name="n", port=1, store=Path("/tmp/s"), files=None, routes=None)
    assert said in text
    assert ("sync_interval" in text) is bool(interval)
