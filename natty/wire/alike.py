"""Messages that are alike, split together: most of what a read of the socket brings."""

from __future__ import annotations

from itertools import repeat

import msgspec

from natty.errors import UNREADABLE
from natty.wire.message import Batch

ALIKE_BYTES = 600  # the largest message that is split together with others: measured, see `split_alike`

_numbers = msgspec.json.Decoder(list[int]).decode


def split_alike(buffer: bytes) -> tuple[bytes, Batch, int] | None:
    """Return the subscription and the messages of a buffer, and the bytes taken; None if they are not alike.

    Alike are messages of one subscription whose lines have equally many words, whose headers have equally many lines,
    and whose payloads have no line break. Then the parts between line breaks and the words of lines are columns. They
    are right if the first words and the subscriptions are equal, and each message has the size that its line says:
    with any other meaning of the bytes, a first word of a line would be read as a size, which fails. Of messages that
    are larger than ALIKE_BYTES, looking at each byte for a line break takes longer than cutting them out one by one.
    """
    start = buffer.find(b"\r\n") + 2
    words = buffer[: start - 2].split(b" ")
    width, has_headers = len(words), words[:1] == [b"HMSG"]
    if not (4 <= width - has_headers <= 5 and (has_headers or words[0] == b"MSG")):
        return None
    try:
        stride = 2 + (buffer.count(b"\r\n", start, start + int(words[-2])) if has_headers else 0)
        if int(words[-1]) > ALIKE_BYTES or stride < 2 + has_headers:  # anything may stand where headers are announced
            return None
        parts = buffer.split(b"\r\n")
        count = (len(parts) - 1) // stride
        rest = parts[count * stride :]
        del parts[count * stride :]
        tokens = b" ".join(parts[::stride]).split(b" ")
        if len(tokens) != width * count or any(tokens[at::width].count(words[at]) != count for at in (0, 2)):
            return None
        payloads = parts[stride - 1 :: stride]
        sizes, digits = _read_numbers(tokens[width - 1 :: width])
        if has_headers:
            lines = [parts[at::stride] for at in range(1, stride - 1)]
            blocks = list(map(b"\r\n".join, zip(*lines, repeat(b""), strict=False)))
            lengths, more = _read_numbers(tokens[width - 2 :: width])
            if list(map(len, blocks)) != lengths:
                return None
            digits += more
            found = [len(block) + len(payload) for block, payload in zip(blocks, payloads, strict=True)]
        else:
            blocks, found = [b""] * count, list(map(len, payloads))
    except UNREADABLE:
        return None
    if found != sizes or not count:
        return None
    replies = tokens[3::width] if width - has_headers == 5 else [b""] * count
    taken = len(buffer) - len(b"\r\n".join(rest))
    batch = Batch.of_columns(tokens[1::width], replies, blocks, payloads)
    around = len(words[0]) + len(words[2]) + width - 1 + 2 * len(b"\r\n")  # first word, subscription, blanks, line ends
    batch.size = taken - count * around - digits
    return words[2], batch, taken


def _read_numbers(words: list[bytes]) -> tuple[list[int], int]:
    """Return words as numbers, and their length in all. Raises errors of UNREADABLE if one is not a number."""
    text = b",".join(words)
    return _numbers(b"[%b]" % text), len(text) - len(words) + 1
