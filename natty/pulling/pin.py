"""The pin of a pull consumer whose server delivers to one client at a time."""

from __future__ import annotations

from collections.abc import Callable

from natty.wire.message import RawMessage, parse_headers

PIN_HEADER = "Nats-Pin-Id"
_PIN = PIN_HEADER.encode()
_NO_HEADERS = b"NATS/1.0\r\n\r\n"


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

    def note_delivery(self, raw: RawMessage) -> None:
        """Take our id from the first message that is delivered to us."""
        if self.id or _PIN not in raw[2]:
            return
        self.id = parse_headers(raw[2])[PIN_HEADER][-1]  # the server's is the last, after any of the publisher's
        self._on_change()

    def strip_marks(self, raws: list[RawMessage]) -> list[RawMessage] | None:
        """Return messages as they are in the stream, without their last header, which is the pin's id.

        None if one of them is not ours. A message with an empty header block is returned without one: it can't be
        distinguished from a message that never had one.
        """
        mark = b"\r\n%s: %s\r\n\r\n" % (_PIN, self.id.encode())
        if not self.id or not all(raw[2].endswith(mark) for raw in raws):
            return None
        end = -len(mark)
        blocks = [raw[2][:end] + b"\r\n\r\n" for raw in raws]
        return [
            (raw[0], raw[1], b"" if block == _NO_HEADERS else block, raw[3])
            for raw, block in zip(raws, blocks, strict=True)
        ]

    def forget(self) -> None:
        """Forget the id: another client is pinned, or none."""
        if self.id:
            self.id = ""
            self._on_change()
