from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from capture.errors import ConfigError
from natty import Natty

if TYPE_CHECKING:  # `import capture` needs nothing but natty
    from capture.archive.encryption import Keys
    from capture.archive.sequences import Sequences
    from capture.archive.signing import PublicKeys
    from capture.config.settings import CaptureConfig
    from capture.stores import Store

DURABLE = "capture"


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, and how.

    `stream` may be left out where the archive holds one. With `natty` what the archive does not hold is read from the
    stream, up to its last message, or for ever with `follow`. `since` (included) and `until` (excluded) are when the
    stream stored a message: Unix seconds, a datetime or a text with its zone (2026-11-21T06:00:00.123456789Z: only a
    text has every nanosecond). `subjects` are filters with wildcards. `keys`
    open encrypted objects; by default those of the configuration, or of CAPTURE_KEYS. With `public_keys`, by default
    those of the configuration, the newest documents must be signed by one of them; `encrypted_only` refuses objects
    that are not encrypted. `durable` is capture's consumer, where no configuration says it.

    Sequences that are nowhere are told to `on_gap`; if the stream has let go of them behind the archive's end, it is an
    error unless `gaps` is "skip".
    """

    stream: str = ""
    natty: Natty | None = None
    follow: bool = False
    start_sequence: int = 1
    end_sequence: int | None = None
    since: datetime | float | str | None = None
    until: datetime | float | str | None = None
    subjects: Sequence[str] = ()
    keys: Keys | None = None
    public_keys: PublicKeys | None = None
    encrypted_only: bool = False
    durable: str = DURABLE
    gaps: Literal["raise", "skip"] = "raise"
    on_gap: Callable[[Sequences], None] | None = None

    def __post_init__(self) -> None:
        if self.follow and self.natty is None:
            raise ConfigError("to follow a stream takes a connection: give natty")
        if self.follow and self.until is not None:
            raise ConfigError("who follows a stream reads without end: give follow or until")
        if isinstance(self.subjects, str):
            raise ConfigError(f"subjects is a list of filters, not one text: [{self.subjects!r}]")


Where: TypeAlias = "str | Path | Store | CaptureConfig"
"""An archive: where its store is, the store, or the configuration."""
