"""A file of streams and their consumers, TOML:

```toml
[streams.ORDERS]
subjects = ["orders.>"]
max_age = 604800.0          # seconds

[streams.ORDERS.consumers.billing]
ack_wait = 60.0
```
The settings are the server's own names. Durations are seconds, or text as "30s", "1h30m", "7d"; sizes are bytes, or
text as "512KB", "1GiB". The same in Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from natty.config.units import NANOSECONDS, parse_duration, parse_size
from natty.errors import UNREADABLE, ConfigError
from natty.names import BadNameError, check_name
from natty.streams.nearest import nearest
from natty.streams.settings import DURATIONS, LISTS_OF_SECONDS

Table = dict[str, Any]
ONLY_DURABLE = (
    "natty makes durable pull consumers; ephemeral and push consumers of others are listed, shown and removed,"
    " but not made or changed"
)
_OF_PUSH = {"deliver_subject", "deliver_group", "flow_control", "idle_heartbeat", "rate_limit_bps"}
_SIZES = {"max_bytes", "max_msg_size"}
_LONGEST = 2**63 / NANOSECONDS  # seconds that the server's field holds
_WORDS: dict[Any, str] = {
    float: 'seconds, or text as "30s", "1h30m", "7d"',
    list[float]: 'a list of seconds, or of text as "30s"',
    int: "a whole number",
    bool: "true or false",
    str: "text",
    list[str]: "a list of texts",
    dict[str, str]: "a table of texts",
    Table: "a table",
    list[Table]: "a list of tables",
}


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
    except UNREADABLE as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from error
    if unknown := sorted(set(content) - {"streams"}):
        raise ConfigError(f"{path}: {unknown[0]} is not known; tables begin with streams, as in [streams.ORDERS]")
    return [_stream(name, table, str(path)) for name, table in _tables(content.get("streams"), f"{path}: streams")]


def check_stream_settings(
    settings: Mapping[str, Any], where: str = "the configuration", *, units: bool = True
) -> Table:
    """Return a stream's settings, durations in seconds and sizes in bytes, without those that are None.

    Without `units`, text is no number, as in a document of the server's. ConfigError names a setting that no stream
    has, with the nearest one, and a value that can't be meant.
    """
    return _typed(settings, _StreamSettings, where, units=units)


def check_consumer_settings(
    settings: Mapping[str, Any], where: str = "the configuration", *, units: bool = True
) -> Table:
    """The same for a durable pull consumer; ConfigError for the settings of a push consumer."""
    if push := sorted(_OF_PUSH & settings.keys()):
        raise ConfigError(f"{where}: {push[0]} is a setting of push consumers: {ONLY_DURABLE}")
    if only := settings.get("filter_subject"):
        settings = {**settings, "filter_subjects": [only]}
    table = {name: value for name, value in settings.items() if name != "filter_subject"}
    return _typed(table, _ConsumerSettings, where, units=units)


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


def _typed(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str, *, units: bool = True) -> Table:
    known = kind.__struct_fields__
    for name in table:
        if name not in known:
            meant = nearest(str(name), known)
            hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
            raise ConfigError(f"{where}: there is no setting {name}{hint}")
    hints, read = get_type_hints(kind), {}
    for name, value in table.items():
        if value is not None:
            wanted = _without_unset(hints[name])
            try:
                read[name] = msgspec.convert(_in_units(name, value) if units else value, wanted)
            except (ValueError, msgspec.ValidationError) as error:
                raise ConfigError(
                    f"{where}: {name} is {value!r}, and must be {_words(name, wanted, units=units)}"
                ) from error
    return read


def _without_unset(hint: Any) -> Any:
    assert isinstance(hint, UnionType) or get_origin(hint) is not None
    return next(one for one in get_args(hint) if one is not UnsetType)


def _in_units(name: str, value: Any) -> Any:
    """Return a value with its text in units read. ValueError for what no server can hold."""
    if name in LISTS_OF_SECONDS and isinstance(value, list | tuple):
        return [_in_units("ack_wait", one) for one in value]
    if name in DURATIONS:
        seconds = parse_duration(value) if isinstance(value, str) else value
        if isinstance(seconds, int | float) and not (math.isfinite(seconds) and abs(seconds) < _LONGEST):
            raise ValueError
        return seconds
    return parse_size(value) if name in _SIZES and isinstance(value, str) else value


def _words(name: str, wanted: Any, *, units: bool) -> str:
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(get_args(wanted))}"
    text = 'bytes, or text as "512KB", "1GiB"' if name in _SIZES else _WORDS[wanted]
    return text if units else text.partition(", or ")[0]


def _checked(kind: str, name: str, where: str) -> None:
    try:
        check_name(kind, name)
    except BadNameError as error:
        raise ConfigError(f"{where}: {error}") from error
