"""The state of a stream's Iceberg table in the committed `Table`: its snapshots, and which objects they name.

Nothing here reads or writes Iceberg's own files: `capture.iceberg` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Self
from urllib.parse import unquote

import msgspec

from capture.archive.manifest import Indexed, quote_key
from capture.archive.retired_pages import RetiredPage
from capture.archive.stored_formats import is_open
from capture.stores.contract import Store
from capture.stores.own_store import OwnStore
from natty.kv.json_records import Seconds, UnixTime, Whole

ICEBERG = "iceberg/"
"""The folder of the tables' metadata, below the archive; their data files are the table's own."""


BRIEF = 60.0
"""Seconds that a snapshot with blocks stays after it was replaced: there is a new one every few seconds."""

ANNOUNCED = 10.0
"""Most seconds that readers wait until a commit's leader has pointed those without a catalog to it: it may have died.

The pointers are written after the commit, in requests of their own, so for a moment they name the version before.
"""


class Expiry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long older snapshots are kept, and the URL by which engines reach the store: `[table]` in the file. Seconds.

    A snapshot expires `keep_for` after another one replaced it, except the last `keep_snapshots`, of which one is the
    current one. `location` is the archive's URL for engines; default: the store's own.
    """

    keep_snapshots: Annotated[int, msgspec.Meta(ge=1)] = 1
    keep_for: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 86_400.0
    location: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a stream's table at one moment.

    `objects` are Iceberg's own files (manifest list, manifests) that this snapshot names and no older remaining
    snapshot does, by path, with their SHA-256. `dropped` are the paths, also of data files, that it names and its
    successor does not. `came` are the blocks among its data files that no older remaining snapshot names. A snapshot
    with any block `is_brief`: it is kept for BRIEF only. `replaced` is when it was replaced; 0:
    when the next remaining one was made.
    """

    id: int
    made: float
    objects: dict[str, str]
    dropped: list[str] = []
    came: list[str] = []
    is_brief: bool = False
    replaced: float = 0.0


class Iceberg(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's Iceberg table: the path and SHA-256 of its metadata file, and its snapshots, the oldest first.

    `location` is the absolute location in the metadata; `number` is the number of the `Table` that introduced it.
    """

    location: str
    number: int
    metadata: str
    sha256: str
    snapshots: list[Snapshot]

    def objects(self) -> dict[str, str]:
        """Return the SHA-256 of each of Iceberg's own files that belong to the table, by path."""
        named = {self.metadata: self.sha256}
        for one in self.snapshots:
            named |= one.objects
        return named

    def list_held(self) -> set[str]:
        """Return the paths that only older snapshots name."""
        return {path for one in self.snapshots for path in one.dropped}


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """The reported state of a stream's Iceberg table: the number of snapshots, the current one, and its time.

    `current` is its id, as text because JSON readers have no 64-bit numbers. `made` and `expires` are Unix seconds;
    `expires` is when the next older snapshot expires (None: there is none). `location` is the table's URL for engines.
    """

    stream: str
    location: str
    snapshots: Whole
    current: str
    made: UnixTime
    expires: UnixTime | None


class CatalogState(msgspec.Struct, frozen=True, kw_only=True):
    """The reported state of a stream's entry in the user's catalog.

    `entry` is its name there. It shows the table with this number (0: not known) since this time (Unix seconds).
    `trouble` says why it could not be set to a later one; "" if it shows the current one.
    """

    stream: str
    entry: str
    number: Whole = 0
    since: UnixTime | None = None
    trouble: str = ""


class FreshState(msgspec.Struct, frozen=True, kw_only=True):
    """The reported state of the fresh table: the number of shown blocks, and how many wait for the merge, by reason.

    `messages` is how many they show, each once: engines read these and those of the table's files. `committed` is when
    this leader last changed what is shown (Unix seconds; None: it has not yet).
    """

    shown: Whole = 0
    messages: Whole = 0
    committed: UnixTime | None = None
    waiting: dict[str, Whole] = {}


class CompactionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the compaction that merged blocks into files, or failed. It began at `began` (Unix seconds).

    It took `seconds`, and merged `inputs` blocks and files with `rows` messages into `outputs` files. `error` says why
    it failed, or which of its groups did.
    """

    began: UnixTime
    seconds: Seconds
    inputs: Whole = 0
    outputs: Whole = 0
    rows: Whole = 0
    error: str = ""


class CompactionState(msgspec.Struct, frozen=True, kw_only=True):
    """The reported runs of the compaction since its leader was elected, the newest at the end; 5 at most.

    It checks again at `next` what is to merge (Unix seconds; None: a run goes on). A run that found nothing is not
    among the runs.
    """

    runs: list[CompactionRun] = []
    next: UnixTime | None = None


def table_states(tables: Mapping[str, Iceberg], rule: Expiry) -> list[TableState]:
    """Return the state of these tables, by stream; pure."""
    return [
        TableState(
            stream=stream,
            location=one.location,
            snapshots=len(one.snapshots),
            current=str(one.snapshots[-1].id),
            made=one.snapshots[-1].made,
            expires=min((due for _, due in list_due(one.snapshots, rule)), default=None),
        )
        for stream, one in sorted(tables.items())
    ]


def archive_location(store: Store, said: str = "") -> str:
    """Return the URL that the archive's paths are below, without a final slash: `said`, or the store's URL.

    Iceberg's metadata contain absolute locations as plain text: Iceberg's readers do not decode percent signs in them,
    or in a path below them.
    """
    return (said or unquote(store.url.partition("?")[0])).rstrip("/")


def is_reachable(store: Store, said: str = "") -> bool:
    """Return whether other engines can open the archive's objects: not in a store of the user, unless `said`."""
    return bool(said) or not isinstance(store, OwnStore)


