"""Create streams and consumers, or change them to the wanted settings. Each request can be repeated without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, cast

from natty.errors import (
    ConfigError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    JetStreamError,
    NotConnectedError,
    RequestTimeoutError,
    StreamExistsError,
    StreamNotFoundError,
    UnsupportedError,
)
from natty.jetstream import NO_LEADER, OWN_API, STREAM_EXISTS, JetStream
from natty.names import check_name, check_pattern
from natty.streams.changes import Judge, Risk
from natty.streams.consumer import on_wire
from natty.streams.conversion import ONLY_DURABLE, check_consumer_settings, check_stream_settings, to_wire
from natty.streams.info import PauseAnswer, ServerConsumerConfig, ServerStreamConfig
from natty.streams.nearest import naming_nearest
from natty.streams.origins import refuse_lossy_sources
from natty.streams.planning import CONSUMER, STREAM, Plan, list_differing, plan
from natty.streams.refusal import explaining_refusal, misses_peers
from natty.streams.schema import ConsumerConfig, StreamConfig, with_version

WITHIN = 30.0  # seconds for an answer: a cluster may need that long to elect a leader
PEERS_WITHIN = 15.0  # seconds for servers that are away: one that has just started hears of the others every 10 s
ONE_TRY = 2.0  # seconds before an unanswered request is sent again
ROUNDS = 5  # of reading, comparing and changing, while other clients change the same
_CONSUMER_EXISTS = 10148
_NOT_CLUSTERED = 10074
_UNCHANGED: frozenset[Risk] = frozenset()
_SAFELY = frozenset({Risk.SAFE})
_DELIBERATELY = frozenset({Risk.SAFE, Risk.DESTRUCTIVE})
_STREAM_DEFAULTS = {"storage": "file", "retention": "limits"}
_CONSUMER_DEFAULTS = {
    "ack_policy": "explicit",
    "deliver_policy": "all",
    "max_ack_pending": 1000,
    "ack_wait": 30.0,
    "max_deliver": -1,
}


async def create_stream(jetstream: JetStream, name: str, settings: StreamConfig) -> ServerStreamConfig:
    """Create the stream if it does not exist, and return its configuration. Never changes an existing stream.

    ConfigError for an unknown setting, with the nearest name, and for a value of the wrong type. StreamExistsError,
    with the difference, if the stream exists and a named setting has another value.
    """
    return await _ensure_stream(jetstream, name, _stream(name, settings), _UNCHANGED)


async def create_replicated(jetstream: JetStream, name: str, settings: StreamConfig) -> ServerStreamConfig:
    """Like `create_stream`, with three replicas on a cluster, otherwise one, unless `num_replicas` is set."""
    if "num_replicas" in settings:
        return await create_stream(jetstream, name, settings)
    perhaps_clustered = jetstream.connection.server_info.get("cluster") or jetstream.prefix != OWN_API
    try:
        return await create_stream(jetstream, name, {**settings, "num_replicas": 3 if perhaps_clustered else 1})
    except JetStreamError as error:
        if error.err_code != _NOT_CLUSTERED:  # a server with leaf nodes also calls itself a cluster
            raise
    return await create_stream(jetstream, name, {**settings, "num_replicas": 1})


async def ensure_stream(
    jetstream: JetStream, name: str, settings: StreamConfig, *, allow_destructive: bool = False
) -> ServerStreamConfig:
    """Create the stream, or change the named settings that differ if that is safe; return its configuration.

    Other settings stay as they are. If a change is not safe (by `schema`), StreamExistsError with the difference,
    without any change; `allow_destructive` allows every change that the server can make. Unanswered requests, for
    example while a cluster elects leaders, are sent again for 30 seconds; then RequestTimeoutError.
    """
    allowed = _DELIBERATELY if allow_destructive else _SAFELY
    return await _ensure_stream(jetstream, name, _stream(name, settings), allowed)


async def plan_stream(jetstream: JetStream, name: str, settings: StreamConfig) -> Plan:
    """Return the plan of `ensure_stream` without performing it."""
    return await _plan(_Stream(jetstream, name), _stream(name, settings))


async def create_document(jetstream: JetStream, config: Mapping[str, Any]) -> ServerStreamConfig:
    """Like `create_stream`, for a configuration in the server's own terms, with `name`, durations in nanoseconds."""
    return await _ensure_stream(jetstream, config["name"], _drop_name(config), _UNCHANGED)


