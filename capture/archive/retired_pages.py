"""Objects that a table has retired, in pages of their own: its document stays small with a commit every few seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from capture.archive.chain import Retired
from capture.errors import AlreadyStoredError, ManifestError, NotStoredError
from capture.stores.contract import REQUESTS_AT_ONCE, Store
from natty.errors import UNREADABLE
from natty.wire.background import map_concurrently

RETIRED = "_table/retired/"
"""The folder of the pages."""
MOST, LATEST = 200, 100
"""A document lists at most MOST retired objects; of more, all but the latest ones move to a page."""


class RetiredPage(msgspec.Struct, frozen=True):
    """A page, named by its SHA-256. All objects in it count as retired at `since` (Unix seconds)."""

    sha256: str
    since: float

    @property
    def path(self) -> str:
        """The path of the page."""
        return f"{RETIRED}{self.sha256}"


class _Content(msgspec.Struct, frozen=True):
    """`token` and `number` are the commit's: no page is written again under a name that an old leader may delete."""

    token: int
    number: int
    paths: list[str]


_decode_content = msgspec.json.Decoder(_Content).decode


async def move(
    store: Store, retired: Sequence[Retired], *, token: int, number: int
) -> tuple[list[Retired], list[RetiredPage]]:
    """Return what stays in the list of a document, and the page with the others: one, or none. Stores the page.

    `token` and `number` are those of the commit that will name it. StoreError.
    """
    if len(retired) <= MOST:
        return [*retired], []
    latest_first = sorted(retired, key=lambda one: -one.since)
    left, moved = latest_first[:LATEST], latest_first[LATEST:]
    data = msgspec.json.encode(_Content(token, number, [one.path for one in moved]))
    page = RetiredPage(sha256(data).hexdigest(), moved[0].since)
    with contextlib.suppress(AlreadyStoredError):  # by an attempt that failed afterwards
        await store.put(page.path, data)
    return left, [page]


async def read_retired(store: Store, pages: Iterable[RetiredPage]) -> dict[RetiredPage, list[str]]:
    """Return the paths in each page. ManifestError if one is missing, was changed or is damaged; StoreError."""
    pages = list(pages)

    async def read(page: RetiredPage) -> list[str]:
        try:
            data = await store.get(page.path)
            if sha256(data).hexdigest() != page.sha256:
                raise ManifestError(f"{page.path} was changed: its SHA-256 is not its name")
            return _decode_content(data).paths
        except NotStoredError as error:
            raise ManifestError(f"{page.path} is missing, which the table names") from error
        except UNREADABLE as error:
            raise ManifestError(f"{page.path} is damaged: {error}") from error

    return dict(zip(pages, await map_concurrently(pages, read, at_once=REQUESTS_AT_ONCE), strict=True))
