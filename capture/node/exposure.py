"""Publishes the table for other engines, as an Iceberg table; the catalog of the user is informed of each one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from capture.archive.iceberg_state import Expiry, Exposable, is_reachable
from capture.archive.manifest import Stored
from capture.archive.table import Exposed, Exposure, Table, TableChange, Unexposed
from capture.node.user_catalog import CatalogKeeper
from capture.stores import Store


@dataclass
class LoadedExposure:
    """Publishes the table for other engines, as an Iceberg table; loads the code for it with the first file.

    That takes a second of imports and 65 MiB, and most leaders of a compaction do not need it. `catalog` is informed of
    each announced table.
    """

    store: Store
    rule: Expiry
    node: str
    catalog: CatalogKeeper | None = None
    _loaded: Exposure | None = None

    def is_due(self, table: Exposable, now: float) -> bool:
        """Return whether the published table must change. A table that has files was announced before."""
        return self._loaded is not None and self._loaded.is_due(table, now)

    async def expose(self, change: TableChange[Exposed]) -> Exposed:
        """Write the metadata of the table that will be committed next; return the table with pointers to them.

        If other engines can't reach the store any more, it removes the pointers: the metadata would become outdated.
        """
        return await (await self._for(change.table) or Unexposed()).expose(change)

    async def list_fitting(self, table: Table, blocks: Sequence[Stored]) -> tuple[list[Stored], str]:
        """Return those of the blocks that the table can show to engines, and its columns with theirs."""
        if blocks and is_reachable(self.store, self.rule.location):
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(_exposer, self.store, self.rule, self.node)
            return await self._loaded.list_fitting(table, blocks)
        return [], table.columns

    async def announce(self, table: Exposable, *, check: Callable[[], None] = lambda: None) -> None:
        """Announce a committed table to readers that do not read the head. FencedError if the term is over."""
        if loaded := await self._for(table):
            await loaded.announce(table, check=check)
            if self.catalog:
                self.catalog.announce(table)

    async def _for(self, table: Exposable) -> Exposure | None:
        if (
            self._loaded is None
            and (table.listed or any(one.root for one in table.list_versions()) or table.iceberg)
            and is_reachable(self.store, self.rule.location)
        ):
            self._loaded = await asyncio.to_thread(_exposer, self.store, self.rule, self.node)
        return self._loaded


def _exposer(store: Store, rule: Expiry, node: str) -> Exposure:
    from capture.iceberg import Exposer  # see LoadedExposure

    return Exposer(store, rule, node=node)
