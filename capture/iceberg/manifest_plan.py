"""Decides which manifests a commit opens: those that may hold the files it removes, and small ones to merge. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.typedef import Record
from pyiceberg.types import StringType, TimestamptzType

from capture.archive.manifest import Stored

FAN = 10
"""As many manifests of one level are merged into one. A level is the number of digits in a manifest's file count."""
FULL = 1000
"""A manifest with as many files is not merged any more."""
LARGEST = 4000
"""The most files of a manifest that is merged or first written: so a commit's work is bounded."""
FULL_BYTES = 8 * 1024 * 1024
"""A manifest of this size is not merged any more."""

_NAME = re.compile(r"/(\d+)-(\d+)-[^/]*-m\.avro$")


def manifest_name(first: int, last: int, unique: str) -> str:
    """Return the name of a manifest whose files begin with these sequences: at the least and at the most."""
    return f"{first}-{last}-{unique}-m.avro"


def sequence_range(manifest: ManifestFile) -> tuple[int, int] | None:
    """Return the lowest and highest first sequence of its files; None if its name does not say, as in older tables."""
    named = _NAME.search(manifest.manifest_path)
    return (int(named[1]), int(named[2])) if named else None


def partition_bounds(manifest: ManifestFile) -> tuple[Record, Record] | None:
    """Return the lowest and highest key and interval of its files, as partitions; None if the list does not say."""
    if manifest.partitions is None:
        return None
    keys, intervals = manifest.partitions
    low = _partition(keys.lower_bound, intervals.lower_bound)
    high = _partition(keys.upper_bound, intervals.upper_bound)
    return None if low is None or high is None else (low, high)


def _partition(key: bytes | None, interval: bytes | None) -> Record | None:
    if key is None or interval is None:
        return None
    return Record(from_bytes(StringType(), key), from_bytes(TimestamptzType(), interval))


def count_live(manifest: ManifestFile) -> int:
    """Return the number of its files that are in the table."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def list_holding(manifests: Iterable[ManifestFile], gone: Sequence[Stored]) -> list[ManifestFile]:
    """Return the manifests that may hold one of these files, by the bounds of their keys, intervals and sequences."""
    return [one for one in manifests if count_live(one) and _may_hold(one, gone)] if gone else []


def _may_hold(manifest: ManifestFile, gone: Sequence[Stored]) -> bool:
    sequences = sequence_range(manifest)
    near = [one for one in gone if sequences is None or sequences[0] <= one.first <= sequences[1]]
    bounds = partition_bounds(manifest) if near else None
    if bounds is None:
        return bool(near)
    low, high = bounds
    return any(low[0] <= one.key <= high[0] and low[1] <= one.interval * 1_000_000 <= high[1] for one in near)


def is_full(manifest: ManifestFile) -> bool:
    """Return whether a manifest is large enough to stay as it is."""
    return count_live(manifest) >= FULL or manifest.manifest_length >= FULL_BYTES


def list_to_merge(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    """Return small manifests of one level, the older first, if there are `FAN`; at most `LARGEST` files in all.

    So there are fewer than `FAN` small ones of each level, and a file's entry is copied once for each level.
    """
    levels: dict[tuple[ManifestContent, int], list[ManifestFile]] = defaultdict(list)
    for one in manifests:
        if count_live(one) and not is_full(one):
            levels[one.content, len(str(count_live(one)))].append(one)
    for _, ones in sorted(levels.items(), key=lambda level: (level[0][1], level[0][0].value)):
        if len(ones) >= FAN:
            return _list_fitting(sorted(ones, key=lambda one: one.sequence_number))
    return []


def _list_fitting(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    fitting, total = [], 0
    for one in manifests:
        total += count_live(one)
        if total > LARGEST:
            break
        fitting.append(one)
    return fitting
