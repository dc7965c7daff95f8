"""Which object gives which messages, decided page by page: for archives of more objects than memory holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from capture.archive.index.tree import Where
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences, SetSum
from capture.errors import FormatError
from capture.reading.inventory import Inventory
from capture.reading.shares import EVERYTHING, Selection, Share, keeps_whole, parse_sequences, settle, share_of

NEAR = 1 << 24
"""Sequences that are cut out of a large set at a time: an intersection costs as much as the larger set."""


@dataclass(frozen=True)
class Supply:
    """The objects that `where` finds and that keep messages whole: `lost` is by path what an object does not give."""

    inventory: Inventory
    where: Where
    lost: dict[str, Sequences] = field(default_factory=dict)

    @classmethod
    async def open(cls, inventory: Inventory, where: Where) -> Supply:
        """Return the supply of an archive. Raises as `Inventory.scan`; FormatError."""
        sums = SetSum()
        async for part in inventory.scan(where):
            for one in filter(_is_fit, part):
                sums.add(parse_sequences(one), len(one.sequences))
        return await cls.settle(inventory, where, sums.repeated)

    @classmethod
    async def settle(cls, inventory: Inventory, where: Where, contested: Sequences) -> Supply:
        """Return the supply of an archive whose objects hold these sequences repeatedly. Raises as `open`."""
        disputes: list[tuple[Stored, Sequences]] = []
        if contested:
            around = replace(where, sequences=(contested.first, contested.last))
            async for part in inventory.scan(around):
                found = [(one, parse_sequences(one) & contested) for one in part if _is_fit(one)]
                disputes += [(one, disputed) for one, disputed in found if disputed]
        return cls(inventory, where, settle(disputes, contested))

    async def renew(self, after: int) -> Supply | None:
        """Return the supply of the archive as it is now, from the sequence after `after` on; None if that can't be."""
        if self.inventory.renew is None:
            return None
        first, last = self.where.sequences
        where = replace(self.where, sequences=(max(first, after + 1), last))
        return await Supply.open(await self.inventory.renew(), where)

    async def shares(self, wanted: Sequences, selection: Selection = EVERYTHING) -> AsyncGenerator[Share, None]:
        """Yield what each object gives of these sequences, in the order of their first ones. Raises as `open`.

        FormatError if a record's first and last sequence are not those of its set.
        """
        ready: list[tuple[int, str, Share]] = []
        near = _Near(wanted)
        async with aclosing(self.inventory.list_in_order(self.where)) as objects:
            async for one in objects:
                while ready and ready[0][0] < one.first:
                    yield heappop(ready)[2]
                if not _is_fit(one) or not selection.may_be_in(one):
                    continue
                mine = parse_sequences(one)
                if (mine.first, mine.last) != (one.first, one.last):
                    raise FormatError(
                        f"the record of {one.path} names sequences {mine.first} to {mine.last}, and {one.first} to"
                        f" {one.last} as first and last"
                    )
                share = share_of(one, mine, self.lost.get(one.path), selection).only(near.cut(one.first, one.last))
                if share.given:
                    heappush(ready, (share.given.first, one.path, share))
        while ready:
            yield heappop(ready)[2]


class _Near:
    """Cuts a set down to what is near ranges that are requested in the order of their first sequences."""

    def __init__(self, whole: Sequences) -> None:
        self._whole = self._part = whole
        self._low, self._high = 0, -1

    def cut(self, first: int, last: int) -> Sequences:
        """Return a part of the set with all of its sequences in this range."""
        if last > self._high or first > self._low + NEAR:
            self._low, self._high = first, last + NEAR
            self._part = self._whole.within(self._low, self._high)
        return self._part


def _is_fit(one: Stored) -> bool:
    return keeps_whole(one.format)
