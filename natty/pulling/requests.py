"""What to ask a pull consumer for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from natty.errors import UnsupportedError


class PullSettings(TypedDict, total=False):
    """The options of `pull` as keywords: the fields of `PullOptions`."""

    max_messages: int
    """Messages that are requested, or arrived and not finished, at one time. Default 4096."""
    max_bytes: int
    """Bytes of them; a larger message comes alone. Default 32 MiB."""
    expires: float
    """Seconds that a request lives: a request of a dead connection takes messages for so long. Default 10.0."""
    heartbeat: float
    """Seconds between two signs of life of a server that has nothing to deliver. Default 5.0."""
    tick: float | None
    """Seconds without a message after which an empty batch is yielded; None: never. Default None."""


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    """How much to ask for. Messages that were asked for, or arrived and are not finished, count: this bounds memory.

    In Python a message takes some 400 bytes more than those that are counted (see `size_of`).
    """

    max_messages: int = 4096
    max_bytes: int = 32 * 1024 * 1024
    expires: float = 10.0
    heartbeat: float = 5.0
    tick: float | None = None

    def __post_init__(self) -> None:
        if self.heartbeat * 2 > self.expires:
            raise UnsupportedError(
                f"a heartbeat of {self.heartbeat:g} s is over half of expires, {self.expires:g} s; servers refuse that"
            )
        if self.max_messages < 1 or self.max_bytes < 1:
            raise ValueError(
                f"max_messages is {self.max_messages} and max_bytes {self.max_bytes}: with less than 1 nothing comes"
            )
