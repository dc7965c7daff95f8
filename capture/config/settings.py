"""The settings of capture.toml: their types, their defaults, and the objects that the rest of capture gets from them.

The default of a setting that sets an option is the option's default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec

from capture.archive.encryption import VARIABLE, Keys
from capture.archive.picture import GRACE
from capture.archive.retention import Rule
from capture.archive.signing import PublicKeys, Signer, load_signer
from capture.archive.stored_formats import PARQUET
from capture.archive.trust import Trust
from capture.config.secrets import Redacted
from capture.config.table_catalog import TableSettings
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
from capture.ingest.durable import CONSUMER, DIRECT, EXPLICIT, TOGETHER, Durable
from capture.ingest.pipeline import SLOTS
from capture.ingest.spill import MAX_DISK_BYTES, Spill
from capture.ingest.startup import START_TIMEOUT
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.engine import Distinct
from capture.maintenance.schedule import Schedule
from capture.pipelines.definition import Pipeline
from capture.spark.options import SparkOptions

_SPARK = SparkOptions()

LARGEST = (1 << 63) - 1  # the largest count of a server, a file and Arrow
SHORTEST_LEASE = 0.3  # seconds, as in natty.leader

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # neither infinite nor NaN
Lease = Annotated[float, msgspec.Meta(ge=SHORTEST_LEASE, le=1e9)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # seconds, or 0
Count = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Level = Literal["error", "warning", "info", "debug"]


class Own(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of one stream: `[streams.NAME]` in the file. All others apply to all streams."""

    source: Literal["consumer", "direct"] | None = None
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
        """Return the limits. Raises ConfigError if they contradict each other."""
        return Limits(**msgspec.structs.asdict(self))


class Buffers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the content of blocks is kept until they are stored: `[buffers]` in the file."""

    kind: Literal["memory", "disk"] = "memory"
    folder: str = ""  # on a local disk; default: the system's for temporary files
    max_disk_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=LARGEST)] = MAX_DISK_BYTES

    def spill(self) -> Spill | None:
        """Return the buffers on disk; None if they are in memory. Raises SpillError if the folder can't be written."""
        return Spill(self.folder, self.max_disk_bytes) if self.kind == "disk" else None


class Sweeping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sweep: `[sweep]` in the file. Seconds."""

    every: Seconds = 10.0
    grace: Seconds = GRACE  # how long leftovers and replaced files stay: longer than any read takes


class Compacting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The compaction: `[compaction]` in the file."""

    lease: Lease = 15.0  # seconds, of its leader: a term survives the crash of the NATS server that leads the stream
    every: Seconds = Schedule.every  # seconds between two checks for due work
    cron: str = Schedule.cron  # times of the checks instead, in UTC: minute hour day month weekday
    waiting_files: Number = Schedule.waiting_files  # this number of waiting blocks starts a check, too; 0: never
    waiting_bytes: Number = Schedule.waiting_bytes
    min_files: Count = Policy.min_files  # blocks of a key and interval that make it due
    max_wait: Duration = Policy.max_wait  # after it, any number of blocks is due
    target_bytes: Count = Policy.target_bytes
    max_groups: Count = Policy.max_groups  # per run
    max_bytes: Count = Policy.max_bytes
    distinct: Distinct = Policy.distinct  # or "message_id": keeps the first of messages with the same id
    decrypt: bool = Policy.decrypt  # write the table of encrypted blocks in plain Parquet, for other engines

    def schedule(self) -> Schedule:
        """Return when to check for due work. Raises ConfigError."""
        given = {name: getattr(self, name) for name in ("every", "cron", "waiting_files", "waiting_bytes")}
        return Schedule(**given)


