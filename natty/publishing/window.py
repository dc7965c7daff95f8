from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import msgspec

from natty.config.units import check_timings
from natty.errors import PublishError
from natty.names import decode

PublishPath = Literal["auto", "fast", "window"]


class PublisherSettings(TypedDict, total=False):
    """The options of `publisher` as keywords: the fields of `PublisherOptions`."""

    window: int
    """Messages that may be on their way. Default 4096."""
    window_bytes: int
    """Bytes of payloads that may be on their way; one larger message is sent alone. Default 64 MiB."""
    ack_timeout: float
    """Seconds without progress until unacknowledged messages are sent again. Default 5.0."""
    give_up: float
    """Seconds without progress until unacknowledged messages are reported as errors. Default 30.0."""
    path: PublishPath
    """The protocol: "fast" ingest, "window" for an ack per message, "auto" for what the server has. Default "auto"."""


@dataclass(frozen=True, kw_only=True)
class PublisherOptions:
    """How many messages may be on their way, and how long one may take; `PublisherSettings` describes each field."""

    window: int = 4096
    window_bytes: int = 64 * 1024 * 1024
    ack_timeout: float = 5.0
    give_up: float = 30.0
    path: PublishPath = "auto"

    def __post_init__(self) -> None:
        check_timings(self, "ack_timeout", "give_up")
        if self.path not in ("auto", "fast", "window"):
            raise ValueError(f"path is {self.path!r}; it is auto, fast or window")
        if self.window < 1:
            raise ValueError(f"window is {self.window}; at least one message must be on its way")


class Waiting(msgspec.Struct, gc=False):
    """A message that a publisher has taken, and that is neither stored nor failed."""

    subject: bytes
    headers: bytes
    data: bytes
    msg_id: str
    in_doubt: bool = False  # sent, and nobody knows whether it is stored
    refused: str = ""  # why the server did not take it at the last try

    def failed(self, reason: str) -> PublishError:
        """Return the error that names it."""
        subject = decode(self.subject)
        name = f"message {self.msg_id!r}" if self.msg_id else f"a message of {len(self.data)} bytes"
        return PublishError(
            f"{name} on {subject}: {reason}",
            subject=subject,
            msg_id=self.msg_id,
            data=self.data,
            in_doubt=self.in_doubt,
        )
