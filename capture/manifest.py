from __future__ import annotations

import hashlib
import logging
import re
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec

from capture.errors import AlreadyStored, Fenced, ManifestError, NotStored
from capture.stores.contract import Store

FORMAT = 1
"""The format of manifests and entries that this version writes; a newer one is refused by name."""

BLOCKS, ENTRIES, TABLE, MANIFESTS = "blocks/", "_entries/", "table/", "_manifest/"
LONGEST_KEY = 160
"""The longest quoted key, in bytes, that is written out in a path."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_MANIFEST_NAME = re.compile(re.escape(MANIFESTS) + r"(\d{10,})-(\d+)(?:-(\d+))?\.json")

log = logging.getLogger(__name__)


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One object of the archive, a block or a table file: where it is, and exactly what it holds.

    `interval` is its start (Unix seconds, UTC), `first`, `last` and `sequences` (`Sequences.to_text`) are stream
    sequences, `count` the rows, `sha256` that of the object's bytes, `format` "parquet" or "ndjson". `node` stored it
    at `stored_ns` (Unix nanoseconds, its clock).
    """

    path: str
    stream: str
    key: str
    interval: int
    first: int
    last: int
    count: int
    bytes: int
    sha256: str
    format: str
    sequences: str
    node: str = ""
    stored_ns: int = 0
    version: int = FORMAT


class Retired(msgspec.Struct, frozen=True):
    """An object whose rows the table holds elsewhere: deleted a grace time after `since` (Unix seconds)."""

    path: str
    since: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole archive at one moment: blocks that wait for compaction, the table, and what is about to be deleted.

    Immutable once written. It counts when the head pointer names it, or a later one that has it as its parent.
    """

    format: int = FORMAT
    number: int = 0
    token: int = 0
    leader: str = ""
    created: float = 0.0
    parent: str = ""
    parent_sha256: str = ""
    blocks: list[Stored] = []
    table: list[Stored] = []
    retired: list[Retired] = []


class Head(msgspec.Struct, frozen=True):
    """Which manifest is the committed one, by whose term (`token`), and the SHA-256 of its bytes."""

    number: int
    token: int
    path: str
    sha256: str


class HeadPointer(Protocol):
    """Where the authority lies: a fenced entry outside the store, NATS key-value in production.

    `token` is the fencing token of the writer's term.
    """

    token: int

    async def read(self) -> Head | None:
        """Return the committed head, from the authority itself and never a copy that may lag; None before the first."""
        ...

    async def commit(self, head: Head) -> None:
        """Make `head` the committed one, atomically.

        Fenced, and nothing changed, if a later term has begun or the committed number is not below `head.number`.
        """
        ...


_Kind = TypeVar("_Kind", Manifest, Stored)


class _ManifestFormat(msgspec.Struct):
    format: int = FORMAT


class _EntryFormat(msgspec.Struct):
    version: int = FORMAT


def encode(value: Manifest | Stored) -> bytes:
    """Return the JSON of a manifest or an entry."""
    return msgspec.json.encode(value)


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest. ManifestError if it is damaged or of a newer format; `path` is for the error."""
    return _decode(data, path, Manifest)


def decode_entry(data: bytes, path: str) -> Stored:
    """Return the record of a stored block. ManifestError if it is damaged or of a newer format."""
    return _decode(data, path, Stored)


def _decode(data: bytes, path: str, kind: type[_Kind]) -> _Kind:
    try:
        found = (
            msgspec.json.decode(data, type=_ManifestFormat).format
            if kind is Manifest
            else msgspec.json.decode(data, type=_EntryFormat).version
        )
        if found <= FORMAT:
            return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} is damaged: {error}") from error
    raise ManifestError(f"{path} has format {found}; this version reads up to {FORMAT}: use the version that wrote it")


