"""A format, what compresses it and what encrypts it, as one: what blocks are written with, and read back."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import IO, cast

import pyarrow as pa

from capture.archive.encryption import ENDING, Keys
from capture.archive.manifest import Stored
from capture.archive.stored_formats import format_of
from capture.errors import KeyMissingError
from capture.formats.codecs import Codec, Limited, largest_plain
from capture.formats.contract import Format, Positions
from capture.ingest.block import SealedBlock


class BlockWriter:
    """Writes sealed blocks, and reads objects: format, then compression, then encryption.

    With `keys` an object is encrypted if `encrypts` says so; reading needs them for encrypted objects.
    """

    def __init__(
        self, plain: Format, codec: Codec | None = None, *, keys: Keys | None = None, encrypts: bool = False
    ) -> None:
        self._plain = plain
        self._codec = codec
        self._keys = keys
        self._encrypts = encrypts
        endings = [plain.format, *([codec.ending] if codec else []), *([ENDING] if encrypts else [])]
        self.format = ".".join(endings)
        """What is inside of what: "ndjson.zst.enc"."""
        self.unfit = plain.unfit
        """How many values did not fit their column, by column."""

    def __repr__(self) -> str:
        return f"BlockWriter({self.format!r})"

    @property
    def restorable(self) -> bool:
        """Whether the format keeps all that a restore needs."""
        return format_of(self.format).restorable

    def write(self, block: SealedBlock) -> bytes:
        """Return the object's bytes. Encrypted ones differ each time."""
        return self.sized(block)[0]

    def sized(self, block: SealedBlock) -> tuple[bytes, int]:
        """Return the object's bytes, and the size of what is compressed and encrypted in them."""
        plain = self._plain.write(block)
        data = self._codec.compress(plain) if self._codec else plain
        return (self._keys.encrypt(data, block) if self._encrypts and self._keys else data), len(plain)

    def read(self, data: bytes, described: SealedBlock | Stored) -> pa.Table:
        """Return the rows of an object that holds what is described: the envelope's columns, then the typed ones.

        CipherError; else whatever the format raises on bytes that it can't read.
        """
        return self._plain.read(self.opened(BytesIO(data), described).read())

    def parts(self, file: IO[bytes], described: SealedBlock | Stored, part_bytes: int) -> Iterator[pa.Table]:
        """Yield what `read` returns, some rows at a time: about so many bytes. Raises as it does."""
        yield from self._plain.parts(self.opened(file, described), part_bytes)

    def positions(self, file: IO[bytes], described: SealedBlock | Stored) -> Positions:
        """Yield the sequence and the time of each message; cheaper than `read`, and raises the same.

        The file is read piece by piece; of CSV the whole is in memory.
        """
        yield from self._plain.positions(self.opened(file, described))

    def opened(self, file: IO[bytes], described: SealedBlock | Stored) -> IO[bytes]:
        """Return the format's bytes out of an object's file: decrypted and decompressed while they are read.

        What is not compressed can be moved in, as Parquet needs it. CipherError; a compression's error comes at a read,
        and FormatError where there is more inside than the record says, or than `largest_plain` allows.
        """
        if self._encrypts:
            if self._keys is None:
                raise KeyMissingError("it is encrypted, and there are no keys: name key_file, or set CAPTURE_KEYS")
            file = cast("IO[bytes]", self._keys.opened(file, described))
        if self._codec is None:
            return file
        return cast("IO[bytes]", Limited(self._codec.opened(file), largest_plain(described)))
