"""Reads a TOML file of streams and their consumers:

```toml
[streams.ORDERS]
subjects = ["orders.>"]
max_age = 604800.0          # seconds

[streams.ORDERS.consumers.billing]
ack_wait = 60.0
```
The settings are those of `schema.StreamConfig` and `schema.ConsumerConfig`, in the same notation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from natty.errors import UNREADABLE, ConfigError
from natty.names import BadNameError, check_name
from natty.streams.conversion import Table, check_declared_consumer, check_stream_settings
from natty.streams.schema import ConsumerConfig, StreamConfig


@dataclass(frozen=True)
class Declared:
    """A stream in a file: its settings, and the settings of each of its consumers; durations in seconds."""

    name: str
    settings: StreamConfig
    consumers: dict[str, ConsumerConfig]


def load_streams(path: str | Path) -> list[Declared]:
    """Read a file of streams. ConfigError names the file, and the path of the problem in it."""
    try:
        content = msgspec.toml.decode(Path(path).read_bytes(), type=Table)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}; check -f") from error
    except UNREADABLE as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    if unknown := sorted(set(content) - {"streams"}):
        raise ConfigError(f"{path}: {unknown[0]} is not known; tables begin with streams, as in [streams.ORDERS]")
    return [_stream(name, table, str(path)) for name, table in _tables(content.get("streams"), f"{path}: streams")]


def _stream(name: str, table: Table, file: str) -> Declared:
    where = f"{file}: streams.{name}"
    _check("stream", name, where)
    settings = {key: value for key, value in table.items() if key != "consumers"}
    consumers = dict(_tables(table.get("consumers"), f"{where}.consumers"))
    for durable in consumers:
        _check("consumer", durable, f"{where}.consumers.{durable}")
    return Declared(
        name,
        check_stream_settings(settings, where),
        {durable: check_declared_consumer(one, f"{where}.consumers.{durable}") for durable, one in consumers.items()},
    )


def _tables(value: Any, where: str) -> list[tuple[str, Table]]:
    found = {} if value is None else value
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ConfigError(f"{where} must be a table of tables, one for each name")
    return list(found.items())


def _check(kind: str, name: str, where: str) -> None:
    try:
        check_name(kind, name)
    except BadNameError as error:
        raise ConfigError(f"{where}: {error}") from error
