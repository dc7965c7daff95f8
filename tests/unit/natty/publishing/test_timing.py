"""When a message is published later, in the server's words."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from natty import Schedule, ScheduleOptions
from natty.publishing.timing import Timing, describe

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
NOON_NS = 1_795_435_200_000_000_000


@pytest.mark.parametrize(
    ("given", "header"),
    [
        ({"at": NOON}, "@at 2026-11-23T12:00:00Z"),
        ({"at": NOON.astimezone(timezone(timedelta(hours=2)))}, "@at 2026-11-23T12:00:00Z"),
        ({"at": datetime(1970, 1, 1, tzinfo=UTC)}, "@at 1970-01-01T00:00:00Z"),
        ({"after": 0}, "@at 2026-11-23T12:00:00Z"),
        ({"after": 0.25}, "@at 2026-11-23T12:00:00.25Z"),
        ({"after": "5m"}, "@at 2026-11-23T12:05:00Z"),
        ({"every": "1h30m"}, "@every 5400s"),
        ({"every": 90}, "@every 90s"),
        ({"every": 2.0}, "@every 2s"),
        ({"cron": "0 3 * * *"}, "0 0 3 * * *"),
        ({"cron": " */10  0 3 * jan-mar mon "}, "*/10 0 3 * jan-mar mon"),
        ({"cron": "@daily", "timezone": "Europe/Berlin"}, "@daily"),
    ],
)
def test_a_time_is_written_as_the_server_reads_it(given, header):
    assert Timing(**given).write(NOON_NS) == header


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, ValueError, "it has no time: give one of at, after, every and cron"),
        ({"at": NOON, "after": 1}, ValueError, "at and after exclude each other"),
        ({"at": NOON.replace(tzinfo=None)}, ValueError, "has no time zone: write datetime.now"),
        ({"at": "2026-11-23T12:00:00Z"}, TypeError, "at is .*; write a datetime"),
        ({"at": datetime(1969, 12, 31, tzinfo=UTC)}, ValueError, "outside of the years 1970 to 2262"),
        ({"at": datetime(2263, 1, 1, tzinfo=UTC)}, ValueError, "outside of the years 1970 to 2262"),
        ({"after": -1}, ValueError, "after is -1; write a number of seconds.*0 or more"),
        ({"after": "400y"}, ValueError, "outside of the years 1970 to 2262"),
        ({"after": 1e300}, ValueError, "outside of the years 1970 to 2262"),
        ({"after": "soon"}, ValueError, 'write seconds, or text as "30s"'),
        ({"after": float("nan")}, ValueError, "after is nan"),
        ({"every": 0.5}, ValueError, "every is 0.5; write a number of seconds.*1 or more"),
        ({"every": "500ms"}, ValueError, "every is 0.5 s and must be at least 1 s"),
        ({"every": True}, TypeError, "every is True"),
        ({"every": 1.5}, ValueError, "every is 1.5 s; write whole seconds: servers round fractions differently"),
        ({"every": "1500ms"}, ValueError, "every is 1.5 s; write whole seconds"),
        ({"every": "400y"}, ValueError, "every is 400y, more than 106751d.*, the server's longest"),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, ValueError, "outside of the years"),
        ({"cron": "0 3 * *"}, ValueError, "write five fields"),
        ({"cron": "@reboot"}, ValueError, "write five fields"),
        ({"cron": "@every 5 minutes or so"}, ValueError, "write five fields"),
        ({"cron": 5}, TypeError, "cron is 5; write text"),
        ({"every": 5, "timezone": "Europe/Berlin"}, ValueError, "timezone is for cron"),
    ],
)
def test_what_is_not_a_time_is_refused_in_words(given, error, text):
    with pytest.raises(error, match=text):
        Timing(**given)


@pytest.mark.parametrize(
    ("spec", "zone", "shown"),
    [
        ("@at 2026-11-23T12:00:00Z", "", "at 2026-11-23T12:00:00Z"),
        ("@every 5400s", "", "every 1h30m"),
        ("@every 1h0m0.5s", "", "every 1h0.5s"),
        ("@every -+", "", "every -+"),
        ("0 0 3 * * *", "", "cron 0 3 * * * UTC"),
        ("*/10 0 3 * * *", "", "cron */10 0 3 * * * UTC"),
        ("00 0 3 * * *", "", "cron 00 0 3 * * * UTC"),
        ("@daily", "Europe/Berlin", "cron @daily Europe/Berlin"),
    ],
)
def test_a_header_is_described_for_people(spec, zone, shown):
    assert describe(spec, zone) == shown


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "soon", ""])
def test_what_another_program_scheduled_at_no_time_has_none(time):
    facts = {"timezone": "", "source": "", "ttl": "", "data": b"", "headers": {}, "sequence": 1, "stored": ""}
    waits = Schedule(stream="S", subject="a", target="b", spec=f"@at {time}", **facts)
    assert (waits.at, waits.timing) == (None, f"at {time}")


@pytest.mark.parametrize("name", ["Nats-Expected-Last-Sequence", "nats-ttl", "Nats-Rollup", "Nats-Schedule-Target"])
def test_a_header_that_the_server_would_apply_to_the_schedule_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} is a header of the server"):
        ScheduleOptions(after=1, headers={name: "1"}).write_headers()


def test_the_headers_of_a_schedule_hold_those_of_the_message():
    options = ScheduleOptions(cron="@daily", timezone="UTC", headers={"Colour": "red"}, ttl="1m", source="a.b")
    written = options.write_headers()
    assert len(written.pop("Nats-Msg-Id")) == 32
    assert written == {
        "Colour": "red",
        "Nats-Schedule-TTL": "60",
        "Nats-Schedule-Time-Zone": "UTC",
        "Nats-Schedule-Source": "a.b",
    }


@pytest.mark.parametrize("ttl", ["36501d", 1e10, 1e300])
def test_a_ttl_after_which_no_message_would_exist_is_refused(ttl):
    with pytest.raises(ValueError, match="is too long: write at most 36500d"):
        ScheduleOptions(every=1, ttl=ttl).write_headers()
