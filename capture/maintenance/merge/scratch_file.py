"""A temporary file, in which messages lie that may be nobody's to read but ours."""

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

    `encrypted`, it lies on the disk as AES-256 in counter mode (NIST SP 800-38A, 6.5), with a key of its own that is
    nowhere but here: what a killed process leaves is noise to everybody. It bears no tag, as what is read from it is
    compared with the records of what was put in.
    """

    def __init__(self, path: Path, *, encrypted: bool) -> None:
        self.path, self.encrypted = path, encrypted
        self._cipher = Cipher(AES(os.urandom(KEY_BYTES)), CTR(bytes(AES.block_size // 8)))

    def __repr__(self) -> str:
        return f"Temporary({str(self.path)!r}, encrypted={self.encrypted})"

    def writing(self) -> IO[bytes]:
        """Open it to be written. OSError."""
        file = self.path.open("wb", buffering=0)
        return io.BufferedWriter(_Ciphered(file, self._cipher.encryptor()) if self.encrypted else file, BUFFER_BYTES)

    def reading(self) -> IO[bytes]:
        """Open it to be read, from its start to its end. OSError."""
        file = self.path.open("rb", buffering=0)
        return io.BufferedReader(_Ciphered(file, self._cipher.decryptor()) if self.encrypted else file, BUFFER_BYTES)


class _Ciphered(io.RawIOBase):
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
