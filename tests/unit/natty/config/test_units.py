import math
import re
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import BadParameter

import capture
import natty
from natty import ConfigError, ConsumeOptions, ElectionOptions, PublisherOptions
from natty.cli.ask import moment
from natty.config.settings import resolve
from natty.config.units import (
    datetime_of,
    nanoseconds_of,
    parse_duration,
    parse_size,
    parse_time,
    seconds_of,
    show_duration,
    show_size,
    show_time,
)
from natty.groups import JoinOptions
from natty.streams.consumer import time_of
from natty.wire.message import publish_headers


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("90s", 90),
        ("1h30m", 5400),
        ("1d2h", 93600),
        ("7d", 604800),
        ("2w", 1209600),
        ("1M", 2592000),  # a month, and m is a minute
        ("1m", 60),
        ("1y", 31536000),
    ],
)
def test_durations_are_read_as_the_nats_tool_reads_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "0", "0s", "1x", "1 h", "h1", "1h30", "1..5s", "30 seconds", "١h"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a duration; write 30s, 1h30m or 7d"):
        parse_duration(text)


@given(st.integers(1, 10**10))
def test_a_duration_that_is_shown_is_read_as_it_was(milliseconds):
    assert parse_duration(show_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


def test_durations_are_shown_in_the_largest_units():
    assert [show_duration(one) for one in (0, 0.25, 59, 120, 5400, 86400, 90061.5)] == [
        *("0s", "250ms", "59s", "2m", "1h30m", "1d", "1d1h1m1.5s")
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("512B", 512),
        ("1K", 1024),
        ("1kb", 1024),
        ("64KiB", 65536),
        ("3MB", 3 * 1024**2),
        ("1GiB", 1024**3),
        ("2T", 2 * 1024**4),
    ],
)
def test_sizes_are_powers_of_1024_in_every_spelling(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5K", "K", "1Q", "1 G B", "1GBB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size; write 512, 64KB or 1GiB"):
        parse_size(text)


def test_sizes_are_shown_for_people():
    assert [show_size(one) for one in (0, 1023, 1024, 1536, 1024**3, 5 * 1024**5, 1024**6)] == [
        *("0 B", "1023 B", "1 KiB", "1.5 KiB", "1 GiB", "5 PiB", "1024 PiB")
    ]


@given(st.integers(0, 1023), st.sampled_from("KMGTP"))
def test_a_size_that_is_shown_is_read_as_it_was(number, prefix):
    size = parse_size(f"{number}{prefix}")
    assert parse_size(show_size(size)) == size


@given(st.datetimes(), st.integers(-14 * 60, 14 * 60))
def test_a_times_nanoseconds_are_exact_whatever_its_zone(time, minutes):
    local = time.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    found = nanoseconds_of(local)
    assert found % 1000 == 0
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=found // 1000) == local


def test_a_time_without_a_zone_has_no_nanoseconds():
    with pytest.raises(ValueError, match="2026-11-21 00:00:00 has no time zone"):
        nanoseconds_of(datetime(2026, 11, 21))


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_time_that_is_shown_is_read_as_it_was_to_the_nanosecond(time_ns):
    assert parse_time(show_time(time_ns)) == time_ns


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2026-11-22T15:55:19.216629808Z", 1_795_362_919_216_629_808),
        ("2026-11-22T15:55:19.2Z", 1_795_362_919_200_000_000),
        ("2026-11-22T16:55:19,216629808+01:00", 1_795_362_919_216_629_808),
        ("20261122T155519.216629808Z", 1_795_362_919_216_629_808),
        ("2026-11-22 15:55:19Z", 1_795_362_919_000_000_000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000_000),
    ],
)
def test_a_time_has_up_to_nine_digits_of_a_second_and_a_zone(text, time_ns):
    assert parse_time(text) == time_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noon",
        "2026-11-22T15:55:19",
        "2026-11-22T15:55:19.2166298081Z",
        "2026-11-22T15:55:19.Z",
        "2026-11-22T15.5Z",
        "20261122.5Z",
        "2026-11-22T15:55:19.5+01:00:00.5",
        "2026-11-22T15:55:19.٢Z",
    ],
)
def test_what_is_not_a_time_with_a_zone_is_refused_and_nothing_is_cut(text):
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)


