"""The fresh table: shows adopted blocks to other engines, seconds after they are stored and before they are merged."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from capture.archive import chain
from capture.archive.chain import Head
from capture.archive.iceberg_state import FreshState
from capture.archive.index.page import Entry, place_of
from capture.archive.index.update import held_of
from capture.archive.index.version import Version
from capture.archive.manifest import Manifest, Stored, is_encrypted
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import is_open
from capture.archive.table import Table
from capture.errors import ManifestError
from capture.maintenance.compaction_plan import Policy, is_mergeable
from capture.maintenance.table_commits import TableCommits, TableLeading

MOST_AT_ONCE = 1000
"""Blocks that a commit shows at the most; the next one shows others."""
CROWDED = 50
"""So many shown blocks of a key and an interval are merged at once, whatever the compaction's schedule says."""
MOST_SHOWN = 150
"""Shown blocks of a key and an interval, at the most; others wait for the merge."""

ENCRYPTED, FORMAT = "encrypted", "not Parquet"
EXCLUDED = "excluded from merges by the configuration"
FULL = f"beyond {MOST_SHOWN} blocks of a key and interval"
UNFIT = "with a column of another type than the table's, or unreadable"
REPEATED = "with no message that the table does not have"

Block = TypeVar("Block", bound=Stored)

log = logging.getLogger("capture.fresh")


@dataclass(frozen=True, kw_only=True)
class FreshReport:
    """The result of a fresh commit: blocks that came, that went, and that wait for a merge."""

    shown: int = 0
    hidden: int = 0
    waiting: int = 0
    is_crowded: bool = False
    """A key has so many shown blocks in an interval that they should be merged now."""


NOTHING = FreshReport()


