"""Plans what a compaction merges into which files: pure, from the manifest, never from a listing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from capture.archive.encryption import ENDING
from capture.archive.manifest import Stored, is_encrypted, partition_folder, table_path
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import format_of
from capture.errors import ConfigError
from capture.maintenance.engine import DISTINCT, Distinct, FileGroup

SMALL = 0.75
"""A table file below this share of the target size is merged again when blocks of its bin arrive."""
SPLIT_BYTES = 2 << 30
"""Inputs of more bytes than this become several files, so that no task sorts much more at a time."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When blocks are merged, and into files of which size.

    A bin is due with `min_files` blocks, or when its oldest block has waited `max_wait` seconds (0: at once). A run
    takes at most `max_groups` of `max_bytes` together, but at least one. `encrypted` means that there are keys; without
    it, encrypted blocks are not merged. `encrypted_only` means that plain blocks are not merged, as they are not
    trusted. Files of encrypted blocks are encrypted, unless `decrypt`. `distinct` as in `FileGroup`.
    """

    target_bytes: int = 128 << 20
    min_files: int = 5
    max_wait: float = 900.0
    max_groups: int = 1000
    max_bytes: int = 8 << 30
    encrypted: bool = True
    encrypted_only: bool = False
    decrypt: bool = False
    distinct: Distinct = DISTINCT
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        sizes = self.target_bytes, self.min_files, self.max_groups, self.max_bytes, self.split_bytes
        if min(sizes) < 1 or self.max_wait < 0:
            raise ConfigError(f"a compaction needs sizes of 1 or more and a wait that is not negative: {self}")


def new_name() -> str:
    """Return 32 hex digits that are unique."""
    return uuid4().hex


def plan(
    picture: Picture,
    policy: Policy,
    *,
    now: float,
    token: int,
    unique: Callable[[], str] = new_name,
    leave: Container[str] = (),
    stored_by: float = math.inf,
    held: Mapping[str, Sequences] | None = None,
) -> list[FileGroup]:
    """Return the file groups to merge, oldest first; pure except for the names that `unique` gives.

    Inputs are never blocks in `leave`, or blocks stored after `stored_by` (Unix seconds). Each (stream, sequence) is in
    the table once, by construction: a group leaves out the sequences of table files that it does not replace, and those
    of an earlier file group of the plan. `held` are the sequences of all table files by stream, if the picture has only
    those that may be merged. Each part of a plan may be carried out without the others.
    """
    blocks = [one for one in picture.blocks if one.path not in leave and one.stored_ns / 1e9 <= stored_by]
    bins = _bins(blocks, picture.files, policy, now)
    cuts = [cut for one in bins for cut in _cut(one, policy.target_bytes)]
    tabled = {one.path for one in picture.files}
    due = [cut for cut in cuts if any(one.path not in tabled for one in cut)]
    due.sort(key=lambda cut: (min(one.stored_ns for one in cut if one.path not in tabled), cut[0].path))
    held = find_held_by_stream(picture.files) if held is None else held
    return _exclusive(picture, held, _run(due, policy), policy, token, unique)


def is_mergeable(one: Stored, policy: Policy) -> bool:
    """Return whether a compaction may merge this object."""
    readable = policy.encrypted if is_encrypted(one) else not policy.encrypted_only
    return readable and format_of(one.format).mergeable


def _bins(blocks: Iterable[Stored], files: Iterable[Stored], policy: Policy, now: float) -> list[list[Stored]]:
    """Return the due bins: all blocks of a (stream, key, interval), and its small table files."""
    waiting: dict[tuple[str, ...], list[Stored]] = defaultdict(list)
    for one in blocks:
        if is_mergeable(one, policy):
            waiting[_bin(one)].append(one)
    due = {name: inputs for name, inputs in waiting.items() if _is_due(inputs, policy, now)}
    for one in files:
        if _bin(one) in due and one.bytes < SMALL * policy.target_bytes and is_mergeable(one, policy):
            due[_bin(one)].append(one)
    return list(due.values())


def _bin(one: Stored) -> tuple[str, ...]:
    """Return the bin's name, with its partition's folder: intervals of another length may start at the same time."""
    return one.stream, one.key, str(one.interval), partition_folder(one.path)


def _is_due(blocks: Sequence[Stored], policy: Policy, now: float) -> bool:
    oldest = min(one.stored_ns for one in blocks) / 1e9
    return len(blocks) >= policy.min_files or now - oldest >= policy.max_wait


def _cut(inputs: Iterable[Stored], target_bytes: int) -> list[list[Stored]]:
    """Cut a bin, in order of its sequences, at the target size, so that no output is much larger."""
    cuts: list[list[Stored]] = []
    size = 0
    for one in sorted(inputs, key=lambda one: (one.first, one.path)):
        if not cuts or size + one.bytes > target_bytes:
            cuts.append([])
            size = 0
        cuts[-1].append(one)
        size += one.bytes
    return cuts


def _run(due: Sequence[list[Stored]], policy: Policy) -> list[list[Stored]]:
    """Return the cuts that one run takes."""
    taken: list[list[Stored]] = []
    size = 0
    for cut in due[: policy.max_groups]:
        size += sum(one.bytes for one in cut)
        if taken and size > policy.max_bytes:
            break
        taken.append(cut)
    return taken


def _exclusive(
    picture: Picture,
    table: Mapping[str, Sequences],
    cuts: Sequence[list[Stored]],
    policy: Policy,
    token: int,
    unique: Callable[[], str],
) -> list[FileGroup]:
    """Make file groups of the cuts, each with the sequences that it must leave out."""
    groups: list[FileGroup] = []
    tabled = {one.path for one in picture.files}
    claimed: dict[str, Sequences] = defaultdict(Sequences)
    for cut in cuts:
        first, held = cut[0], find_held(cut)
        elsewhere = table.get(first.stream, Sequences()) - find_held(one for one in cut if one.path in tabled)
        exclude = held & (elsewhere | claimed[first.stream])
        claimed[first.stream] |= held - exclude
        encrypts = any(map(is_encrypted, cut)) and not policy.decrypt
        groups.append(
            FileGroup(
                stream=first.stream,
                key=first.key,
                interval=first.interval,
                inputs=cut,
                output=table_path(first.path, token, unique(), f".{ENDING}" if encrypts else ""),
                exclude=exclude.to_text(),
                bounds=_bounds(held - exclude, sum(one.bytes for one in cut), policy.split_bytes),
                columns=picture.table.columns,
                distinct=policy.distinct,
            )
        )
    return groups


def _bounds(wanted: Sequences, size: int, split_bytes: int) -> list[int]:
    """Return the first sequences of further outputs, so that each output holds about as many messages."""
    parts = min(math.ceil(size / split_bytes), len(wanted))
    return [wanted.at(len(wanted) * number // parts) for number in range(1, parts)]


def find_held(objects: Iterable[Stored]) -> Sequences:
    """Return the sequences that these objects hold."""
    return Sequences.union_of(Sequences.from_bytes(one.sequences) for one in objects)


def find_held_by_stream(objects: Iterable[Stored]) -> dict[str, Sequences]:
    """Return the sequences that these objects hold, by stream."""
    found: dict[str, list[Stored]] = defaultdict(list)
    for one in objects:
        found[one.stream].append(one)
    return {stream: find_held(mine) for stream, mine in found.items()}
