from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capture.chain import Head
from capture.compact import Group, Merged
from capture.errors import CompactionError, Fenced
from capture.manifest import Stored
from capture.sequences import Sequences
from capture.signing import Signer
from capture.stores import Store, open_store


@dataclass
class HeadState:
    """What several MemoryHeads share, as several nodes share one key-value entry."""

    head: Head | None = None
    highest_token: int = 0

    async def read(self) -> Head | None:
        """Return the committed head, or None: what a reader sees."""
        return self.head


class MemoryHead:
    """The head pointer in memory, with the fencing of the real one: one instance is one leader's term.

    As in NATS, a term takes over by its first read or commit: from then on earlier ones are refused.
    """

    def __init__(self, token: int = 1, state: HeadState | None = None, signer: Signer | None = None) -> None:
        self.token = token
        self.signer = signer
        self.state = HeadState() if state is None else state

    def check(self) -> None:
        """Fenced if a later term has begun: in memory everybody knows."""
        if self.token < self.state.highest_token:
            raise Fenced(f"term {self.token} is over, term {self.state.highest_token} has begun; nothing was committed")
        self.state.highest_token = self.token

    async def read(self) -> Head | None:
        """Return the committed head, or None, and take it over. Fenced by a higher token."""
        self.check()
        return self.state.head

    async def commit(self, head: Head) -> None:
        """Commit the head. Fenced by a higher token."""
        self.check()
        self.state.head = head

    def __repr__(self) -> str:
        return f"MemoryHead(token={self.token}, head={self.state.head and self.state.head.number})"


class ArrowEngine:
    """Merges groups with pyarrow in this process: the in-memory double of the Spark driver, with the same contract.

    For tests, and to check Spark's results against. The inputs are Parquet files that fit in memory.
    """

    async def merge(self, store_url: str, groups: Sequence[Group]) -> list[Merged]:
        """Write the output of every group: each sequence once, without the excluded ones, in order."""
        store = open_store(store_url)
        return [await self._merge(store, group) for group in groups]

    async def _merge(self, store: Store, group: Group) -> Merged:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from capture.writers.envelope import SCHEMA, with_envelope

        for one in group.inputs:
            if one.format != "parquet":
                raise CompactionError(f"{one.path} is {one.format}; this engine reads Parquet only")
        files = [pq.read_table(io.BytesIO(await store.get(one.path))) for one in group.inputs]
        rows = pa.concat_tables([with_envelope(file).select(SCHEMA.names) for file in files])
        kept = _each_once(rows, Sequences.from_text(group.exclude))
        if not kept.num_rows:
            return Merged(output=None, rows_in=rows.num_rows, duplicates=rows.num_rows)
        file = io.BytesIO()
        pq.write_table(kept, file, compression="zstd", compression_level=1, use_dictionary=["stream", "subject"])
        await store.put(group.output, file.getvalue())
        output = _described(group, file.getvalue(), kept["sequence"].to_pylist())
        return Merged(output=output, rows_in=rows.num_rows, duplicates=rows.num_rows - kept.num_rows)


def _each_once(rows: Any, exclude: Sequences) -> Any:
    """Return the rows by sequence, the first of each, without the excluded ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unwanted = pa.array(exclude, pa.int64())
    rows = rows.filter(pc.invert(pc.is_in(rows["sequence"], value_set=unwanted))).sort_by("sequence")
    rows = rows.combine_chunks().replace_schema_metadata(None)
    sequences = rows["sequence"]
    if len(sequences) < 2:
        return rows
    is_new = pc.not_equal(sequences[1:].combine_chunks(), sequences[:-1].combine_chunks())
    return rows.filter(pa.concat_arrays([pa.array([True]), is_new]))


def _described(group: Group, data: bytes, sequences: list[int]) -> Stored:
    return Stored(
        path=group.output,
        stream=group.stream,
        key=group.key,
        interval=group.interval,
        first=sequences[0],
        last=sequences[-1],
        count=len(sequences),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format="parquet",
        sequences=Sequences.from_iterable(sequences).to_text(),
        node="arrow",
    )
