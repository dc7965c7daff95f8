from __future__ import annotations

from collections.abc import Callable

from natty.wire.message import RawMessage

Deliver = Callable[[bytes, list[RawMessage]], None]
Control = Callable[[bytes], None]

MAX_LINE_BYTES = 256 * 1024  # of a line whose end has not come: INFO of a cluster of thousands of servers has less
MAX_MESSAGE_BYTES = 256 * 1024 * 1024  # headers and payload; a server's largest max_payload is its max_pending, 64 MiB

_MSG = ord("M")
_HMSG = ord("H")
_SHOWN = 120  # bytes of a line in an error


class ProtocolError(ValueError):
    """The server sent what the client protocol doesn't know."""


class Parser:
    """Splits what the socket brings into messages and control lines.

    `feed` takes bytes as they come, cut anywhere. Messages go to `deliver(sid, messages)`, one call for each
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

    def feed(self, data: bytes) -> None:
        """Take the next bytes. ProtocolError on a malformed message line, a line or a message that is too long."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:  # the rest of a large payload: do not look at it again for every read
            return
        if not self._need and len(self._chunks) > 1 and not self._ends_a_line():
            self._check_line()
            return
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        taken, self._need = self._split(buffer)
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

    def _split(self, buffer: bytes) -> tuple[int, int]:
        """Handle every whole operation; return (bytes taken, bytes needed before the next look)."""
        batches: dict[bytes, list[RawMessage]] = {}
        current = b""
        append = list[RawMessage]().append  # replaced with the first message
        position, end, need = 0, len(buffer), 0
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
        for sid, batch in batches.items():
            self._deliver(sid, batch)
        batches.clear()
