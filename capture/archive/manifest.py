"""The manifest and its records of stored objects, and the paths of blocks, entries and table files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Self

import msgspec

from capture.archive.chain import Document, decode_known
from capture.archive.encryption import ENDING
from capture.archive.index.version import Name, Version
from capture.archive.sequences import MAXIMUM, Packed, Sequences
from capture.errors import ManifestError, StoreError
from capture.stores.contract import Listing, Store, check_path, is_path

ENTRY_FORMAT = 1
"""The format of entries that this version writes; it refuses a newer one by name."""

ARCHIVE = "_archive.json"
BLOCKS, ENTRIES, TABLE = "blocks/", "_entries/", "table/"
OUTSIDE = "~"
"""The folder in `_entries/` of the entries of blocks outside of `blocks/`. No quoted name is equal to it."""
LONGEST_KEY = 160
"""The longest quoted key, in bytes, that a path contains in full."""
FIELDS = "/"
"""The prefix of a key with several fields: "/region=eu/level=3", every part already quoted."""

_OWN_FOLDER = re.compile(r"_|~/|(blocks|table|iceberg)(/|\Z)", re.IGNORECASE).match
_BLOCK_NAME = re.compile(r"[^/]+(-[0-9]+){3}-[0-9a-f]{8}(-[0-9a-f]+)?\.[^/]+").fullmatch  # see block_path
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")


Number = Annotated[int, msgspec.Meta(ge=0, le=MAXIMUM)]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One object of the archive, a block or a table file: its path, and exactly what it holds.

    `interval` is the start of its interval (Unix seconds, UTC). `first`, `last` and `sequences` (`Sequences.to_bytes`;
    JSON has these in base64) are stream sequences, `count` is the number of rows, `sha256` the SHA-256 of the object's
    bytes, `format` "parquet" or "ndjson". `node` stored it at `stored_ns` (Unix nanoseconds, its clock). `min_ns` and
    `max_ns` are the times at which the stream stored the earliest and the latest message (Unix nanoseconds); 0 if not
    recorded. `plain_bytes` is the size before compression and encryption, and the limit for decompression by readers;
    0 if not recorded.
    """

    path: str
    stream: str
    key: str
    interval: Annotated[int, msgspec.Meta(ge=-62_135_596_800, lt=253_402_300_800)]  # of the years 1 to 9999
    first: Number
    last: Number
    count: Number
    bytes: Number
    sha256: str
    format: str
    sequences: Packed
    node: str = ""
    stored_ns: Number = 0
    min_ns: Number = 0
    max_ns: Number = 0
    plain_bytes: Number = 0
    version: int = ENTRY_FORMAT


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The total that retention has removed of a stream: no longer stored, and not missing.

    `sequences` (`Sequences.to_text`) are those of `objects` objects of `bytes` bytes, the last of them removed at `at`
    (Unix seconds). Sequences that other objects also hold are still stored. `picture.Picture.removed` reads it.
    Below `below` there is no exact record: neither archive nor stream had any of those sequences any more.
    """

    stream: str
    sequences: str
    objects: int
    bytes: int
    at: float
    below: int = 0


class Outdated(msgspec.Struct, frozen=True):
    """Pages that a commit replaced: readers of an earlier document may need them for a grace time after `since`."""

    since: float
    pages: list[Name]


class Indexed(Document, frozen=True, kw_only=True):
    """A document that names its objects by an index (`capture.archive.index`), whose pages are in the folder PAGES.

    In the store, its list of objects is empty: `index.contents.load` returns it with the objects that a program needs.
    In formats 1 and 2 the list has all objects, and there is no index.
    """

    PAGES: ClassVar[str]
    LIST: ClassVar[str]

    index: Version = Version()
    outdated: list[Outdated] = msgspec.field(default_factory=list)

    @property
    def listed(self) -> list[Stored]:
        """The objects in the list: those that were loaded."""
        found: list[Stored] = getattr(self, self.LIST)
        return found

    def check(self) -> None:
        """Raise ValueError if an object in the list of an earlier format has an unreadable set."""
        for one in self.listed:
            Sequences.from_bytes(one.sequences)

    def list_versions(self) -> list[Version]:
        """Return the versions of indexes that it names."""
        return [self.index]

    def with_listed(self, objects: list[Stored]) -> Self:
        """Return the document with these objects in its list."""
        return msgspec.structs.replace(self, **{self.LIST: objects})

    def at_its_head(self, now: float) -> Self:
        """Return the document with what it replaced counted from `now` on."""
        outdated = [Outdated(now, one.pages) for one in self.outdated]
        return msgspec.structs.replace(super().at_its_head(now), outdated=outdated)


class Manifest(Indexed, frozen=True, kw_only=True):
    """The adopted blocks: those that wait for compaction, and those about to be deleted. The sweep's leader commits it.

    `of_table` is the number of the last table that allowed the sweep to remove blocks: with an older table they would
    be missing. `removed` is what retention has removed of the blocks, by stream. `outside` is True once a block outside
    of `blocks/` was adopted. In format 1 the manifest also described the table, and retired its files. A manifest of a
    later format keeps both unchanged until there is a `capture.archive.table.Table`, which starts with them.
    """

    FOLDER: ClassVar[str] = "_manifest/"
    FORMAT: ClassVar[int] = 3
    PAGES: ClassVar[str] = "_index/blocks/"
    LIST: ClassVar[str] = "blocks"

    blocks: list[Stored] = msgspec.field(default_factory=list)
    of_table: int = 0
    table: list[Stored] = msgspec.field(default_factory=list)
    removed: list[Removed] = msgspec.field(default_factory=list)
    outside: bool = False

    def check(self) -> None:
        """Raise ValueError if an object in the lists of an earlier format has an unreadable set."""
        super().check()
        for one in self.table:
            Sequences.from_bytes(one.sequences)

    def list_paths(self) -> set[str]:
        """Return the paths of its blocks, and of the retired objects."""
        return {one.path for part in (self.blocks, self.retired) for one in part}


class _EntryFormat(msgspec.Struct):
    version: int = 1


_decode_format = msgspec.json.Decoder(_EntryFormat).decode


def encode(entry: Stored) -> bytes:
    """Return the JSON of an entry."""
    return msgspec.json.encode(entry)


def decode_entry(data: bytes, path: str) -> Stored:
    """Return the record of a stored block. ManifestError if it is damaged, has a newer format, or is not of a block."""
    entry = decode_known(data, path, Stored, lambda encoded: _decode_format(encoded).version, ENTRY_FORMAT)
    return _check_block(entry, path)


def _check_block(entry: Stored, path: str) -> Stored:
    """Return the entry if its path is a block's, which a sweep adopts and may later delete, and its set is readable."""
    try:
        if not is_block(check_path(entry.path)):
            raise ManifestError(f"{path} is damaged: {entry.path} is not a block's path")
        held = Sequences.from_bytes(entry.sequences)
    except (StoreError, ValueError) as error:
        raise ManifestError(f"{path} is damaged: {error}") from error
    if not held or (entry.first, entry.last) != (held.first, held.last):
        raise ManifestError(f"{path} is damaged: its sequences are not from {entry.first} to {entry.last}")
    return entry


