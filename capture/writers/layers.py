"""A format, what compresses it and what encrypts it, as one: what blocks are written with, and read back."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import IO

import pyarrow as pa

from capture.block import SealedBlock
from capture.cipher import ENDING, Keys
from capture.errors import KeyMissingError
from capture.manifest import Stored
from capture.writers.codecs import Codec
from capture.writers.contract import Format, Positions


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
        self.unfit = plain.unfit
        """How many values did not fit their column, by column."""

    def __repr__(self) -> str:
        return f"BlockWriter({self.format!r})"

    @property
    def suffix(self) -> str:
        """The end of an object's name: ".ndjson.zst.enc" says what is inside of what."""
        return f".{self.format}"

    @property
    def restorable(self) -> bool:
        """Whether the format keeps all that a restore needs."""
        return self._plain.restorable

    @property
    def is_plain(self) -> bool:
        """Whether an object is the format's bytes and nothing around them."""
        return not (self._encrypts or self._codec)

    def write(self, block: SealedBlock) -> bytes:
        """Return the object's bytes. Encrypted ones differ each time."""
        data = self._plain.write(block)
        if self._codec:
            data = self._codec.compress(data)
        return self._keys.encrypt(data, block) if self._encrypts and self._keys else data

    def read(self, data: bytes, described: SealedBlock | Stored) -> pa.Table:
        """Return the rows of an object that holds what is described: the envelope's columns, then the typed ones.

        CipherError; else whatever the format raises on bytes that it can't read.
        """
        return self._plain.read(self.opened(data, described))

    def parts(self, data: bytes, described: SealedBlock | Stored, part_bytes: int) -> Iterator[pa.Table]:
        """Yield what `read` returns, some rows at a time: about so many bytes. Raises as it does."""
        yield from self._plain.parts(self.opened(data, described), part_bytes)

    def positions(self, file: IO[bytes], described: SealedBlock | Stored) -> Positions:
        """Yield the sequence and the time of each message; cheaper than `read`, and raises the same.

        A plain object is read from the file as its format likes; of another one the whole is in memory.
        """
        if not self.is_plain:
            file = BytesIO(self.opened(file.read(), described))
        yield from self._plain.positions(file)

    def opened(self, data: bytes, described: SealedBlock | Stored) -> bytes:
        """Return the format's bytes out of an object's: decrypted, decompressed. CipherError."""
        if self._encrypts:
            if self._keys is None:
                raise KeyMissingError("it is encrypted, and there are no keys: name key_file, or set CAPTURE_KEYS")
            data = self._keys.decrypt(data, described)
        return self._codec.decompress(data) if self._codec else data
