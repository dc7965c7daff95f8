from __future__ import annotations

from dataclasses import dataclass

from natty.jetstream import JetStream, PubAck
from natty.wire.counters import PUBLISHER
from natty.wire.message import Headers

UNKNOWN = ""  # the stream of a message that has no ack: subjects don't say


@dataclass(eq=False, slots=True)
class _Counts:
    stored: int = 0
    failed: int = 0
    duplicates: int = 0
    waiting: int = 0


class Awaited:
    """Publishes that are awaited one by one, counted by stream for the metrics of publishers."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._counted: dict[str, _Counts] = {}

    def __repr__(self) -> str:
        return f"Awaited({self._counted})"

    async def publish(self, subject: str, data: bytes, *, headers: Headers, timeout: float | None = None) -> PubAck:
        """Publish as `JetStream.publish`. What raises has failed, whether it is in doubt, or the caller gave it up."""
        unanswered = self._counted.get(UNKNOWN) or self._count(UNKNOWN)
        unanswered.waiting += 1
        try:
            ack = await self._jetstream.publish(subject, data, headers=headers, timeout=timeout)
        except BaseException:
            unanswered.failed += 1
            raise
        finally:
            unanswered.waiting -= 1
        counts = self._counted.get(ack.stream) or self._count(ack.stream)
        counts.stored += 1
        counts.duplicates += ack.duplicate
        return ack

    def _count(self, stream: str) -> _Counts:
        counts = self._counted[stream] = _Counts()
        self._jetstream.connection.observed.add(counts, PUBLISHER, stream)
        return counts
