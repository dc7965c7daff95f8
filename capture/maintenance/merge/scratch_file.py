"""Temporary files that may hold messages; on request they are encrypted."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO, Any

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

KEY_BYTES = 32
BUFFER_BYTES = 64 << 10


class Temporary:
    """A file that is written once from its start, then read from its start.

    With `encrypted`, it is on the disk as AES-256 in counter mode (NIST SP 800-38A, 6.5). Its key is only in this
    object, so the file of a killed process can't be read. It has no tag, since the rows read from it are compared with
    the records of the inputs.
    """

    def __init__(self, path: Path, *, encrypted: bool) -> None:
        self.path, self.encrypted = path, encrypted
        self._cipher = Cipher(AES(os.urandom(KEY_BYTES)), CTR(bytes(AES.block_size // 8)))

    def __repr__(self) -> str:
        return f"Temporary({str(self.path)!r}, encrypted={self.encrypted})"

    def open_to_write(self) -> IO[bytes]:
        """Open it for writing. OSError."""
        file = self.path.open("wb", buffering=0)
        return io.BufferedWriter(_CipherFile(file, self._cipher.encryptor()) if self.encrypted else file, BUFFER_BYTES)

    def open_to_read(self) -> IO[bytes]:
        """Open it for reading, from its start to its end. OSError."""
        file = self.path.open("rb", buffering=0)
        return io.BufferedReader(_CipherFile(file, self._cipher.decryptor()) if self.encrypted else file, BUFFER_BYTES)


class _CipherFile(io.RawIOBase):
    """The plaintext of a file, in the one direction that it is opened for."""

    def __init__(self, file: io.FileIO, cipher: CipherContext) -> None:
        self._file, self._cipher = file, cipher

    def readable(self) -> bool:
        return self._file.readable()

    def writable(self) -> bool:
        return self._file.writable()

    def write(self, data: Any) -> int:
        left = memoryview(self._cipher.update(data))
        written = len(left)
        while left:
            left = left[self._file.write(left) :]
        return written

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        memoryview(buffer)[:count] = self._cipher.update(memoryview(buffer)[:count])
        return count

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()
