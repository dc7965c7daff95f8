"""What an archive holds of each stream, as exact sets: the sequences, the gaps, and the overlaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from capture.archive.index.tree import Index
from capture.archive.index.update import held_of
from capture.archive.index.version import Total, Version
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences


@dataclass(frozen=True)
class Coverage:
    """The sequences of one stream that are held, removed by retention, and held by several objects (`overlaps`).

    Overlaps are not a fault: a message that is delivered again is stored again, until compaction removes the duplicate.
    """

    held: Sequences = field(default_factory=Sequences)
    removed: Sequences = field(default_factory=Sequences)
    overlaps: Sequences = field(default_factory=Sequences)

    def gaps(self, last: int, first: int | None = None) -> Sequences:
        """Return the sequences up to `last` that are neither held nor removed.

        They start at `first` or at the lowest sequence ever held, whichever is lower. Not all of them are missing: some
        were deleted in the stream, or have subjects that are not captured.
        """
        ever = self.held | self.removed
        begins = [one for one in (ever.first if ever else None, first) if one is not None]
        return Sequences.from_range(min(begins), last) - ever if begins else Sequences()


def coverage(objects: Iterable[Stored], removed: Mapping[str, Sequences]) -> dict[str, Coverage]:
    """Return the coverage of these blocks and table files, by stream; pure. `removed` is `Picture.removed`."""
    sets: dict[str, list[Sequences]] = defaultdict(list)
    for one in objects:
        sets[one.stream].append(Sequences.from_bytes(one.sequences))
    return {
        stream: _coverage_of(sets[stream], removed.get(stream, Sequences())) for stream in sorted({*sets, *removed})
    }


async def read_coverage(
    blocks: tuple[Index, Version], files: tuple[Index, Version], removed: Mapping[str, Sequences]
) -> dict[str, Coverage]:
    """Return the coverage of all objects of these indexes, by stream, without reading their entries.

    ManifestError; StoreError.
    """
    found: dict[str, Coverage] = {}
    for stream in sorted({*blocks[1].streams, *files[1].streams, *removed}):
        held = [await held_of(index, version, stream) for index, version in (blocks, files)]
        twice = [Sequences.from_text(one[1].streams.get(stream, Total()).twice) for one in (blocks, files)]
        overlaps = Sequences.union_of([*twice, held[0] & held[1]])
        found[stream] = Coverage(held[0] | held[1], removed.get(stream, Sequences()), overlaps)
    return found


def _coverage_of(sets: list[Sequences], removed: Sequences) -> Coverage:
    held = Sequences.union_of(sets)
    repeated = sum(map(len, sets)) > len(held)
    return Coverage(held, removed, Sequences.find_repeated(sets) if repeated else Sequences())