class FreshTable:
    """Shows the blocks that a manifest adopts, in a term of the compaction's leader.

    Rows of a block are masked if the table or another shown block has their sequence. A block waits for a merge if all
    of its rows are, or if a typed column has another type than the table's. New columns are added to the table.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._head: Head | None = None
        self._version: Version | None = None  # of the blocks that were looked at
        self._later: list[Entry] = []  # blocks that are shown by the next commits
        self._full: dict[str, Entry] = {}  # blocks for which there was no room, by their paths
        self._crowd: Counter[tuple[str, str, int]] = Counter()
        self._waiting: dict[str, str] = {}  # why another block waits for the merge, by its path
        self._shown = self._messages = 0
        self._committed: float | None = None

    @property
    def state(self) -> FreshState:
        """What it shows, and what waits."""
        waiting = Counter([*self._waiting.values(), *(FULL for _ in self._full)])
        return FreshState(
            shown=self._shown,
            messages=self._messages,
            committed=self._committed,
            waiting=dict(sorted(waiting.items())),
        )

    def __repr__(self) -> str:
        return f"FreshTable({self._head}, {len(self._later)} waiting)"

    async def step(self, leading: TableLeading, now: float) -> FreshReport:
        """Show the blocks that came since the last step, if any.

        FencedError if the term is over; NotSweptError; ManifestError; StoreError. After a failure it may be run again.
        """
        clock, head = leading.start_clock(now), await leading.other_head()
        if head is None or (head == self._head and not self._later):
            return NOTHING
        async with leading.take_turn(clock) as commits:
            manifest = await chain.read(commits.store, head, Manifest)
            if not Picture(manifest, commits.table).is_whole or manifest.number < commits.table.shown_of:
                return NOTHING  # a stale answer
            return await self._step(commits, head, manifest, clock)

    async def _step(
        self, commits: TableCommits, head: Head, manifest: Manifest, clock: Callable[[], float]
    ) -> FreshReport:
        came, hide = await self._find_changes(commits, manifest)
        await self._is_crowded(commits)  # counts again what a merge has taken
        again = [*self._later, *self._limit(self._full.values())]
        later = await commits.blocks.find(manifest.index, map(place_of, again))
        self._head = self._version = None  # after a failure it is not known what is committed: look at all blocks
        came = [*{one.path: one for one in (*later.values(), *came)}.values()]
        chosen, later_on = came[:MOST_AT_ONCE], came[MOST_AT_ONCE:]
        show, columns = await self._choose(commits, chosen)
        if show or hide:
            after = msgspec.structs.replace(await _forget(commits, manifest), columns=columns)
            now = clock()
            await commits.commit(lambda _: after, now, show=show, hide=hide)
            self._committed = now
        shown = commits.table.shown
        self._shown, self._messages = shown.objects, sum(one.held.count for one in shown.streams.values())
        self._head, self._version, self._later = head, manifest.index, later_on
        self._crowd.update(map(_bin, show))
        crowded = await self._is_crowded(commits)
        return FreshReport(shown=len(show), hidden=len(hide), waiting=len(chosen) - len(show), is_crowded=crowded)

    async def _is_crowded(self, commits: TableCommits) -> bool:
        """Return whether a key has too many shown blocks in an interval; counts exactly when it may be so."""
        if max(self._crowd.values(), default=0) < CROWDED:
            return False
        parts = commits.index.scan(commits.table.shown)
        self._crowd = Counter([_bin(one) async for part in parts for one in part])
        return max(self._crowd.values(), default=0) >= CROWDED

    async def _find_changes(self, commits: TableCommits, manifest: Manifest) -> tuple[list[Entry], list[Stored]]:
        """Return the blocks that this manifest has and the last one did not, and shown ones that it does not have."""
        blocks, shown = commits.blocks, commits.table.shown
        if self._version is not None:
            try:
                gone, came = await blocks.differ(self._version, manifest.index)
                for one in gone:
                    self._forget_waiting(one)
                return came, [*(await commits.index.find(shown, [place_of(one) for one in gone])).values()]
            except ManifestError as error:  # pages of the last manifest may be deleted by now
                log.debug("all blocks are looked at: %s", error)
        self._waiting.clear()
        self._full.clear()
        known = {one.path async for part in commits.index.scan(shown) for one in part}
        came = [one async for part in blocks.scan(manifest.index) for one in part if one.path not in known]
        return came, await commits.find_dropped(manifest)

    async def _choose(self, commits: TableCommits, came: Sequence[Entry]) -> tuple[list[Stored], str]:
        """Return the blocks that the table can show, and its columns with theirs.

        The blocks have the sequences that it shows of them: all are new to it.
        """
        table, consumed = commits.table, commits.table.consumed_paths
        known = await commits.index.find(table.shown, [place_of(one) for one in came])
        new = [one for one in came if place_of(one) not in known and one.path not in consumed]
        reasons = {one.path: self._refuse(one) for one in new}
        fit = [one for one in new if not reasons[one.path]]
        wholes = await commits.blocks.wholes(fit)
        wholes.sort(key=lambda one: (one.stored_ns, one.path))
        exposure, limited = commits.leading.exposure, self._limit(wholes)
        fitting, _ = await exposure.list_fitting(table, limited)
        by_stream: dict[str, list[Stored]] = defaultdict(list)
        for one in fitting:
            by_stream[one.stream].append(one)
        masked: list[Stored] = []
        for stream, mine in by_stream.items():
            masked += await _mask(commits, table, stream, mine)
        found, columns = await exposure.list_fitting(table, masked)
        reasons |= dict.fromkeys((one.path for one in wholes), FULL)
        reasons |= dict.fromkeys((one.path for one in limited), UNFIT)
        reasons |= dict.fromkeys((one.path for one in fitting), REPEATED)
        reasons |= dict.fromkeys((one.path for one in masked), UNFIT)
        reasons |= dict.fromkeys((one.path for one in found), "")
        for one in came:
            self._forget_waiting(one)
        self._full |= {one.path: one for one in new if reasons[one.path] == FULL}
        self._waiting |= {path: reason for path, reason in reasons.items() if reason and reason != FULL}
        return found, columns

    def _forget_waiting(self, one: Entry) -> None:
        self._waiting.pop(one.path, None)
        self._full.pop(one.path, None)

    def _refuse(self, one: Stored) -> str:
        """Return why engines can't open a block, or no merge will replace it; "" if they can, and one will."""
        if not is_open(one.format):
            return ENCRYPTED if is_encrypted(one) else FORMAT
        return "" if is_mergeable(one, self.policy) else EXCLUDED

    def _limit(self, blocks: Iterable[Block]) -> list[Block]:
        """Return those for which there is room beside the shown blocks of their key and interval."""
        crowd, found = self._crowd.copy(), list[Block]()
        for one in blocks:
            crowd[_bin(one)] += 1
            if crowd[_bin(one)] <= MOST_SHOWN:
                found.append(one)
        return found


async def _forget(commits: TableCommits, manifest: Manifest) -> Table:
    """Return the table, compared with this manifest: it forgets the consumed blocks that the sweep has retired."""
    table = msgspec.structs.replace(commits.table, shown_of=manifest.number)
    named = await commits.blocks.find(manifest.index, [one for one in table.consumed if not isinstance(one, str)])
    left = [one for one in table.consumed if isinstance(one, str) or one in named]
    if len(left) == len(table.consumed):
        return table
    return msgspec.structs.replace(table, consumed=left, of_manifest=max(table.of_manifest, manifest.number))


def _bin(one: Stored) -> tuple[str, str, int]:
    return one.stream, one.key, one.interval


async def _mask(commits: TableCommits, table: Table, stream: str, blocks: Sequence[Stored]) -> list[Stored]:
    """Return the blocks of which something is shown, with the sequences that neither the table nor an earlier one has.

    Each of these is then shown once: `list_fitting` and `expose` mask all other rows.
    """
    held = Sequences.union_of([await held_of(commits.index, one, stream) for one in table.list_versions()])
    found: list[Stored] = []
    for one in blocks:
        mine = Sequences.from_bytes(one.sequences)
        if new := mine - held:
            held |= new
            found.append(one if new == mine else msgspec.structs.replace(one, sequences=new.to_bytes()))
    return found
