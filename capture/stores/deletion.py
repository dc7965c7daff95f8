"""Deletes many objects of any store: by requests for several where the store has them, otherwise by one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

from capture.stores.contract import REQUESTS_AT_ONCE, Store
from natty.wire.background import map_concurrently

BATCHES_AT_ONCE = 4
"""Concurrent requests that delete many objects each: the store works on each for a while."""


class DeletesMany(Protocol):
    """What a store may have besides: it deletes several objects by one request. `delete_all` uses it.

    `capture.stores.conformance.check_store` tests it where it is there.
    """

    deletes_at_once: int
    """The number of objects that one request deletes; 1 if `delete_many` is of no use."""

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete these objects, at most `deletes_at_once`. Ignores those that do not exist.

        StoreError names one that could not be deleted; the others may be deleted or not.
        """
        ...


async def delete_all(store: Store, paths: Iterable[str], *, check: Callable[[], None] = lambda: None) -> None:
    """Delete these objects; those that do not exist are ignored. They may be deleted in any order.

    `check` is called before each request: no more of them are sent after it has raised. Its error is raised when the
    requests in flight have ended, and so is a StoreError, which does not stop the other requests.
    """
    waiting = list(dict.fromkeys(paths))

    async def remove(path: str) -> None:
        check()
        await store.delete(path)

    async def remove_many(batch: list[str]) -> None:
        check()
        await cast("DeletesMany", store).delete_many(batch)

    if (size := getattr(store, "deletes_at_once", 1)) > 1 and len(waiting) > 1:
        batches = [waiting[start : start + size] for start in range(0, len(waiting), size)]
        await map_concurrently(batches, remove_many, at_once=BATCHES_AT_ONCE)
    else:
        await map_concurrently(waiting, remove, at_once=REQUESTS_AT_ONCE)
