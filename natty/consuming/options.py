"""Options of handlers: those of `consume`, and those that it shares with members of groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypedDict

from natty.config.options import Count, CountOrZero, Seconds, SecondsOrZero, check_options
from natty.consuming.dead_letters import DeadLetterOptions
from natty.consuming.reports import OnError, check_on_error
from natty.pulling.requests import PullOptions, ReadPause
from natty.streams.schema import ConsumerConfig
from natty.wire.message import Message

OF_CONSUMERS = {
    name: f': it is a setting of the consumer; consume(…, consumer={{"{name}": …}}) and ensure_consumer(…, {name}=…)'
    " make one with it, and `natty consumer edit` changes one"
    for name in ConsumerConfig.__annotations__
}
"""Settings that are no options of `consume` and `pull`, and the end of the sentence about each."""
OrderedBy = str | Callable[[Message], Hashable] | None
"""The key by which messages wait for each other: "subject", "header:NAME", a function of the message, or None.

A message has no key if the function returns None for it, or if the header is missing; it then waits for no other.
"""


class ConsumeSettings(TypedDict, total=False):
    """The options of `consume` as keywords: the fields of `ConsumeOptions`."""

    concurrency: int
    """Calls of the handler at one time. Default 1."""
    ordered_by: OrderedBy
    """Key that orders messages: "subject", "header:NAME" or a function of the message. Default None."""
    retries: Sequence[float]
    """Seconds before each retry of a message that failed. Default (1.0, 5.0, 30.0, 300.0)."""
    timeout: float | None
    """Seconds that one call of the handler may take; then it is cancelled and has failed. Default None."""
    dead_letters: bool | DeadLetterOptions
    """Where messages go after the last retry; False: the last retry repeats. Default True."""
    on_error: OnError | None
    """Called with each message that failed, the error, and what happens next. Default None."""
    batch: int
    """Call the handler with a list of up to this many messages; 0: with single messages. Default 0."""
    batch_wait: float
    """Seconds that the first message of a batch waits for the others. Default 0.1."""
    shutdown_timeout: float
    """Seconds that running handlers have to finish after a stop. Default 10.0."""
    max_messages: int
    """Messages that are requested or being handled at one time. Default 500."""
    max_bytes: int
    """Bytes of these messages. Default 32 MiB."""
    read_pause: float
    """Seconds that the connection reads nothing after a read that brought messages and less than 32 KiB: fewer reads
    take less CPU. At most 0.1: everything that comes over the connection may come later by as much. Default 0.0."""
    keep_alive: bool
    """Restart `ack_wait` of messages that wait or are being handled. Default True."""
    signals: bool
    """Stop at SIGTERM and SIGINT, unless the application handles them itself. Default True."""


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """Options of a handler that `consume` and members of groups share."""

    concurrency: Count = 1  # calls of the handler at one time
    ordered_by: OrderedBy = None  # "subject", "header:NAME" or a function of the message: one call of a key at a time
    retries: Sequence[SecondsOrZero] = (1.0, 5.0, 30.0, 300.0)  # seconds before each try after a failure
    timeout: Seconds | None = None  # seconds that one call of the handler may take; then it is cancelled and has failed
    dead_letters: bool | DeadLetterOptions = True  # where messages go after the last retry; False: the last one repeats
    on_error: OnError | None = None  # called with each message that failed, the error, and what happens next
    batch: CountOrZero = (
        0  # call the handler with a list of up to this many messages; with `ordered_by`, messages of one key
    )
    batch_wait: SecondsOrZero = 0.1  # seconds that the first message of a batch waits for the others
    shutdown_timeout: SecondsOrZero = 10.0  # seconds that running handlers have to finish after a stop
    max_bytes: Count = PullOptions.max_bytes  # requested or being handled at one time
    read_pause: ReadPause = PullOptions.read_pause  # seconds that nothing is read after a read that brought little

    def __post_init__(self) -> None:
        check_options(self)
        check_on_error(self.on_error)
        if not (self.retries or self.dead_letters):
            raise ValueError("retries is empty; name at least one delay in seconds, or leave dead_letters on")

    def check_batch(self, name: str, most: int) -> None:
        """ValueError if `batch` is more than `most` messages, so that no batch could be full."""
        if self.batch > most:
            raise ValueError(f"batch {self.batch} is over {name} {most}: it could never be full")


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions(WorkOptions):
    """Options of the handler of `consume`."""

    max_messages: Count = 500  # requested or being handled at one time
    keep_alive: bool = True  # restart ack_wait of messages that wait or are being handled
    signals: bool = True  # stop at SIGTERM and SIGINT, unless the application handles them itself

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_batch("max_messages", self.max_messages)
        if self.ordered_by is not None and not self.keep_alive:
            raise ValueError("ordered_by holds messages back, and that needs keep_alive")


def key_by(ordered_by: OrderedBy) -> Callable[[Message], Hashable]:
    """Return the function that returns a message's key. ValueError for an invalid name."""
    if ordered_by is None:
        return lambda message: None
    if callable(ordered_by):
        return ordered_by
    if ordered_by == "subject":
        return attrgetter("subject")
    kind, _, name = ordered_by.partition(":")
    if kind != "header" or not name:
        raise ValueError(f'ordered_by is {ordered_by!r}; it is "subject", "header:NAME" or a function of the message')
    return lambda message: message.headers.get(name, [None])[0]
