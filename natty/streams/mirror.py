"""Copies of streams: a mirror copies one stream, sources gather several; and the promotion of a mirror.

A mirror keeps the sequences and times of its origin; gathered messages get new ones. Based on ADR-1 and the behaviour
of server 2.15. If the origin of a mirror is lost, `promote` makes the mirror an independent stream: the server removes
`mirror` from a configuration and adds subjects in one step (tested: 2.14 can, 2.10 can't).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from natty.config.units import NANOSECONDS, parse_time, show_time, write_count
from natty.errors import UNREADABLE, ConfigError, JetStreamError, NattyError, UnsupportedError
from natty.jetstream import JetStream
from natty.names import check_name, check_pattern
from natty.streams.conversion import stream_config_of
from natty.streams.ensure import create_replicated
from natty.streams.info import ServerStreamConfig, SourceInfo, StreamInfo, led_info, stream_info
from natty.streams.listing import all_streams, stream_names
from natty.streams.nearest import naming_nearest
from natty.streams.schema import StreamSource

SILENT_AFTER = 5.0  # seconds: a live origin gives a sign of life every second
AFTER_PROMOTION = "natty.promotion"  # metadata of a mirror: the settings to take its origin's place, JSON
_LIMITS = (
    "max_msgs",
    "max_bytes",
    "max_age",
    "max_msgs_per_subject",
    "max_msg_size",
    "storage",
    "discard",
    "compression",
    "allow_msg_ttl",
)
"""Settings of the origin that its mirror also has, so that both hold the same messages."""
_PUBLISHERS = (
    "subjects",
    "duplicate_window",
    "allow_atomic",
    "allow_batched",
    "allow_rollup_hdrs",
    "deny_delete",
    "deny_purge",
    "subject_delete_marker_ttl",
)
"""Settings of the origin that its publishers need and no mirror can have; stored for the promotion."""
_NO_MIRROR_CHANGE = 10055
OVERLAP = 10065


class PromotionRefusedError(NattyError):
    """The mirror can't replace its origin, or would lose messages; nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A stream to copy, and which of its messages. ConfigError for contradictions.

    For a stream in another JetStream domain, set `domain`; for a stream that is imported from another account, set
    `api`, the prefix of its API (such as `$JS.hub.API`), and `deliver`, the subjects that its messages arrive on.
    `start_time` is RFC 3339. `transforms` are pairs of a filter and the subject under which its messages are stored.
    """

    stream: str
    domain: str = ""
    api: str = ""
    deliver: str = ""
    start_sequence: int | None = None
    start_time: str = ""
    filter_subject: str = ""
    transforms: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        if self.domain and (self.api or self.deliver):
            raise ConfigError("a domain and an API prefix both locate the origin: give one of them")
        if self.deliver and not self.api:
            raise ConfigError("a subject to deliver to needs the prefix of the origin's API, too")
        if self.start_sequence is not None and self.start_time:
            raise ConfigError("a start sequence and a start time contradict each other: give one of them")
        if self.filter_subject and self.transforms:
            raise ConfigError("a filter and transforms exclude each other: a transform's first subject is its filter")
        if self.start_time and not _is_time(self.start_time):
            raise ConfigError(f"{self.start_time!r} is not a time: write it as in RFC 3339, 2026-01-31T12:00:00Z")
        for pattern in (self.filter_subject, *(source for source, _ in self.transforms)):
            check_pattern(pattern or ">")

    @property
    def external(self) -> str:
        """The prefix of the origin's API; empty for our own API."""
        return f"$JS.{self.domain}.API" if self.domain else self.api

    def wire(self) -> StreamSource:
        """Return the origin as in a stream's configuration."""
        wire: StreamSource = {"name": self.stream}
        if self.external:
            wire["external"] = {"api": self.external, "deliver": self.deliver}
        if self.start_sequence is not None:
            wire["opt_start_seq"] = self.start_sequence
        if self.start_time:
            wire["opt_start_time"] = show_time(parse_time(self.start_time))
        if self.filter_subject:
            wire["filter_subject"] = self.filter_subject
        if self.transforms:
            wire["subject_transforms"] = [{"src": source, "dest": dest} for source, dest in self.transforms]
        return wire


