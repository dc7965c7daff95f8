"""Decides which small files of a table are merged into one, and what the commit of that changes. Pure.

A table to which rows are only added gets files with each run, and so does a quarantine. Files of one unit are on one
level if their numbers of rows have as many digits. When a level has FAN files, they become one of a higher level: so a
unit has fewer than FAN small files on each level, and a row is written again at most once for each level.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec

from capture.archive.manifest import Stored
from capture.errors import PipelineError
from capture.pipelines.commits import Change
from capture.pipelines.derivation import PackedUnit
from capture.pipelines.document import record_of

FAN = 10
"""So many files of a level are merged, or more."""
TARGET_BYTES = 64 << 20
"""Files are merged into one of at most so many bytes. A batch of a stream waits while so many are read and written."""
SMALL_BYTES = TARGET_BYTES // FAN
"""A file with as many bytes stays as it is."""
MOST_FILES = 1_000
"""Files of one merge: they are opened one by one."""


def plan(files: Iterable[Stored], rebuilt: int = 0, resting: Container[str] = ()) -> list[list[Stored]]:
    """Return lists of files to merge into one each, the longest first: of each unit one at the most.

    Files of runs before `rebuilt` may have other columns, and stay, as do those of `resting` units. All lists together
    have at most MOST_FILES files and TARGET_BYTES bytes; what is left over is for another merge.
    """
    levels: dict[tuple[str, int], list[Stored]] = defaultdict(list)
    for one in files:
        if one.bytes < SMALL_BYTES and one.first >= rebuilt and one.key not in resting:
            levels[one.key, len(str(one.count))].append(one)
    due = sorted((one for one in levels.values() if len(one) >= FAN), key=lambda one: (-len(one), one[0].key))
    found: dict[str, list[Stored]] = {}
    left_files, left_bytes = MOST_FILES, TARGET_BYTES
    for some in due:
        taken = list(_take(some, left_files, left_bytes))
        if some[0].key not in found and len(taken) >= FAN:
            found[some[0].key] = taken
            left_files, left_bytes = left_files - len(taken), left_bytes - sum(one.bytes for one in taken)
    return [*found.values()]


def _take(files: Iterable[Stored], most: int, most_bytes: int) -> Iterator[Stored]:
    """Yield the files of the oldest runs, as many as fit."""
    for number, one in enumerate(sorted(files, key=lambda one: (one.first, one.last, one.path))):
        most_bytes -= one.bytes
        if number == most or most_bytes < 0:
            return
        yield one


def conclude(
    name: str, packs: Sequence[Sequence[Stored]], packed: Sequence[PackedUnit], *, node: str, now: float
) -> Change:
    """Return the commit that puts merged files into the place of small ones of the table `name`.

    PipelineError if they do not have as many rows of each unit: then nothing may be committed.
    """
    small = {one.path: one for some in packs for one in some}
    came: list[Stored] = []
    gone: list[Stored] = []
    left: Counter[str] = Counter()
    for unit in packed:
        some = [small[path] for path in unit.gone]
        for each in some:
            left[each.key] += each.count
        for one in unit.came:
            left[one.unit.to_text()] -= one.rows
            first = min((each.first for each in some), default=0)
            last = max((each.last for each in some), default=0)
            record = record_of(one, name, last, node=node, stored_ns=int(now * 1e9))
            came.append(msgspec.structs.replace(record, first=first))
        gone += some
    if wrong := [f"{count:,} in {unit}" for unit, count in left.items() if count]:
        raise PipelineError(
            f"the merged files of {name} and the small ones differ by rows: {', '.join(wrong)}. Nothing was committed"
        )
    return Change(tables={}, came=came, gone=gone, same_rows=True)
