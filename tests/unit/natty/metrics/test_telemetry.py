import re
import subprocess
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from natty import ConfigError, Natty
from natty.errors import how_to_install
from natty.metrics.telemetry import collector, not_ready, pages
from natty.wire.counters import HANDLER, PUBLISHER, Observed


class Counting:
    """What a publisher counts."""

    stored = failed = duplicates = waiting = 0


def stored_of(observed, stream="S"):
    return observed.totals(PUBLISHER).get((stream,), {}).get("stored")


@pytest.fixture
def observed():
    return Observed()


@pytest.fixture
def natty():
    """A client that was never connected."""
    return Natty("nats://127.0.0.1:1")


def figures(natty):
    """Return {(name, labels): value} of a scrape."""
    registry = CollectorRegistry()
    registry.register(collector(natty))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}


def test_parts_with_the_same_labels_are_summed(observed):
    for stored in (3, 4):
        observed.add(part := Counting(), PUBLISHER, "S")
        part.stored = stored
    observed.add(Counting(), PUBLISHER, "OTHER")
    assert stored_of(observed) == 7
    assert stored_of(observed, "OTHER") == 0


def test_what_a_part_counted_outlives_it(observed):
    part = Counting()
    observed.add(part, PUBLISHER, "S")
    part.stored = 5
    observed.retire(part)
    assert stored_of(observed) == 5
    assert observed.parts(PUBLISHER) == []
    observed.retire(part)
    assert stored_of(observed) == 5


def test_a_part_that_is_used_again_is_not_counted_twice(observed):
    part = Counting()
    for total in (5, 8):
        observed.add(part, PUBLISHER, "S")
        observed.add(part, PUBLISHER, "S")
        part.stored = total
        observed.retire(part)
        assert stored_of(observed) == total


def test_kinds_are_kept_apart(observed):
    observed.add(Counting(), PUBLISHER, "S")
    assert observed.totals(HANDLER) == {}
    assert observed.parts(HANDLER) == []


def test_a_scrape_from_another_thread_never_sees_a_total_fall(observed):
    ended, falls = threading.Event(), []

    def scrape():
        last = 0
        while not ended.is_set():
            now = stored_of(observed) or 0
            if now < last:
                falls.append((last, now))
            last = now

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for _ in range(3000):
            observed.add(part := Counting(), PUBLISHER, "S")
            part.stored = 1
            observed.retire(part)
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)
    assert falls == []
    assert stored_of(observed) == 3000


def test_a_scrape_shows_totals_and_the_present_with_labels_of_streams_only(natty):
    part = Counting()
    natty.connection.observed.add(part, PUBLISHER, "ORDERS")
    part.stored, part.failed, part.waiting = 7, 2, 3
    shown = figures(natty)
    assert shown["natty_connected",] == 0
    assert shown["natty_reconnects_total",] == 0
    assert shown["natty_publish_messages_total", ("outcome", "stored"), ("stream", "ORDERS")] == 7
    assert shown["natty_publish_messages_total", ("outcome", "failed"), ("stream", "ORDERS")] == 2
    assert shown["natty_publish_waiting", ("stream", "ORDERS")] == 3
    natty.connection.observed.retire(part)
    assert figures(natty)["natty_publish_messages_total", ("outcome", "stored"), ("stream", "ORDERS")] == 7
    assert figures(natty)["natty_publish_waiting", ("stream", "ORDERS")] == 0


def test_a_client_that_is_not_connected_is_not_ready(natty):
    assert not_ready(natty) == ["not connected: the connection is new"]


def test_without_prometheus_client_it_says_what_to_install(natty, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(ConfigError, match=re.escape(how_to_install("metrics"))):
        collector(natty)


def test_without_prometheus_client_readiness_works():
    answers = pages(lambda: ["the moon is not full"])
    assert answers["/metrics"]().status == 501
    assert how_to_install("metrics").encode() in answers["/metrics"]().body
    assert answers["/readyz"]().status == 503
    assert answers["/readyz"]().body == b'{"ready":false,"reasons":["the moon is not full"]}'
    assert answers["/livez"]().status == 200


def test_without_aiohttp_it_says_what_to_install():
    code = """
import sys
sys.modules["aiohttp"] = None
from natty import ConfigError, Natty
from natty.metrics import telemetry
try:
    telemetry.serve(Natty(servers="tls://localhost:4222"), "127.0.0.1:0")
except ConfigError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"the pages need aiohttp; {how_to_install('metrics')}\n"


def test_importing_it_does_not_import_what_only_some_of_it_needs():
    code = "import sys, natty.metrics.telemetry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"prometheus_client", "opentelemetry", "aiohttp"} & set(loaded)
