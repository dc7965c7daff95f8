"""The README in each archive: how to read the archive without NATS and without our code."""

from __future__ import annotations

import logging
import re
from importlib.resources import files

from capture.archive.envelope_columns import describe_columns
from capture.archive.stored_formats import describe_formats
from capture.errors import AlreadyStoredError
from capture.stores.contract import Store

README = "README.md"
VERSION = 8
"""The version of the description, in its first line. A later one replaces it."""

TITLE_BYTES = 200

_TITLE = re.compile(rb"# [^\n]*\(description (\d+) of a capture archive\)")

log = logging.getLogger("capture.readme")


def text() -> bytes:
    """Return the description that this version writes."""
    page = files("capture.archive").joinpath("readme.md").read_text(encoding="utf-8")
    page = page.replace("{version}", str(VERSION), 1).replace("{columns}", describe_columns(), 1)
    return page.replace("{formats}", describe_formats(), 1).encode()


async def describe(store: Store) -> None:
    """Write the description into the archive if there is none, or an older one. Leave any other README unchanged."""
    try:
        await store.put(README, text())
        return
    except AlreadyStoredError:
        found = version_of(await store.get_range(README, 0, TITLE_BYTES))
    if found is None:
        log.warning("%s in %s is not the archive's description: it was not changed", README, store.url)
    elif found < VERSION:
        await store.put(README, text(), if_absent=False)


def version_of(found: bytes) -> int | None:
    """Return the version of a description, given its first bytes; None if it is not one."""
    title = _TITLE.match(found)
    return None if title is None else int(title[1])
