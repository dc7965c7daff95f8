"""What compaction asks for and is told: the contract between the leader, who plans and commits, and who merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from capture.archive.manifest import Stored
from capture.archive.sequences import MAXIMUM, Sequences

Distinct = Literal["sequence", "message_id"]
DISTINCT: Distinct = "sequence"
"""By what a message is kept once: by its sequence always, or by its message id, too."""


@dataclass(frozen=True)
class Part:
    """One output of a group: its path, and the sequences that it takes, both included."""

    output: str
    first: int
    last: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One bin, or a cut of it: what is merged together.

    `output` is the path of the table file to write; a large group has several, one more from each of the `bounds`
    (sequences) on. `exclude` (`Sequences.to_text`) are sequences to leave out because the table holds them elsewhere.
    `columns` are the table's typed columns so far (`capture.maintenance.merge.schema_evolution.write_columns`).
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
        """The outputs to write, by ascending sequences. One of which no sequence is left is not written."""
        begins, ends = [0, *self.bounds], [*(bound - 1 for bound in self.bounds), MAXIMUM]
        folder, slash, name = self.output.rpartition("/")
        stem, dot, ending = name.partition(".")
        further = (f"{folder}{slash}{stem}-{number}{dot}{ending}" for number in range(2, len(begins) + 1))
        return [Part(*facts) for facts in zip([self.output, *further], begins, ends, strict=True)]

    @property
    def wanted(self) -> Sequences:
        """What the outputs must hold, but for what is left out by message id."""
        return Sequences.union_of(Sequences.from_text(one.sequences) for one in self.inputs) - self.excluded

    @property
    def excluded(self) -> Sequences:
        """The sequences to leave out."""
        return Sequences.from_text(self.exclude)

    @property
    def rows(self) -> int:
        """The rows of the inputs, by their records."""
        return sum(one.count for one in self.inputs)

    @property
    def bytes(self) -> int:
        """The size of the inputs."""
        return sum(one.bytes for one in self.inputs)


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine made of a group: the files it wrote, none if no row was left; how many rows it read and dropped.

    `duplicates` counts every dropped row, excluded ones too: `rows_in - duplicates` is the outputs' count. `repeated`
    (`Sequences.to_text`) are sequences that were left out because an earlier message has their id. `columns` are the
    table's typed columns after this run. `conflicts` counts, by column, values that did not fit: payloads have them.
    Where the group could not be merged, `failed` says why; nothing else is said then, and the inputs stay.
    """

    outputs: list[Stored] = []
    rows_in: int = 0
    duplicates: int = 0
    repeated: str = ""
    columns: str = ""
    conflicts: dict[str, int] = {}
    failed: str = ""


class Engine(Protocol):
    """Who merges: Spark in production, pyarrow in `capture.testing`."""

    async def merge(self, store_url: str, groups: Sequence[Group]) -> list[Merged]:
        """Write each group's outputs: every sequence of its inputs once, without the excluded ones, ascending.

        Answers in the groups' order. Table files of one call have the same type in columns of the same name.
        """
        ...
