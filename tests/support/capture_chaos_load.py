"""The messages of a chaos run: each follows from its number, so that stored messages can be compared with it."""

import asyncio
import random
import time
from dataclasses import dataclass
from hashlib import blake2b

from patient import PATIENCE

from natty.publishing.options import PublisherOptions
from natty.publishing.publisher import Publisher

KEYS = ("ams", "ber", "cph", "dub", "ewr", "fra")
HUGE = 900_000  # bytes of one message in 50 000; a server takes 1 MiB
MORE_HEADERS = {"Colour": ["red", "blue"], "Empty": "", "City": "Århus"}
TRICKLE = 0.1  # of the rate, once enough is published
SLICE = 0.02  # seconds between two looks at how much is due

VICTIM = "victim"  # begins the id of a message that is published to be removed, or to remove others

_NOISE = random.Random(1).randbytes(1 << 20)
_TEXT = _NOISE.hex().encode()


@dataclass(frozen=True, slots=True)
class Made:
    """A message to publish, and whether it is JSON."""

    key: str
    headers: dict[str, str | list[str]]
    payload: bytes
    decodable: bool


def made(seed, number):
    """Return the message of this number: mostly short JSON; some are empty, long, not JSON, or repeat headers."""
    dice = blake2b(b"%d %d" % (seed, number), digest_size=16).digest()
    kind, at, size = (int.from_bytes(dice[part]) for part in (slice(2), slice(2, 5), slice(5, 7)))
    match kind % 500:
        case _ if number % 50_000 == 7:
            payload, decodable = b"\xff" + _NOISE[:HUGE], False
        case 0:
            payload, decodable = b"\xff" + _NOISE[at % 500_000 :][:size], False
        case 1 | 2 | 3:
            payload, decodable = b"", False
        case 4 | 5 | 6:
            payload, decodable = b"\xff" + _NOISE[at % 500_000 :][: size % 300], False
        case 7:
            payload, decodable = b'{"n":%d,"text":"%b"}' % (number, _TEXT[at % 500_000 :][:size]), True
        case _:
            payload, decodable = b'{"n":%d,"text":"%b"}' % (number, _TEXT[at % 500_000 :][: size % 300]), True
    headers = {"Nats-Msg-Id": f"{seed}-{number}"} | (MORE_HEADERS if dice[7] % 4 == 0 else {})
    return Made(KEYS[dice[8] % len(KEYS)], headers, payload, decodable)


class Load:
    """Publishes messages at an even rate, then slowly until it is stopped; records which were acknowledged."""

    def __init__(self, stream, *, seed, messages, rate):
        self.stream, self.seed, self.messages, self.rate = stream, seed, messages, rate
        self.published = 0
        self.ending = False
        self.refused = set()  # numbers of messages that were not acknowledged: stored or not

    async def run(self, natty):
        options = PublisherOptions(give_up=4 * PATIENCE, on_error=self._not_acknowledged)
        async with Publisher(natty.jetstream, self.stream, options) as publisher:
            began = time.monotonic()
            while not self.ending or self.published < self.messages:
                due = max(1.0, self.rate * (time.monotonic() - began))
                due = min(due, self.messages + TRICKLE * due)
                while self.published < due and not (self.ending and self.published >= self.messages):
                    await self._publish(publisher)
                await asyncio.sleep(SLICE)
            await publisher.flush()

    async def _publish(self, publisher):
        number, self.published = self.published, self.published + 1
        one = made(self.seed, number)
        headers = {name: value for name, value in one.headers.items() if name != "Nats-Msg-Id"}
        msg_id = one.headers["Nats-Msg-Id"]
        await publisher.publish(f"{self.stream}.{one.key}", one.payload, msg_id=msg_id, headers=headers or None)

    def _not_acknowledged(self, error):
        self.refused.add(int(error.msg_id.partition("-")[2]))

    @property
    def acknowledged(self):
        """The numbers of the messages that the server has acknowledged; complete when `run` has ended."""
        return set(range(self.published)) - self.refused


def digest(time_ns, subject, block, payload):
    """Return the digest by which messages are compared."""
    lengths = b"%d %d %d\n" % (time_ns, len(subject), len(block))
    return blake2b(lengths + subject + block + payload, digest_size=16).digest()
