"""Reads one range of a stream in an executor, and accounts for each of its sequences."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pyarrow as pa

from capture.errors import DataLossError
from capture.formats.envelope import SCHEMA
from capture.reading.direct_answers import list_sequences
from capture.reading.stream_range import StreamRange, read_range, recreated_error, stream_facts
from capture.spark.jetstream.splits import LEAVE, Tally, describe_gone
from natty import Natty

log = logging.getLogger("capture.spark.jetstream")


class RangeReader:
    """The messages of a range: `async for messages in reader`. `tally` counts its sequences by their fate.

    DataLossError if the front of the stream has overtaken the reader; with `fail` False it logs that. Messages missing
    behind the front were removed one by one, which is not a loss; they are counted.
    """

    def __init__(
        self,
        natty: Natty,
        wanted: StreamRange,
        *,
        subject: str = "",
        fail: bool = True,
        columns: Sequence[str] = SCHEMA.names,
    ) -> None:
        self.tally = Tally(wanted.first)
        self._natty, self._range, self._columns = natty, wanted, columns
        self._subject, self._fail = subject, fail

    def __repr__(self) -> str:
        return f"RangeReader({self._range}, {self.tally})"

    async def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages in order, as rows with these columns and `sequence`.

        Raises as `read_range`, and DataLossError; NattyError.
        """
        await self._front()
        reading = read_range(self._natty, self._range, subject=self._subject, columns=self._columns)
        async with aclosing(reading) as each:
            async for rows in each:
                if len(rows):  # max_age may move the front between any two
                    await self._judge(self.tally.take(list_sequences(rows)))
                yield rows
        await self._judge(self.tally.end(self._range.last))
        left_out = "not there" if not self._subject else "not there, or of other subjects"
        log.info(
            "%s: %d read, %d lost, %d %s", self._range, self.tally.read, self.tally.lost, self.tally.deleted, left_out
        )

    async def _judge(self, holes: list[tuple[int, int]]) -> None:
        """Report which of these gaps are lost. DataLossError."""
        front = await self._front() if holes else 0
        for hole in holes:
            if lost := self.tally.lose(hole, front):
                said = describe_gone(self._range.stream.name, *lost)
                if self._fail:
                    raise DataLossError(f"{said}; {LEAVE}")
                log.warning("%s", said, extra={"action": "data_loss"})

    async def _front(self) -> int:
        """Return the stream's first sequence now. DataLossError if it is another stream by now."""
        facts = await stream_facts(self._natty, self._range.stream.name)
        if facts.created != self._range.stream.created:
            raise recreated_error(self._range.stream.name)
        return facts.first
