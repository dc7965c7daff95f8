"""The state of a stream's Iceberg table in the committed `Table`: its snapshots, and which objects they name.

Nothing here reads or writes Iceberg's own files: `capture.iceberg` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated
from urllib.parse import unquote

import msgspec

from capture.archive.manifest import quote_key
from capture.stores.contract import Store
from capture.stores.own_store import OwnStore
from natty.kv.json_records import UnixTime, Whole

ICEBERG = "iceberg/"
"""The folder of the tables' metadata, below the archive; their data files are the table's own."""


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
    successor does not.
    """

    id: int
    made: float
    objects: dict[str, str]
    dropped: list[str] = []


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


def table_states(tables: Mapping[str, Iceberg], rule: Expiry) -> list[TableState]:
    """Return the state of these tables, by stream; pure."""
    return [
        TableState(
            stream=stream,
            location=one.location,
            snapshots=len(one.snapshots),
            current=str(one.snapshots[-1].id),
            made=one.snapshots[-1].made,
            expires=one.snapshots[1].made + rule.keep_for if len(one.snapshots) > rule.keep_snapshots else None,
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


def count_expired(snapshots: Sequence[Snapshot], rule: Expiry, now: float) -> int:
    """Return how many of the oldest snapshots have expired at `now`; pure."""
    count = 0
    while len(snapshots) - count > rule.keep_snapshots and snapshots[count + 1].made <= now - rule.keep_for:
        count += 1
    return count


def without_oldest(snapshots: Sequence[Snapshot], count: int) -> tuple[list[Snapshot], list[str]]:
    """Return the snapshots without the oldest `count`, and the paths that only the removed ones named; pure."""
    gone: list[str] = []
    still_named: dict[str, str] = {}
    for one in snapshots[:count]:
        gone += one.dropped
        still_named |= one.objects
    still_named = {path: digest for path, digest in still_named.items() if path not in set(gone)}
    first, *others = snapshots[count:]
    return [msgspec.structs.replace(first, objects=still_named | first.objects), *others], gone


def iceberg_paths(tables: dict[str, Iceberg]) -> Iterator[str]:
    """Yield every path that these tables, by stream, need: other objects in their folder are leftovers."""
    for stream, one in tables.items():
        yield from (hint_path(stream), version_path(stream, one.number))
        yield from one.objects()
        yield from one.list_held()