# --- paths (layout 1) ------------------------------------------------------------------------------------------------


def quote_key(key: str) -> str:
    """Return the key as one part of a path: percent-encoded except A–Z a–z 0–9 _ . -

    A text of more than 160 bytes is cut and ends in "~" and a hash: file systems allow 255 bytes for a part.
    """
    raw = key.encode("utf-8", "surrogateescape")
    quoted = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(quoted) <= LONGEST_KEY:
        return quoted
    return f"{quoted[:LONGEST_KEY]}~{hashlib.sha256(raw).hexdigest()[:16]}"


def has_fields(key: str) -> bool:
    """Return whether a key's text has several fields."""
    return key.startswith(FIELDS) and not key.startswith(FIELDS * 2)


def key_folder(key: str) -> str:
    """Return the folders of a key: "key=eu", or one for each of its fields, "region=eu/level=3"."""
    return key.removeprefix(FIELDS) if has_fields(key) else f"key={quote_key(key)}"


def interval_folder(interval: int, interval_seconds: int) -> str:
    """Return "date=2026-11-21/hour=03" of an interval, in UTC and as fine as its length: day, hour, minute, second."""
    start = datetime.fromtimestamp(interval, UTC)
    parts = [f"date={start:%Y-%m-%d}", f"hour={start:%H}", f"minute={start:%M}", f"second={start:%S}"]
    finer = sum(interval_seconds < length for length in (86_400, 3_600, 60))
    return "/".join(parts[: 1 + finer])