async def plan_document(jetstream: JetStream, config: Mapping[str, Any]) -> Plan:
    """Like `plan_stream`, for a configuration in the server's own terms."""
    return await _plan(_Stream(jetstream, config["name"]), _drop_name(config))


async def change_document(jetstream: JetStream, config: Mapping[str, Any]) -> ServerStreamConfig:
    """Change the settings that differ from a configuration in the server's own terms, destructive or not; return it.

    Settings that it does not name stay as they are. StreamNotFoundError; StreamExistsError if a change is impossible.
    """
    return await _ensure_stream(jetstream, config["name"], _drop_name(config), _DELIBERATELY, make=False)


async def create_consumer(
    jetstream: JetStream, stream: str, durable: str, settings: ConsumerConfig | None = None
) -> ServerConsumerConfig:
    """Create the durable pull consumer if it does not exist, and return its configuration. Never changes one.

    ConfigError as for `create_stream`, for the settings of a push consumer, and if a push consumer has this name.
    ConsumerExistsError, with the difference, if it exists and a named setting has another value. StreamNotFoundError.
    """
    target = _Consumer(jetstream, durable, stream)
    return await _ensure_consumer(target, settings, _UNCHANGED)


async def ensure_consumer(
    jetstream: JetStream,
    stream: str,
    durable: str,
    settings: ConsumerConfig | None = None,
    *,
    allow_destructive: bool = False,
) -> ServerConsumerConfig:
    """Create the durable pull consumer, or change the named settings that differ if that is safe, as `ensure_stream`.

    Raises the errors of `create_consumer`.
    """
    target, allowed = _Consumer(jetstream, durable, stream), _DELIBERATELY if allow_destructive else _SAFELY
    return await _ensure_consumer(target, settings, allowed)


async def plan_consumer(jetstream: JetStream, stream: str, durable: str, settings: ConsumerConfig) -> Plan:
    """Return the plan of `ensure_consumer` without performing it; a missing stream has no consumers."""
    target = _Consumer(jetstream, durable, stream)
    try:
        return await _plan(target, _consumer(target, settings))
    except StreamNotFoundError:
        return Plan(f"consumer {durable} of stream {stream}", missing=True)


async def delete_stream(jetstream: JetStream, name: str) -> None:
    """Delete the stream with its messages and consumers; a missing stream is not an error."""
    try:
        await _ask(jetstream, f"STREAM.DELETE.{check_name('stream', name)}")
    except StreamNotFoundError:
        return


async def delete_consumer(jetstream: JetStream, stream: str, durable: str) -> None:
    """Delete the consumer; a missing consumer or stream is not an error."""
    try:
        await _ask(jetstream, f"CONSUMER.DELETE.{check_name('stream', stream)}.{check_name('consumer', durable)}")
    except (ConsumerNotFoundError, StreamNotFoundError):
        return


async def pause_consumer(jetstream: JetStream, stream: str, consumer: str, until: datetime) -> PauseAnswer:
    """Pause a consumer until a time; it keeps its position. Needs server 2.11.

    ConfigError if `until` is past; StreamNotFoundError, ConsumerNotFoundError with the nearest names; UnsupportedError.
    """
    text = on_wire(until)
    answer = await _pause(jetstream, stream, consumer, {"pause_until": text})
    if not answer["paused"]:
        raise ConfigError(
            f"{text} is in the past by the server's clock: consumer {consumer} of stream {stream} is not paused"
        )
    return answer


async def resume_consumer(jetstream: JetStream, stream: str, consumer: str) -> None:
    """Make a paused consumer deliver again at once; not paused is not an error. Errors: as for `pause_consumer`."""
    await _pause(jetstream, stream, consumer, {})


async def _pause(jetstream: JetStream, stream: str, consumer: str, body: dict[str, str]) -> PauseAnswer:
    jetstream.require("pausing a consumer")
    subject = f"CONSUMER.PAUSE.{check_name('stream', stream)}.{check_name('consumer', consumer)}"
    async with naming_nearest(jetstream, stream, consumer):
        return cast("PauseAnswer", await jetstream.request(subject, body))


