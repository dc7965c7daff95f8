"""The formats of stored objects, and their abilities: code checks abilities, not names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StoredFormat:
    """A format and its abilities. `capture.formats.choose` knows the class that writes and reads it."""

    name: str
    restorable: bool = False
    """It stores everything that a restore needs: every column of the envelope, byte for byte."""
    mergeable: bool = False
    """Compaction takes its blocks into the table."""
    columnar: bool = False
    """It has typed columns, a footer that describes them, and row groups, as Parquet has."""
    compresses: bool = False
    """It compresses internally, and is not compressed as a whole."""
    flattens: bool = False
    """It turns a value into rows, with a function `flatten`."""


PARQUET = StoredFormat(
    name="parquet",
    restorable=True,
    mergeable=True,
    columnar=True,
    compresses=True,
)
"""The format of table files."""

FORMATS = {
    one.name: one
    for one in (
        PARQUET,
        StoredFormat(name="ndjson", restorable=True, mergeable=True),
        StoredFormat(name="csv", flattens=True),
        StoredFormat(name="raw", restorable=True, mergeable=True),
    )
}
_UNKNOWN = StoredFormat(name="")


def format_of(recorded: str) -> StoredFormat:
    """Return the format of an object, by `Stored.format`: "ndjson.zst.enc" is NDJSON, compressed, then encrypted.

    A format that this version does not know has no abilities.
    """
    return FORMATS.get(recorded.partition(".")[0], _UNKNOWN)


def is_open(recorded: str) -> bool:
    """Return whether other engines can read such an object as it is: columnar, without a wrapper."""
    found = format_of(recorded)
    return found.columnar and found.name == recorded
