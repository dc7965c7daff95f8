"""Options of a publisher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from natty.config.options import Count, Seconds, SecondsOrZero, check_options
from natty.publishing.reporting import OnPublishError

PublishPath = Literal["auto", "fast", "window"]


class PublisherSettings(TypedDict, total=False):
    """The options of `publisher` as keywords: the fields of `PublisherOptions`."""

    window: int
    """Messages that may be in flight. Default 8192."""
    window_bytes: int
    """Bytes of payloads that may be in flight; one larger message is sent alone. Default 64 MiB."""
    ack_timeout: float
    """Seconds without progress until unacknowledged messages are sent again. Default 5.0."""
    give_up: float
    """Seconds without progress until unacknowledged messages are reported as errors. Default 30.0."""
    path: PublishPath
    """The protocol: "fast" ingest, "window" for an ack per message. Default "auto": fast ingest where it is offered.

    With fewer than 5 000 messages a second, "auto" has each acknowledged; from 10 000 a second on, it uses fast ingest.
    """
    on_error: OnPublishError | None
    """Called with each message that is not stored; `flush` raises those that it failed with. Default None."""


@dataclass(frozen=True, kw_only=True)
class PublisherOptions:
    """How many messages may be in flight, and how long one may take; `PublisherSettings` describes each field."""

    window: Count = 8192
    window_bytes: Count = 64 * 1024 * 1024
    ack_timeout: Seconds = 5.0
    give_up: SecondsOrZero = 30.0
    path: PublishPath = "auto"
    on_error: OnPublishError | None = None

    def __post_init__(self) -> None:
        check_options(self)
