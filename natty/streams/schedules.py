"""Messages that the server publishes later, and schedules: each is a message of the stream, on a subject of its own.

Protocol: ADR-51, of which nats-server 2.12 has single messages and 2.14 has intervals and cron. What servers do beyond
the ADR was tried on 2.12.0, 2.14.0 and 2.15.1; docs/publish-later.md has the results, and tests repeat them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Unpack

import msgspec
from cachetools import TTLCache

from natty.config.options import Seconds, make_options
from natty.config.units import NANOSECONDS, clock, datetime_of, parse_time, show_duration, show_time
from natty.errors import JetStreamError, PublishError
from natty.jetstream import JetStream, PubAck, StoredMessage
from natty.names import BadNameError, check_name, check_pattern, check_subject, check_text, covers
from natty.publishing.timing import Timing, TimingSettings, describe
from natty.streams.changes import SCHEDULES
from natty.streams.contents import MessageNotFoundError, delete_message
from natty.streams.info import subject_counts
from natty.wire.background import map_concurrently
from natty.wire.message import MESSAGE_ID, TTL, Headers, publish_headers

LATER = "publishing later"  # in `servers.NEEDS`
REPEATING = "a repeating schedule"
KEPT_FOR = 60.0  # seconds until a stream's configuration and the server's time are read again
REMEMBERED = 1024  # subjects
AT_ONCE = 256  # schedules that are read between two that are yielded
TIME_REFUSED, SOURCE_REFUSED, ZONE_REFUSED = 10189, 10203, 10223  # errors of the server, by number
SPEC, TARGET, ZONE = "Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-Time-Zone"
SOURCE, TARGET_TTL = "Nats-Schedule-Source", "Nats-Schedule-TTL"
_SERVERS = "nats-"  # headers of the server begin with it, in any case


class ScheduleSettings(TimingSettings, total=False):
    """The options of `schedule`: one of `at`, `after`, `every` and `cron`, and what is published."""

    source: str
    """A subject of the stream: its last message is published, and `data` if it has none. Needs nats-server 2.14."""
    headers: Headers
    """The headers of each published message. Those that begin with Nats- are the server's."""
    ttl: float | str
    """Time after which the stream deletes each published message: seconds or text. Needs `allow_msg_ttl`."""
    timeout: float
    """Seconds to wait for the ack. Default: that of the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions(Timing):
    """When and what the server publishes; `ScheduleSettings` describes each field. Raises as `Timing`."""

    source: str = ""
    headers: Headers | None = None
    ttl: Seconds | str | None = None
    timeout: Seconds | None = None

    def write_headers(self) -> dict[str, str | list[str]]:
        """Return the headers of the schedule, without its time. ValueError for a header that the server acts on.

        The server's headers apply to the schedule, and never reach the message: so `ttl` gets its own name.
        """
        own: dict[str, str | list[str]] = {}
        for name, value in publish_headers(self.headers, ttl=self.ttl).items():
            if name != MESSAGE_ID and name != TTL and name.lower().startswith(_SERVERS):
                raise ValueError(f"{name} is a header of the server: a message that is published later can't have it")
            own[TARGET_TTL if name == TTL else name] = value
        own.setdefault(MESSAGE_ID, secrets.token_hex(16))  # so that it is sent again if its ack is lost
        return own | {name: value for name, value in ((ZONE, self.timezone), (SOURCE, self.source)) if value}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message that waits in a stream until the server publishes it, or a schedule that repeats."""

    stream: str
    subject: str
    """The subject that holds it."""
    target: str
    """The subject that the server publishes on."""
    spec: str
    """The header `Nats-Schedule`: "@at 2026-11-23T18:00:00Z", "@every 300s", or a cron expression of six fields."""
    timezone: str
    """Of a cron expression; empty for UTC."""
    source: str
    """The subject whose last message is published; empty if `data` is."""
    ttl: str
    """The time to live of the published message, as the server writes it; empty if it has none."""
    data: bytes
    headers: dict[str, list[str]]
    """The headers of the published message, without those of the server."""
    sequence: int
    stored: str
    """When it was stored, in RFC 3339."""

    @property
    def name(self) -> str:
        """Its name; if another program made it under another subject, this subject."""
        prefix = f"{SCHEDULES}.{self.stream}."
        rest = self.subject.removeprefix(prefix)
        return rest if rest != self.subject and "." not in rest else self.subject

    @property
    def at(self) -> datetime | None:
        """When the server publishes it, to the microsecond; None if it repeats."""
        kind, _, time = self.spec.partition(" ")
        if kind != "@at":
            return None
        try:
            return datetime_of(parse_time(time))
        except ValueError:
            return None

    @property
    def timing(self) -> str:
        """When the server publishes it, for people."""
        return describe(self.spec, self.timezone)


