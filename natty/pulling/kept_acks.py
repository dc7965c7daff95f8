"""Acks that were due while there was no connection."""

from __future__ import annotations

import logging
from collections.abc import Callable

from natty.wire.ack import ACK
from natty.wire.connection import Connection

logger = logging.getLogger("natty.pull")

UNCONNECTED = "%d acks were not sent: no connection; the server redelivers these messages after ack_wait"
INVALID = "%d acks were not sent: other clients may have the messages, or get them after ack_wait"


class KeptAcks:
    """Keeps acks without a connection, and sends them first when it is back: the server still accepts them then.

    Each has a condition, `valid`. If it does not hold any more, the ack is dropped: another client may have the
    message by then, and the server would take the ack for one of that client. At most one ack is kept for each message
    that was delivered, so the pull's credit bounds them. It keeps none before `begin` and after `end`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._begun = False
        self._kept: list[tuple[list[bytes], Callable[[], bool]]] = []

    def __repr__(self) -> str:
        return f"KeptAcks({sum(len(replies) for replies, _ in self._kept)})"

    def begin(self) -> None:
        """Keep acks from now on."""
        self._begun = True
        self._connection.listeners.append(self._on_event)

    def end(self) -> None:
        """Drop the kept acks, and keep no more."""
        self._begun = False
        self._connection.listeners.remove(self._on_event)
        self._drop(UNCONNECTED)

    def keep(self, replies: list[bytes], valid: Callable[[], bool]) -> None:
        """Keep acks that can't be sent now."""
        self._kept.append((replies, valid))
        if not self._begun:
            self._drop(UNCONNECTED)

    def _on_event(self, event: str) -> None:
        if event == "connected":
            kept, self._kept = self._kept, []
            acks: list[bytes] = []
            for replies, valid in kept:
                if valid():
                    acks += replies
                else:
                    self._kept.append((replies, valid))
            self._drop(INVALID)
            self._connection.send_to_each(acks, ACK)

    def _drop(self, text: str) -> None:
        lost, self._kept = sum(len(replies) for replies, _ in self._kept), []
        if lost:
            logger.warning(text, lost)
