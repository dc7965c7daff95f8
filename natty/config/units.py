"""Durations, sizes and times as people, the `nats` tool and servers write them: 1h30m, 7d; 512KB, 1GiB; RFC 3339."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta, tzinfo

NANOSECONDS = 1_000_000_000
"""Of a second."""
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "D": 86400.0,
    "w": 7 * 86400.0,
    "W": 7 * 86400.0,
    "M": 30 * 86400.0,
    "y": 365 * 86400.0,
    "Y": 365 * 86400.0,
}
LONGEST = 100  # characters of a duration
LONGEST_TTL = 36_500 * 86_400  # seconds; times of a server end in the year 2262
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|[smhdDwWMyY])")
_SHOWN = (("d", 86400), ("h", 3600), ("m", 60))
_PREFIXES = "KMGTP"
_POWERS = {"": 0} | {prefix: 10 * power for power, prefix in enumerate(_PREFIXES, start=1)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = re.compile(r"(.*[T ][0-9]{2}:?[0-9]{2}:?[0-9]{2})[.,]([0-9]{1,9})(|[Z+-][0-9:]*)")  # and parts of it
_SIZE = re.compile(r"([0-9]+)\s*([KMGTP]?)(?:I?B)?", re.IGNORECASE)


def write_count(number: int, noun: str, one: str = "", several: str = "") -> str:
    """Return a number of things as people write it: "1 block", "1,234 blocks"; with a verb, "1 block is", "2 are"."""
    verb = one if number == 1 else several
    return f"{number:,} {noun}{'' if number == 1 else 's'}{' ' if verb else ''}{verb}"


def clock() -> float:
    """Return the seconds of a clock that is never set, and that includes the time while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def parse_duration(text: str) -> float:
    """Return the seconds of a duration: 500ms, 30s, 1h30m, 7d, 2w, 6M (months of 30 days), 1y; a bare 30 is seconds.

    ValueError if it is not a duration, or not above zero.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{text[:LONGEST]!r}… is not a duration; write 30s, 1h30m or 7d")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        total = float(text)
    else:
        parts = _DURATION.findall(text)
        total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if "".join(map("".join, parts)) != text:
            total = 0.0
    if total <= 0:
        raise ValueError(f"{text!r} is not a duration; write 30s, 1h30m or 7d")
    return total


def seconds_of(name: str, value: float | str) -> float:
    """Return a duration for a server, in seconds: from a number of seconds, or text such as "30s" or "7d".

    TypeError for another type; ValueError for text that is not a duration, and for a number that is not finite.
    """
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError:
            raise ValueError(f'{name} is {value!r}; write seconds, or text as "30s", "1h30m", "7d"') from None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f'{name} is {value!r}; write seconds, or text as "30s", "1h30m", "7d"')
    if not math.isfinite(value):
        raise ValueError(f'{name} is {value!r}; write seconds, or text as "30s", "1h30m", "7d"')
    return value


def check_ttl(seconds: float) -> None:
    """ValueError for a time to live over 100 years: with 236, servers delete at once, because a number overflows."""
    if seconds > LONGEST_TTL:
        raise ValueError(
            f"a ttl of {seconds:g} s is too long: write at most 36500d, or leave it out to keep it forever"
        )


def check_seconds(**timings: object) -> None:
    """TypeError for a timing of this process that is not a number of seconds; ValueError for NaN. None is allowed."""
    for name, value in timings.items():
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)):
            continue
        wrong = ValueError if isinstance(value, float) else TypeError
        raise wrong(f"{name} is {value!r}; write a number of seconds, such as 90 for a minute and a half")


def show_duration(seconds: float) -> str:
    """Return seconds for people: 1h30m, without 0s; below a second, in ms."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    text, rest = "", seconds
    for unit, size in _SHOWN:
        count, rest = divmod(rest, size)
        text += f"{count:.0f}{unit}" if count else ""
    return text + f"{round(rest, 3):g}s" if rest or not text else text


def parse_size(text: str) -> int:
    """Return the bytes of a size: 512, 64K, 64KB, 64KiB, 1GiB. Units are powers of 1024, as in the `nats` tool.

    ValueError if it is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write 512, 64KB or 1GiB")
    return int(match[1]) << _POWERS[match[2].upper()]


def show_size(size: float) -> str:
    """Return bytes for people: 512 B, 1.5 KiB, 20 GiB."""
    if size < 1024:
        return f"{size:.0f} B"
    power = min(math.floor(math.log2(size) / 10), len(_PREFIXES))
    return f"{size / 1024**power:.1f}".removesuffix(".0") + f" {_PREFIXES[power - 1]}iB"


def parse_time(text: str, zone: tzinfo | None = None) -> int:
    """Return the Unix nanoseconds of a time in RFC 3339, or ISO 8601, with up to nine digits of a second.

    `zone` is for a time without a zone. ValueError if it is not a time, has more digits, or has no zone.
    """
    whole, digits = text, ""
    if "." in text or "," in text:
        match = _SECOND.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a time with at most nine digits of a second")
        whole, digits = match[1] + match[3], match[2]
    time = datetime.fromisoformat(whole)
    return nanoseconds_of(time.replace(tzinfo=zone) if time.tzinfo is None else time) + int(digits.ljust(9, "0"))


def datetime_of(time_ns: int) -> datetime:
    """Return Unix nanoseconds as a datetime in UTC, cut to microseconds. ValueError if not in the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(microseconds=time_ns // 1000)
    except OverflowError:
        raise ValueError(f"{time_ns} ns is not a time in the years 1 to 9999") from None


def show_time(time_ns: int) -> str:
    """Return Unix nanoseconds as servers write a time: RFC 3339 in UTC, without trailing zeros of a second.

    ValueError if it is not in the years 1 to 9999.
    """
    seconds, rest = divmod(time_ns, 10**9)
    whole = datetime_of(seconds * 10**9).replace(tzinfo=None).isoformat()
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + "Z"


def write_time(seconds: float) -> str:
    """Return Unix seconds for people: 2026-11-27 09:30:00 UTC. ValueError if not in the years 1 to 9999."""
    return f"{datetime_of(int(seconds * 10**9)):%Y-%m-%d %H:%M:%S} UTC"


def nanoseconds_of(time: datetime) -> int:
    """Return the Unix nanoseconds of a time. ValueError if it has no zone."""
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone")
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000
