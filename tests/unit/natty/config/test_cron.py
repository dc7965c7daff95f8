"""Times of cron expressions: what is valid, and what daylight saving does."""

from datetime import UTC, datetime
from math import inf
from zoneinfo import ZoneInfo

import pytest

from natty.config.cron import Cron


def at(text, zone=UTC):
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def times(cron, begin, end):
    """The times between two times, looking ahead; looking back from any moment between must find the same."""
    found, now = [], at(begin)
    while (now := cron.next(now)) <= at(end):
        found.append(now)
    return [datetime.fromtimestamp(one, UTC).isoformat()[5:16] for one in found]


def test_the_last_time_is_not_after_now_and_the_next_is():
    nightly = Cron("0 3 * * *")
    three = at("2026-11-21T03:00")
    assert nightly.last(three) == nightly.last(three + 0.5) == nightly.last(three + 86_399.9) == three
    assert nightly.last(three - 0.1) == three - 86_400
    assert nightly.next(three) == nightly.next(three + 0.5) == three + 86_400
    assert nightly.next(three - 0.1) == three


def test_a_time_is_that_of_the_time_zone_and_utc_unless_said():
    assert Cron("0 3 * * *", "Europe/Berlin").next(at("2026-01-10T00:00")) == at("2026-01-10T02:00")
    assert Cron("0 3 * * *", "Europe/Berlin").next(at("2026-07-10T00:00")) == at("2026-07-10T01:00")
    assert Cron("0 3 * * *").next(at("2026-07-10T00:00")) == at("2026-07-10T03:00")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("@hourly", "2026-11-21T13:00"),
        ("@daily", "2026-11-22T00:00"),
        ("@midnight", "2026-11-22T00:00"),
        ("@weekly", "2026-11-22T00:00"),  # a Sunday
        ("@monthly", "2026-12-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        ("@annually", "2027-01-01T00:00"),
    ],
)
def test_names_of_crontab_are_expressions(name, expected):
    assert Cron(f" {name} ").next(at("2026-11-21T12:30")) == at(expected)
    assert Cron(name, "Europe/Berlin").next(at("2026-11-21T12:30")) in (at(expected), at(expected) - 3600)


def test_seven_is_sunday_too():
    assert Cron("0 3 * * 7").next(0.0) == Cron("0 3 * * 0").next(0.0) == Cron("0 3 * * sun").next(0.0)


SPRING, AUTUMN = ("2026-03-29T00:00", "2026-03-29T03:00"), ("2026-10-24T23:30", "2026-10-25T03:00")


@pytest.mark.parametrize(
    ("expression", "day", "expected"),
    [
        ("30 2 * * *", SPRING, ["03-29T01:00"]),  # skipped: right after the change, 03:00 in Berlin
        ("30 2 * * *", AUTUMN, ["10-25T00:30"]),  # twice: the first time
        ("*/30 2 * * *", SPRING, []),  # the minute begins with a star: it follows the clock
        ("*/30 2 * * *", AUTUMN, ["10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30"]),
        ("0 * * * *", SPRING, ["03-29T01:00", "03-29T02:00", "03-29T03:00"]),
        ("0 * * * *", AUTUMN, ["10-25T00:00", "10-25T01:00", "10-25T02:00", "10-25T03:00"]),
    ],
)
def test_daylight_saving_skips_and_repeats_as_in_debians_cron(expression, day, expected):
    assert times(Cron(expression, "Europe/Berlin"), *day) == expected


def test_a_clock_that_is_changed_by_half_an_hour_or_by_two_shows_each_time():
    lord_howe = Cron("0 */2 * * *", "Australia/Lord_Howe")  # set back from 02:00 to 01:30 at 15:00 UTC
    assert times(lord_howe, "2026-04-04T12:00", "2026-04-04T18:00") == ["04-04T13:00", "04-04T15:30", "04-04T17:30"]
    troll = Cron("30 2 * * *", "Antarctica/Troll")  # set back from 03:00 to 01:00 at 01:00 UTC
    assert troll.last(at("2026-10-25T01:15")) == at("2026-10-25T00:30")


