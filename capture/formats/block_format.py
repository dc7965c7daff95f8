"""Combines a format with a compression and an encryption, to write blocks and to read them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import IO, Any, cast

import pyarrow as pa

from capture.archive.encryption import ENDING, Keys
from capture.archive.manifest import Stored
from capture.archive.stored_formats import format_of
from capture.errors import KeyMissingError
from capture.formats.codecs import Codec, Limited, largest_plain
from capture.formats.contract import Format, Positions
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Written
from capture.ingest.keys import UNDECODABLE
from capture.ingest.record import Records


class BlockWriter:
    """Writes sealed blocks: format, then compression, then encryption with `keys`, if there are any.

    Blocks of undecodable messages get the format `whole`, which keeps messages whole; without it, `plain` does.
    """

    def __init__(
        self,
        plain: Format,
        codec: Codec | None = None,
        keys: Keys | None = None,
        *,
        whole: Format | None = None,
        retain: Callable[[Records[Any]], None] | None = None,
    ) -> None:
        self._plain, self._whole, self._codec, self._keys = plain, whole or plain, codec, keys
        self._layers = "".join([f".{codec.ending}" if codec else "", f".{ENDING}" if keys else ""])
        self.format = plain.format + self._layers
        """The layers, from the inside out: "ndjson.zst.enc"."""
        self.unfit = self._whole.unfit
        """Number of values that did not fit their column, by column."""
        self.retain = retain

    def __repr__(self) -> str:
        return f"BlockWriter({self.format!r})"

    def write(self, block: SealedBlock) -> bytes:
        """Return the object's bytes. Encrypted ones differ each time."""
        return self.write_sized(block).data

    def write_sized(self, block: SealedBlock) -> Written:
        """Return the object of a block. Raises the errors of the format."""
        inside = self._whole if block.key == UNDECODABLE else self._plain
        plain = inside.write(block)
        data = self._codec.compress(plain) if self._codec else plain
        data = self._keys.encrypt(data, block) if self._keys else data
        return Written(data, inside.format + self._layers, len(plain))


class BlockReader:
    """Reads objects of a `format`, the layers of which `BlockWriter` describes. Encrypted ones need `keys`."""

    def __init__(self, format: str, plain: Format, codec: Codec | None, keys: Keys | None) -> None:
        self.format = format
        self._plain, self._codec, self._keys = plain, codec, keys

    def __repr__(self) -> str:
        return f"BlockReader({self.format!r})"

    @property
    def restorable(self) -> bool:
        """Whether the format keeps all that a restore needs."""
        return format_of(self.format).restorable

    @property
    def identifies(self) -> bool:
        """Whether the rows contain sequence and time of their messages, so that `positions` can read them."""
        return format_of(self.format).identifies

    def read(self, data: bytes, described: SealedBlock | Stored) -> pa.Table:
        """Return the rows of an object that `described` describes: the envelope's columns, then the typed ones.

        CipherError, or any error of the format about unreadable bytes.
        """
        return self._plain.read(self.open(BytesIO(data), described).read())

    def parts(self, file: IO[bytes], described: SealedBlock | Stored, part_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows of `read`, in parts of about `part_bytes`. Raises the same errors."""
        yield from self._plain.parts(self.open(file, described), part_bytes)

    def positions(self, file: IO[bytes], described: SealedBlock | Stored) -> Positions:
        """Yield the sequence and the time of each message; cheaper than `read`, and raises the same errors.

        The file is read piece by piece; CSV is held in memory as a whole.
        """
        yield from self._plain.positions(self.open(file, described))

    def open(self, file: IO[bytes], described: SealedBlock | Stored) -> IO[bytes]:
        """Return the format's bytes from an object's file; they are decrypted and decompressed while they are read.

        Without compression the result is seekable, as Parquet needs it. CipherError. A read raises the compression's
        errors, and FormatError if there are more bytes inside than the record or `largest_plain` allows.
        """
        if self.format.endswith(f".{ENDING}"):
            if self._keys is None:
                raise KeyMissingError("it is encrypted, and there are no keys: name key_file, or set CAPTURE_KEYS")
            file = cast("IO[bytes]", self._keys.decrypt_file(file, described))
        if self._codec is None:
            return file
        return cast("IO[bytes]", Limited(self._codec.open(file), largest_plain(described)))