def test_a_time_without_a_zone_is_read_in_the_one_that_is_given():
    assert parse_time("2026-11-22T15:55:19.000000001", UTC) == 1_795_362_919_000_000_001
    with pytest.raises(ValueError, match="not a time in the years 1 to 9999"):
        show_time(10**21)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_its_zone_moves_out_of_the_years_is_a_wrong_value_for_each_reader(text):
    for read in (lambda: datetime_of(parse_time(text)), lambda: show_time(parse_time(text)), lambda: moment(text)):
        with pytest.raises((ValueError, BadParameter), match="not a time"):
            read()
    with pytest.raises(ValueError, match="not a time in the years 1 to 9999"):
        time_of(text, datetime.now(UTC))
    with pytest.raises(ValueError, match="not a time in the years 1 to 9999"):
        time_of("999999y", datetime.now(UTC))


def test_one_function_reads_times_since_those_of_datetime_cut_nanoseconds():
    roots = [Path(package.__file__).parent for package in (natty, capture)]
    others = [file for root in roots for file in root.rglob("*.py") if "fromisoformat" in file.read_text()]
    assert others == [roots[0] / "config" / "units.py"]


@pytest.mark.parametrize(
    ("written", "seconds"), [("7d", 604_800), ("1h30m", 5400), ("90", 90), (90, 90), (0, 0), (-1, -1)]
)
def test_a_duration_that_a_server_keeps_is_seconds_or_text(written, seconds):
    assert seconds_of("ttl", written) == seconds


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        *(("x", ValueError), ("", ValueError), (math.nan, ValueError), (math.inf, ValueError)),
        *((True, TypeError), (timedelta(hours=1), TypeError), (b"1h", TypeError)),
    ],
)
def test_a_duration_that_is_none_is_refused_by_its_name(written, wrong):
    with pytest.raises(wrong, match=re.escape(f'ttl is {written!r}; write seconds, or text as "30s", "1h30m", "7d"')):
        seconds_of("ttl", written)
    if not isinstance(written, str):
        with pytest.raises(wrong, match="ttl is "):
            publish_headers(None, ttl=written)


def test_a_ttl_of_a_message_may_be_text():
    assert publish_headers(None, ttl="1h30m") == {"Nats-TTL": "5400"}


@pytest.mark.parametrize(
    ("options", "name"),
    [(ConsumeOptions, one) for one in ("timeout", "batch_wait", "shutdown_timeout")]
    + [(JoinOptions, one) for one in ("ack_wait", "shutdown_timeout", "lag_every")]
    + [(partial(ElectionOptions, name="e"), one) for one in ("lease", "grace", "max_stall")]
    + [(PublisherOptions, one) for one in ("ack_timeout", "give_up")],
)
def test_timings_of_this_process_are_numbers_of_seconds(options, name):
    with pytest.raises(TypeError, match=f"{name} is '5s'; write a number of seconds"):
        options(**{name: "5s"})
    with pytest.raises(ValueError, match=f"{name} is nan; write a number of seconds"):
        options(**{name: math.nan})


@pytest.mark.parametrize("options", [ConsumeOptions, JoinOptions])
def test_delays_of_retries_are_numbers_of_seconds(options):
    with pytest.raises(TypeError, match=r"retries is \(1\.0, '5s'\); write a list; each element is a number"):
        options(retries=(1.0, "5s"))


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "ping_interval"])
@pytest.mark.parametrize("value", [0, -1, -0.5, math.nan])
def test_timeouts_of_the_connection_are_more_than_nothing(name, value):
    with pytest.raises(ConfigError, match=f"{name} is .*; write more than 0 seconds"):
        resolve({name: value}, environment={"HOME": "/none"})


def test_timeouts_of_the_connection_are_seconds_or_text():
    config = resolve({"timeout": "90s", "connect_timeout": "1m", "ping_interval": "2m"}, environment={"HOME": "/none"})
    assert (config.timeout, config.connect_timeout, config.ping_interval) == (90, 60, 120)
    with pytest.raises(ConfigError, match=r"^ping_interval is 'soon', which is not a duration; write 5s, 500ms or 5$"):
        resolve({"ping_interval": "soon"}, environment={"HOME": "/none"})
