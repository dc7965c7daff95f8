"""What a leader of an archive works with during its term, and what one of its runs leaves to the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from capture.archive.chain import HeadPointer, HeadReader
from capture.archive.index.contents import Indexes
from capture.archive.picture import GRACE
from capture.stores.contract import Store

FEW = 2_000
"""Each run of a leader is a full one if the last one listed at most this many objects, and the index has no more."""


@dataclass
class Leading:
    """The term of a leader: of the sweep, or of the compaction.

    It commits `pointer`; `other_head` reads the head that the other leader commits. Documents name it as `node`.
    Objects that nothing needs are deleted after `grace` seconds. `elapsed` is a clock in seconds, from any moment on.
    `indexes` keep pages in memory from one run to the next. `objects` is the number of objects that the last full run
    has listed, or that the index has, if these are more; `listed` is the time, by `elapsed`, of that run.
    """

    store: Store
    pointer: HeadPointer
    other_head: HeadReader
    node: str = ""
    grace: float = GRACE
    elapsed: Callable[[], float] = time.monotonic
    objects: int = 0
    listed: float = -math.inf
    indexes: Indexes = field(init=False)

    def __post_init__(self) -> None:
        self.indexes = Indexes(self.store)

    def begin(self) -> bool:
        """Begin a run. Return whether it is a full one: it lists all objects, and deletes those that nothing needs.

        With more than FEW objects, two runs in `grace` seconds are full: objects are deleted only after that time.
        """
        full = self.objects <= FEW or self.elapsed() >= self.listed + self.grace / 2
        self.listed = self.elapsed() if full else self.listed
        return full

    def end(self, objects: int, listed: int | None) -> None:
        """End a run, after which the index has so many objects. A full run has `listed` so many."""
        self.objects = max(objects, self.objects if listed is None else listed)

    def start_clock(self, now: float) -> Callable[[], float]:
        """Return a clock that shows `now` (Unix seconds) at this moment, and follows `elapsed`."""
        ahead = now - self.elapsed()
        return lambda: ahead + self.elapsed()