@dataclass(frozen=True)
class _Stream:
    """A stream on the server."""

    jetstream: JetStream
    name: str
    exists_error = StreamExistsError
    missing_error = StreamNotFoundError
    exists_code = STREAM_EXISTS
    kind: ClassVar[str] = "stream"
    judges: ClassVar[Mapping[str, Judge]] = STREAM
    anew = "create another stream and copy the messages by its `sources`, or delete this one with `natty stream rm`"

    def __post_init__(self) -> None:
        check_name("stream", self.name)

    def __str__(self) -> str:
        return f"stream {self.name}"

    @property
    def ensure(self) -> str:
        """The beginning of the call that changes it."""
        return f'ensure_stream("{self.name}", …'

    async def read(self) -> dict[str, Any] | None:
        try:
            return dict((await _ask(self.jetstream, f"STREAM.INFO.{self.name}"))["config"])
        except StreamNotFoundError:
            return None

    async def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        config = _STREAM_DEFAULTS | dict(wanted) | {"name": self.name}
        await refuse_lossy_sources(self.jetstream, config)
        async with explaining_refusal(self.jetstream, config):
            return dict((await _ask(self.jetstream, f"STREAM.CREATE.{self.name}", config))["config"])

    async def update(self, config: Mapping[str, Any]) -> dict[str, Any]:
        await refuse_lossy_sources(self.jetstream, config)
        async with explaining_refusal(self.jetstream, config):
            return dict((await _ask(self.jetstream, f"STREAM.UPDATE.{self.name}", config))["config"])


