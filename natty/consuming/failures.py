"""Failed messages: each is tried again, becomes a dead letter, or is left to the server; each failure is reported."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from natty.consuming.dead_letters import BURIED, DeadLetters, TooManyDeliveriesError
from natty.consuming.dead_letters.letter import reason_of
from natty.consuming.handler import BodyError, HandlerTimeoutError
from natty.consuming.lanes import Turn
from natty.consuming.options import WorkOptions
from natty.consuming.reports import NextStep, Reports
from natty.errors import NattyError, NotConnectedError, StreamNotFoundError
from natty.wire.connection import Connection
from natty.wire.counters import FAILURES
from natty.wire.message import Message

BURY_AGAIN_DELAY = 5.0  # seconds before a message that could not be buried is tried again, if `retries` is empty


class Failures:
    """Decides what happens to failed messages, settles them, and reports them to `options.on_error`.

    Dead letters name `consumer`; `letters` is None if there are none. With `counts_deliveries`, deliveries before this
    one count as tries. `Consumption.counts` describes the counts.
    """

    def __init__(
        self,
        connection: Connection,
        consumer: str,
        options: WorkOptions,
        letters: DeadLetters | None,
        reports: Reports,
        *,
        counts_deliveries: bool,
        log: logging.Logger,
    ) -> None:
        self.failed = self.timed_out = self.undecodable = self.retried = self.buried = 0
        self.given_up = self.handed_back = 0
        self.letters, self.reports = letters, reports
        self._connection = connection
        self._consumer, self._retries, self._counts_deliveries = consumer, options.retries, counts_deliveries
        self._log = log

    def __repr__(self) -> str:
        return f"Failures({self.failed} failed, {self.retried} retried, {self.buried} buried)"

    @property
    def unreported(self) -> int:
        """Number of errors that `on_error` failed to take."""
        return self.reports.failed

    @property
    def counts(self) -> dict[str, int]:
        """All counts of messages, by name."""
        return {name: getattr(self, name) for name in FAILURES}

    def count(self, messages: int, error: BaseException) -> None:
        """Count messages that the handler failed with."""
        self.failed += messages
        self.timed_out += messages if isinstance(error, HandlerTimeoutError) else 0
        self.undecodable += messages if isinstance(error, BodyError) else 0

    def report(self, messages: Iterable[Message], error: BaseException, step: NextStep) -> None:
        """Count messages that are handed back, and have the error reported by the next `reports.send`."""
        for message in messages:
            self.handed_back += step.action == "handed_back"
            self.reports.add(message, error, step)

    async def note_given_up(self, message: Message, error: Exception, letter: int) -> None:
        """Count and report a dead letter of a message that the server gave up on, or that was terminated."""
        self.given_up += 1
        self.report([message], error, NextStep(action="dead_letter", letter=letter))
        await self.reports.send()

    async def decide(self, turn: Turn, error: BaseException) -> NextStep:
        """Return what happens to a failed message. Its dead letter is stored then; a retry still needs its `delay`."""
        if turn.message.settled:
            text = "%r was settled by its handler, which then failed: %r"
            self._log.warning(text, turn.message, error, extra={"action": "settled"})
            return NextStep(action="settled")
        if self.letters is not None and self._is_hopeless(turn, error):
            return await self._bury(self.letters, turn.message, error)
        return NextStep(action="retry")

    def _tries(self, turn: Turn) -> int:
        return (turn.message.deliveries if self._counts_deliveries else 1) + turn.retries

    def _is_hopeless(self, turn: Turn, error: BaseException) -> bool:
        return isinstance(error, BodyError | TooManyDeliveriesError) or self._tries(turn) > len(self._retries)

    def delay(self, turn: Turn, error: BaseException) -> float:
        """Count and log a retry; return the seconds before it."""
        retries = self._retries
        delay = retries[min(self._tries(turn), len(retries)) - 1] if retries else BURY_AGAIN_DELAY
        self._log.warning("%r failed; retry in %g s: %r", turn.message, delay, error, extra={"action": "retry"})
        self.retried += 1
        turn.retries += 1
        return delay

    def nak(self, message: Message, delay: float) -> bool:
        """Have a message delivered again after `delay` seconds; return whether that was sent."""
        if not self._connection.connected:
            self._log.warning("%r was not handed back: no connection; the server redelivers it after ack_wait", message)
            return False
        message.nak(delay)
        return True

    async def _bury(self, letters: DeadLetters, message: Message, error: BaseException) -> NextStep:
        """Make a dead letter of the message and terminate it; return that, or a retry if it can't be stored now."""
        reason = reason_of(error)
        bury = partial(letters.bury, message, consumer=self._consumer, reason=reason, error=error)
        try:
            try:
                letter = await bury()
            except StreamNotFoundError:  # the letters' stream was deleted meanwhile
                await letters.ensure()
                letter = await bury()
        except Exception as refused:  # an unknown error must not stop the handling of other messages
            text, unknown = "%r could not be stored as a dead letter; retrying: %s", not isinstance(refused, NattyError)
            self._log.error(text, message, refused, exc_info=unknown, extra={"action": "bury"})
            return NextStep(action="retry", refused=refused)
        self._log.error("%r is a dead letter: %s", message, reason, extra={"action": "dead letter"})
        with suppress(NotConnectedError):  # closed: the server delivers it again, and it gets the same letter
            message.term(BURIED)
        self.buried += 1
        return NextStep(action="dead_letter", letter=letter)
