"""Splits what the socket brings into messages and control lines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import msgspec

from natty.errors import UNREADABLE
from natty.wire.message import Batch, RawMessage

Deliver = Callable[[bytes, Batch], None]
Control = Callable[[bytes], None]

MAX_LINE_BYTES = 256 * 1024  # of a line whose end has not come: INFO of a cluster of thousands of servers has less
MAX_MESSAGE_BYTES = 256 * 1024 * 1024  # headers and payload; a server's largest max_payload is its max_pending, 64 MiB
ALIKE_BYTES = 600
"""Messages up to this size are split together if they are alike; of larger ones, it takes longer to look at each byte
than to cut them out one by one. Measured with CPython 3.11."""
LEAST_ALIKE = 8 * ALIKE_BYTES  # bytes: with fewer messages, splitting them together is not faster
MOST_SKIPPED = 64  # reads whose messages are not tried together, if those before were not alike

_MSG = ord("M")
_HMSG = ord("H")
_SHOWN = 120  # bytes of a line in an error

_numbers = msgspec.json.Decoder(list[int]).decode


class ProtocolError(ValueError):
    """The server sent a line that is not part of the client protocol."""


class Parser:
    """Splits what the socket brings into messages and control lines.

    `feed` takes bytes as they come, cut anywhere. Messages go to `deliver(sid, batch)`, one call for each
    subscription and read; any other line goes to `control(line)`, after the messages before it, so that a PONG still
    says "all before me is delivered". Lines and announced sizes are bounded, and each byte is looked at a few times at
    most, however it is cut.
    Pure: no socket, no clock. Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol
    """

    def __init__(self, deliver: Deliver, control: Control) -> None:
        self._deliver = deliver
        self._control = control
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._skipping = self._skipped = 0  # reads for which `_take_alike` is not tried, and how many are left of them

    def feed(self, data: bytes) -> None:
        """Take the next bytes. ProtocolError on a malformed message line, a line or a message that is too long."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:  # the rest of a large payload: wait for all of it
            return
        if not self._need and len(self._chunks) > 1 and not self._ends_a_line():
            self._check_line()
            return
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        taken, self._need = self._split(buffer, self._take_alike(buffer) if len(buffer) > LEAST_ALIKE else 0)
        rest = buffer[taken:]
        self._chunks = [rest] if rest else []
        self._have = len(rest)
        self._check_line()

    def _ends_a_line(self) -> bool:
        """Whether the last chunk has the end of the line that the chunks before it began."""
        before, last = self._chunks[-2:]
        return b"\r\n" in last or (last.startswith(b"\n") and before.endswith(b"\r"))

    def _check_line(self) -> None:
        if not self._need and self._have > MAX_LINE_BYTES:
            start = b"".join(self._chunks)[:_SHOWN]
            raise ProtocolError(f"a line of over {MAX_LINE_BYTES} bytes without an end: {start!r}…")

    def _take_alike(self, buffer: bytes) -> int:
        """Handle all whole operations if they are messages that are alike; return the bytes taken, or 0.

        It saves half of the time for messages of one subscription; `_split` handles all others.
        """
        if self._skipped:
            self._skipped -= 1
            return 0
        found = _split_alike(buffer)
        if found is None:
            self._skipping = self._skipped = min(2 * self._skipping + 1, MOST_SKIPPED)
            return 0
        self._skipping = 0
        sid, batch, taken = found
        self._deliver(sid, batch)
        return taken

    def _split(self, buffer: bytes, position: int) -> tuple[int, int]:
        """Handle every whole operation from a position on; return (bytes taken, bytes needed before the next look)."""
        batches: dict[bytes, list[RawMessage]] = {}
        current = b""
        append = list[RawMessage]().append  # replaced with the first message
        end, need = len(buffer), 0
        find = buffer.find
        while (line_end := find(b"\r\n", position)) >= 0:
            kind = buffer[position]
            start = line_end + 2
            if kind != _MSG and kind != _HMSG:
                self._flush(batches)
                current = b""
                self._control(buffer[position:line_end])
                position = start
                continue
            words = buffer[position:line_end].split()
            try:
                body = start if kind == _MSG else start + int(words.pop(-2))
                if len(words) == 5:
                    _, subject, sid, reply, size = words
                else:
                    (_, subject, sid, size), reply = words, b""
                stop = start + int(size)
            except (ValueError, IndexError) as error:
                raise ProtocolError(f"malformed message line {buffer[position:line_end][:_SHOWN]!r}") from error
            if not start <= body <= stop:
                raise ProtocolError(f"malformed message line {buffer[position:line_end][:_SHOWN]!r}")
            if stop + 2 > end:
                if stop - start > MAX_MESSAGE_BYTES:
                    line = buffer[position:line_end][:_SHOWN]
                    raise ProtocolError(f"a message of over {MAX_MESSAGE_BYTES} bytes is announced: {line!r}")
                need = stop + 2 - position
                break
            if sid != current:  # a read brings mostly one subscription's messages
                current, append = sid, batches.setdefault(sid, []).append
            append((subject, reply, buffer[start:body], buffer[body:stop]))
            position = stop + 2
        self._flush(batches)
        return position, need

    def _flush(self, batches: dict[bytes, list[RawMessage]]) -> None:
        for sid, raw in batches.items():
            self._deliver(sid, Batch(raw))
        batches.clear()


