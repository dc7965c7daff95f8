from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import msgspec

from capture.block import INTERVAL, MAX_AGE, MAX_BYTES, MAX_MESSAGES, MAX_OPEN_BYTES, MAX_PENDING, Limits
from capture.cipher import VARIABLE, Keys
from capture.errors import ConfigError
from capture.origins import Given, Origin, Place, gather, tree, variable
from capture.spark.options import SparkOptions
from capture.stores import Address, store_url

CONFIG_VARIABLE = "CAPTURE_CONFIG"  # the file itself
NEEDED = ("stream", "store")  # what has no default
RELATED = ("limits", "ack_wait", "max_ack_pending")  # what may contradict one another
STORE: Place = ("store",)
SHORTEST_LEASE = 0.3  # seconds, as in natty.leader

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # neither infinite nor "not a number"
Lease = Annotated[float, msgspec.Meta(ge=SHORTEST_LEASE, le=1e9)]
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
    """The sweep: `[sweep]` in the file. Seconds."""

    every: Seconds = 10.0
    grace: Seconds = 900.0  # how long leftovers and replaced files stay: longer than any reader reads


class Compacting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The compaction: `[compaction]` in the file."""

    lease: Lease = 15.0  # seconds, of its leader: a term survives the crash of the NATS server that leads the stream
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
    store: str = ""  # a folder or URL; `[store]` in the file, with `url` and capture.stores.Address's other settings
    durable: str = "capture"
    archive: str = ""  # the name of its elections; the stream's by default
    node: str = ""
    decoder: str = "raw"
    partition: str = "time"
    format: str = "parquet"
    compression: str = ""  # none, gzip, snappy or zstd; Parquet's is zstd by default, that of the others none
    flatten: str = ""  # "module:function" makes rows of a value, for csv
    encrypt: bool = False  # blocks, with the first of the keys
    key_file: str = ""  # lines of NAME:BASE64; the variable CAPTURE_KEYS if there is none
    ack_wait: Seconds = 120.0  # the durable is made with it
    max_ack_pending: int = 250_000
    filter_subjects: list[str] = []
    lease: Lease = 2.0  # seconds, of the sweep's leader
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

    def keys(self) -> Keys | None:
        """Return the envelope keys that are given, to read with; the first one encrypts. ConfigError."""
        keys = Keys.load(self.key_file)
        if self.encrypt and keys is None:
            raise ConfigError(f"encrypt is on and there is no key: name a key_file, or set {VARIABLE}")
        return keys


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    needs: tuple[str, ...] = NEEDED,
) -> CaptureConfig:
    """Return the configuration: flags, then `CAPTURE_…` variables, then the file, then defaults.

    Flags and variables name settings of the top level, or of a table by a dot (`limits.max_age`,
    `CAPTURE_LIMITS__MAX_AGE`). ConfigError says which setting is wrong, and which file, variable or flag gave it.
    """
    given = given_settings(path, flags, environment=environment)
    config, faults = read(given)
    if wrong := list(faults.values()) or lacking(config, needs) or contradictions(config, given):
        raise ConfigError(wrong[0])
    return config


def given_settings(
    path: Path | None, flags: Mapping[str, Any] | None = None, *, environment: Mapping[str, str] = os.environ
) -> Given:
    """Return what `load` starts from: each setting with its origin. ConfigError if the file can't be read."""
    return gather(path, flags or {}, environment, reserved={CONFIG_VARIABLE, VARIABLE})


def read(given: Given) -> tuple[CaptureConfig, dict[Place, str]]:
    """Return the configuration, and a sentence for each setting that can't be used; that one is at its default."""
    faults = dict(given.refused)
    values = {place: setting.value for place, setting in given.settings.items()}
    if values.get(STORE, {}) == {} and (parts := given.below(STORE)):
        values = {place: value for place, value in values.items() if place not in parts}
        try:  # [store]: from here on one URL, which other processes can be given
            values[STORE] = store_url(tree((place, part.value) for place, part in parts.items())["store"])
        except ConfigError as error:
            blamed = next((place for place in parts if f"{place[-1]}`" in str(error)), min(parts))
            origin = parts[blamed].origin
            faults[STORE] = origin.complaint(str(error), _hint(_unknown(blamed), origin))
    for place, value in values.items():
        try:
            msgspec.convert(tree([(place, value)]), CaptureConfig, strict=False)
        except msgspec.ValidationError as error:
            origin, unknown = given.settings[place].origin, _unknown(place)
            faults.setdefault(unknown or place, origin.complaint(str(error), _hint(unknown, origin)))
    usable = tree((place, value) for place, value in values.items() if not _is_in(place, faults))
    return msgspec.convert(usable, CaptureConfig, strict=False), faults


def lacking(config: CaptureConfig, needs: tuple[str, ...] = NEEDED) -> list[str]:
    """Return a sentence for each setting without a default that was not given."""
    said = "no {0} is named: give --{0}, CAPTURE_{1} or {0} in capture.toml"
    return [said.format(name, name.upper()) for name in needs if not getattr(config, name)]


def contradictions(config: CaptureConfig, given: Given) -> list[str]:
    """Return a sentence if the limits contradict one another, or the consumer's settings."""
    try:
        config.limits.limits().check_consumer(ack_wait=config.ack_wait, max_ack_pending=config.max_ack_pending)
    except ConfigError as error:
        return [given.blame(str(error), *RELATED)]
    return []


def settings(config: msgspec.Struct, table: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield the place and the value of every setting, defaults too."""
    for name in config.__struct_fields__:
        place, value = (*table, name), getattr(config, name)
        if isinstance(value, msgspec.Struct):
            yield from settings(value, place)
        else:
            yield place, value


def _is_in(place: Place, places: Container[Place]) -> bool:
    return any(place[:end] in places for end in range(1, len(place) + 1))


def _known() -> list[Place]:
    own = [place for place, _ in settings(CaptureConfig()) if place != STORE]
    return own + [(*STORE, name) for name in Address.__struct_fields__]


def _unknown(place: Place) -> Place:
    """Return what of the place there is no setting or table of, down to the first such name; () if it is known."""
    known = _known()
    for end in range(1, len(place) + 1):
        if place[: end - 1] in known:  # a table of free names
            break
        if all(one[:end] != place[:end] for one in known):
            return place[:end]
    return ()


def _hint(unknown: Place, origin: Origin) -> str:
    """Return the end of a sentence that names the setting which may have been meant."""
    if not unknown:
        return ""
    *table, name = unknown
    known = _known()
    beside = {one[len(table)] for one in known if [*one[: len(table)]] == table}
    elsewhere = [one for one in known if name in (one[-1], "_".join(one))]
    close = elsewhere[:1] or [(*table, one) for one in get_close_matches(name, sorted(beside), 1)]
    if not close:
        return ""
    (meant,) = close
    if origin.kind == "variable":
        return f"; did you mean {variable(meant)}?"
    return f"; did you mean `{meant[-1] if [*meant[:-1]] == table else '.'.join(meant)}`?"
