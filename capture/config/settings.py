"""The settings of capture.toml: their types, their defaults, and what the rest of capture is given of them.

A setting that reaches an option takes its default from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec

from capture.archive.encryption import VARIABLE, Keys
from capture.archive.iceberg_state import Expiry
from capture.archive.retention import Rule
from capture.archive.signing import PublicKeys, Signer, load_signer
from capture.archive.stored_formats import PARQUET
from capture.archive.trust import Trust
from capture.archive.view import GRACE
from capture.config.secrets import HIDDEN, said, shown
from capture.errors import ConfigError
from capture.ingest.block import (
    INTERVAL,
    MAX_AGE,
    MAX_BYTES,
    MAX_MESSAGES,
    MAX_OPEN,
    MAX_OPEN_BYTES,
    MAX_PENDING,
    NEARLY_FULL,
    Limits,
)
from capture.ingest.commit import ATTEMPTS, REDELIVER_AFTER
from capture.ingest.durable import EXPLICIT, TOGETHER, Durable
from capture.ingest.pipeline import SLOTS
from capture.ingest.spill import MAX_DISK_BYTES, Spill
from capture.ingest.startup import START_TIMEOUT
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.engine import Distinct
from capture.maintenance.schedule import Schedule
from capture.spark.options import SparkOptions

_SPARK = SparkOptions()

LARGEST = (1 << 63) - 1  # what a server, a file and Arrow can count
SHORTEST_LEASE = 0.3  # seconds, as in natty.leader

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # neither infinite nor "not a number"
Lease = Annotated[float, msgspec.Meta(ge=SHORTEST_LEASE, le=1e9)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # seconds, or none
Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Level = Literal["error", "warning", "info", "debug"]


class Own(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a stream has of its own: `[streams.NAME]` in the file. The rest is as for all."""

    durable: str | None = None
    archive: str | None = None
    filter_subjects: list[str] | None = None
    start: int | str | None = None
    ack: Literal["explicit", "all"] | None = None
    group: str | None = None
    member: str | None = None


class Sealing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a block is sealed: `[limits]` in the file. Seconds and bytes."""

    max_messages: Count = MAX_MESSAGES
    max_bytes: Count = MAX_BYTES
    max_age: Seconds = MAX_AGE
    max_open: Count = MAX_OPEN
    max_open_bytes: Count = MAX_OPEN_BYTES
    max_pending: Count = MAX_PENDING
    interval: Seconds = INTERVAL

    def limits(self) -> Limits:
        """Return them checked against one another."""
        return Limits(**msgspec.structs.asdict(self))


class Buffers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the content of blocks is until they are stored: `[buffers]` in the file."""

    kind: Literal["memory", "disk"] = "memory"
    folder: str = ""  # on a local disk; the system's for temporary files by default
    max_disk_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=LARGEST)] = MAX_DISK_BYTES

    def spill(self) -> Spill | None:
        """Return the buffers on disk; None if they are in memory. SpillError if the folder can't be written."""
        return Spill(self.folder, self.max_disk_bytes) if self.kind == "disk" else None


class Sweeping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sweep: `[sweep]` in the file. Seconds."""

    every: Seconds = 10.0
    grace: Seconds = GRACE  # how long leftovers and replaced files stay: longer than any reader reads


class Compacting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The compaction: `[compaction]` in the file."""

    lease: Lease = 15.0  # seconds, of its leader: a term survives the crash of the NATS server that leads the stream
    every: Seconds = Schedule.every  # seconds between two looks at what is due
    cron: str = Schedule.cron  # when to look instead, in UTC: minute hour day month weekday
    waiting_files: Number = Schedule.waiting_files  # so many blocks that wait begin a look of their own; 0: none do
    waiting_bytes: Number = Schedule.waiting_bytes
    min_files: Count = Policy.min_files  # blocks of a key and interval that make it due
    max_wait: Duration = Policy.max_wait  # then any number of blocks is due
    target_bytes: Count = Policy.target_bytes
    max_groups: Count = Policy.max_groups  # of a run
    max_bytes: Count = Policy.max_bytes
    distinct: Distinct = Policy.distinct  # or "message_id": of messages with one id the first is kept
    decrypt: bool = Policy.decrypt  # write the table of encrypted blocks in plain Parquet, for other engines

    def schedule(self) -> Schedule:
        """Return when to look. ConfigError."""
        given = {name: getattr(self, name) for name in ("every", "cron", "waiting_files", "waiting_bytes")}
        return Schedule(**given)


class Spark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Spark is started: `[spark]` in the file. `properties` are Spark's own settings."""

    master: str = _SPARK.master
    driver_memory: str = _SPARK.driver_memory
    java: str | None = _SPARK.java
    properties: dict[str, str] = {}
    properties_file: str = _SPARK.properties_file  # of Spark's own settings, as for spark-submit, perhaps with secrets
    environment: list[str] = []  # variables that Spark's processes get besides those that they need
    class_data: bool = _SPARK.class_data  # keep an archive of Spark's classes, so that sessions start faster

    def __repr__(self) -> str:
        return f"Spark({said(self, {'properties': dict.fromkeys(self.properties, HIDDEN)})})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return shown(self, {"properties": dict.fromkeys(self.properties, HIDDEN)})

    def options(self, *, queries: bool = False) -> SparkOptions:
        """Return them for a driver that merges, or answers queries."""
        return SparkOptions(**msgspec.structs.asdict(self), queries=queries)


