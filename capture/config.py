from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from capture.block import INTERVAL, MAX_AGE, MAX_BYTES, MAX_MESSAGES, MAX_OPEN_BYTES, MAX_PENDING, Limits
from capture.errors import ConfigError
from capture.spark.options import SparkOptions

CONFIG_VARIABLE = "CAPTURE_CONFIG"  # the file itself
ENVIRONMENT = "CAPTURE_"  # CAPTURE_STREAM, CAPTURE_STORE, …: the settings of the file's top level
SHORTEST_LEASE = 0.3  # seconds, as in natty.leader

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # neither infinite nor "not a number"
Count = Annotated[int, msgspec.Meta(ge=1)]


class Sealing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a block is sealed: `[limits]` in the file. Seconds and bytes."""

    max_messages: Count = MAX_MESSAGES
    max_bytes: Count = MAX_BYTES
    max_age: Seconds = MAX_AGE
    max_open_bytes: Count = MAX_OPEN_BYTES
    max_pending: Count = MAX_PENDING
    interval: Seconds = INTERVAL

    def limits(self) -> Limits:
        """Return them checked against one another."""
        return Limits(**msgspec.structs.asdict(self))


class Sweeping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The leader's sweep: `[sweep]` in the file. Seconds."""

    every: Seconds = 10.0
    grace: Seconds = 900.0  # how long leftovers and replaced files stay: longer than any reader reads


class Compacting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The leader's compaction: `[compaction]` in the file."""

    every: Seconds = 300.0  # seconds between two looks at what is due
    min_files: Count = 5  # blocks of a key and interval that make it due
    max_wait: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 900.0  # seconds; then however few blocks there are
    target_bytes: Count = 128 << 20
    max_groups: Count = 16


class Spark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Spark is started: `[spark]` in the file. `properties` are Spark's own settings."""

    master: str = "local[2]"
    driver_memory: str = "1g"
    java: str | None = None
    properties: dict[str, str] = {}

    def options(self) -> SparkOptions:
        """Return them for the driver."""
        return SparkOptions(**msgspec.structs.asdict(self))


class CaptureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `capture.toml` holds. Only `stream` and `store` have no default."""

    stream: str = ""
    store: str = ""
    durable: str = "capture"
    archive: str = ""  # the name of its election and manifest; the stream's by default
    node: str = ""
    decoder: str = "raw"
    partition: str = "time"
    format: str = "parquet"
    ack_wait: Seconds = 120.0  # the durable is made with it
    max_ack_pending: int = 250_000
    filter_subjects: list[str] = []
    lease: Annotated[float, msgspec.Meta(ge=SHORTEST_LEASE, le=1e9)] = 4.0  # seconds, of the leader
    log: str = ""  # a folder for Spark's log; none by default
    nats: dict[str, Any] = {}
    limits: Sealing = Sealing()
    sweep: Sweeping = Sweeping()
    compaction: Compacting = Compacting()
    spark: Spark = Spark()

    @property
    def name(self) -> str:
        """The archive's name."""
        return self.archive or self.stream


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    needs: tuple[str, ...] = ("stream", "store"),
) -> CaptureConfig:
    """Return the configuration: flags, then `CAPTURE_…` variables, then the file, then defaults.

    Flags and variables name settings of the top level, or of a table by a dot (`limits.max_age`,
    `CAPTURE_LIMITS__MAX_AGE`). ConfigError says which setting, in which place of the file, is wrong.
    """
    values = _read(path) if path else {}
    for name, value in environment.items():
        if name.startswith(ENVIRONMENT) and name != CONFIG_VARIABLE and value:
            _put(values, name[len(ENVIRONMENT) :].lower().replace("__", "."), value)
    for name, value in (flags or {}).items():
        if value is not None:
            _put(values, name, value)
    try:
        config = msgspec.convert(values, CaptureConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'options and CAPTURE_… variables'}: {error}") from error
    for name in needs:
        if not getattr(config, name):
            raise ConfigError(f"no {name} is named: give --{name}, CAPTURE_{name.upper()} or {name} in capture.toml")
    config.limits.limits().check_consumer(ack_wait=config.ack_wait, max_ack_pending=config.max_ack_pending)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}; check --config") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from error


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    *tables, last = name.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{table} is a table; it can't be set to a value")
    values[last] = value