@pytest.mark.parametrize("expression", ["* * * * *", "*/7 1-3 * * *", "0 */2 * * *", "45 * * * *"])
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2026-10-25"),
        ("Australia/Lord_Howe", "2026-04-04"),
        ("Australia/Lord_Howe", "2026-10-03"),
        ("Antarctica/Troll", "2026-10-25"),
        ("Antarctica/Troll", "2026-03-29"),
        ("Pacific/Apia", "2011-12-30"),
    ],
)
def test_an_expression_with_a_star_runs_at_each_time_that_the_clock_shows(expression, zone, day):
    minute, hour = expression.split()[:2]
    matches = {
        "*": lambda value: True,
        "*/7": lambda value: value % 7 == 0,
        "*/2": lambda value: value % 2 == 0,
        "1-3": lambda value: 1 <= value <= 3,
    }
    wanted = []
    for now in range(int(at(f"{day}T00:00")) - 6 * 3600, int(at(f"{day}T00:00")) + 30 * 3600, 60):
        clock = datetime.fromtimestamp(now, ZoneInfo(zone))
        fits = [
            matches.get(field, lambda value, field=field: value == int(field))(value)
            for field, value in ((minute, clock.minute), (hour, clock.hour))
        ]
        wanted += [now] if all(fits) else []
    cron, found = Cron(expression, zone), [wanted[0]]
    while found[-1] < wanted[-1]:
        found.append(cron.next(found[-1]))
    assert found == wanted


@pytest.mark.parametrize("expression", ["30 2 * * *", "15 2,3 * * *", "*/20 * * * *", "0 2 * * *", "15 1,2 * * *"])
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2026-03-29"),
        ("Europe/Berlin", "2026-10-25"),
        ("Australia/Lord_Howe", "2026-04-04"),
        ("Australia/Lord_Howe", "2026-10-03"),
        ("Antarctica/Troll", "2026-10-25"),
        ("Antarctica/Troll", "2026-03-29"),
        pytest.param("Pacific/Apia", "2011-12-30", marks=pytest.mark.long),  # a day that is missing
    ],
)
def test_looking_back_finds_what_looking_ahead_found_on_the_days_of_a_change(expression, zone, day):
    cron, now = Cron(expression, zone), at(f"{day}T00:00") - 7200
    last = cron.last(now)
    upcoming = cron.next(now)
    for moment in range(int(now), int(now) + 24 * 3600, 300):
        while upcoming <= moment:
            last, upcoming = upcoming, cron.next(upcoming)
        assert cron.last(moment) == last
        assert cron.next(moment) == upcoming > moment


@pytest.mark.parametrize(
    ("expression", "zone", "said"),
    [
        (
            "@reboot",
            "UTC",
            "not a cron expression .minute hour day month weekday.: write five fields, or one of @y",
        ),
        ("@daily 3", "UTC", "not a cron expression .*: write five fields"),
        ("0 3 * * * *", "UTC", "'0 3 .*' is not a cron expression .*: write five fields"),  # the library: 00:03:00
        ("", "UTC", "'' is not a cron expression .*: write five fields"),
        ("0 25 * * *", "UTC", "not a cron expression .*: Bad hour"),
        ("0 0 30 2 *", "UTC", "not a cron expression .*: Bad day-of-month"),
        ("0 3 * * *", "Berlin", "there is no time zone 'Berlin' here; write one such as Europe/Berlin"),
        ("0 3 * * *", "../../etc/passwd", "there is no time zone"),
        ("0 3 * * *", "", "there is no time zone ''"),
    ],
)
def test_a_wrong_expression_or_time_zone_is_refused_in_a_sentence(expression, zone, said):
    with pytest.raises(ValueError, match=said):
        Cron(expression, zone)


def test_an_expression_that_no_time_matches_is_refused(monkeypatch):
    monkeypatch.setattr(Cron, "next", lambda cron, now: inf)
    with pytest.raises(ValueError, match="no time matches it"):
        Cron("0 0 1 1 *")
