"""What an archive holds of each stream, by exact sets: how much, where the gaps are, what is there more than once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences


@dataclass(frozen=True)
class Coverage:
    """What is held of one stream, what retention has removed of it, and what several objects hold (`overlaps`).

    Overlaps are no fault: what is delivered again is stored again, until the compaction leaves it out.
    """

    held: Sequences = field(default_factory=Sequences)
    removed: Sequences = field(default_factory=Sequences)
    overlaps: Sequences = field(default_factory=Sequences)

    def gaps(self, last: int, first: int | None = None) -> Sequences:
        """Return what is not held, and was not removed, up to `last`; from `first`, or the first that ever was, on.

        Not all of it is missing: sequences are deleted in the stream, or are of subjects that are not captured.
        """
        ever = self.held | self.removed
        begins = [one for one in (ever.first if ever else None, first) if one is not None]
        return Sequences.from_range(min(begins), last) - ever if begins else Sequences()


def coverage(objects: Iterable[Stored], removed: Mapping[str, Sequences]) -> dict[str, Coverage]:
    """Return what these blocks and table files hold, by stream; pure. `removed` is `Picture.removed`."""
    sets: dict[str, list[Sequences]] = defaultdict(list)
    for one in objects:
        sets[one.stream].append(Sequences.from_text(one.sequences))
    return {stream: _covered(sets[stream], removed.get(stream, Sequences())) for stream in sorted({*sets, *removed})}


def _covered(sets: list[Sequences], removed: Sequences) -> Coverage:
    held = Sequences.union_of(sets)
    repeated = sum(map(len, sets)) > len(held)
    return Coverage(held, removed, Sequences.repeated_in(sets) if repeated else Sequences())