@dataclass(frozen=True, slots=True)
class _Home:
    """The stream of a target, as its leader described it at `read_at`, of `clock()`."""

    stream: str
    config: dict[str, Any]
    server_ns: int
    read_at: float

    def now(self) -> int:
        """Return the server's time now, in Unix nanoseconds. This machine's time has no influence."""
        return self.server_ns + round((clock() - self.read_at) * NANOSECONDS)

    @property
    def holds_ttls(self) -> bool:
        return bool(self.config.get("allow_msg_ttl"))

    @property
    def max_age(self) -> int:
        return int(self.config.get("max_age") or 0)


class Scheduler:
    """Publishes later, and lists and cancels what waits. It remembers the streams of subjects for a minute."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._homes: TTLCache[str, _Home] = TTLCache(REMEMBERED, KEPT_FOR, timer=clock)

    def __repr__(self) -> str:
        return f"Scheduler({self._jetstream!r})"

    async def publish(
        self,
        target: str,
        data: bytes,
        headers: Headers,
        *,
        at: datetime | None = None,
        after: float | str | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Have the server publish a message at a time; return the ack of the schedule, whose `schedule` names it.

        `at` and `after` as in `ScheduleSettings`; `headers` are those of `publish_headers`. With a message id, the
        stream stores the schedule once within its duplicate window; after that, a second one replaces the first while
        it waits. Raises as `put`.
        """
        identity = headers.get(MESSAGE_ID)
        name = blake2b(str(identity).encode(), digest_size=16).hexdigest() if identity else secrets.token_hex(16)
        options = ScheduleOptions(at=at, after=after, headers=headers, timeout=timeout)
        return await self._store(name, target, data, options)

    async def put(self, name: str, target: str, data: bytes = b"", **options: Unpack[ScheduleSettings]) -> PubAck:
        """Store a schedule under a name, which replaces an earlier one of that name; return its ack.

        The name has no dots, or is the `schedule` of an ack: the subject that holds a message that waits. BadNameError.
        PublishError if the stream can't keep it, with the command that changes the stream, and if the server refuses
        it. UnsupportedError from a server that is too old: it would publish at once, on another subject. ValueError and
        TypeError for what can't be a time, and for a header that the server would act on. Otherwise as
        `JetStream.publish`.
        """
        return await self._store(name, target, data, make_options(ScheduleOptions, "schedule", options))

    async def _store(self, name: str, target: str, data: bytes, options: ScheduleOptions) -> PubAck:
        own = options.write_headers()
        self._jetstream.require(REPEATING if options.repeats or options.source else LATER)
        for one in filter(None, (target, options.source)):
            check_subject(one)
        home = await self._home(target, options.timeout)
        subject = subject_of(home.stream, name)
        if not subject.startswith(f"{SCHEDULES}.{home.stream}."):
            raise BadNameError(f"schedule name {name!r} has a dot: write {name.replace('.', '-')!r}, for instance")
        own |= {SPEC: options.write(home.now()), TARGET: target}
        try:
            _check_home(home, subject, target)
            own |= _lasting(home, options, target)
            ack = await self._jetstream.publish_and_count(subject, data, headers=own, timeout=options.timeout)
        except PublishError as error:
            self._homes.pop(target, None)  # the stream may be changed by the next try
            raise _explain(error, target, home.stream, own, options.cron) from error.__cause__
        return msgspec.structs.replace(ack, schedule=subject)

    async def list(self, stream: str, subjects: str = "") -> AsyncGenerator[Schedule, None]:
        """Yield the schedules on these subjects, a pattern, by default natty's own, sorted by subject.

        Each is read from the stream's leader; no consumer is made. StreamNotFoundError.
        """
        pattern = check_pattern(subjects) if subjects else f"{SCHEDULES}.{stream}.>"
        counts, _ = await subject_counts(self._jetstream, check_name("stream", stream), pattern)
        waiting = sorted(counts)
        for start in range(0, len(waiting), AT_ONCE):
            part = waiting[start : start + AT_ONCE]
            for found in await map_concurrently(part, lambda subject: self._find(stream, subject)):
                if found is not None:
                    yield found

    async def get(self, stream: str, name: str) -> Schedule:
        """Return a schedule by its name or its subject. MessageNotFoundError, StreamNotFoundError."""
        if (found := await self._find(check_name("stream", stream), subject_of(stream, name))) is None:
            raise MessageNotFoundError(
                f"stream {stream} has no schedule {name}: it was published or canceled, or never existed;"
                f" `natty schedule ls {stream}` lists those that wait"
            )
        return found

    async def cancel(self, stream: str, name: str) -> bool:
        """Remove a schedule by its name or its subject; False if none waits there. StreamNotFoundError."""
        subject = subject_of(check_name("stream", stream), name)
        while (found := await self._find(stream, subject)) is not None:
            if await delete_message(self._jetstream, stream, found.sequence):
                return True
        return False

    async def _find(self, stream: str, subject: str) -> Schedule | None:
        stored = await self._jetstream.read(stream, subject=subject)
        return None if stored is None else _read(stream, stored)

    async def _home(self, target: str, timeout: float | None) -> _Home:
        """Return the stream of a subject. It is read again after a minute, and after a refusal."""
        if (home := self._homes.get(target)) is None:
            stream = await self._jetstream.stream_of(target)
            asked = clock()
            answer = await self._jetstream.request(f"STREAM.INFO.{stream}", timeout=timeout)
            home = _Home(stream, answer["config"], parse_time(answer["ts"]), (asked + clock()) / 2)
            self._homes[target] = home
        return home


