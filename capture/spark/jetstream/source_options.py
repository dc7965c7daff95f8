"""The options of the data source, checked by name. They are paths and numbers: Spark shows them in plans and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from difflib import get_close_matches
from typing import Any

from capture.errors import ConfigError
from capture.spark.connection_options import CONNECTION
from natty.config.settings import redact
from natty.config.units import parse_time, show_time
from natty.errors import NattyError
from natty.names import check_name

SECRET = ("password", "token", "user")
SPARKS_OWN = ("checkpointlocation", "queryname")
"""Keys that Spark passes to a sink besides its options."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, and how to cut it into tasks and batches."""

    stream: str
    nats: Mapping[str, Any] = field(default_factory=dict, repr=False)
    subject: str = ""
    start_sequence: int = 0
    start_time: str = ""
    end_sequence: int = 0
    max_messages_per_trigger: int = 0
    partitions: int = 0
    fail_on_data_loss: bool = True
    read_by: str = "auto"
    archive: str = ""
    key_file: str = ""
    durable: str = "capture"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadOptions:
        """Return them from a user's options; case is ignored. ConfigError names the mistake."""
        values = _read(given, _READ)
        if values.get("start_sequence") and values.get("start_time"):
            raise ConfigError("startSequence and startTime contradict each other: give one of them")
        first, last = values.get("start_sequence", 0), values.get("end_sequence", 0)
        if last and first > last:
            raise ConfigError(f"endSequence {last} is before startSequence {first}")
        _check_archive(values)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Where to publish, and under which message ids."""

    stream: str
    nats: Mapping[str, Any] = field(default_factory=dict, repr=False)
    subject: str = ""
    write_id: str = ""
    message_ids: str = "auto"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> WriteOptions:
        """Return them from a user's options; case is ignored. ConfigError names the mistake."""
        values = _read({name: value for name, value in given.items() if name.lower() not in SPARKS_OWN}, _WRITE)
        if values.get("write_id") and values.get("message_ids") == "none":
            raise ConfigError("writeId makes message ids, and messageIds is none: remove one of them")
        return cls(**values)


def _check_archive(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for options that need `archive`, or exclude it."""
    names = {keyword: name for name, (keyword, _) in _READ.items()}
    for keyword in ("key_file", "durable"):
        if keyword in values and not values.get("archive"):
            raise ConfigError(f"{names[keyword]} is for reading an archive: give the option archive, too")
    if values.get("archive") and values.get("read_by", "auto") != "auto":
        raise ConfigError("readBy is for reading a stream alone: omit it, or the option archive")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: the known name that was probably meant, or all known names."""
    by_lower = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), by_lower, 1)
    return f"did you mean {by_lower[close[0]]}?" if close else f"there are {', '.join(sorted(by_lower.values()))}"


def _text(value: str) -> str:
    return value


def _stream(value: str) -> str:
    try:
        return check_name("stream", value)
    except NattyError as error:
        raise ValueError(str(error)) from error


def _count(value: str) -> int:
    number = int(value) if value.isascii() and value.isdigit() else 0
    if not 0 < number < 2**63:
        raise ValueError("it must be a whole number of 1 or more")
    return number


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e9:
        raise ValueError("it must be a number of seconds, for instance 5")
    return seconds


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return value.lower() == "true"


def _time(value: str) -> str:
    try:
        return show_time(parse_time(value, UTC))
    except ValueError:
        raise ValueError("it must be a time such as 2026-01-31T12:00:00Z") from None


def _servers(value: str) -> str:
    if "@" in value:
        raise ValueError(
            f"{redact(value)} contains a login, which Spark would show in plans and logs: use a credentials file, a"
            " certificate, or NATS_USER and NATS_PASSWORD in the environment of driver and executors"
        )
    return value


def _one_of(*choices: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"it is {' or '.join(choices)}")
        return value.lower()

    return check


_KINDS: dict[str, Callable[[str], Any]] = {
    "servers": _servers,
    "tlsFirst": _flag,
    "timeout": _seconds,
    "connectTimeout": _seconds,
}
_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "stream": ("stream", _stream),
    "subject": ("subject", _text),
    "startSequence": ("start_sequence", _count),
    "startTime": ("start_time", _time),
    "endSequence": ("end_sequence", _count),
    "maxMessagesPerTrigger": ("max_messages_per_trigger", _count),
    "partitions": ("partitions", _count),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "readBy": ("read_by", _one_of("auto", "direct", "consumer")),
    "archive": ("archive", _text),
    "keyFile": ("key_file", _text),
    "durable": ("durable", _text),
}
_WRITE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "stream": ("stream", _stream),
    "subject": ("subject", _text),
    "writeId": ("write_id", _text),
    "messageIds": ("message_ids", _one_of("auto", "none")),
}


def _read(given: Mapping[str, str], own: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
    known = {name.lower(): name for name in (*own, *CONNECTION)}
    values: dict[str, Any] = {}
    nats: dict[str, Any] = {}
    for option, value in given.items():
        if option.lower() in SECRET:
            raise ConfigError(
                f"{option} is not an option: Spark would show it in plans and logs. Use credentials, a file that every"
                f" executor has, or NATS_{option.upper()} in the environment of driver and executors"
            )
        name = known.get(option.lower())
        if name is None:
            raise ConfigError(f"there is no option {option}; {nearest(option, known.values())}")
        try:
            if name in own:
                keyword, kind = own[name]
                values[keyword] = kind(value.strip())
            else:
                nats[CONNECTION[name]] = _KINDS.get(name, _text)(value.strip())
        except ValueError as error:
            said = "" if name == "servers" else f" {value!r}"
            raise ConfigError(f"option {name}{said}: {error}") from error
    if not values.get("stream"):
        raise ConfigError('no stream is named: .option("stream", "ORDERS")')
    if nats:
        values["nats"] = nats
    return values


def option_names() -> list[str]:
    """Return the names of all options, as users write them."""
    return [*dict.fromkeys([*_READ, *_WRITE, *CONNECTION])]
