"""The formats of stored objects, and their abilities: code checks abilities, not names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True, kw_only=True)
class StoredFormat:
    """A format and its abilities. `capture.formats.choose` knows the class that writes and reads it."""

    name: str
    ending: str = ""
    """The end of its objects' names; default: the format's name."""
    identifies: bool = False
    """Its rows contain sequence and time of their messages. Without it, only the entry says what an object holds."""
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
    envelopes: Mapping[str, str] = field(default_factory=dict)
    """The values that the setting `envelope` may have, each with the format of the objects that it makes."""


PARQUET = StoredFormat(
    name="parquet",
    identifies=True,
    restorable=True,
    mergeable=True,
    columnar=True,
    compresses=True,
    envelopes={"columns": "parquet"},
)
"""The format of table files."""

FORMATS = {
    one.name: one
    for one in (
        PARQUET,
        StoredFormat(
            name="ndjson",
            identifies=True,
            restorable=True,
            mergeable=True,
            envelopes={"columns": "ndjson-decoded", "nested": "ndjson-decoded", "none": "ndjson-value"},
        ),
        StoredFormat(name="csv", identifies=True, flattens=True, envelopes={"columns": "csv", "none": "csv-value"}),
        StoredFormat(name="raw", identifies=True, restorable=True, mergeable=True, envelopes={"none": "raw-value"}),
    )
}
"""The values of the setting `format`."""
STORED = FORMATS | {
    one.name: one
    for one in (
        StoredFormat(name="ndjson-decoded", ending="ndjson", identifies=True, restorable=True),
        StoredFormat(name="ndjson-value", ending="ndjson"),
        StoredFormat(name="csv-value", ending="csv"),
        StoredFormat(name="raw-value", ending="raw"),
    )
}
"""All formats of objects: the setting `envelope` makes the others."""
OWN = "own-"
"""Records name a user's format with this prefix before the end of its objects' names. It has no abilities."""
_UNKNOWN = StoredFormat(name="")


def format_of(recorded: str) -> StoredFormat:
    """Return the format of an object, by `Stored.format`: "ndjson.zst.enc" is NDJSON, compressed, then encrypted.

    A format that this version does not know has no abilities.
    """
    return STORED.get(recorded.partition(".")[0], _UNKNOWN)


@lru_cache(maxsize=64)  # asked for each block
def ending_of(recorded: str) -> str:
    """Return the end of the name of an object with this `Stored.format`: "ndjson.zst" for "ndjson-value.zst"."""
    plain, *layers = recorded.removeprefix(OWN).split(".")
    return ".".join([format_of(recorded).ending or plain, *layers])


def list_limits(recorded: str) -> Iterator[str]:
    """Yield a sentence for each operation that objects of this format do not allow."""
    known = format_of(recorded)
    if not known.restorable:
        yield (
            "messages are not stored whole: `capture restore` leaves them out and says so, `cat`, `sql` and"
            " `capture.read` refuse these objects, and `capture purge --captured` leaves their messages in the stream"
        )
    if not known.mergeable:
        yield "the compaction leaves these objects as they are, so they are not in the table or in Iceberg"
    if not known.identifies:
        yield "`capture verify` counts their messages by the entries and checks the objects by SHA-256"


def describe_formats() -> str:
    """Return the rows of a Markdown table: what each format allows."""
    said = {True: "yes", False: "no"}
    return "\n".join(
        f"| `{one.name}` | `.{one.ending or one.name}` | {said[one.restorable]} | {said[one.mergeable]} "
        f"| {said[one.identifies]} |"
        for one in STORED.values()
    )


def is_open(recorded: str) -> bool:
    """Return whether other engines can read such an object as it is: columnar, without a wrapper."""
    found = format_of(recorded)
    return found.columnar and found.name == recorded