def subject_of(stream: str, name: str) -> str:
    """Return the subject that holds a schedule; a name with a dot is that subject itself. BadNameError."""
    check_text("the schedule's name", name)
    if "." in name:
        check_subject(name)
        return name
    return f"{SCHEDULES}.{stream}.{check_name('schedule', name)}"


def _missing(config: dict[str, Any], subject: str) -> list[str]:
    """Return the flags of `natty stream edit` that let the stream hold a schedule on a subject."""
    missing = [] if config.get("allow_msg_schedules") else ["--allow-schedules"]
    if config.get("discard") == "new":
        missing.append("--discard old")
    if not covers(subjects := config.get("subjects") or [], subject):
        wanted = f"{subject.rpartition('.')[0]}.>"
        missing.append(f"--subjects '{','.join([*subjects, wanted])}'")
    return missing


def _check_home(home: _Home, subject: str, target: str) -> None:
    """PublishError, with what to do, if the stream would refuse the schedule or lose it."""
    if home.config.get("retention") == "interest":
        raise PublishError(
            f"stream {home.stream} keeps messages only while consumers wait for them (retention interest), so it would"
            " lose a schedule: publish later through a stream with another retention, which it has as a source",
            subject=target,
        )
    if missing := _missing(home.config, subject):
        raise PublishError(
            f"stream {home.stream} can't hold the schedule {subject}. Once: `natty stream edit {home.stream}"
            f" {' '.join(missing)}`. Name the same in the programs that call ensure_stream, and give consumers a"
            " filter: see docs/publish-later.md",
            subject=target,
        )


def _lasting(home: _Home, timing: Timing, target: str) -> dict[str, str]:
    """Return the header that keeps a schedule beyond the stream's max_age. PublishError if it would be deleted."""
    if home.holds_ttls:
        return {TTL: "never"}
    if home.max_age and (timing.repeats or timing.due(now := home.now()) - now >= home.max_age):
        raise PublishError(
            f"stream {home.stream} deletes messages after {show_duration(home.max_age / NANOSECONDS)} (max_age), and"
            f" the schedule too. Once: `natty stream edit {home.stream} --allow-msg-ttl`, which lets natty except it",
            subject=target,
        )
    return {}


def _explain(error: PublishError, target: str, stream: str, headers: dict[str, Any], cron: str) -> PublishError:
    """Return the server's refusal with what it concerns, a cron expression as it was given."""
    code = error.__cause__.err_code if isinstance(error.__cause__, JetStreamError) else 0
    if code == ZONE_REFUSED:
        why = f"does not know the time zone {headers[ZONE]!r}: write a name as Europe/Berlin"
    elif code == TIME_REFUSED:
        why = f"refused {cron or headers[SPEC]!r}: write a time that exists, and weekdays as 0 to 6 or sun to sat"
    elif code == SOURCE_REFUSED:
        why = f"refused the source {headers[SOURCE]!r}: write another subject of stream {stream}"
    else:
        return error
    return PublishError(f"{target} was not scheduled: the server {why}", subject=target)


def _read(stream: str, stored: StoredMessage) -> Schedule | None:
    """Return the schedule that a message is, or None."""
    headers = stored.headers
    first = {name: values[0] for name, values in headers.items() if values}
    if not first.get(SPEC):
        return None
    return Schedule(
        stream=stream,
        subject=stored.subject,
        target=first.get(TARGET, ""),
        spec=first[SPEC],
        timezone=first.get(ZONE, ""),
        source=first.get(SOURCE, ""),
        ttl=first.get(TARGET_TTL, ""),
        data=stored.data,
        headers={name: values for name, values in headers.items() if not name.lower().startswith(_SERVERS)},
        sequence=stored.sequence,
        stored=show_time(parse_time(stored.time)),
    )
