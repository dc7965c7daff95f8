"""The pin of a pull consumer whose server delivers to one client at a time."""

from __future__ import annotations

from collections.abc import Callable

from natty.names import decode
from natty.wire.message import RawMessage

PIN_HEADER = "Nats-Pin-Id"
_MARK = f"{PIN_HEADER}: ".encode()
_NO_HEADERS, _BREAK, _END = b"NATS/1.0\r\n", b"\r\n", b"\r\n\r\n"


class Pin:
    """Our place in a priority group of the policy `pinned_client` (ADR-42): its name, and our id while we are pinned.

    A server delivers to one client of the group: the first whose request got a message. Requests with its id keep the
    pin; requests without an id wait until it is lost. `on_change` is called when we get or lose the pin, `on_refused`
    when the server ends a request for another reason than its age: the consumer is deleted, missing, or has a new
    leader; `on_renewed` when a new session begins with the same pin: messages sent before may come later, or again.
    """

    def __init__(
        self,
        group: str,
        on_change: Callable[[], None],
        on_refused: Callable[[], None],
        on_renewed: Callable[[], None],
    ) -> None:
        self.group = group
        self.id = ""
        self.on_refused, self.on_renewed = on_refused, on_renewed
        self._on_change = on_change

    def __repr__(self) -> str:
        return f"Pin({self.group}, {self.id or 'not pinned'})"

    def fields(self) -> dict[str, str]:
        """Return the fields about the pin for a request for messages."""
        return {"group": self.group, "id": self.id} if self.id else {"group": self.group}

    def note_delivery(self, header_block: bytes) -> None:
        """Take our id from the first message that is delivered to us."""
        _, mark, rest = header_block.rpartition(_MARK)  # the server's is the last, after any of the publisher's
        if self.id or not mark or not rest.endswith(_END):
            return
        self.id = decode(rest.removesuffix(_END))
        self._on_change()

    def strip_marks(self, raws: list[RawMessage]) -> list[RawMessage] | None:
        """Return messages as they are in the stream, without their last header, which is the pin's id.

        None if one of them is not ours. A message with an empty header block is returned without one: it can't be
        distinguished from a message that never had one. The server puts the id in the place of a block's last two
        bytes. If the block did not end as it should, these are not known: it is returned without them, see `is_cut`.
        """
        mark = _MARK + self.id.encode() + _END
        if not self.id or not all(raw[2].endswith(mark) for raw in raws):
            return None
        return [(raw[0], raw[1], _complete(raw[2][: -len(mark)]), raw[3]) for raw in raws]

    def forget(self) -> None:
        """Forget the id: another client is pinned, or none."""
        if self.id:
            self.id = ""
            self._on_change()


def is_cut(raw: RawMessage) -> bool:
    """Return whether the last two bytes of a message's header block are not known, after `Pin.strip_marks`."""
    return bool(raw[2]) and not raw[2].endswith(_END)


def _complete(block: bytes) -> bytes:
    """Return a header block whose last two bytes were cut off."""
    if block == _NO_HEADERS:
        return b""
    return block + _BREAK if block.endswith(_BREAK) else block
