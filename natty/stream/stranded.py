"""Messages of a work queue that the server counts as acknowledged and that are still there: nobody gets them again.

Only acknowledgements take messages out of a work queue, so a message that a consumer's ack floor has passed proves that
the server forgot it (`servers.FAULTS`, "purge forgets deliveries"), or gave it up at `max_deliver`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from natty.errors import AuthorizationError, NattyError
from natty.jetstream import JetStream
from natty.servers import NEEDS, text_of

logger = logging.getLogger("natty.consume")

LOOK_EVERY = 30.0  # seconds; a message has to be seen at two looks, as a cluster deletes acknowledged ones later
MOST = 256  # messages that are named and compared with dead letters
RESET = "resetting a consumer"

Buried = Callable[[str, int, str], Awaitable[int | None]]


async def stranded(jetstream: JetStream, stream: str, consumer: str) -> list[int]:
    """Return the first sequences of a work queue below a consumer's ack floor, at most 256, while nothing is in flight.

    Empty if messages are delivered and unacknowledged: they may be among these. Look twice, some seconds apart: in a
    cluster acknowledged messages are deleted a little later. ConsumerNotFoundError, StreamNotFoundError.
    """
    info = await jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}")
    floor, config = info["ack_floor"]["stream_seq"], info["config"]
    if info["num_ack_pending"]:
        return []
    found: list[int] = []
    for subject in config.get("filter_subjects") or [config.get("filter_subject") or ">"]:
        sequence = 1
        while sequence <= floor and len(found) < MOST:
            message = await jetstream.read(stream, sequence=sequence, subject=subject)
            if message is None or message.sequence > floor:
                break
            found.append(message.sequence)
            sequence = message.sequence + 1
    return sorted(found)


class QueueMender:
    """Has stranded messages of a work queue delivered again, for one consumer, whenever nothing of it is in flight.

    The consumer is reset to the first of them (nats-server 2.14). In a work queue that repeats nothing that was
    acknowledged, as that is deleted. What another process was given in the same moment may come twice. Nothing is done
    where one of them may be dead, which only `max_deliver` brings about: `buried` returns the letter of (stream,
    sequence, consumer); None: none are made. Of 256 or more, some are not compared with letters.
    """

    def __init__(self, jetstream: JetStream, stream: str, consumer: str, buried: Buried | None) -> None:
        self._jetstream, self._stream, self._consumer = jetstream, stream, consumer
        self._buried = buried
        self._before: list[int] = []
        self._told: list[int] = []

    def __repr__(self) -> str:
        return f"QueueMender({self._stream}/{self._consumer}, {len(self._before)} seen)"

    async def run(self) -> None:
        """Look until cancelled; return at once for a stream that is not a work queue, or without the permission."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                config = (await self._jetstream.request(f"STREAM.INFO.{self._stream}"))["config"]
                if config["retention"] != "workqueue":
                    return
                await self.look()
            except AuthorizationError as error:
                logger.info("forgotten messages of %s are not looked for: %s", self._stream, error)
                return
            except (NattyError, TimeoutError) as error:
                logger.debug("%r: again later: %s", self, error)

    async def look(self) -> bool:
        """Look once; return whether the consumer was reset."""
        now = await stranded(self._jetstream, self._stream, self._consumer)
        proven = sorted(set(now) & set(self._before))
        self._before = now
        if not proven:
            return False
        why = await self._refusal(now)
        if why:
            self._tell(now, f"they are not delivered again: {why}")
            return False
        await self._jetstream.request(f"CONSUMER.RESET.{self._stream}.{self._consumer}", {"seq": now[0]})
        self._tell(now, "the consumer was reset, and they are delivered again")
        self._before = []
        return True

    async def _refusal(self, sequences: list[int]) -> str:
        """Return why the consumer must stay as it is; empty if nothing speaks against a reset."""
        version = self._jetstream.connection.server_version
        if not NEEDS[RESET].met_by(version):
            return (
                f"that needs nats-server {NEEDS[RESET]} and this one is {text_of(version)}. Delete the consumer while"
                " no worker runs: it is made again, and a work queue holds what is not acknowledged"
            )
        info = await self._jetstream.request(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
        if info["config"].get("max_deliver", -1) <= 0:
            return ""
        if self._buried is None:
            return f"some may have reached max_deliver, {info['config']['max_deliver']}. Delete those, or the consumer"
        dead = [one for one in sequences if await self._buried(self._stream, one, self._consumer)]
        if dead:
            what = f"Delete the dead ones from {self._stream} with `natty stream rm-msg`"
            return f"message {dead[0]} is a dead letter. {what}"
        if len(sequences) >= MOST:
            return (
                f"of {MOST} or more not all are compared with dead letters. Delete the consumer while no worker runs:"
                " it is made again, and delivers all that the work queue holds, also what reached max_deliver"
            )
        return ""

    def _tell(self, sequences: list[int], what: str) -> None:
        """Log it once for the same messages."""
        if sequences == self._told:
            return
        self._told = sequences
        logger.error(
            "nats-server forgot %d%s unacknowledged messages of work queue %s, from %d to %d, as it does at a purge by"
            " subject or a roll-up; consumer %s: %s",
            len(sequences), " or more" if len(sequences) >= MOST else "", self._stream, sequences[0], sequences[-1],
            self._consumer, what,
            extra={"action": "forgotten", "stream": self._stream},
        )  # fmt: skip
