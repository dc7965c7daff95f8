"""Exact sets of stream sequences, for an archive's records and comparisons."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

from pyroaring import BitMap64

from capture.errors import CaptureError

Packed = bytes
"""A set as `Sequences.to_bytes` returns it."""

MAXIMUM = 2**63 - 1
"""The highest sequence that a set may hold: Parquet stores sequences as signed 64-bit integers."""
SPAN = 1 << 20
"""Sequences in a range of `find_repeated`."""
WIDEST = 10**11
"""The most sequences in a range: they take 200 MB, and two seconds."""
MOST_WAITING, MOST_WAITING_BYTES = 4096, 16 << 20
"""Sets, and their bytes, that are joined at a time: the work for each addition grows with the whole set."""


class Sequences:
    """An exact set of stream sequences of any size: an immutable 64-bit roaring bitmap.

    Equal sets have equal bytes and texts: these may be compared, hashed and stored.
    """

    __slots__ = ("_bits",)

    def __init__(self, bits: BitMap64 | None = None) -> None:
        self._bits = BitMap64() if bits is None else bits

    @classmethod
    def from_iterable(cls, sequences: Iterable[int]) -> Sequences:
        """Return the set of these sequences, in any order, repeated or not."""
        return cls(BitMap64(sequences))

    @classmethod
    def from_range(cls, first: int, last: int) -> Sequences:
        """Return every sequence from `first` to `last`, both included; the empty set if `last` is below `first`.

        CaptureError for more than WIDEST of them. `within` returns any range of an existing set.
        """
        if last - first >= WIDEST:
            raise CaptureError(f"the sequences {first:,} to {last:,} are more than the {WIDEST:,} that a set may have")
        bits = BitMap64()
        if last >= first:
            bits.add_range(first, last + 1)
        return cls(bits)

    @classmethod
    def from_bytes(cls, data: bytes) -> Sequences:
        """Return the set that `to_bytes` wrote; b"" is the empty set. ValueError for any other bytes."""
        if not data:
            return cls()
        try:
            return cls(BitMap64.deserialize(data))
        except (ValueError, IndexError) as error:
            raise ValueError(f"not a set of sequences: {data[:30]!r} ({error})") from error

    def to_bytes(self) -> bytes:
        """Return the set as a serialised bitmap; the empty set as b""."""
        if not self._bits:
            return b""
        self._bits.run_optimize()  # changes how the bits are stored, not which
        return bytes(self._bits.serialize())

    @classmethod
    def from_text(cls, text: str) -> Sequences:
        """Return the set that `to_text` wrote; "" is the empty set. ValueError for any other text."""
        try:
            return cls.from_bytes(base64.b64decode(text, validate=True))
        except ValueError as error:
            raise ValueError(f"not a set of sequences: {text[:40]!r} ({error})") from error

    def to_text(self) -> str:
        """Return `to_bytes` in base64."""
        return base64.b64encode(self.to_bytes()).decode("ascii")

    @classmethod
    def union_of(cls, sets: Iterable[Sequences]) -> Sequences:
        """Return the sequences in at least one of the sets: one pass, without a copy for every set."""
        bits = BitMap64()
        for one in sets:
            bits |= one._bits
        return cls(bits)

    @classmethod
    def find_repeated(cls, sets: Iterable[Sequences]) -> Sequences:
        """Return the sequences in at least two of the sets, also in one pass.

        Those seen so far are kept by ranges of SPAN sequences: the cost of each set does not grow with all others.
        """
        seen, twice = defaultdict[int, BitMap64](BitMap64), BitMap64()
        for one in sets:
            for number, part in one._spans():
                twice |= seen[number] & part
                seen[number] |= part
        return cls(twice)

    def _spans(self) -> Iterator[tuple[int, BitMap64]]:
        """Yield the parts of the set in each range of SPAN sequences, with the number of the range."""
        start = self.first_from(0)
        while start is not None:
            number = start // SPAN
            following = self.first_from((number + 1) * SPAN)
            inside = following is None and self.first >= number * SPAN
            yield number, self._bits if inside else self.within(number * SPAN, (number + 1) * SPAN - 1)._bits
            start = following

    def __or__(self, other: Sequences) -> Sequences:
        return Sequences(self._bits | other._bits)

    def __and__(self, other: Sequences) -> Sequences:
        return Sequences(self._bits & other._bits)

    def __sub__(self, other: Sequences) -> Sequences:
        return Sequences(self._bits - other._bits)

    def within(self, first: int, last: int) -> Sequences:
        """Return the sequences of this set from `first` to `last`, both included; the range may have any width."""
        bits = BitMap64(self._bits)
        bits.remove_range(0, first)
        bits.remove_range(last + 1, MAXIMUM + 1)
        return Sequences(bits)

    def isdisjoint(self, other: Sequences) -> bool:
        """Return whether the sets have no sequence in common."""
        return bool(self._bits.isdisjoint(other._bits))

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._bits

    def __len__(self) -> int:
        return len(self._bits)

    def __bool__(self) -> bool:
        return bool(self._bits)

    def __iter__(self) -> Iterator[int]:
        return iter(self._bits)

    def __eq__(self, other: object) -> bool:
        return bool(self._bits == other._bits) if isinstance(other, Sequences) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        return f"Sequences({self.describe()})"

    @property
    def first(self) -> int:
        """The lowest sequence. ValueError if the set is empty."""
        return int(self._bits.min())

    @property
    def last(self) -> int:
        """The highest sequence. ValueError if the set is empty."""
        return int(self._bits.max())

    def at(self, index: int) -> int:
        """Return the sequence with `index` sequences below it. IndexError if there are not enough."""
        return int(self._bits[index])

    def first_from(self, sequence: int) -> int | None:
        """Return the lowest sequence that is not below this one; None if there is none."""
        if not self._bits or sequence > self.last:
            return None
        return int(self._bits.next_set_bit(sequence))

    def first_runs(self, count: int) -> list[tuple[int, int]]:
        """Return the first runs, `count` at most."""
        return list(islice(self.runs(), count))

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of every run without a gap, ascending; the work grows only with the number of runs."""
        if not self._bits:
            return
        highest, start = self.last, self.first
        while True:
            end = self._run_end(start, highest)
            yield start, end
            if end == highest:
                return
            start = self._bits.next_set_bit(end + 1)

    def _run_end(self, start: int, highest: int) -> int:
        """Return the last sequence of the run that starts at `start`: double the step, then halve it."""
        step = 1
        while start + step <= highest and self._holds(start, start + step):
            step *= 2
        inside, outside = start + step // 2, min(start + step, highest + 1)
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if self._holds(inside, middle):
                inside = middle
            else:
                outside = middle
        return inside

    def _holds(self, first: int, last: int) -> bool:
        """Return whether every sequence of the range is here; pyroaring 1.2's `contains_range` is wrong at 65,535."""
        return bool(self._bits.range_cardinality(first, last + 1) == last + 1 - first)

    def describe(self, limit: int = 5) -> str:
        """Return the runs for people: "3–7, 9, 12–20 and 4 more" (runs, not sequences), or "none"."""
        shown: list[str] = []
        more = 0
        for first, last in self.runs():
            if len(shown) < limit:
                shown.append(str(first) if first == last else f"{first}–{last}")
            else:
                more += 1
        return (", ".join(shown) or "none") + (f" and {more} more" if more else "")


