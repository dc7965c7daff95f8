"""Defines the contract between the leader, which plans and commits a compaction, and the engine that merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from capture.archive.manifest import Stored
from capture.archive.sequences import MAXIMUM, Sequences

Distinct = Literal["sequence", "message_id"]
DISTINCT: Distinct = "sequence"
"""What makes a message a duplicate: always its sequence, and with `message_id` also its message id."""


@dataclass(frozen=True)
class Part:
    """One output of a file group: its path, and its first and last sequence."""

    output: str
    first: int
    last: int


class FileGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One bin, or a cut of it, that is merged together.

    `output` is the path of the table file to write. A large file group has several outputs; each of the `bounds` is the
    first sequence of a further one. `exclude` (`Sequences.to_text`) are sequences to leave out because the table holds
    them elsewhere. `columns` are the table's typed columns so far
    (`capture.maintenance.merge.schema_evolution.write_columns`).
    """

    stream: str
    key: str
    interval: int
    inputs: list[Stored]
    output: str
    exclude: str = ""
    bounds: list[int] = []
    columns: str = ""
    distinct: Distinct = DISTINCT

    @property
    def parts(self) -> list[Part]:
        """The outputs to write, by ascending sequences. An output without any sequence is not written."""
        begins, ends = [0, *self.bounds], [*(bound - 1 for bound in self.bounds), MAXIMUM]
        folder, slash, name = self.output.rpartition("/")
        stem, dot, ending = name.partition(".")
        further = (f"{folder}{slash}{stem}-{number}{dot}{ending}" for number in range(2, len(begins) + 1))
        return [Part(*facts) for facts in zip([self.output, *further], begins, ends, strict=True)]

    @property
    def wanted(self) -> Sequences:
        """The sequences that the outputs must hold, except for messages that are left out by message id."""
        return Sequences.union_of(Sequences.from_bytes(one.sequences) for one in self.inputs) - self.excluded

    @property
    def excluded(self) -> Sequences:
        """The sequences to leave out."""
        return Sequences.from_text(self.exclude)

    @property
    def rows(self) -> int:
        """The number of rows in the inputs, by their records."""
        return sum(one.count for one in self.inputs)

    @property
    def bytes(self) -> int:
        """The size of the inputs."""
        return sum(one.bytes for one in self.inputs)


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The result of merging a file group: the files written (none if no row was left), the rows read and dropped.

    `duplicates` counts every dropped row, also excluded ones: `rows_in - duplicates` is the outputs' count. `repeated`
    (`Sequences.to_text`) are sequences that were left out because an earlier message has their id. `columns` are the
    table's typed columns after this run. `conflicts` counts, by column, values that did not fit; the payloads hold
    them. If the group could not be merged, `failed` says why; the other fields are then empty, and the inputs stay.
    """

    outputs: list[Stored] = []
    rows_in: int = 0
    duplicates: int = 0
    repeated: str = ""
    columns: str = ""
    conflicts: dict[str, int] = {}
    failed: str = ""


class Engine(Protocol):
    """Merges file groups: Spark in production, pyarrow in `capture.testing`."""

    async def merge(self, store_url: str, groups: Sequence[FileGroup]) -> list[Merged]:
        """Write each file group's outputs: every sequence of its inputs once, without the excluded ones, ascending.

        Returns the results in the groups' order. In the table files of one call, columns of the same name have the same
        type.
        """
        ...
