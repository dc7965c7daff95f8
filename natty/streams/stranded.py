"""Stranded messages of a work queue: the server counts them as acknowledged, still holds and never redelivers them.

Only acknowledgements remove messages from a work queue. So if a message is below a consumer's ack floor, the server
forgot it (`servers.FAULTS`, "purge forgets deliveries"), or gave it up at `max_deliver`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from enum import Enum, auto
from itertools import chain
from typing import Any

from natty.errors import AuthorizationError, NattyError, StreamNotFoundError
from natty.jetstream import JetStream
from natty.streams.info import ConsumerInfo, ServerConsumerConfig, consumer_info, stream_info
from natty.wire.background import map_concurrently
from natty.wire.servers import NEEDS, text_of

logger = logging.getLogger("natty.consume")

LOOK_EVERY = 30.0  # seconds; a message must appear in two looks, as a cluster deletes acknowledged ones later
MOST = 256  # messages that a look returns for each filter of a consumer
AT_ONCE = 16  # filters that are read at the same time
SHOWN = 5  # commands that an error names
RESET = "resetting a consumer"

Buried = Callable[[str, int, str], Awaitable[int | None]]


class Outcome(Enum):
    """The outcome of a look for stranded messages."""

    NOTHING = auto()  # there are no stranded messages
    UNPROVEN = auto()  # none of them appeared in the look before
    REFUSED = auto()  # they are not delivered again; the log says why, and what to do
    AGAIN = auto()  # they are delivered again


async def find_stranded(jetstream: JetStream, stream: str, consumer: str) -> list[int]:
    """Return the first sequences of a work queue below a consumer's ack floor, at most 256, while nothing is in flight.

    Empty if there are delivered and unacknowledged messages, which may be among them. Look twice, some seconds apart:
    a cluster deletes acknowledged messages a little later. ConsumerNotFoundError, StreamNotFoundError.
    """
    info = await consumer_info(jetstream, stream, consumer)
    return [] if info["num_ack_pending"] else await first_below_floor(jetstream, stream, info)


async def first_below_floor(
    jetstream: JetStream, stream: str, info: Mapping[str, Any], but: Container[int] = ()
) -> list[int]:
    """Return the first sequences, at most 256, that a work queue holds below the ack floor of CONSUMER.INFO.

    Leaves out those of `but`.
    """

    async def first_of(subject: str) -> list[int]:
        found: list[int] = []
        async for sequence in _below_floor(jetstream, stream, subject, info["ack_floor"]["stream_seq"]):
            found += [] if sequence in but else [sequence]
            if len(found) == MOST:
                break
        return found

    return sorted(chain(*await map_concurrently(_filters(info["config"]), first_of, at_once=AT_ONCE)))[:MOST]


def _filters(config: ServerConsumerConfig) -> list[str]:
    return list(config.get("filter_subjects") or [config.get("filter_subject") or ">"])


async def _below_floor(jetstream: JetStream, stream: str, subject: str, floor: int) -> AsyncIterator[int]:
    sequence = 1
    while sequence <= floor:
        message = await jetstream.read(stream, sequence=sequence, subject=subject)
        if message is None or message.sequence > floor:
            return
        yield message.sequence
        sequence = message.sequence + 1


class QueueMender:
    """Makes the server redeliver stranded messages of a work queue to one consumer, while it has none in flight.

    It resets the consumer to the first of them (nats-server 2.14), or `remake` creates it again, as for the member of a
    group. That repeats no acknowledged messages, because a work queue deletes them. A message that another process got
    in the same moment may be delivered twice. It does nothing if one of the messages is dead, which only `max_deliver`
    causes: `buried` returns the letter of (stream, sequence, consumer); it is None without dead letters. `named` is the
    consumer's name in letters.
    """

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        consumer: str,
        buried: Buried | None,
        *,
        named: str = "",
        remake: Callable[[], None] | None = None,
    ) -> None:
        self._jetstream, self._stream, self._consumer = jetstream, stream, consumer
        self._buried, self._named, self._remake = buried, named or consumer, remake
        self._before: list[int] = []
        self._refused = ("", 0)  # the reason that was logged last, and the last message that it was logged for

    def __repr__(self) -> str:
        return f"QueueMender({self._stream}/{self._consumer}, {len(self._before)} seen)"

    async def run(self) -> None:
        """Look until cancelled; return at once for a stream that is not a work queue, or without the permission."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                config = (await stream_info(self._jetstream, self._stream))["config"]
                if config["retention"] != "workqueue":
                    return
                await self.look()
            except AuthorizationError as error:
                logger.info("natty does not look for forgotten messages of %s: %s", self._stream, error)
                return
            except (NattyError, TimeoutError) as error:
                logger.debug("%r: retrying later: %s", self, error)

    async def look(self) -> bool:
        """Look once; return whether the consumer was reset."""
        return await self.judge(await find_stranded(self._jetstream, self._stream, self._consumer)) is Outcome.AGAIN

    async def judge(self, found: Sequence[int]) -> Outcome:
        """Make the server redeliver the stranded messages, once some were found twice in a row."""
        proven = set(found) & set(self._before)
        self._before = list(found)
        if not found:
            self._refused = ("", 0)
            return Outcome.NOTHING
        if not proven:
            return Outcome.UNPROVEN
        why = await self._refusal()
        if why:
            refused, self._refused = self._refused, (why, max(found[-1], self._refused[1]))
            if refused != self._refused:
                self._log("forgot or gave up", found, f"they are not delivered again: {why}")
            return Outcome.REFUSED
        if self._remake is None:
            await self._jetstream.request(f"CONSUMER.RESET.{self._stream}.{self._consumer}", {"seq": found[0]})
        else:
            self._remake()
        done = "reset" if self._remake is None else "created again"
        self._log("forgot", found, f"the consumer is {done}, and they are delivered again")
        self._before, self._refused = [], ("", 0)
        return Outcome.AGAIN

    async def _refusal(self) -> str:
        """Return why the consumer must not be reset, and what to do; empty if it may be."""
        version = self._jetstream.connection.server_version
        remove = (
            "Delete the consumer while no worker runs, then it is created again:"
            f" `natty consumer rm {self._stream} {self._consumer} --force`"
        )
        if self._remake is None and not NEEDS[RESET].is_met_by(version):
            return f"that needs nats-server {NEEDS[RESET]} and this one is {text_of(version)}. {remove}"
        info = await consumer_info(self._jetstream, self._stream, self._consumer)
        most = info["config"].get("max_deliver", -1)
        if most <= 0:
            return ""
        try:
            dead = None if self._buried is None else await self._find_dead(info, self._buried)
        except StreamNotFoundError:  # the letters' stream
            dead = None
        if dead is None:
            return (
                f"some may have reached max_deliver, {most}, and no dead letters show which. {remove}; the server"
                " delivers those, too"
            )
        if not dead:
            return ""
        commands = ", ".join(f"`natty stream rm-msg {self._stream} {one} --force`" for one in dead[:SHOWN])
        more = ", and more of them are" if len(dead) > SHOWN else ""
        return f"these reached max_deliver and are dead letters{more}. Delete them from the work queue: {commands}"

    async def _find_dead(self, info: ConsumerInfo, buried: Buried) -> list[int]:
        """Return the stranded messages that have a letter: all, or one more than `SHOWN`."""
        dead: list[int] = []
        for subject in _filters(info["config"]):
            async for sequence in _below_floor(self._jetstream, self._stream, subject, info["ack_floor"]["stream_seq"]):
                if await buried(self._stream, sequence, self._named):
                    dead.append(sequence)
                if len(dead) > SHOWN:
                    return dead
        return dead

    def _log(self, verb: str, sequences: Sequence[int], what: str) -> None:
        logger.error(
            "nats-server %s %d%s unacknowledged messages of work queue %s, from %d to %d, as it does at a purge by"
            " subject or a roll-up; consumer %s: %s",
            verb, len(sequences), " or more" if len(sequences) >= MOST else "", self._stream, sequences[0],
            sequences[-1], self._consumer, what,
            extra={"action": "forgotten", "stream": self._stream},
        )  # fmt: skip
