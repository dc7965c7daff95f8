"""Messages that are alike, split together: most of what a read of the socket brings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import msgspec

from natty.errors import UNREADABLE
from natty.wire.message import Batch, RawMessage

Deliver = Callable[[bytes, Batch], None]
"""Receives the messages of a read, with the id of their subscription."""

ALIKE_BYTES = 600  # the largest message that is split together with others: measured, see `split_alike`
LEAST_ALIKE = 8 * ALIKE_BYTES  # bytes: with fewer messages, splitting them together is not faster
RUNS = 4  # in a read: each attempt looks at all bytes that are left
MOST_SKIPPED = 64  # reads that are not tried, after one that had too many runs

_numbers = msgspec.json.Decoder(list[int]).decode


class Runs:
    """Takes runs of messages that are alike from what was read: in half of the time that they need one by one.

    `deliver` gets them. `take_one(buffer, position)` handles the operation between two runs, and returns where the next
    one begins: mostly it is the end of a pull request. With many of them in a read, the next reads are not tried.
    """

    def __init__(self, deliver: Deliver, take_one: Callable[[bytes, int], int]) -> None:
        self._deliver, self._take_one = deliver, take_one
        self._skipping = self._skipped = 0  # reads that are not tried, and how many are left of them

    def __repr__(self) -> str:
        return f"Runs({self._skipped} reads to skip)"

    def take(self, buffer: bytes) -> int:
        """Handle operations of a buffer from its start, and return their bytes; 0 if it is not tried."""
        if self._skipped:
            self._skipped -= 1
            return 0
        taken = 0
        for _ in range(RUNS):
            batches, size = split_alike(buffer[taken:])
            for sid, batch in batches.items():
                self._deliver(sid, batch)
            taken += size
            if len(buffer) - taken <= LEAST_ALIKE:
                self._skipping = 0
                return taken
            if not size and buffer[taken] in b"MH":  # a message that can't be split so: look at the others another time
                break
            before, taken = taken, self._take_one(buffer, taken)
            if taken == before:  # a large message whose end has not come
                return taken
        self._skipping = self._skipped = min(2 * self._skipping + 1, MOST_SKIPPED)
        return taken


def split_alike(buffer: bytes) -> tuple[dict[bytes, Batch], int]:
    """Return the first messages of a buffer that are alike, by subscription, and their bytes; `({}, 0)` for none.

    Alike are messages whose lines have equally many words, whose headers have equally many lines, and whose payloads
    have no line break. Then the parts between line breaks and the words of lines are columns. They are right if the
    first words are equal and each message has the size that its line says: with any other meaning of the bytes of
    well-formed lines, a first word would be read as a size, which fails. Of messages that are larger than ALIKE_BYTES,
    looking at each byte for a line break takes longer than cutting them out one by one.
    """
    start = buffer.find(b"\r\n") + 2
    words = buffer[: start - 2].split(b" ")
    width, has_headers = len(words), words[:1] == [b"HMSG"]
    if not (4 <= width - has_headers <= 5 and (has_headers or words[0] == b"MSG")):
        return {}, 0
    try:
        stride = 2 + (buffer.count(b"\r\n", start, start + int(words[-2])) if has_headers else 0)
        if int(words[-1]) > ALIKE_BYTES or stride < 2 + has_headers:  # anything may stand where headers are announced
            return {}, 0
        parts = buffer.split(b"\r\n")
        lines = parts[: (len(parts) - 1) // stride * stride : stride]
        tokens, count = b" ".join(lines).split(b" "), len(lines)
        if len(tokens) != width * count or tokens[::width].count(words[0]) != count:
            count = _count_alike(lines, tokens[::width], width)
            del tokens[count * width :]
        payloads = parts[stride - 1 : count * stride : stride]
        sizes, digits = _read_numbers(tokens[width - 1 :: width])
        if has_headers:
            heads = [parts[at : count * stride : stride] for at in range(1, stride - 1)]
            blocks = list(map(b"\r\n".join, zip(*heads, repeat(b""), strict=False)))
            lengths, more = _read_numbers(tokens[width - 2 :: width])
            digits += more
            count = _count_equal(list(map(len, blocks)), lengths)
            found = [len(block) + len(payload) for block, payload in zip(blocks, payloads, strict=True)]
        else:
            blocks, found = [b""] * count, list(map(len, payloads))
    except UNREADABLE:
        return {}, 0
    count = min(count, _count_equal(found, sizes))
    if not count:
        return {}, 0
    for column, step in ((tokens, width), (blocks, 1), (payloads, 1)):
        del column[count * step :]
    subjects, sids = tokens[1::width], tokens[2::width]
    replies = tokens[3::width] if width - has_headers == 5 else [b""] * count
    taken = len(buffer) - len(b"\r\n".join(parts[count * stride :]))
    if sids.count(words[2]) != count:
        rows: dict[bytes, list[RawMessage]] = {sid: [] for sid in sids}
        for sid, row in zip(sids, zip(subjects, replies, blocks, payloads, strict=True), strict=True):
            rows[sid].append(row)
        return {sid: Batch(mine) for sid, mine in rows.items()}, taken
    batch = Batch.of_columns(subjects, replies, blocks, payloads)
    if count == len(sizes):
        around = len(words[0]) + len(words[2]) + width - 1 + 2 * len(b"\r\n")  # first word, sid, blanks, line ends
        batch.size = taken - count * around - digits
    return {words[2]: batch}, taken


def _count_alike(lines: list[bytes], heads: list[bytes], width: int) -> int:
    """Return how many lines at the start have so many words, the first of them equal.

    `heads` has each `width`-th word of all lines: the first words up to a line with more or fewer words.
    """
    most = next((at for at, head in enumerate(heads) if head != heads[0]), len(heads)) - 1
    return most + (most < len(lines) and lines[most].count(b" ") == width - 1)


def _count_equal(found: list[int], said: list[int]) -> int:
    """Return how many numbers at the start are equal."""
    if found == said:
        return len(said)
    return next(at for at, (one, other) in enumerate(zip(found, said, strict=True)) if one != other)


def _read_numbers(words: list[bytes]) -> tuple[list[int], int]:
    """Return words as numbers, and their length in all. Raises errors of UNREADABLE if one is not a number."""
    text = b",".join(words)
    return _numbers(b"[%b]" % text), len(text) - len(words) + 1
