"""Checks settings as users write them, and converts them to the server's terms and back.

Users write durations in seconds or as text and sizes in bytes or as text; the server writes nanoseconds and bytes.
`schema` declares the settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args, get_origin

import msgspec

from natty.config.options import did_you_mean
from natty.config.units import NANOSECONDS, parse_duration, parse_size
from natty.errors import ConfigError
from natty.streams.schema import ConsumerConfig, ConsumerLimits, Duration, Size, StreamConfig, Texts, rows

Table = dict[str, Any]
ONLY_DURABLE = (
    "natty makes durable pull consumers; it lists, shows and removes ephemeral and push consumers, but does not make"
    " or change them"
)
NO_PUSH = (
    "The server pushes messages however slow or absent the reader is, so they are lost or delivered again; leave the"
    " target out and read with `consume`, `pull` or `natty consumer next`. `natty sub SUBJECT` prints a stream's"
    " messages as they are published, without a consumer"
)
NO_EPHEMERAL = (
    "The server deletes an ephemeral consumer, and forgets its position, when its reader is away; name the consumer,"
    " and add --inactive-threshold 5m if the server shall delete it when it is unused. `client.read(stream)` and `natty"
    " stream get` read a stream without a consumer"
)
_TYPES: tuple[tuple[Any, Any], ...] = (
    (Duration, float),
    (list[Duration] | tuple[Duration, ...], list[float]),
    (Size, int),
    (Texts, list[str]),
)
"""A user's type → the type of its value without units."""
_WORDS: tuple[tuple[Any, str], ...] = (
    (float, 'seconds, or text as "30s", "1h30m", "7d"'),
    (list[float], 'a list of seconds, or of text as "30s"'),
    (int, "a whole number"),
    (bool, "true or false"),
    (str, "text"),
    (list[str], "a list of strings"),
    (dict[str, str], "a table of strings"),
    (Table, "a table"),
    (list[Table], "a list of tables"),
)
_STREAM = {name: hint for name, (hint, _) in rows(StreamConfig).items()}
_CONSUMER = {
    name: hint
    for name, (hint, _) in rows(ConsumerConfig).items()
    if name not in ("filter_subject", "pause_until")  # read as `filter_subjects`; only for a new consumer, see `ensure`
}
_EVERY = _STREAM | _CONSUMER
_TABLES: Mapping[str, Mapping[str, Any]] = {
    "consumer_limits": {name: hint for name, (hint, _) in rows(ConsumerLimits).items()}
}
"""The tables that have durations: natty converts these, and checks their settings."""
_OF_PUSH = {"deliver_subject", "deliver_group", "flow_control", "idle_heartbeat", "rate_limit_bps"}
_LONGEST = 2**63 / NANOSECONDS  # seconds that the server's field holds


def value_type(hint: Any) -> Any:
    """Return the type of a setting's value in seconds and bytes, tables as dictionaries."""
    found = next((value for written, value in _TYPES if written == hint), None)
    if found is not None:
        return found
    if isinstance(hint, type) and hasattr(hint, "__total__"):  # a TypedDict: the server checks its content
        return Table
    return list[Table] if get_origin(hint) is list else hint


DURATIONS = frozenset(name for name, hint in _EVERY.items() if value_type(hint) is float)
LISTS_OF_SECONDS = frozenset(name for name, hint in _EVERY.items() if value_type(hint) == list[float])
_SIZES = frozenset(name for name, hint in _EVERY.items() if hint == Size)


def check_stream_settings(
    settings: Mapping[str, Any], where: str = "the configuration", *, units: bool = True
) -> StreamConfig:
    """Return a stream's settings, durations in seconds and sizes in bytes, without those that are None.

    Without `units`, text is not a number, as in a document of the server. ConfigError for an unknown setting, with the
    nearest one, and for a value of the wrong type.
    """
    return cast("StreamConfig", _read(settings, _STREAM, where, units=units))


def check_consumer_settings(
    settings: Mapping[str, Any], where: str = "the configuration", *, units: bool = True
) -> ConsumerConfig:
    """Return the same for a durable pull consumer; ConfigError for the settings of a push consumer."""
    if push := sorted(_OF_PUSH & settings.keys()):
        raise ConfigError(f"{where}: {push[0]} is a setting of push consumers: {ONLY_DURABLE}. {NO_PUSH}")
    if only := settings.get("filter_subject"):
        settings = {**settings, "filter_subjects": [only]}
    table = {name: value for name, value in settings.items() if name != "filter_subject"}
    return cast("ConsumerConfig", _read(table, _CONSUMER, where, units=units))


def check_declared_consumer(settings: Mapping[str, Any], where: str) -> ConsumerConfig:
    """Return the same for a consumer in a file, where each setting has one name: only `filter_subjects`."""
    return cast("ConsumerConfig", _read(settings, _CONSUMER, where, units=True))


def to_wire(settings: Mapping[str, Any]) -> Table:
    """Return settings as the server writes them: durations in seconds become nanoseconds; None values are left out."""
    wire: Table = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name in DURATIONS:
            value = round(value * NANOSECONDS)
        elif name in LISTS_OF_SECONDS:
            value = [round(one * NANOSECONDS) for one in value]
        elif name in _TABLES:
            value = to_wire(value)
        wire[name] = value
    return wire


def stream_config_of(document: Mapping[str, Any]) -> StreamConfig:
    """Return the settings in a stream's configuration as the server writes it; durations become seconds."""
    return cast("StreamConfig", from_wire(document))


def from_wire(config: Mapping[str, Any]) -> Table:
    """Return a server's configuration with durations in seconds; a value that is not a number stays as it is."""
    settings = dict(config)
    for name, value in config.items():
        if name in DURATIONS and isinstance(value, int):
            settings[name] = value / NANOSECONDS
        elif name in LISTS_OF_SECONDS and isinstance(value, list):
            settings[name] = [one / NANOSECONDS if isinstance(one, int) else one for one in value]
        elif name in _TABLES and isinstance(value, Mapping):
            settings[name] = from_wire(value)
    return settings


def _read(table: Mapping[str, Any], known: Mapping[str, Any], where: str, *, units: bool) -> Table:
    read: Table = {}
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: there is no setting {name}{did_you_mean(str(name), [*known])}")
    for name, value in table.items():
        if value is not None:
            wanted = value_type(known[name])
            try:
                read[name] = msgspec.convert(_in_units(name, value) if units else value, wanted)
            except (ValueError, msgspec.ValidationError) as error:
                raise ConfigError(
                    f"{where}: {name} is {value!r}, and must be {_words(name, wanted, units=units)}"
                ) from error
            if name in _TABLES:
                read[name] = _read(read[name], _TABLES[name], f"{where}: {name}", units=units)
    return read


def _in_units(name: str, value: Any) -> Any:
    """Return a value, converted from text with units. ValueError for a value that no server can hold."""
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
    text = 'bytes, or text as "512KB", "1GiB"' if name in _SIZES else next(say for one, say in _WORDS if one == wanted)
    return text if units else text.partition(", or ")[0]