class Spark(Redacted, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Spark is started: `[spark]` in the file. `properties` are Spark's own settings."""

    HIDES = "properties"

    master: str = _SPARK.master
    driver_memory: str = _SPARK.driver_memory
    java: str | None = _SPARK.java
    properties: dict[str, str] = {}
    properties_file: str = _SPARK.properties_file  # with Spark's own settings, as for spark-submit; may hold secrets
    environment: list[str] = []  # variables that Spark's processes get in addition to those that they need
    class_data: bool = _SPARK.class_data  # keep an archive of Spark's classes, so that sessions start faster
    source_options: dict[str, str] = {}  # of the source jetstream, for pipelines that follow a stream; default: [nats]

    def options(self, *, queries: bool = False) -> SparkOptions:
        """Return the options for a driver that merges, or answers queries."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "source_options"}
        return SparkOptions(**given, queries=queries)


class Logging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log of `capture run`: `[logging]` in the file."""

    level: Level = "warning"
    format: Literal["text", "json"] = "text"
    loggers: dict[str, Level] = {}  # by name, for instance "natty.connection"; applies to the loggers below it, too
    summary_every: Duration = 60.0  # seconds between two lines of figures, level info, while there is work; 0: none


class CaptureConfig(Redacted, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings in `capture.toml`. Only `stream` and `store` have no default."""

    HIDES = "nats"

    stream: str = ""
    store: str = ""  # a folder or URL; `[store]` in the file, with `url` and other settings of capture.stores.Address
    source: Literal["consumer", "direct"] = CONSUMER  # "direct": no consumer, messages are read by batched direct gets
    durable: str = "capture"
    archive: str = ""  # the name of its elections; default: the stream's
    node: str = ""
    workers: Count | Literal["auto"] = 1  # processes that share the work; "auto": one for each CPU core
    candidates: Literal["one", "all", "none"] = "one"  # which workers stand for election as leaders
    decoder: str = "raw"
    partition: str = "time"
    layout: str = "hive"  # of the blocks' folders; "dated" or "module:function"; "/" in front: outside of blocks/
    format: str = PARQUET.name
    compression: str = ""  # none, gzip, snappy or zstd; default: zstd for Parquet, none for the others
    envelope: str = ""  # beside the decoded value: columns, nested or none; default: the payload as received
    flatten: str = ""  # "module:function" that makes rows of a value, for csv
    encrypt: bool | None = None  # encrypt blocks, with the first key; set it to false if the keys are only for reading
    encrypted_only: bool = Policy.encrypted_only  # refuse objects that are not encrypted: writing those needs no key
    key_file: str = ""  # lines of NAME:BASE64; default: the variable CAPTURE_KEYS
    signing_key_file: str = ""  # the same, to sign manifests; default: the variable CAPTURE_SIGNING_KEYS
    public_key_file: str = ""  # the public keys, to verify signatures
    ack_wait: Seconds = 120.0  # of the durable, when it is created
    max_ack_pending: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)] = 250_000
    slots: Count = SLOTS  # blocks that are stored concurrently
    filter_subjects: list[str] = []
    start: int | str = Durable.start  # of a new durable: "all", "new", a sequence, or a time
    ack: Literal["explicit", "all"] = EXPLICIT  # "all": one acknowledgement for all messages before it; one reader
    group: str = ""  # a static group of the stream: nodes share its members' consumers, and do not read `durable`
    member: str = ""  # of the group: this node waits only for this member's partitions
    pipeline: list[Pipeline] = []  # tables that are derived from the streams, each in [[pipeline]]
    pipelines_name: str = ""  # of their election; default: the archive's name, or "streams" for several streams
    streams: list[str] | dict[str, Own] = []  # several, each an archive below the store; names, or [streams.NAME]
    keep_going: bool = False  # if one of several streams fails
    lease: Lease = 2.0  # seconds, of the sweep's leader
    log: str = ""  # a folder for Spark's log; default: none
    start_timeout: Duration = START_TIMEOUT  # seconds that a starting node waits for a server or a store
    drain: Seconds = 30.0  # seconds that a stop leaves to stores that are running
    store_attempts: Count = ATTEMPTS  # to store an object; then the messages of its block are handed back
    redeliver_after: tuple[Duration, ...] = REDELIVER_AFTER  # seconds, by the number of deliveries so far; []: at once
    on_store_failure: Literal["go_on", "stop"] = "go_on"  # after messages were handed back; a stop has exit status 1
    on_store_complete: str = ""  # "module:function", called after each attempt to store a block
    nats: dict[str, Any] = {}
    limits: Sealing = Sealing()
    buffers: Buffers = Buffers()
    sweep: Sweeping = Sweeping()
    compaction: Compacting = Compacting()
    table: TableSettings = TableSettings()
    retention: list[Rule] = []  # what may be deleted, by age or by size; the first rule that matches decides
    spark: Spark = Spark()
    logging: Logging = Logging()

    @property
    def name(self) -> str:
        """The archive's name."""
        return self.archive or self.stream

    @property
    def is_direct(self) -> bool:
        """Whether the stream is read by direct gets, without a consumer."""
        return self.source == DIRECT

    @property
    def has_compaction(self) -> bool:
        """Whether the file has settings for the compaction."""
        return self.compaction != Compacting()

    def block_limits(self) -> Limits:
        """Return when blocks are sealed. If acks go in order, no block may delay them for long. Raises ConfigError."""
        limits = self.limits.limits()
        in_order = self.ack == TOGETHER or self.group
        return replace(limits, max_behind=int(NEARLY_FULL * limits.max_pending)) if in_order else limits

    def consumer(self) -> Durable:
        """Return the durable consumer that a node reads. Raises ConfigError."""
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
        """Return the given envelope keys, for reading; the first one encrypts. Raises ConfigError."""
        keys = Keys.load(self.key_file)
        if self.encrypt and keys is None:
            raise ConfigError(f"encrypt is on and there is no key: name a key_file, or set {VARIABLE}")
        return keys

    def block_keys(self) -> Keys | None:
        """Return the keys for encrypting blocks; None if blocks are not encrypted. Raises ConfigError."""
        keys = self.keys()
        if self.encrypt is None and self.key_file:
            raise ConfigError(
                "key_file is given, but encrypt is not: write encrypt = true, or encrypt = false if the keys are only"
                " for reading older encrypted objects"
            )
        if self.encrypted_only and not self.encrypt:
            raise ConfigError("encrypted_only refuses plain blocks, but this node stores them: write encrypt = true")
        return keys if self.encrypt else None

    def trust(self, archive: str = "") -> Trust:
        """Return what to check of the archive before it is trusted. Raises ConfigError.

        `archive` is the name that the archive has in its documents; it is used if the configuration does not name the
        archive.
        """
        name = self.archive or archive or self.name
        return Trust(archive=name, public_keys=self.public_keys(), encrypted_only=self.encrypted_only)

    def signer(self) -> Signer | None:
        """Return the signer of the archive's documents; None if no key is given. Raises ConfigError."""
        return load_signer(self.name, self.signing_key_file)

    def public_keys(self) -> PublicKeys | None:
        """Return the keys whose signatures are trusted; None if none are given. Raises ConfigError."""
        return PublicKeys.load(self.public_key_file) if self.public_key_file else None