def _split_alike(buffer: bytes) -> tuple[bytes, Batch, int] | None:
    """Return the subscription and the messages of a buffer, and the bytes taken; None if they are not alike.

    Alike are messages of one subscription whose lines have equally many words, whose headers have equally many lines,
    and whose payloads have no line break. Then the parts between line breaks and the words of lines are columns. They
    are right if the first words and the subscriptions are equal, and each message has the size that its line says:
    with any other meaning of the bytes, a first word of a line would be read as a size, which fails.
    """
    words = buffer[: buffer.find(b"\r\n")].split()
    width, has_headers = len(words), words[:1] == [b"HMSG"]
    if not (4 <= width <= 5 + has_headers and (has_headers or words[0] == b"MSG")) or len(words[-1]) > 3:
        return None
    try:
        start = buffer.find(b"\r\n") + 2
        size = int(words[-1])
        if size > ALIKE_BYTES:
            return None
        stride = 2 + (buffer.count(b"\r\n", start, start + int(words[-2])) if has_headers else 0)
        parts = buffer.split(b"\r\n")
        count = (len(parts) - 1) // stride
        rest = parts[count * stride :]
        del parts[count * stride :]
        tokens = b" ".join(parts[::stride]).split(b" ")
        if len(tokens) != width * count or any(tokens[at::width].count(words[at]) != count for at in (0, 2)):
            return None
        payloads = parts[stride - 1 :: stride]
        sizes = _read_numbers(tokens[width - 1 :: width])
        if has_headers:
            lines = [parts[at::stride] for at in range(1, stride - 1)]
            blocks = list(map(b"\r\n".join, zip(*lines, repeat(b""), strict=False)))
            if list(map(len, blocks)) != _read_numbers(tokens[width - 2 :: width]):
                return None
            found = [len(block) + len(payload) for block, payload in zip(blocks, payloads, strict=True)]
        else:
            blocks, found = [b""] * count, list(map(len, payloads))
    except UNREADABLE:
        return None
    if found != sizes or not count:
        return None
    has_reply = width - has_headers == 5
    replies = tokens[3::width] if has_reply else [b""] * count
    batch = Batch.of_columns(tokens[1::width], replies, blocks, payloads)
    return words[2], batch, len(buffer) - len(b"\r\n".join(rest))


def _read_numbers(words: list[bytes]) -> list[int]:
    """Return words as numbers. Raises errors of UNREADABLE if one is not a number."""
    return _numbers(b"[%b]" % b",".join(words))
