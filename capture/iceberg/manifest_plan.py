"""Decides which manifests a commit opens: those that may hold the files it removes, and small ones to merge. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType, StructType

from capture.archive.manifest import Stored
from capture.iceberg.shapes import ARCHIVE, OWN_PARTITION, Shape

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


@dataclass(frozen=True)
class _Bounds:
    """The values of one field in the partitions of a manifest: None, and those between two."""

    nulls: bool
    low: Any
    high: Any

    def may_hold(self, value: Any) -> bool:
        if value is None or self.low is None:
            return self.nulls and value is None
        return bool(self.low <= value <= self.high)


def _read_bounds(manifest: ManifestFile, types: StructType) -> list[_Bounds] | None:
    """Return the bounds of each field; None if the list does not say."""
    if manifest.partitions is None:
        return None
    bounds = []
    for field, one in zip(types.fields, manifest.partitions, strict=True):
        kind, ends = field.field_type, (one.lower_bound, one.upper_bound)
        assert isinstance(kind, PrimitiveType), kind
        low, high = (None if end is None else from_bytes(kind, end) for end in ends)
        if (low is None or high is None) and not one.contains_null:
            return None
        bounds.append(_Bounds(one.contains_null, low, high))
    return bounds


def partition_bounds(manifest: ManifestFile, types: StructType = OWN_PARTITION) -> list[Record] | None:
    """Return partitions which, field by field, those of its files are between; None if the list does not say.

    One of them has None for each field that some file has as None.
    """
    bounds = _read_bounds(manifest, types)
    if bounds is None:
        return None
    ends = [Record(*(one.low for one in bounds)), Record(*(one.high for one in bounds))]
    nulls = [Record(*(None if one.nulls else one.low for one in bounds))] if any(one.nulls for one in bounds) else []
    return ends + nulls


def count_live(manifest: ManifestFile) -> int:
    """Return the number of its files that are in the table."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def list_holding(
    manifests: Iterable[ManifestFile],
    gone: Sequence[Stored],
    shape: Shape = ARCHIVE,
    types: Mapping[int, StructType] = {0: OWN_PARTITION},
) -> list[ManifestFile]:
    """Return the manifests that may hold one of these files, by the bounds of their partitions and sequences.

    `types` are those of partitions, by the number of the partition spec.
    """
    if not gone:
        return []
    places = {number: [(one.first, shape.place(one, kinds)) for one in gone] for number, kinds in types.items()}
    unknown = [(one.first, None) for one in gone]
    return [
        one
        for one in manifests
        if count_live(one)
        and _may_hold(one, places.get(one.partition_spec_id, unknown), types.get(one.partition_spec_id))
    ]


def _may_hold(manifest: ManifestFile, gone: Sequence[tuple[int, Record | None]], types: StructType | None) -> bool:
    sequences = sequence_range(manifest)
    near = [place for first, place in gone if sequences is None or sequences[0] <= first <= sequences[1]]
    bounds = _read_bounds(manifest, types) if near and types is not None else None
    if bounds is None:
        return bool(near)
    return any(place is None or all(one.may_hold(place[field]) for field, one in enumerate(bounds)) for place in near)


def is_full(manifest: ManifestFile) -> bool:
    """Return whether a manifest is large enough to stay as it is."""
    return count_live(manifest) >= FULL or manifest.manifest_length >= FULL_BYTES


def list_to_merge(manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
    """Return small manifests of one level, the older first, if there are `FAN`; at most `LARGEST` files in all.

    So there are fewer than `FAN` small ones of each level, and a file's entry is copied once for each level.
    """
    levels: dict[tuple[ManifestContent, int, int], list[ManifestFile]] = defaultdict(list)
    for one in manifests:
        if count_live(one) and not is_full(one):
            levels[one.content, one.partition_spec_id, len(str(count_live(one)))].append(one)
    for _, ones in sorted(levels.items(), key=lambda level: (level[0][2], level[0][1], level[0][0].value)):
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