async def read_manifest(store: Store, head: Head | None) -> Manifest:
    """Return the manifest that the head names, or an empty one. ManifestError if it is missing or was changed."""
    if head is None:
        return Manifest()
    try:
        data = await store.get(head.path)
    except NotStored as error:
        raise ManifestError(
            f"the head names {head.path}, which is not in {store.url}: is it the right store?"
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != head.sha256:
        raise ManifestError(f"{head.path} was changed: its SHA-256 is {found[:16]}…, the head says {head.sha256[:16]}…")
    return decode_manifest(data, head.path)


async def latest_offline(store: Store) -> Head | None:
    """Return the manifest with the highest (number, token) in the store, for readers without the head pointer.

    It may be one commit ahead of the head, or of a term that lost; what it says of stored objects is true all the same.
    """
    found = await _newest(store)
    if found is None:
        return None
    (number, token, _), path = found
    return Head(number, token, path, hashlib.sha256(await store.get(path)).hexdigest())


async def current(store: Store, head_pointer: HeadPointer) -> tuple[Head | None, Manifest]:
    """Return the committed head and its manifest: what every change starts from.

    If the store holds a later manifest than the head (a commit without an answer, or a key-value store that lost its
    last writes), that one is committed first: a head that went back must never make stored objects look like leftovers.
    """
    found, head = await _newest(store), await head_pointer.read()
    if found is None or (head is not None and found[0][0] <= head.number):
        return head, await read_manifest(store, head)
    newest = await latest_offline(store)
    manifest = await read_manifest(store, newest)
    log.warning(
        "the head names manifest %d, the store holds %d: committing what the store holds",
        head.number if head else 0,
        manifest.number,
        extra={"action": "recover_head"},
    )
    head = await commit_manifest(store, head_pointer, newest, manifest)
    return head, await read_manifest(store, head)


async def commit_manifest(store: Store, head_pointer: HeadPointer, previous: Head | None, manifest: Manifest) -> Head:
    """Write the manifest as the one after `previous`, then make the head name it: durable, then visible.

    Fills in number, token and parent. Fenced if another leader's term has begun or somebody committed in between,
    unless what was committed has this manifest as its parent (see `current`): then that head is returned.
    """
    sealed = msgspec.structs.replace(
        manifest,
        format=FORMAT,
        number=(previous.number if previous else 0) + 1,
        token=head_pointer.token,
        parent=previous.path if previous else "",
        parent_sha256=previous.sha256 if previous else "",
    )
    data = encode(sealed)
    path = await _write(store, sealed, data)
    head = Head(sealed.number, sealed.token, path, hashlib.sha256(data).hexdigest())
    try:
        await head_pointer.commit(head)
    except Fenced:
        later = await head_pointer.read()
        if later is None or not await _descends(store, later, head):
            raise
        return later
    return head


async def _write(store: Store, manifest: Manifest, data: bytes, attempt: int = 0) -> str:
    """Store a manifest under a name of its own: an earlier attempt of the same term may lie there, and stays."""
    path = manifest_path(manifest.number, manifest.token, attempt)
    try:
        await store.put(path, data)
    except AlreadyStored:
        if await store.get(path) != data:
            return await _write(store, manifest, data, attempt + 1)
    return path


async def _descends(store: Store, later: Head, head: Head) -> bool:
    """Tell whether `later` is the head or has it among its parents."""
    path, sha256, number = later.path, later.sha256, later.number
    while number > head.number:
        manifest = await read_manifest(store, Head(number, 0, path, sha256))
        path, sha256, number = manifest.parent, manifest.parent_sha256, manifest.number - 1
    return (path, sha256) == (head.path, head.sha256)


async def _newest(store: Store) -> tuple[tuple[int, int, int], str] | None:
    listed = [one.path for one in await store.list(MANIFESTS)]
    return max(((parts, path) for path in listed if (parts := manifest_parts(path))), default=None)


# --- where things lie (layout 1) -------------------------------------------------------------------------------------


def quote_key(key: str) -> str:
    """Return the key as one part of a path: percent-encoded except A–Z a–z 0–9 _ . -

    A text of more than 160 bytes ends in "~" and a hash instead: file systems allow 255 bytes for a part.
    """
    raw = key.encode("utf-8", "surrogateescape")
    quoted = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(quoted) <= LONGEST_KEY:
        return quoted
    return f"{quoted[:LONGEST_KEY]}~{hashlib.sha256(raw).hexdigest()[:16]}"


def interval_folder(interval: int, interval_seconds: int) -> str:
    """Return "date=2026-11-21/hour=03" of an interval, in UTC and as fine as its length: day, hour, minute, second."""
    start = datetime.fromtimestamp(interval, UTC)
    parts = [f"date={start:%Y-%m-%d}", f"hour={start:%H}", f"minute={start:%M}", f"second={start:%S}"]
    finer = sum(interval_seconds < length for length in (86_400, 3_600, 60))
    return "/".join(parts[: 1 + finer])


def block_path(
    stream: str,
    key: str,
    interval: int,
    interval_seconds: int,
    first: int,
    last: int,
    count: int,
    sha256: str,
    suffix: str,
) -> str:
    """Return where a block belongs: its partition, and a name that says what it holds."""
    folder = f"stream={quote_key(stream)}/key={quote_key(key)}/{interval_folder(interval, interval_seconds)}"
    return f"{BLOCKS}{folder}/{quote_key(stream)}-{first}-{last}-{count}-{sha256[:8]}{suffix}"


def table_path(block: str, token: int, unique: str) -> str:
    """Return a new table file's path, in the same partition as a block or table file; `unique` is a UUID's hex."""
    partition = block.partition("/")[2].rpartition("/")[0]
    return f"{TABLE}{partition}/c-{token}-{unique}.parquet"


def entry_path(block: str) -> str:
    """Return where the entry of a block lies: written after the block, before the ack."""
    return f"{ENTRIES}{block.removeprefix(BLOCKS)}.json"


def entry_block(entry: str) -> str:
    """Return the path of the block that an entry's path belongs to."""
    return f"{BLOCKS}{entry.removeprefix(ENTRIES).removesuffix('.json')}"


def manifest_path(number: int, token: int, attempt: int = 0) -> str:
    """Return where a manifest lies; `attempt` tells apart several of one term and number."""
    return f"{MANIFESTS}{number:010d}-{token}{f'-{attempt}' if attempt else ''}.json"


def manifest_parts(path: str) -> tuple[int, int, int] | None:
    """Return (number, token, attempt) of a manifest's path; None if it is something else."""
    found = _MANIFEST_NAME.fullmatch(path)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None
