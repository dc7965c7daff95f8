"""The folder of a block, in `blocks/` or not. Readers get a block's contents from its entry, never from its path."""

from __future__ import annotations

import logging
from collections.abc import Callable

from capture.archive.manifest import OUTSIDE, Partition
from capture.errors import StoreError
from capture.stores.contract import check_path
from capture.stores.plugin import FAULTS, load_function

LONGEST_FOLDER = 600
"""Bytes of a folder: object stores allow 1024 for a whole path, which includes the block's name."""
LONGEST_PART = 255
"""Bytes of one part of it: the limit of file systems."""

log = logging.getLogger("capture.layout")


Layout = Callable[[Partition], str]
"""Returns the folder of a partition, in `blocks/`; with "/" in front, in the archive's own folder. "" is `blocks/`."""


def dated(partition: Partition) -> str:
    """Return "eu/2026/11/21/03/00": Intelecy's jet-capture lays out blocks like this, below the folder of their key."""
    return f"{partition.folder}/{partition.dated}"


LAYOUTS: dict[str, Layout] = {"hive": Partition.hive, "dated": dated}


def layout(spec: str) -> Layout:
    """Return the layout "hive" or "dated", or your own, "module:function". Raises ConfigError if there is none.

    Your own takes a `Partition` and returns a folder: relative, with "/" between its parts. If it raises, or returns
    something that is not a folder, the reason is logged and the block is stored where "hive" would store it.
    With "/" in front of the name, "/dated" for example, blocks are not below `blocks/`.
    """
    name = spec.removeprefix("/")
    place = LAYOUTS[name] if name in LAYOUTS else guard(load_function(name, "layout", LAYOUTS))
    return (lambda partition: f"/{place(partition)}") if is_outside_blocks(spec) else place


def is_outside_blocks(spec: str) -> bool:
    """Return whether a layout, given by its name, stores blocks outside of `blocks/`."""
    return spec.startswith("/")


def guard(resolve: Callable[[Partition], str]) -> Layout:
    """Return a layout that calls a function of the user."""

    def place(partition: Partition) -> str:
        try:
            return _check_folder(resolve(partition))
        except FAULTS as error:
            log.error(
                "the layout gave key %r no valid folder, the Hive layout is used: %s",
                partition.key,
                str(error) or type(error).__name__,
                extra={"action": "layout_failed"},
            )
            return partition.hive()

    return place


def _check_folder(folder: str) -> str:
    if not isinstance(folder, str):
        raise StoreError(f"it returned {type(folder).__name__}, not str")
    if folder:
        check_path(folder)
    if folder.partition("/")[0] == OUTSIDE:
        raise StoreError(f"{OUTSIDE!r} can't be its first part: the archive uses this name")
    size, parts = len(folder.encode()), [len(part.encode()) for part in folder.split("/")]
    if size > LONGEST_FOLDER or max(parts) > LONGEST_PART:
        raise StoreError(
            f"its folder of {size} bytes is too long: {LONGEST_FOLDER} at most, and {LONGEST_PART} for a part"
        )
    return folder
