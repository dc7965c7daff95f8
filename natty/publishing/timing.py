"""When a message is published later: the four ways to say it, as the header `Nats-Schedule` (ADR-51). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypedDict

from natty.config.cron import NAMED
from natty.config.options import LONGEST, Range, SecondsOrZero, check_options
from natty.config.units import NANOSECONDS, nanoseconds_of, parse_duration, seconds_of, show_duration, show_time

LATEST = 2**63 - 1
"""Unix nanoseconds: the server publishes a message with a later time at once, because its number overflows."""
LEAST_INTERVAL = 1.0
"""Seconds: the server refuses shorter intervals."""


class TimingSettings(TypedDict, total=False):
    """When the server publishes, as keywords of `schedule`: one of `at`, `after`, `every` and `cron`."""

    at: datetime
    """Once, at a time; a datetime with a time zone. A time in the past is at once."""
    after: float | str
    """Once, so long after now by the server's clock: seconds or text ("5m")."""
    every: float | str
    """Again and again, each time so long after the last: whole seconds, or text ("5m"). Needs nats-server 2.14."""
    cron: str
    """Five fields as crontab has them, six with the second first, or "@daily" and the like. Needs nats-server 2.14."""
    timezone: str
    """Of `cron`: a name as "Europe/Berlin", which the server must know. Default: UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When the server publishes; `TimingSettings` describes each field.

    ValueError or TypeError, in words, for what can't be a time.
    """

    at: datetime | None = None
    after: SecondsOrZero | str | None = None
    every: Annotated[float, Range(LEAST_INTERVAL, LONGEST)] | str | None = None
    cron: str = ""
    timezone: str = ""

    def __post_init__(self) -> None:
        check_options(self)
        given = [name for name in ("at", "after", "every", "cron") if getattr(self, name) not in (None, "")]
        if len(given) != 1:
            named = f"{' and '.join(given)} exclude each other" if given else "it has no time"
            raise ValueError(f"{named}: give one of at, after, every and cron")
        if self.timezone and not self.cron:
            raise ValueError("timezone is for cron; a datetime has a time zone of its own, and intervals need none")
        self.write(0)

    @property
    def repeats(self) -> bool:
        """Whether it is a schedule, and not a single message."""
        return self.every is not None or bool(self.cron)

    def due(self, now_ns: int) -> int:
        """Return the Unix nanoseconds of a single message; `now_ns` is the server's time."""
        if self.at is not None:
            return _nanoseconds("at", self.at)
        return now_ns + round(min(_interval("after", self.after or 0, 0), LONGEST) * NANOSECONDS)

    def write(self, now_ns: int) -> str:
        """Return the value of the header; `now_ns` is the server's time."""
        if self.cron:
            return _cron(self.cron)
        if self.every is not None:
            seconds = _interval("every", self.every, LEAST_INTERVAL)
            if seconds != int(seconds):
                raise ValueError(f"every is {seconds:g} s; write whole seconds: servers round fractions differently")
            if seconds > LONGEST:
                raise ValueError(
                    f"every is {self.every}, more than {show_duration(LONGEST // 1)}, the server's longest"
                )
            return f"@every {seconds:.0f}s"
        due = self.due(now_ns)
        if not 0 <= due <= LATEST:
            raise ValueError(f"{self.at or self.after} is outside of the years 1970 to 2262, which the server can hold")
        return f"@at {show_time(due)}"


def _nanoseconds(name: str, time: datetime) -> int:
    if time.tzinfo is None:
        raise ValueError(f"{name} {time} has no time zone: write datetime.now(UTC) or the like")
    return nanoseconds_of(time)


def _interval(name: str, value: float | str, least: float) -> float:
    seconds = seconds_of(name, value)
    if seconds < least:
        raise ValueError(f"{name} is {seconds:g} s and must be at least {least:g} s")
    return seconds


def _cron(text: str) -> str:
    """Return six fields. The server checks what is in them."""
    fields = text.split()
    if text.strip() in NAMED or len(fields) == 6:
        return " ".join(fields)
    if len(fields) == 5 and not text.strip().startswith("@"):
        return " ".join(["0", *fields])
    raise ValueError(
        f"cron is {text!r}; write five fields (minute hour day month weekday), six with the second first, or one of"
        f" {', '.join(NAMED)}"
    )


def describe(spec: str, timezone: str = "") -> str:
    """Return a header's value for people: "at 2026-11-23T18:00:00Z", "every 5m", "cron 0 3 * * * Europe/Berlin"."""
    kind, _, rest = spec.partition(" ")
    if kind == "@every":
        try:
            return f"every {show_duration(parse_duration(rest))}"
        except ValueError:  # another program wrote it: Go's durations are more than ours
            return f"every {rest}"
    if kind == "@at":
        return f"at {rest}"
    return f"cron {rest if kind == '0' else spec} {timezone or 'UTC'}"  # crontab's five fields begin with the minute
