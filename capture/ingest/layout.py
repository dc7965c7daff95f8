"""Where a block lies below `blocks/`. Nobody reads that off a path again: what a block holds is in its entry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from capture.archive.manifest import FIELDS, hive_folder, key_folder, quote_key
from capture.errors import StoreError
from capture.ingest.plugin import load
from capture.stores.contract import checked_path

LONGEST_FOLDER = 600
"""Bytes of a folder: object stores take 1024 for a whole path, of which the block's name needs a part."""
LONGEST_PART = 255
"""Bytes of a part of it, which is what file systems take."""

log = logging.getLogger("capture.layout")


@dataclass(frozen=True)
class Partition:
    """What is known of a block when its place is chosen.

    `interval` is the start of its interval (Unix seconds), `seconds` the interval's length. `key` is a key's text as in
    entries: it may hold anything, slashes too.
    """

    stream: str
    key: str
    interval: int
    seconds: int

    @property
    def folder(self) -> str:
        """The key as a folder, "eu", or as one for each of its fields, "region=eu/level=3"; quoted, never ".."."""
        if self.key.startswith(FIELDS) and not self.key.startswith(FIELDS * 2):
            return key_folder(self.key)
        quoted = quote_key(self.key)
        return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted

    @property
    def dated(self) -> str:
        """The interval's start as folders, in UTC: "2026/11/21/03/00"."""
        return f"{datetime.fromtimestamp(self.interval, UTC):%Y/%m/%d/%H/%M}"


Layout = Callable[[Partition], str]
"""Returns the folder of a partition, below `blocks/`; "" is `blocks/` itself."""


def hive(partition: Partition) -> str:
    """Return "stream=ORDERS/key=eu/date=2026-11-21/hour=03"."""
    return hive_folder(partition.stream, partition.key, partition.interval, partition.seconds)


def dated(partition: Partition) -> str:
    """Return "eu/2026/11/21/03/00", as Intelecy's jet-capture lays blocks out below the folder of their key."""
    return f"{partition.folder}/{partition.dated}"


LAYOUTS: dict[str, Layout] = {"hive": hive, "dated": dated}


def layout(spec: str) -> Layout:
    """Return the layout "hive" or "dated", or your own as "module:function"; ConfigError if there is none.

    Your own takes a `Partition` and returns a folder: relative, "/" between its parts. Where it raises, or returns what
    is no folder, the block is laid out as by "hive" and the reason logged: a layout never keeps a message from being
    stored.
    """
    return LAYOUTS[spec] if spec in LAYOUTS else resolved_by(load(spec, "layout", LAYOUTS))


def resolved_by(resolve: Callable[[Partition], str]) -> Layout:
    """Return the layout that a function of the user's makes."""

    def place(partition: Partition) -> str:
        try:
            return _checked(resolve(partition))
        except Exception as error:
            log.error(
                "the layout gave key %r no folder, it is laid out in the way of Hive: %s",
                partition.key,
                str(error) or type(error).__name__,
                extra={"action": "layout_failed"},
            )
            return hive(partition)

    return place


def _checked(folder: str) -> str:
    if not isinstance(folder, str):
        raise StoreError(f"it returned {type(folder).__name__}, not str")
    if folder:
        checked_path(folder)
    size, parts = len(folder.encode()), [len(part.encode()) for part in folder.split("/")]
    if size > LONGEST_FOLDER or max(parts) > LONGEST_PART:
        raise StoreError(
            f"its folder of {size} bytes is too long: {LONGEST_FOLDER} at most, and {LONGEST_PART} for a part"
        )
    return folder
