"""Every message of a stream, from its first one in the archive to the newest one in the stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from capture.errors import ConfigError
from natty import Natty

if TYPE_CHECKING:  # `import capture` needs nothing but natty
    import pyarrow as pa

    from capture.archive.encryption import Keys
    from capture.archive.sequences import Sequences
    from capture.archive.signing import PublicKeys
    from capture.config.settings import CaptureConfig
    from capture.ingest.record import Record
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


async def read(archive: Where, **options: Any) -> AsyncGenerator[Record[None], None]:
    """Yield every message of a stream, each exactly once, ascending by sequence; options as in `ReadOptions`.

    Blocks that wait for sweep and compaction, and table files are read alike, whatever becomes of them meanwhile.
    Without `natty` it ends with what is stored.

    FormatError and CipherError name an object that can't be read, or must not be believed, ManifestError and
    SignatureError a document; DataLossError: see
    `ReadOptions`. CaptureError if the stream is another one than was captured, or is made again while it is read.
    """
    from capture.reading.merge import EACH, messages_of

    async with aclosing(read_batches(archive, columns=EACH, **options)) as batches:
        async for batch in batches:
            for message in messages_of(batch):
                yield message


async def read_batches(
    archive: Where, *, columns: Sequence[str] = (), **options: Any
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the same as Arrow record batches with columns of the envelope, by default all: many times as fast."""
    from capture.reading.opening import batches_of

    wanted = ReadOptions(**options)
    async with aclosing(await batches_of(archive, wanted, columns)) as batches:
        async for batch in batches:
            yield batch