class GrowingSet:
    """A union to which sets are added one by one, without a copy for every set."""

    def __init__(self) -> None:
        self._all = BitMap64()

    def __repr__(self) -> str:
        return f"GrowingSet({len(self._all):,} sequences)"

    def add(self, one: Sequences) -> None:
        """Add all sequences of a set. The work grows with the union: join many small sets first."""
        self._all |= one._bits

    def find(self, one: Sequences) -> Sequences:
        """Return those of these sequences that were added."""
        return Sequences(self._all & one._bits)

    def compact(self) -> None:
        """Store long runs as runs, in less memory."""
        self._all.run_optimize()

    @property
    def all(self) -> Sequences:
        """The sequences that were added so far: a copy."""
        return Sequences(BitMap64(self._all))


class SetSum:
    """The sequences in at least one, and those in at least two, of many sets that are added one by one."""

    def __init__(self) -> None:
        self._all, self._repeated = GrowingSet(), GrowingSet()
        self._waiting: list[Sequences] = []
        self._waiting_bytes = 0

    def __repr__(self) -> str:
        return f"SetSum({self._all!r} and {len(self._waiting):,} more sets)"

    def add(self, one: Sequences, size: int = 0) -> None:
        """Add a set that has this many bytes."""
        self._waiting.append(one)
        self._waiting_bytes += size
        if len(self._waiting) >= MOST_WAITING or self._waiting_bytes >= MOST_WAITING_BYTES:
            self.join()

    def join(self) -> None:
        """Add the sets that wait to the whole ones."""
        together = Sequences.union_of(self._waiting)
        if len(together) < sum(map(len, self._waiting)):
            self._repeated.add(Sequences.find_repeated(self._waiting))
        self._repeated.add(self._all.find(together))
        self._all.add(together)
        self._all.compact()
        self._waiting, self._waiting_bytes = [], 0

    @property
    def all(self) -> Sequences:
        """The sequences in at least one of the sets."""
        self.join()
        return self._all.all

    @property
    def repeated(self) -> Sequences:
        """The sequences in at least two of the sets."""
        self.join()
        return self._repeated.all
