"""The durable consumer that nodes read: created as configured, and never changed into another one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from capture.archive.identity import read_record
from capture.archive.scope import Asked, write_record
from capture.errors import ConfigError, NotStoredError
from capture.stores import Store
from natty import JetStreamError, Natty
from natty.config.units import parse_time, show_time
from natty.groups.settings import PRIORITY_GROUP
from natty.streams import ConsumerConfig, ConsumerInfo, ServerConsumerConfig, consumer_info
from natty.streams.listing import all_consumers

ALL, NEW = "all", "new"
STARTS = 'start must be "all", "new", a sequence from 1 on, or a time with its zone as in "2026-11-21T06:00:00Z"'
EXPLICIT: Final = "explicit"
TOGETHER: Final = "all"
ACKS = f'ack must be "{EXPLICIT}" or "{TOGETHER}"'
CONSUMER: Final = "consumer"
DIRECT: Final = "direct"
PINNED = {"priority_policy": "pinned_client", "priority_groups": [PRIORITY_GROUP]}
_WORK_QUEUE_ACK, _NOT_UNIQUE, _WORK_QUEUE_START = {10098}, {10099, 10100}, {10101}
_FILTERS = {10093, 10136, 10138}


@dataclass(frozen=True, kw_only=True)
class Durable:
    """A durable consumer as configured. Raises ConfigError if `start` or `ack` is not valid.

    `start` is the first message to deliver: "all", "new", a sequence or a time (RFC 3339). `ack` is "explicit": each
    message is acknowledged, any number of nodes may read; or "all": an acknowledgement counts for all messages before
    it, one node reads. Times are seconds.
    """

    stream: str
    name: str
    ack_wait: float
    max_ack_pending: int
    start: int | str = ALL
    ack: str = EXPLICIT
    filter_subjects: tuple[str, ...] = ()
    pinned: float = 0.0  # seconds after which a silent reader of a group's member is replaced; 0: not in a group

    def __post_init__(self) -> None:
        if self.ack not in (EXPLICIT, TOGETHER):
            raise ConfigError(f"{ACKS}, not {self.ack!r}")
        delivery(self.start)

    def settings(self) -> dict[str, Any]:
        """Return the settings for natty's `ensure_consumer`."""
        return {
            "ack_wait": self.ack_wait,
            "max_ack_pending": self.max_ack_pending,
            "filter_subjects": list(self.filter_subjects) or None,
            "ack_policy": self.ack,
            **delivery(self.start),
            **(PINNED | {"priority_timeout": self.pinned} if self.pinned else {}),
        }


def delivery(start: int | str) -> dict[str, Any]:
    """Return the server's settings for the start of deliveries. Raises ConfigError."""
    if start in (ALL, NEW):
        return {"deliver_policy": start}
    text = str(start)
    if is_sequence(text):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    try:
        time = show_time(parse_time(text))  # in the server's spelling: the two are compared as text
    except ValueError:
        raise ConfigError(f"{STARTS}, not {start!r}") from None
    return {"deliver_policy": "by_start_time", "opt_start_time": time}


def is_sequence(text: str) -> bool:
    """Return whether this is the number of a message that a stream can have."""
    return bool(re.fullmatch("[0-9]{1,18}", text, re.ASCII)) and int(text) > 0


async def prepare(natty: Natty, store: Store, wanted: Durable) -> None:
    """Create the durable if it does not exist, and record its scope in the archive before anything is read.

    Raises ConsumerExistsError with the difference if it exists with another start or other acks; ConfigError if the
    stream does not allow such a consumer, or if the first sequence of the durable is not known any more.
    """
    if wanted.ack == TOGETHER:
        natty.jetstream.require(f'ack = "{TOGETHER}"')
    try:
        await natty.ensure_consumer(wanted.stream, wanted.name, **wanted.settings())
    except JetStreamError as error:
        if explained := await _explain(natty, wanted, error):
            raise explained from error
        raise
    await _record(natty, store, wanted)


async def _record(natty: Natty, store: Store, wanted: Durable) -> None:
    info = await consumer_info(natty.jetstream, wanted.stream, wanted.name)
    asked = Asked(
        stream=wanted.stream,
        durable=wanted.name,
        created=info["created"],
        start=_start(info),
        filter_subjects=_filters(info["config"]),
    )
    if not asked.start:
        try:
            await read_record(store, asked.path, Asked)
        except NotStoredError:
            raise ConfigError(
                f"consumer {wanted.name} of stream {wanted.stream} delivered messages before this archive recorded "
                "it, so its start is not known: name another durable, or set start to a sequence"
            ) from None
    else:
        await write_record(store, asked)


def _start(info: ConsumerInfo) -> int:
    """Return the first sequence that the durable was created to deliver; 0 if that is not known any more.

    If the server looked up the sequence, a consumer that has delivered nothing shows it: its position is right before
    it.
    """
    match info["config"]["deliver_policy"]:
        case "all":
            return 1
        case "by_start_sequence":
            return int(info["config"]["opt_start_seq"])
    return 0 if info["delivered"]["consumer_seq"] else int(info["delivered"]["stream_seq"]) + 1


async def _explain(natty: Natty, wanted: Durable, error: JetStreamError) -> ConfigError | None:
    """Return an error that says what a work-queue stream, or a filter, allows; None if `error` has another cause."""
    what = f"stream {wanted.stream} is a work queue"
    if error.err_code in _WORK_QUEUE_ACK:
        way_out = "Leave group out" if wanted.pinned else 'Use ack = "explicit"'
        return ConfigError(
            f"{what}: it does not accept a consumer that acknowledges several messages at once. {way_out}"
        )
    if error.err_code in _WORK_QUEUE_START:
        return ConfigError(f'{what}: each of its messages must be delivered. Use start = "all"')
    if error.err_code in _NOT_UNIQUE:
        others = await all_consumers(natty.jetstream, wanted.stream)
        named = "; ".join(f"{one['name']} ({_subjects(_filters(one['config']))})" for one in others.found)
        return ConfigError(
            f"{what}: each message goes to one consumer, and {_subjects(wanted.filter_subjects)} is taken already, by"
            f" {named}. Name that consumer as durable if it is yours, or filter subjects that none of them gets"
        )
    if error.err_code in _FILTERS:
        return ConfigError(f"filter_subjects {list(wanted.filter_subjects)} can't be used: {error}")
    return None


def _filters(config: ServerConsumerConfig | ConsumerConfig) -> list[str]:
    only = config.get("filter_subject")
    return [only] if only else sorted(config.get("filter_subjects") or [])


def _subjects(filters: Sequence[str]) -> str:
    return ", ".join(filters) or "every subject"
