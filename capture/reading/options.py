"""The options of `capture.read` and `capture.read_batches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from capture.archive.encryption import Keys
from capture.archive.sequences import Sequences
from capture.archive.signing import PublicKeys
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError
from capture.stores import Store
from natty import Natty
from natty.config.options import CountOrZero, check_options

DURABLE = "capture"

Where: TypeAlias = str | Path | Store | CaptureConfig
"""An archive: a folder, a URL of a store, a store, or a configuration."""

Time: TypeAlias = datetime | float | str
"""Unix seconds, a datetime with its zone, or a text such as 2026-11-21T06:00:00.123456789Z, to the nanosecond."""


class ReadSettings(TypedDict, total=False):
    """The options of `read` as keywords: the fields of `ReadOptions`."""

    stream: str
    """Name of the stream. Default "": the only stream of the archive."""
    natty: Natty | None
    """Client to read from the stream what the archive does not hold, up to its last message. Default None."""
    live: bool
    """Read what the archive does not hold from the stream, up to its last message: with `natty`, or with a connection
    that is opened for it as the configuration or the environment says. Default False: only if `natty` is given."""
    follow: bool
    """Continue with new messages, without end. Default False."""
    start_sequence: int
    """First sequence, included. Default 1."""
    end_sequence: int | None
    """Last sequence, included. Default None: the last one."""
    since: Time | None
    """Only messages that the stream stored at this time or later. Default None."""
    until: Time | None
    """Only messages that the stream stored before this time. Default None."""
    subjects: str | Sequence[str]
    """A filter with wildcards, or several, of which a subject must match one. Default (): all subjects."""
    keys: Keys | None
    """Keys that open encrypted objects. Default None: those of the configuration, or of CAPTURE_KEYS."""
    public_keys: PublicKeys | None
    """Keys, one of which must have signed the newest documents. Default None: those of the configuration."""
    encrypted_only: bool
    """Refuse objects that are not encrypted. Default False: as the configuration says."""
    durable: str
    """Name of capture's consumer, where no configuration says it. Default "capture"."""
    gaps: Literal["raise", "skip"]
    """What to do about messages that the stream deleted before they were stored. Default "raise": DataLossError."""
    on_gap: Callable[[Sequences], None] | None
    """Called with the sequences that are neither in the archive nor in the stream. Default None."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read. `ReadSettings` describes each field. ConfigError if they contradict each other.

    TypeError or ValueError for a value that a field does not take.
    """

    stream: str = ""
    natty: Natty | None = None
    live: bool = False
    follow: bool = False
    start_sequence: CountOrZero = 1
    end_sequence: CountOrZero | None = None
    since: Time | None = None
    until: Time | None = None
    subjects: str | Sequence[str] = ()
    keys: Keys | None = None
    public_keys: PublicKeys | None = None
    encrypted_only: bool = False
    durable: str = DURABLE
    gaps: Literal["raise", "skip"] = "raise"
    on_gap: Callable[[Sequences], None] | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.follow and self.natty is None:
            raise ConfigError("follow needs a connection: give natty")
        if self.follow and self.live:
            raise ConfigError("live ends with the stream's last message, follow does not end: give one of them")
        if self.follow and self.until is not None:
            raise ConfigError("follow reads without end: give follow or until, not both")