def base_location(tables: Mapping[str, Iceberg]) -> str:
    """Return the archive's URL in the metadata of these tables, by stream; "" if there are no tables."""
    return next((one.location.removesuffix(f"/{folder(stream)}") for stream, one in sorted(tables.items())), "")


def folder(stream: str) -> str:
    """Return the folder of a stream's metadata: below the archive, it is what Iceberg calls the table's location."""
    return f"{ICEBERG}{quote_key(stream)}"


def hint_path(stream: str) -> str:
    """Return the path of the file that names the version to read, for readers without a catalog."""
    return f"{folder(stream)}/metadata/version-hint.text"


def version_path(stream: str, number: int) -> str:
    """Return the path of the copy of a metadata file that readers without a catalog find by its number."""
    return f"{folder(stream)}/metadata/v{number}.metadata.json"


def version_of_copy(path: str) -> int | None:
    """Return the number in the path of such a copy; None for any other path."""
    name = path.rpartition("/")[2].removesuffix(".metadata.json").removeprefix("v")
    return int(name) if name.isdecimal() else None


def list_due(snapshots: Sequence[Snapshot], rule: Expiry) -> list[tuple[int, float]]:
    """Return the ids of the snapshots that will expire without a further commit, and when (Unix seconds); pure."""
    due: list[tuple[int, float]] = []
    kept = 1  # the current one
    for one, successor in reversed([*pairwise(snapshots)]):
        if not one.is_brief and kept < rule.keep_snapshots:
            kept += 1
            continue
        keep = min(rule.keep_for, BRIEF) if one.is_brief else rule.keep_for
        due.append((one.id, (one.replaced or successor.made) + keep))
    return due[::-1]


def list_expired(snapshots: Sequence[Snapshot], rule: Expiry, now: float) -> list[int]:
    """Return the ids of the snapshots that have expired at `now`; pure."""
    return [number for number, due in list_due(snapshots, rule) if due <= now]


def without(snapshots: Sequence[Snapshot], expired: Sequence[int]) -> tuple[list[Snapshot], list[str]]:
    """Return the snapshots without the expired ones, and the paths that only these named; pure.

    The current one is not among them. Each path is named by successive snapshots, and dropped by the last of these. So
    what an expired one has brought is left to the next one, and what it drops, and has not brought, to the one before.
    """
    left: list[Snapshot] = []
    gone: list[str] = []
    over, brought, came = set(expired), dict[str, str](), list[str]()
    for one in snapshots:
        one = msgspec.structs.replace(one, objects=brought | one.objects, came=[*came, *one.came])
        if one.id not in over:
            left.append(one)
            brought, came = {}, []
            continue
        dropped, own = set(one.dropped), one.objects.keys() | set(one.came)
        gone += one.dropped if not left else (path for path in one.dropped if path in own)
        brought = {path: digest for path, digest in one.objects.items() if path not in dropped}
        came = [path for path in one.came if path not in dropped]
        if left:
            before = left[-1]
            older = [path for path in one.dropped if path not in own]
            replaced = before.replaced or one.made
            left[-1] = msgspec.structs.replace(before, dropped=[*before.dropped, *older], replaced=replaced)
    return left, gone


def iceberg_paths(tables: dict[str, Iceberg]) -> Iterator[str]:
    """Yield every path that these tables, by stream, need: other objects in their folder are leftovers."""
    for stream, one in tables.items():
        yield from (hint_path(stream), version_path(stream, one.number))
        yield from one.objects()
        yield from one.list_held()


class Layout(msgspec.Struct, frozen=True):
    """How the files of a table are laid out: their typed columns (`schema_evolution.write_columns`) and partitions.

    `partition` are the columns that separate files; the key of a file's record is then a JSON array of their values,
    in this order, and one more element. None: the files are those of an archive's table, by key and interval.
    """

    columns: str
    partition: tuple[str, ...] | None = None


class Exposable(Indexed, frozen=True, kw_only=True):
    """A document of files that other engines can read as tables, one for each stream of the files' records.

    `iceberg` are these tables, by stream. `retired` are objects that are about to be deleted, and so are those that the
    `retired_pages` list.
    """

    iceberg: dict[str, Iceberg] = msgspec.field(default_factory=dict)
    retired_pages: list[RetiredPage] = msgspec.field(default_factory=list)

    def at_its_head(self, now: float) -> Self:
        """Return the document with what it replaced counted from `now` on."""
        pages = [RetiredPage(one.sha256, now) for one in self.retired_pages]
        return msgspec.structs.replace(super().at_its_head(now), retired_pages=pages)

    def list_named(self) -> set[str]:
        """Return the paths that must not be deleted: files, what is retired, and what other engines' readers need.

        Without those that only its pages of retired objects list.
        """
        paths = {one.path for part in (self.listed, self.retired, self.retired_pages) for one in part}
        return paths.union(iceberg_paths(self.iceberg))

    def list_open(self) -> set[str]:
        """Return the streams that have files which other engines can open."""
        totals = [item for version in self.list_versions() for item in version.streams.items()]
        known = {stream for stream, total in totals if any(map(is_open, total.formats))}
        return known | {one.stream for one in self.listed if is_open(one.format)}

    def layout(self, stream: str) -> Layout:
        """Return how the files of a stream's table are laid out."""
        raise NotImplementedError

    def is_brief(self, stream: str) -> bool:
        """Return whether a snapshot of the stream's table is replaced in a few seconds, so that it is kept briefly."""
        return False