@dataclass(frozen=True)
class Partition:
    """What determines a block's folder: the stream, the key, and the interval of the messages' time.

    `interval` is the start of the interval (Unix seconds), `seconds` its length. `key` is the text of a key as entries
    hold it: any text, also with slashes.
    """

    stream: str
    key: str
    interval: int
    seconds: int

    @property
    def folder(self) -> str:
        """The key as a folder, "eu", or as a folder for each of its fields, "region=eu/level=3"; quoted, never ".."."""
        if has_fields(self.key):
            return key_folder(self.key)
        quoted = quote_key(self.key)
        return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted

    @property
    def dated(self) -> str:
        """The start of the interval as folders, in UTC: "2026/11/21/03/00"."""
        return f"{datetime.fromtimestamp(self.interval, UTC):%Y/%m/%d/%H/%M}"

    def hive(self) -> str:
        """Return "stream=ORDERS/key=eu/date=2026-11-21/hour=03", Hive's layout of tables."""
        return f"stream={quote_key(self.stream)}/{key_folder(self.key)}/{interval_folder(self.interval, self.seconds)}"


def block_path(
    partition: Partition,
    first: int,
    last: int,
    count: int,
    sha256: str,
    suffix: str,
    unique: str = "",
    folder: str | None = None,
) -> str:
    """Return the path of a block: the `folder` of its partition (default: Hive's layout), and a name with its range.

    `unique` is a text that no other block has. A deleted path must never be written again, because a paused sweeper may
    be about to delete it a second time. A folder that begins with "/" is not below `blocks/`, unless it is one of the
    archive's own.
    """
    folder = partition.hive() if folder is None else folder
    name = f"{quote_key(partition.stream)}-{first}-{last}-{count}-{sha256[:8]}"
    below = folder.removeprefix("/")
    path = f"{below}{below and '/'}{name}{unique and f'-{unique}'}{suffix}"
    return path if folder.startswith("/") and is_block(path) else f"{BLOCKS}{path}"


def is_block(path: str) -> bool:
    """Return whether a path is a block's: in `blocks/`, or outside of the archive's own folders with a block's name."""
    if path.startswith(BLOCKS):
        return True
    name = path.rpartition("/")[2]
    return is_path(path) is not None and not _OWN_FOLDER(path) and _BLOCK_NAME(name) is not None


def is_outside(path: str) -> bool:
    """Return whether the path of a block or table file is outside of `blocks/` and `table/`."""
    return not path.startswith((BLOCKS, TABLE))


async def list_blocks(store: Store, *, outside: bool) -> Listing:
    """Return the blocks that exist, also those that no entry names. May raise StoreError.

    With `outside` it lists the whole store, for blocks outside of `blocks/`.
    """
    return select_blocks(await store.list()) if outside else await store.list(BLOCKS)


def select_blocks(objects: Listing) -> Listing:
    """Return the blocks of a listing of the whole store, without those of other archives in a folder of this one."""
    others = tuple(one.path.removesuffix(ARCHIVE) for one in objects if one.path.endswith(f"/{ARCHIVE}"))
    return [one for one in objects if is_block(one.path) and not one.path.startswith(others)]


def table_path(block: str, token: int, unique: str, ending: str = "") -> str:
    """Return a new table file's path, in the same partition as a block or table file; `unique` is a UUID's hex.

    `ending` names the encryption around the file: ".enc".
    """
    folder = partition_folder(block)
    return f"{TABLE}{folder}{folder and '/'}c-{token}-{unique}.parquet{ending}"


def partition_folder(path: str) -> str:
    """Return the folder of a block's or table file's partition, without `blocks/` or `table/`: "eu/2026/11/21"."""
    inside = path if is_outside(path) else path.partition("/")[2]
    return inside.rpartition("/")[0]


def entry_path(block: str) -> str:
    """Return the path of a block's entry, which is written after the block and before the ack."""
    return f"{ENTRIES}{f'{OUTSIDE}/{block}' if is_outside(block) else block.removeprefix(BLOCKS)}.json"


def entry_block(entry: str) -> str:
    """Return the path of the block that an entry's path belongs to."""
    path = entry.removeprefix(ENTRIES).removesuffix(".json")
    return path.removeprefix(f"{OUTSIDE}/") if path.startswith(f"{OUTSIDE}/") else f"{BLOCKS}{path}"


def is_encrypted(one: Stored) -> bool:
    """Return whether an object is encrypted."""
    return one.format.endswith(f".{ENDING}")
