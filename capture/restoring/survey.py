"""What the objects of an archive hold that a restore may read: added up page by page, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from capture.archive.index.tree import Where
from capture.archive.manifest import Stored, is_outside
from capture.archive.sequences import Sequences, SetSum
from capture.errors import NotStoredError, RestoreRefusedError
from capture.reading.inventory import Inventory
from capture.reading.merge import FAN_IN
from capture.reading.shares import keeps_whole, parse_sequences
from capture.reading.supply import Supply
from capture.stores.contract import REQUESTS_AT_ONCE, Store
from capture.verification.fingerprints import Existing
from natty.wire.background import map_concurrently

FEW = 64
"""One object of so many is looked for by itself: a listing returns about a thousand objects for each request."""


class Survey:
    """The sums of objects. Those that do not keep messages whole are not restored: `unfit` are how many, `an_unfit` is
    the first of their paths.

    `before_ns` is the time before which the stream's max_age deletes messages (Unix nanoseconds; 0: never).
    """

    def __init__(self, objects: Iterable[Stored] = (), *, before_ns: float = 0.0) -> None:
        self.objects = self.bytes = self.unfit = 0
        self.an_unfit = ""
        self._before_ns = before_ns
        self._fit, self._unfit, self._old = SetSum(), SetSum(), SetSum()
        self._firsts, self._lasts = array("q"), array("q")
        self.add(objects)

    def __repr__(self) -> str:
        return f"Survey({self.objects:,} objects, {self.unfit:,} unfit)"

    def add(self, part: Iterable[Stored]) -> None:
        """Add objects. FormatError if a record does not name the sequences of its object."""
        for one in part:
            held, size = parse_sequences(one), len(one.sequences)
            if not keeps_whole(one.format):
                self._unfit.add(held, size)
                self.unfit += 1
                self.an_unfit = min(self.an_unfit or one.path, one.path)
                continue
            self._fit.add(held, size)
            if 0 < one.max_ns < self._before_ns:
                self._old.add(held, size)
            self.objects += 1
            self.bytes += one.bytes
            self._firsts.append(one.first)
            self._lasts.append(one.last)

    @property
    def fit(self) -> Sequences:
        """The sequences of messages that can be restored."""
        return self._fit.all

    @property
    def held(self) -> Sequences:
        """The sequences of all objects."""
        return self._fit.all | self._unfit.all

    @property
    def old(self) -> Sequences:
        """The sequences of objects all of whose messages are too old."""
        return self._old.all

    @property
    def contested(self) -> Sequences:
        """The sequences in at least two of the objects that keep messages whole."""
        return self._fit.repeated

    def count_crowded(self) -> int:
        """Return how many objects overlap with as many earlier ones as a merge has open."""
        crowded = ended = 0
        lasts = sorted(self._lasts)
        for begun, first in enumerate(sorted(self._firsts)):
            while lasts[ended] < first:
                ended += 1
            crowded += begun - ended >= FAN_IN
        return crowded


async def take_survey(store: Store, inventory: Inventory, where: Where, before_ns: float) -> tuple[Survey, Supply]:
    """Return the sums of the objects that `where` finds, and the supply of messages from them.

    RestoreRefusedError unless each of them is in the store, with the recorded size. Raises as `Inventory.scan`.
    """
    survey, checking = Survey(before_ns=before_ns), _Existence(store, inventory.count())
    async with aclosing(inventory.scan(where)) as parts:
        async for part in parts:
            await checking.add(part)
            survey.add(part)
    await checking.finish()
    return survey, await Supply.settle(inventory, where, survey.contested)


class _Existence:
    """Checks that objects are in a store, of whose `total` objects there are few or many to check."""

    def __init__(self, store: Store, total: int) -> None:
        self._store, self._few = store, total // FEW
        self._waiting: list[Stored] = []
        self._existing: Existing | None = None
        self._wrong = 0
        self._first_wrong = ""

    async def add(self, part: Sequence[Stored]) -> None:
        """Add objects to check."""
        self._waiting += part
        if len(self._waiting) > self._few:
            await self._compare()

    async def finish(self) -> None:
        """RestoreRefusedError unless each object exists with its recorded size."""
        sizes = await map_concurrently(self._waiting, self._has_size, at_once=REQUESTS_AT_ONCE)
        for one, (exists, is_right) in zip(self._waiting, sizes, strict=True):
            self._note(one, exists=exists, is_right=is_right)
        if self._wrong:
            more = f", and {self._wrong - 1:,} more such objects" if self._wrong > 1 else ""
            raise RestoreRefusedError(f"{self._first_wrong}{more}: see `capture verify`")

    async def _compare(self) -> None:
        """Compare the objects with a listing of the whole store."""
        if self._existing is None:
            self._existing = await Existing.read(self._store)
            self._few = 0
        if any(is_outside(one.path) for one in self._waiting):
            await self._existing.include_outside(self._store)
        for one in self._waiting:
            is_right = self._existing.has_size(one.path, one.bytes)
            self._note(one, exists=is_right or self._existing.has(one.path), is_right=is_right)
        self._waiting = []

    async def _has_size(self, one: Stored) -> tuple[bool, bool]:
        """Return whether an object exists, and whether its last byte is where its record says."""
        try:
            return True, len(await self._store.get_range(one.path, max(0, one.bytes - 1), 2)) == min(1, one.bytes)
        except NotStoredError:
            return False, False

    def _note(self, one: Stored, *, exists: bool, is_right: bool) -> None:
        if is_right:
            return
        self._wrong += 1
        self._first_wrong = self._first_wrong or (
            f"{one.path} has another size than its record says" if exists else f"{one.path} is missing"
        )