async def create_mirror(
    jetstream: JetStream, name: str, origin: Origin, settings: Mapping[str, Any] | None = None
) -> ServerStreamConfig:
    """Create a stream that mirrors another if it does not exist, and return its configuration.

    It has the origin's limits, unless `settings` (in the server's terms) name others, and stores the settings that
    `promote` needs. It has three replicas on a cluster. StreamNotFoundError with the nearest names, or ConfigError, if
    the origin can't be read or is a work queue: a mirror would remove its messages. StreamExistsError if another
    stream has the name.
    """
    if name == origin.stream and not origin.external:
        raise ConfigError(f"stream {name} can't mirror itself: give the mirror another name, or name the domain")
    check_name("stream", name)
    there: Mapping[str, Any] = await _read(jetstream, origin)
    if there["retention"] == "workqueue":
        raise ConfigError(
            f"stream {origin.stream} is a work queue: a mirror would take its messages from its workers. Archive it"
            " with `capture`, or gather from a stream in front of it"
        )
    wanted = {setting: there[setting] for setting in _LIMITS if there.get(setting)}
    if there.get("allow_direct"):
        wanted["mirror_direct"] = wanted["allow_direct"] = True
    wanted |= {"mirror": origin.wire()} | dict(settings or {})
    kept = {setting: there[setting] for setting in _PUBLISHERS if there.get(setting)}
    if origin.transforms:
        kept.pop("subjects", None)
    elif origin.filter_subject:
        kept["subjects"] = [origin.filter_subject]
    wanted["metadata"] = {**wanted.get("metadata", {}), AFTER_PROMOTION: msgspec.json.encode(kept).decode()}
    return await create_replicated(jetstream, name, stream_config_of(wanted))


async def create_sourced(
    jetstream: JetStream, name: str, origins: Sequence[Origin], settings: Mapping[str, Any] | None = None
) -> ServerStreamConfig:
    """Create a stream that gathers the messages of others if it does not exist, and return its configuration.

    Each origin's messages stay in their order, with new sequences. Raises the errors of `create_mirror`. A work queue
    can be an origin: each message goes to one place.
    """
    for origin in origins:
        await _read(jetstream, origin)
    wanted = {"sources": [origin.wire() for origin in origins]} | dict(settings or {})
    return await create_replicated(jetstream, name, stream_config_of(wanted))


class Copying(msgspec.Struct, frozen=True, kw_only=True):
    """How far a stream has copied an origin. `state`: copying, caught up, silent (no sign of life), never heard."""

    stream: str
    kind: str  # mirror, source
    origin: str
    external: str = ""
    state: str
    lag: int  # messages that it knows and has not copied yet
    heard: float | None  # seconds since the origin's last sign of life; None: none yet
    error: str = ""


def list_copying(info: StreamInfo) -> list[Copying]:
    """Return how far a stream has copied each of its origins, from its StreamInfo; empty for a plain stream."""
    config = info["config"]
    if mirror := config.get("mirror"):
        state = info.get("mirror") or _unknown(mirror)
        return [_describe_origin(config["name"], "mirror", state, mirror)]
    states = info.get("sources") or [_unknown(one) for one in config.get("sources") or []]
    return [_describe_origin(config["name"], "source", one, one) for one in states]


def _unknown(origin: StreamSource) -> SourceInfo:
    """Return the state of an origin that the server does not report on."""
    return {"name": origin["name"], "lag": 0, "active": -1}


def _describe_origin(stream: str, kind: str, report: SourceInfo, config: StreamSource | SourceInfo) -> Copying:
    active, lag = report.get("active", -1), report.get("lag", 0)
    heard = active / NANOSECONDS if active >= 0 else None
    error = (report.get("error") or {}).get("description", "")
    if heard is None:
        state = "never heard"
    elif heard > SILENT_AFTER:
        state = "silent"
    else:
        state = "copying" if lag else "caught up"
    external = (config.get("external") or {}).get("api", "")
    return Copying(
        stream=stream,
        kind=kind,
        origin=report["name"],
        external=external,
        state=state,
        lag=lag,
        heard=heard,
        error=error,
    )


async def copies(jetstream: JetStream) -> list[Copying]:
    """Return how far every mirror and every gathering stream of the account has copied its origins."""
    return [one for info in (await all_streams(jetstream)).found for one in list_copying(info)]


