"""`shipper consume`: the lines of some partitions into a file for each host, acknowledged when they are on disk."""

import asyncio
import logging
import time
from contextlib import aclosing, suppress

from log_shipper.ledger import Ledger, Line
from log_shipper.settings import ConsumeSettings, ShipperError, is_host
from natty import Batch, ConsumerNotFoundError, Natty, Pull

logger = logging.getLogger("shipper")

IN_HAND = 20_000  # messages asked for: they arrive while the ones before are written
TIDY_EVERY = 60.0  # seconds between two looks for files that were kept long enough


async def consume(natty: Natty, settings: ConsumeSettings, stopping: asyncio.Event) -> None:
    """Write the partitions until `stopping`. ShipperError, OSError: a file can't be written."""
    readers = [Reader(natty, settings, partition) for partition in settings.read_partitions]
    tasks = [asyncio.create_task(reader.run()) for reader in readers]
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        for reader in readers:
            reader.stop()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


class Reader:
    """Writes one partition.

    Its ledger decides where it continues, not the server: whenever it begins, and whenever a delivery got lost
    on its way, it sets its durable consumer to the first sequence that is not on disk. So a host's lines are in order
    and there once. The acknowledgements show everybody else how far it is.
    """

    def __init__(self, natty: Natty, settings: ConsumeSettings, partition: int) -> None:
        self._natty, self._settings, self._partition = natty, settings, partition
        self._prefix = settings.route.prefix(partition).encode()
        self._durable = f"{settings.durable}-p{partition}"
        self._stopped = False
        self._pull: Pull | None = None
        self._delivered = 0  # number of the consumer's last delivery
        self._tidied = 0.0

    def stop(self) -> None:
        """End after what is in hand."""
        self._stopped = True
        if self._pull is not None:
            self._pull.stop()

    async def run(self) -> None:
        """Write until `stop`."""
        stream = await self._settings.route.ensure(self._natty, self._partition)
        name = f"{stream}-{self._partition}" if self._settings.route.server_side else stream
        settings = self._settings
        with Ledger(settings.directory, settings.output, name, keep_days=settings.keep_days) as ledger:
            while not self._stopped:
                await self._position_consumer(stream, ledger)
                await self._write_in_order(stream, ledger)

    async def _position_consumer(self, stream: str, ledger: Ledger) -> None:
        request = self._natty.jetstream.request
        written, last = ledger.sequence, (await request(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
        if written > last:
            raise ShipperError(
                f"stream {stream} ends at {last}, and up to {written} is written: it was created again, so remove"
                f" {ledger.path} to begin with it"
            )
        if not written:  # a new disk: what was acknowledged is on the old one
            with suppress(ConsumerNotFoundError):
                written = (await request(f"CONSUMER.INFO.{stream}.{self._durable}"))["ack_floor"]["stream_seq"]
        await self._natty.delete_consumer(stream, self._durable)
        await self._natty.create_consumer(
            stream,
            self._durable,
            filter_subjects=[f"{self._settings.route.prefix(self._partition)}>"],
            deliver_policy="by_start_sequence",
            opt_start_seq=written + 1,
            ack_policy="all",
            max_ack_pending=2 * IN_HAND,
        )
        self._delivered = 0
        logger.info("%s goes to %s, from sequence %d on", stream, self._settings.directory, written + 1)

    async def _write_in_order(self, stream: str, ledger: Ledger) -> None:
        """Write, then acknowledge, until stopped, or until a delivery is missing."""
        pull = self._pull = self._natty.pull(stream, self._durable, max_messages=IN_HAND, tick=TIDY_EVERY)
        if self._stopped:
            return
        async with aclosing(pull.__aiter__()) as batches:
            async for batch in batches:
                if time.time() - self._tidied >= TIDY_EVERY:
                    self._tidied = time.time()
                    for path in ledger.expire(self._tidied):
                        logger.info("%s is over %d days old and was removed", path, self._settings.keep_days)
                if not batch.raw:
                    continue
                lines, sequence = self._in_order(batch, ledger.sequence)
                if sequence > ledger.sequence:
                    await asyncio.to_thread(ledger.write, lines, sequence)
                if self._delivered != delivery_number(batch.replies[-1]):
                    logger.warning("deliveries of %s were lost: reading again after the last line on disk", stream)
                    return
                pull.ack(batch.replies[-1:])
                pull.finish(len(batch))

    def _in_order(self, batch: Batch, written: int) -> tuple[list[Line], int]:
        """Return the lines that are not on disk, and the last one's sequence; up to where a delivery is missing."""
        lines = []
        numbers = map(delivery_number, batch.replies)
        columns = zip(numbers, batch.sequences, batch.subjects, batch.times_ns, batch.payloads, strict=True)
        for number, sequence, subject, time_ns, payload in columns:
            if sequence > written:
                if number != self._delivered + 1:
                    break
                written = sequence
                host = subject[len(self._prefix) :].decode(errors="replace")
                if is_host(host):
                    lines.append((host, time_ns, payload))
                else:
                    logger.error("sequence %d is on %r, which names no host: it is left out", sequence, subject)
            self._delivered = number
        return lines, written


def delivery_number(reply: bytes) -> int:
    """Return the consumer's number of a delivery, which an ack subject holds (ADR-15)."""
    tokens = reply.split(b".")
    return int(tokens[6] if len(tokens) < 11 else tokens[8])
