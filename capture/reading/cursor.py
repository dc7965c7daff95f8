"""The position in one object that is being read, and its next rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import FormatError
from capture.reading.shares import Share
from natty.config.units import write_count


class Cursor:
    """Returns `count` rows in the order of their sequences. `close` is called at the end, or when it is closed."""

    def __init__(self, rows: Iterator[pa.RecordBatch], count: int, close: Callable[[], None] = lambda: None) -> None:
        self._pieces = rows
        self._left = count
        self._close = close
        self._rows: pa.RecordBatch | None = None
        self._next()

    def __repr__(self) -> str:
        return f"Cursor({self._left:,} rows left)"

    @property
    def left(self) -> int:
        """The number of rows that are left."""
        return self._left

    @property
    def ended(self) -> bool:
        """Whether no rows are left."""
        return self._rows is None

    @property
    def head(self) -> int:
        """The next sequence. Not available at the end."""
        assert self._rows is not None
        return int(self._rows.column("sequence")[0].as_py())

    @property
    def last(self) -> int:
        """The sequence up to which `take` returns all rows: the last decoded one, or MAXIMUM if no more follow."""
        assert self._rows is not None
        return int(self._rows.column("sequence")[-1].as_py()) if self._left > len(self._rows) else MAXIMUM

    def take(self, upto: int) -> pa.RecordBatch:
        """Return the rows up to this sequence, which must be one of `head` to `last`."""
        assert self._rows is not None
        count = position(self._rows, upto, bisect_right)
        taken, rest = self._rows[:count], self._rows[count:]
        self._left -= count
        if len(rest):
            self._rows = rest
        else:
            self._next()
        return taken

    def close(self) -> None:
        """Release the rows. Idempotent."""
        self._rows = None
        if close := getattr(self._pieces, "close", None):
            close()
        self._close()

    def _next(self) -> None:
        self._rows = next(self._pieces, None)
        if self._rows is None:
            self.close()


def read_share(share: Share, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a share, each sequence once, without empty pieces.

    FormatError if the object does not hold what its record says.
    """
    left, path = len(share.given), share.stored.path
    if share.stored.count > left + len(share.withheld):
        pieces = _each_once(pieces)
    for piece in pieces:
        rows = _select_rows(share, piece)
        left -= len(rows)
        if left < 0:
            raise FormatError(f"{path} holds messages that its record does not name")
        if len(rows):
            yield rows
        if not left and share.withheld:  # otherwise the rest is read, so that the whole object is checked
            return
    if left:
        raise FormatError(f"{path} differs from its record: {write_count(left, 'message', 'is', 'are')} missing")


def _select_rows(share: Share, piece: pa.RecordBatch) -> pa.RecordBatch:
    if not share.withheld:
        return piece
    piece = piece[position(piece, share.given.first, bisect_left) : position(piece, share.given.last, bisect_right)]
    if not len(piece):
        return piece
    sequences = piece.column("sequence")
    here = Sequences.from_range(sequences[0].as_py(), sequences[-1].as_py())
    if unwanted := share.withheld & here:
        return piece.filter(pc.invert(pc.is_in(sequences, value_set=pa.array(unwanted, pa.int64()))))
    return piece


def _each_once(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows without repeated sequences, which come from messages that were delivered again."""
    seen = 0
    for piece in pieces:
        sequences = piece.column("sequence")
        is_first = pa.array([sequences[0].as_py() != seen], pa.bool_())
        seen = sequences[-1].as_py()
        yield piece.filter(pa.concat_arrays([is_first, pc.not_equal(sequences[1:], sequences[:-1])]))


def position(rows: pa.RecordBatch, sequence: int, bisect: Callable[..., int]) -> int:
    """Return the index of a sequence among the rows: before its own rows with `bisect_left`, otherwise after them."""
    sequences = rows.column("sequence")
    return bisect(range(len(rows)), sequence, key=lambda at: sequences[at].as_py())