async def promote(
    jetstream: JetStream, name: str, subjects: Sequence[str] = (), *, force: bool = False
) -> ServerStreamConfig:
    """Make a mirror an independent stream, on its origin's subjects unless others are named; return its configuration.

    Messages and consumers stay as they are, and the next message gets the next sequence. PromotionRefusedError, without
    any change, if the stream is not a mirror, if no subjects are known, or (without `force`) if known messages are
    missing or a live origin elsewhere takes the same subjects. UnsupportedError if the server is too old.
    """
    async with naming_nearest(jetstream, name):
        info = await led_info(jetstream, check_name("stream", name))
    config = info["config"]
    if not config.get("mirror"):
        raise PromotionRefusedError(f"stream {name} is not a mirror; `natty stream mirror ls` lists them")
    (state,) = list_copying(info)
    stored = _promotion_settings(config)
    wanted = list(subjects) or stored.get("subjects", [])
    if not wanted:
        raise PromotionRefusedError(f"the subjects to publish to {name} are not known: name them with --subject")
    for subject in wanted:
        check_pattern(subject)
    if not force:
        refuse_promotion(state)
    return await take_over(jetstream, config, {**stored, "subjects": wanted})


def refuse_promotion(state: Copying) -> None:
    """PromotionRefusedError if messages are missing, or the origin is alive where the server does not see it."""
    if state.lag or state.heard is None:
        missing = f"{write_count(state.lag, 'message')} of" if state.lag else "the messages of"
        raise PromotionRefusedError(
            f"mirror {state.stream} has not copied {missing} {state.origin} ({state.state}): wait for it, or give"
            " --force to promote it without them"
        )
    if state.external and state.heard <= SILENT_AFTER:
        raise PromotionRefusedError(
            f"the origin of {state.stream} is alive, heard {state.heard:.1f} s ago: two streams would store each"
            " published message. Take the subjects from it first, or give --force"
        )


async def take_over(jetstream: JetStream, config: Mapping[str, Any], settings: Mapping[str, Any]) -> ServerStreamConfig:
    """Make a copy an independent stream with these settings, as on the wire and including `subjects`.

    `config` is the copy's configuration. PromotionRefusedError if other streams take some of the subjects;
    UnsupportedError if the server can't do it.
    """
    name = config["name"]
    left = {key: value for key, value in config.items() if key not in ("mirror", "sources", "mirror_direct")}
    left["metadata"] = {k: v for k, v in (config.get("metadata") or {}).items() if k != AFTER_PROMOTION}
    try:
        answer = await jetstream.request(f"STREAM.UPDATE.{name}", {**left, **settings})
    except JetStreamError as error:
        if error.err_code == _NO_MIRROR_CHANGE:
            raise UnsupportedError(
                f"this server can't promote a mirror (2.14 can): upgrade it, or make another stream that gathers from"
                f" {name} with `natty stream mirror gather`, and promote its subjects by hand"
            ) from error
        if error.err_code == OVERLAP:
            raise PromotionRefusedError(await who_takes(jetstream, settings["subjects"], besides=name)) from error
        raise
    return cast("ServerStreamConfig", answer["config"])


async def who_takes(jetstream: JetStream, subjects: Sequence[str], *, besides: str) -> str:
    """Return the sentence that names the streams, except `besides`, that take some of these subjects."""
    found = {one for subject in subjects for one in await stream_names(jetstream, subject=subject)} - {besides}
    who = f"stream {', '.join(sorted(found))}" if found else "another stream"
    return f"{who} takes {', '.join(subjects)}, or some of them: take the subjects from it first, or delete it"


def _is_time(text: str) -> bool:
    try:
        return "T" in text and bool(show_time(parse_time(text)))
    except ValueError:
        return False


def _promotion_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that `create_mirror` stored for the promotion; empty if another tool created the mirror."""
    try:
        return msgspec.json.decode((config.get("metadata") or {}).get(AFTER_PROMOTION, "{}"), type=dict[str, Any])
    except UNREADABLE:
        return {}


async def _read(jetstream: JetStream, origin: Origin) -> ServerStreamConfig:
    """Return the origin's configuration, read over its API. ConfigError if no server answers there."""
    there = copy.copy(jetstream)
    there.prefix = origin.external or jetstream.prefix
    try:
        async with naming_nearest(there, origin.stream):
            return (await stream_info(there, origin.stream))["config"]
    except (TimeoutError, JetStreamError) as error:
        if not origin.external or (isinstance(error, JetStreamError) and error.err_code):
            raise
        raise ConfigError(
            f"no server answers on {origin.external}, where stream {origin.stream} should be: check the domain or the"
            " prefix, and that the leaf node or the import is there"
        ) from error