@dataclass(frozen=True)
class _Consumer:
    """A durable pull consumer on the server. Its configurations here have `filter_subjects`, a list."""

    jetstream: JetStream
    name: str
    stream: str
    exists_error = ConsumerExistsError
    missing_error = ConsumerNotFoundError
    exists_code = _CONSUMER_EXISTS
    kind: ClassVar[str] = "consumer"
    judges: ClassVar[Mapping[str, Judge]] = CONSUMER
    anew = "create another consumer, or delete this one: its position is then lost"

    def __post_init__(self) -> None:
        check_name("stream", self.stream)
        check_name("consumer", self.name)

    def __str__(self) -> str:
        return f"consumer {self.name} of stream {self.stream}"

    @property
    def ensure(self) -> str:
        """The beginning of the call that changes it."""
        return f'ensure_consumer("{self.stream}", "{self.name}", …'

    async def read(self) -> dict[str, Any] | None:
        try:
            answer = await _ask(self.jetstream, f"CONSUMER.INFO.{self.stream}.{self.name}")
        except ConsumerNotFoundError:
            return None
        if target := answer["config"].get("deliver_subject"):
            raise ConfigError(f"{self} is a push consumer, it sends its messages to {target}: {ONLY_DURABLE}")
        return _plural(answer["config"])

    async def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return await self._write("create", to_wire(_CONSUMER_DEFAULTS) | dict(wanted))

    async def update(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return await self._write("update", config)

    async def _write(self, action: str, config: Mapping[str, Any]) -> dict[str, Any]:
        named = _singular(config) | {"durable_name": self.name, "name": self.name}
        body = {"stream_name": self.stream, "config": named, "action": action}
        return _plural((await _ask(self.jetstream, f"CONSUMER.CREATE.{self.stream}.{self.name}", body))["config"])


async def _plan(target: _Stream | _Consumer, wanted: Mapping[str, Any]) -> Plan:
    actual = await target.read()
    return Plan(str(target), missing=True) if actual is None else plan(str(target), wanted, actual, target.judges)


async def _ensure_stream(
    jetstream: JetStream, name: str, wanted: Mapping[str, Any], allowed: frozenset[Risk], *, make: bool = True
) -> ServerStreamConfig:
    return cast("ServerStreamConfig", await _ensure(_Stream(jetstream, name), wanted, allowed, make=make))


async def _ensure_consumer(
    target: _Consumer, settings: ConsumerConfig | None, allowed: frozenset[Risk]
) -> ServerConsumerConfig:
    return cast("ServerConsumerConfig", await _ensure(target, _consumer(target, settings), allowed))


async def _ensure(
    target: _Stream | _Consumer, wanted: Mapping[str, Any], allowed: frozenset[Risk], *, make: bool = True
) -> dict[str, Any]:
    """Read, compare and change until nothing differs. The server compares no revisions, so read each write back."""
    todo = Plan(str(target))
    for _ in range(ROUNDS):
        actual = await target.read()
        if actual is None:
            if not make:
                raise target.missing_error(f"there is no {target}")
            try:
                actual = await target.create(wanted)
            except JetStreamError as error:  # another client was faster: compare with its result
                if error.err_code != target.exists_code:
                    raise
                continue
            _check_taken(target, wanted, actual)
        todo = plan(str(target), wanted, actual, target.judges)
        if todo.settled:
            return actual
        _refuse(target, todo, allowed)
        _check_taken(target, wanted, await target.update(todo.apply_to(actual)))
    lines = "; ".join(map(str, todo.changes)) or "it is created and deleted again"
    raise target.exists_error(f"{target} is being changed by another client at the same time: {lines}. Try again")


def _check_taken(target: _Stream | _Consumer, wanted: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Raise if the server dropped a setting, as older ones do. A value other than ours is from another client."""
    if dropped := [name for name in list_differing(wanted, got) if name not in got]:
        raise UnsupportedError(
            f"{target}: this server is too old for {', '.join(map(with_version, dropped))}: upgrade it"
        )


def _refuse(target: _Stream | _Consumer, todo: Plan, allowed: frozenset[Risk]) -> None:
    """Raise unless all planned changes are allowed."""
    if not (refused := todo.beyond(allowed)):
        return
    text = f"{target} exists with another configuration: {'; '.join(map(str, refused))}. Nothing was changed."
    if any(one.risk is Risk.FIXED for one in refused):
        text += f" To change a fixed setting: {target.anew}."
    if any(one.risk is Risk.DESTRUCTIVE for one in refused):
        text += " To keep it as it is, name the same values in your program."
        called = f"{target.ensure}, allow_destructive=True)"
        text += f" To change it anyway: `natty stream apply --allow-destructive`, or `{called}`."
    if any(one.risk is Risk.SAFE for one in refused):
        text += f" To change safe settings: `natty {target.kind} edit`, or `{target.ensure})`."
    raise target.exists_error(text)


def _drop_name(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "name"}


def _stream(name: str, settings: StreamConfig) -> dict[str, Any]:
    checked = check_stream_settings(settings, f"stream {name}")
    for subject in checked.get("subjects") or ():
        check_pattern(subject)
    return to_wire(checked)


def _consumer(target: _Consumer, settings: ConsumerConfig | None) -> dict[str, Any]:
    given: dict[str, Any] = {**(settings or {})}
    until = given.pop("pause_until", None)  # only for a new consumer; `pause_consumer` is for existing ones
    if not isinstance(until, str | None):
        raise ConfigError(f"{target}: pause_until is {until!r}, and must be text, a time as the server writes it")
    return to_wire(check_consumer_settings(given, str(target)) | {"pause_until": until})


def _plural(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer's configuration with its filter as a list: the server keeps the form that it received."""
    plural = dict(config)
    if only := plural.pop("filter_subject", None):
        plural["filter_subjects"] = [only]
    return plural


def _singular(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer's configuration with a single filter in the form that every server and tool supports."""
    singular = dict(config)
    if len(filters := singular.get("filter_subjects") or []) == 1:
        singular["filter_subject"] = filters[0]
        del singular["filter_subjects"]
    return singular


async def _ask(jetstream: JetStream, subject: str, body: Any = None) -> dict[str, Any]:
    """Send a request that may be repeated, until it is answered.

    A cluster drops requests about what has no leader yet, and refuses a stream while it needs a server that is away.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            return await jetstream.request(subject, body, timeout=ONE_TRY)
        except (RequestTimeoutError, NotConnectedError):
            if loop.time() >= began + WITHIN or not jetstream.connection.supervised:
                raise
        except JetStreamError as error:
            limit = WITHIN if error.err_code == NO_LEADER else PEERS_WITHIN if misses_peers(error) else 0.0
            if loop.time() >= began + limit:
                raise
            await asyncio.sleep(ONE_TRY / 4)