class Logging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `capture run` logs: `[logging]` in the file."""

    level: Level = "warning"
    format: Literal["text", "json"] = "text"
    loggers: dict[str, Level] = {}  # by name, for instance "natty.connection"; those below it follow
    summary_every: Duration = 60.0  # seconds between two lines of figures, level info, while there is work; 0: none


class CaptureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `capture.toml` holds. Only `stream` and `store` have no default."""

    stream: str = ""
    store: str = ""  # a folder or URL; `[store]` in the file, with `url` and capture.stores.Address's other settings
    durable: str = "capture"
    archive: str = ""  # the name of its elections; the stream's by default
    node: str = ""
    decoder: str = "raw"
    partition: str = "time"
    layout: str = "hive"  # of the blocks' folders; "dated" or "module:function"
    format: str = PARQUET.name
    compression: str = ""  # none, gzip, snappy or zstd; Parquet's is zstd by default, that of the others none
    flatten: str = ""  # "module:function" makes rows of a value, for csv
    encrypt: bool | None = None  # blocks, with the first of the keys; say false where keys are to read with alone
    encrypted_only: bool = Policy.encrypted_only  # refuse what is not encrypted: it takes no key to write that
    key_file: str = ""  # lines of NAME:BASE64; the variable CAPTURE_KEYS if there is none
    signing_key_file: str = ""  # the same, to sign manifests with; the variable CAPTURE_SIGNING_KEYS if there is none
    public_key_file: str = ""  # the public ones, to verify with
    ack_wait: Seconds = 120.0  # the durable is made with it
    max_ack_pending: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)] = 250_000
    slots: Count = SLOTS  # blocks that are stored at once
    filter_subjects: list[str] = []
    start: int | str = Durable.start  # of a durable that is made now: "all", "new", a sequence, or a time
    ack: Literal["explicit", "all"] = EXPLICIT  # "all": one acknowledgement for all before it, by one node alone
    group: str = ""  # of the stream, a static one: nodes share its members' consumers, and read no `durable`
    member: str = ""  # of it: this node waits for the partitions of this one alone
    streams: list[str] | dict[str, Own] = []  # several, each an archive below the store; names, or [streams.NAME]
    keep_going: bool = False  # when one of several streams fails
    lease: Lease = 2.0  # seconds, of the sweep's leader
    log: str = ""  # a folder for Spark's log; none by default
    start_timeout: Duration = START_TIMEOUT  # that a node waits for a server or a store that is away as it starts
    drain: Seconds = 30.0  # that a stop leaves to the stores under way
    store_attempts: Count = ATTEMPTS  # to put an object; then the messages of its block are handed back
    redeliver_after: tuple[Duration, ...] = REDELIVER_AFTER  # seconds, by how often they were delivered; [] is at once
    on_store_failure: Literal["go_on", "stop"] = "go_on"  # when messages were handed back; a stop has exit status 1
    on_store_complete: str = ""  # "module:function", called after each attempt to store a block
    nats: dict[str, Any] = {}
    limits: Sealing = Sealing()
    buffers: Buffers = Buffers()
    sweep: Sweeping = Sweeping()
    compaction: Compacting = Compacting()
    table: Expiry = Expiry()
    retention: list[Rule] = []  # what may go, by age or by size; the first rule that matches decides
    spark: Spark = Spark()
    logging: Logging = Logging()

    def __repr__(self) -> str:
        return f"CaptureConfig({said(self, {'nats': dict.fromkeys(self.nats, HIDDEN)})})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return shown(self, {"nats": dict.fromkeys(self.nats, HIDDEN)})

    @property
    def name(self) -> str:
        """The archive's name."""
        return self.archive or self.stream

    def block_limits(self) -> Limits:
        """Return when blocks are sealed. ConfigError. Where acks go in order, no block may hold them back for long."""
        limits = self.limits.limits()
        in_order = self.ack == TOGETHER or self.group
        return replace(limits, max_behind=int(NEARLY_FULL * limits.max_pending)) if in_order else limits

    def consumer(self) -> Durable:
        """Return the durable consumer that a node reads. ConfigError."""
        return Durable(
            stream=self.stream,
            name=self.durable,
            ack_wait=self.ack_wait,
            max_ack_pending=self.max_ack_pending,
            start=self.start,
            ack=self.ack,
            filter_subjects=tuple(self.filter_subjects),
        )

    def keys(self) -> Keys | None:
        """Return the envelope keys that are given, to read with; the first one encrypts. ConfigError."""
        keys = Keys.load(self.key_file)
        if self.encrypt and keys is None:
            raise ConfigError(f"encrypt is on and there is no key: name a key_file, or set {VARIABLE}")
        return keys

    def block_keys(self) -> Keys | None:
        """Return the keys that blocks are encrypted with; None if they are not to be. ConfigError."""
        keys = self.keys()
        if self.encrypt is None and self.key_file:
            raise ConfigError(
                "key_file is given, and nothing says that blocks are to be encrypted: write encrypt = true, or"
                " encrypt = false if the keys are only to read what was encrypted before"
            )
        if self.encrypted_only and not self.encrypt:
            raise ConfigError("encrypted_only refuses plain blocks, and this node stores them: write encrypt = true")
        return keys if self.encrypt else None

    def trust(self, archive: str = "") -> Trust:
        """Return what is checked of the archive before it is believed. ConfigError.

        `archive` is what it calls itself, for a configuration that does not say it.
        """
        name = self.archive or archive or self.name
        return Trust(archive=name, public_keys=self.public_keys(), encrypted_only=self.encrypted_only)

    def signer(self) -> Signer | None:
        """Return what signs the archive's documents, if a key is given. ConfigError."""
        return load_signer(self.name, self.signing_key_file)

    def public_keys(self) -> PublicKeys | None:
        """Return the keys whose signatures are trusted, if they are given. ConfigError."""
        return PublicKeys.load(self.public_key_file) if self.public_key_file else None
