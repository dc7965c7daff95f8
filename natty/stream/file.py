"""A file of streams and their consumers, TOML:

```toml
[streams.ORDERS]
subjects = ["orders.>"]
max_age = 604800.0          # seconds

[streams.ORDERS.consumers.billing]
ack_wait = 60.0
```
The settings are the server's own names; durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from natty.errors import ConfigError
from natty.stream.names import BadNameError, check_name

S = TypeVar("S")
Table = dict[str, Any]


@dataclass(frozen=True)
class Declared:
    """A stream as a file wants it: its settings, and those of each of its consumers."""

    name: str
    settings: dict[str, Any]
    consumers: dict[str, dict[str, Any]]


class _StreamSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    description: str | UnsetType = UNSET
    subjects: list[str] | UnsetType = UNSET
    retention: Literal["limits", "interest", "workqueue"] | UnsetType = UNSET
    storage: Literal["file", "memory"] | UnsetType = UNSET
    discard: Literal["old", "new"] | UnsetType = UNSET
    discard_new_per_subject: bool | UnsetType = UNSET
    compression: Literal["none", "s2"] | UnsetType = UNSET
    num_replicas: int | UnsetType = UNSET
    max_age: float | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET
    max_msgs: int | UnsetType = UNSET
    max_msgs_per_subject: int | UnsetType = UNSET
    max_msg_size: int | UnsetType = UNSET
    max_consumers: int | UnsetType = UNSET
    duplicate_window: float | UnsetType = UNSET
    subject_delete_marker_ttl: float | UnsetType = UNSET
    first_seq: int | UnsetType = UNSET
    allow_direct: bool | UnsetType = UNSET
    mirror_direct: bool | UnsetType = UNSET
    allow_atomic: bool | UnsetType = UNSET
    allow_batched: bool | UnsetType = UNSET
    allow_msg_ttl: bool | UnsetType = UNSET
    allow_msg_counter: bool | UnsetType = UNSET
    allow_msg_schedules: bool | UnsetType = UNSET
    allow_rollup_hdrs: bool | UnsetType = UNSET
    deny_delete: bool | UnsetType = UNSET
    deny_purge: bool | UnsetType = UNSET
    sealed: bool | UnsetType = UNSET
    no_ack: bool | UnsetType = UNSET
    persist_mode: Literal["default", "async"] | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    placement: Table | UnsetType = UNSET
    republish: Table | UnsetType = UNSET
    subject_transform: Table | UnsetType = UNSET
    consumer_limits: Table | UnsetType = UNSET
    mirror: Table | UnsetType = UNSET
    sources: list[Table] | UnsetType = UNSET


class _ConsumerSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    description: str | UnsetType = UNSET
    filter_subjects: list[str] | UnsetType = UNSET
    ack_policy: Literal["explicit", "all", "none"] | UnsetType = UNSET
    ack_wait: float | UnsetType = UNSET
    backoff: list[float] | UnsetType = UNSET
    max_ack_pending: int | UnsetType = UNSET
    max_deliver: int | UnsetType = UNSET
    max_waiting: int | UnsetType = UNSET
    max_batch: int | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET
    max_expires: float | UnsetType = UNSET
    deliver_policy: (
        Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"] | UnsetType
    ) = UNSET
    opt_start_seq: int | UnsetType = UNSET
    opt_start_time: str | UnsetType = UNSET
    replay_policy: Literal["instant", "original"] | UnsetType = UNSET
    sample_freq: str | UnsetType = UNSET
    headers_only: bool | UnsetType = UNSET
    inactive_threshold: float | UnsetType = UNSET
    num_replicas: int | UnsetType = UNSET
    mem_storage: bool | UnsetType = UNSET
    priority_groups: list[str] | UnsetType = UNSET
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"] | UnsetType = UNSET
    priority_timeout: float | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET


def load_streams(path: str | Path) -> list[Declared]:
    """Read a file of streams. ConfigError names the file, and the path of what is wrong in it."""
    try:
        content = msgspec.toml.decode(Path(path).read_bytes(), type=Table)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}; check -f") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from error
    if unknown := sorted(set(content) - {"streams"}):
        raise ConfigError(f"{path}: {unknown[0]} is not known; tables begin with streams, as in [streams.ORDERS]")
    return [_stream(name, table, str(path)) for name, table in _tables(content.get("streams"), f"{path}: streams")]


def check_stream_settings(settings: Table, where: str = "the configuration") -> None:
    """ConfigError if a stream has no such setting, or its value is of another kind; durations are seconds."""
    _typed(settings, _StreamSettings, where)


def check_consumer_settings(settings: Table, where: str = "the configuration") -> None:
    """The same for a consumer."""
    _typed(settings, _ConsumerSettings, where)


def _stream(name: str, table: Table, file: str) -> Declared:
    where = f"{file}: streams.{name}"
    _checked("stream", name, where)
    settings = {key: value for key, value in table.items() if key != "consumers"}
    consumers = dict(_tables(table.get("consumers"), f"{where}.consumers"))
    for durable in consumers:
        _checked("consumer", durable, f"{where}.consumers.{durable}")
    return Declared(
        name,
        _typed(settings, _StreamSettings, where),
        {durable: _typed(one, _ConsumerSettings, f"{where}.consumers.{durable}") for durable, one in consumers.items()},
    )


def _tables(value: Any, where: str) -> list[tuple[str, Table]]:
    found = {} if value is None else value
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ConfigError(f"{where} must be a table of tables, one for each name")
    return list(found.items())


def _typed(table: Table, kind: type[Any], where: str) -> dict[str, Any]:
    try:
        read = msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    return {name: value for name in table if (value := getattr(read, name)) is not UNSET}


def _checked(kind: str, name: str, where: str) -> None:
    try:
        check_name(kind, name)
    except BadNameError as error:
        raise ConfigError(f"{where}: {error}") from error
