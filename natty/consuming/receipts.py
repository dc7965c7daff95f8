from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from natty.errors import NotConnectedError
from natty.pulling.pull import Pull, size_of
from natty.wire.message import Message, RawMessage

logger = logging.getLogger("natty.consume")


class Receipts:
    """Acks and credit of the messages that are done with, joined: sent when the event loop has its next turn."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._acks: list[bytes] = []
        self._done: list[RawMessage] = []

    def __repr__(self) -> str:
        return f"Receipts({len(self._acks)} acks, {len(self._done)} done)"

    def ack(self, message: Message) -> None:
        """Acknowledge a message, unless it was settled."""
        if not message.settled:
            message.settled = True
            self._acks.append(message.raw[1])

    def done(self, message: Message) -> None:
        """Give a message's credit back."""
        if not self._done:
            asyncio.get_running_loop().call_soon(self.send)
        self._done.append(message.raw)

    def send(self) -> None:
        """Send what has come together. Acks that can't be sent are lost: their messages come again."""
        acks, done = self._acks, self._done
        self._acks, self._done = [], []
        try:
            if acks:
                self._pull.ack(acks)
        except NotConnectedError:
            logger.warning("%d acks were not sent: no connection; these messages come again after ack_wait", len(acks))
        if done:
            self._pull.finished(len(done), size_of(done))

    def settle(self, message: Message, answer: Callable[[Message], object]) -> None:
        """Settle a message at once, with `nak` or `term`."""
        try:
            answer(message)
        except NotConnectedError:
            logger.warning("%r could not be settled: no connection; it comes again after ack_wait", message)

    def hand_back(self, messages: Iterable[Message]) -> None:
        """Have messages delivered again, when we no longer ask for any ourselves. The server sorts what is delayed."""
        replies = [message.raw[1] for message in messages if not message.settled]
        self._pull.hand_back(replies)
