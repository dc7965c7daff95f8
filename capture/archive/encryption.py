"""Client-side encryption at rest: the owner of the store can't read the blocks.

Each object is encrypted by AES-256-GCM with its own random key. An envelope key wraps that key (AES Key Wrap, RFC
3394); the object's header holds the wrapped key and the envelope key's name. The header also says what the object holds
and is authenticated with it, so an object in the place of another is detected. docs/formats.md specifies each byte.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Mapping
from typing import IO

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from capture.archive.keyfile import KEY_BYTES, check_keys, load_keys, parse_keys
from capture.errors import CipherError, KeyMissingError
from capture.stores.stored_file import Positioned
from natty.errors import UNREADABLE

MAGIC = b"CAPENC1\n"
ENDING = "enc"
NONCE_BYTES = 12
TAG_BYTES = 16
CHUNK_BYTES = 1 << 20
"""How much of a file is in memory at a time while it is encrypted or its tag is checked."""
HEADER_BYTES = 1 << 20  # the limit: names, and what the object holds
VARIABLE = "CAPTURE_KEYS"
LENGTH = struct.Struct(">I")
FIRST_COUNTER = 2
CHANGED = "it was changed or cut off after it was encrypted"


class Facts(msgspec.Struct, frozen=True):
    """Which object it is: authenticated, and compared with the archive's record of it."""

    stream: str
    key: str
    interval: int
    first: int
    last: int
    count: int

    @classmethod
    def of(cls, described: object) -> Facts:
        """Return the facts of an object with these attributes: a sealed block, an entry."""
        return cls(*(getattr(described, name) for name in cls.__struct_fields__))

    def __str__(self) -> str:
        return f"{self.stream} {self.first}–{self.last}, key {self.key!r}"


class Header(msgspec.Struct, frozen=True):
    """The header of an encrypted object, as JSON; bytes in base64."""

    key_id: str
    wrapped_key: bytes
    nonce: bytes
    holds: Facts


_decode_header = msgspec.json.Decoder(Header).decode


class Keys:
    """Envelope keys by name. The first one encrypts; every one decrypts. So put a new key first."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        check_keys(keys)
        self._keys = dict(keys)

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)})"

    def __reduce__(self) -> str:
        raise TypeError("keys are read where they are used; they are never sent anywhere")

    @classmethod
    def parse(cls, text: str, where: str) -> Keys:
        """Return the keys in a text of `NAME:BASE64`, one for each line or word; "#" starts a comment.

        ConfigError names `where` the text is from, and never quotes it.
        """
        return cls(parse_keys(text, where))

    @classmethod
    def load(cls, key_file: str = "", environment: Mapping[str, str] = os.environ) -> Keys | None:
        """Return the keys of the file, or of the variable CAPTURE_KEYS; None if neither is given. ConfigError."""
        keys = load_keys(key_file, VARIABLE, environment)
        return None if keys is None else cls(keys)

    def encrypt(self, data: bytes, described: object) -> bytes:
        """Return the encrypted object that holds `data`. Every call returns different bytes."""
        begin, key, nonce = self._new_header(described)
        return begin + AESGCM(key).encrypt(nonce, data, begin)

    def encrypt_file(self, plain: IO[bytes], file: IO[bytes], described: object) -> None:
        """Write the encrypted object that holds the content of `plain`, CHUNK_BYTES at a time."""
        begin, key, nonce = self._new_header(described)
        encryptor = Cipher(AES(key), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(begin)
        file.write(begin)
        while data := plain.read(CHUNK_BYTES):
            file.write(encryptor.update(data))
        file.write(encryptor.finalize() + encryptor.tag)

    def decrypt(self, data: bytes, described: object) -> bytes:
        """Return the plaintext. CipherError: the key is missing or wrong, or the object was changed or swapped."""
        header, begins = read_header(data)
        key = self._unwrap(header)
        try:
            plain = AESGCM(key).decrypt(header.nonce, memoryview(data)[begins:], data[:begins])
        except (InvalidTag, ValueError) as error:
            raise CipherError(CHANGED) from error
        _check_place(header, described)
        return plain

    def decrypt_file(self, file: IO[bytes], described: object) -> Plaintext:
        """Return the plaintext as a file; the object's own file stays open, and the result uses it.

        Reads the whole object once to check its tag. So the result is what was encrypted, unless the object's file is
        changed meanwhile. Raises as `decrypt` does.
        """
        begin = _begin(file)
        header, begins = read_header(begin)
        plain = Plaintext(file, self._unwrap(header), header.nonce, begins)
        plain.check(begin)
        _check_place(header, described)
        return plain

    def _new_header(self, described: object) -> tuple[bytes, bytes, bytes]:
        """Return the first bytes of a new object, its key and its nonce."""
        name, envelope_key = next(iter(self._keys.items()))
        key, nonce = AESGCM.generate_key(8 * KEY_BYTES), os.urandom(NONCE_BYTES)
        header = msgspec.json.encode(Header(name, aes_key_wrap(envelope_key, key), nonce, Facts.of(described)))
        return MAGIC + LENGTH.pack(len(header)) + header, key, nonce

    def _unwrap(self, header: Header) -> bytes:
        if header.key_id not in self._keys:
            raise KeyMissingError(f"it is encrypted with the key {header.key_id!r}; the given ones are {self!r}")
        try:
            return aes_key_unwrap(self._keys[header.key_id], header.wrapped_key)
        except (InvalidUnwrap, ValueError) as error:
            text = f"the given key {header.key_id!r} is not the one that it was encrypted with"
            raise KeyMissingError(text) from error


class Plaintext(Positioned):
    """The plaintext of an encrypted object's file: each read decrypts only the requested bytes, at any position.

    NIST SP 800-38D, 7.1: GCM encrypts in counter mode. With a nonce of 96 bits the counter of a block of 16 bytes is
    the nonce and a number of 32 bits, which is 1 for the tag and 2 for the first block (7.1, steps 2 and 3).
    """

    def __init__(self, file: IO[bytes], key: bytes, nonce: bytes, begins: int) -> None:
        super().__init__(file.seek(0, io.SEEK_END) - TAG_BYTES - begins)
        self._file, self._key, self._nonce, self._begins = file, key, nonce, begins

    def __repr__(self) -> str:
        return f"Plaintext(at {self._at:,} of {self._size:,} bytes)"

    def check(self, begin: bytes) -> None:
        """Check the tag of the ciphertext and of the bytes before it. CipherError if it is wrong."""
        if self._size < 0:
            raise CipherError(CHANGED)
        decryptor = Cipher(AES(self._key), GCM(self._nonce)).decryptor()
        decryptor.authenticate_additional_data(begin)
        self._file.seek(self._begins)
        for start in range(0, self._size, CHUNK_BYTES):
            decryptor.update(self._file.read(min(CHUNK_BYTES, self._size - start)))
        try:
            decryptor.finalize_with_tag(self._file.read(TAG_BYTES))
        except InvalidTag as error:
            raise CipherError(CHANGED) from error

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, or all remaining ones; fewer only at the end."""
        left = max(0, self._size - self._at)
        wanted = left if size < 0 else min(size, left)
        block, before = divmod(self._at, AES.block_size // 8)
        counter = self._nonce + (FIRST_COUNTER + block).to_bytes(4, "big")
        decryptor = Cipher(AES(self._key), CTR(counter)).decryptor()
        decryptor.update(bytes(before))
        self._file.seek(self._begins + self._at)
        data = decryptor.update(self._file.read(wanted))
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """Return all remaining bytes."""
        return self.read()


def _begin(file: IO[bytes]) -> bytes:
    """Return the bytes before the ciphertext, as far as they exist."""
    file.seek(0)
    begin = file.read(len(MAGIC) + LENGTH.size)
    if begin.startswith(MAGIC) and len(begin) == len(MAGIC) + LENGTH.size:
        (length,) = LENGTH.unpack_from(begin, len(MAGIC))
        if length > HEADER_BYTES:
            raise CipherError(f"its header is damaged: it has {length:,} bytes")
        begin += file.read(length)
    return begin


def _check_place(header: Header, described: object) -> None:
    if header.holds != Facts.of(described):
        raise CipherError(f"it is another object, {header.holds}, in the place of {Facts.of(described)}")


def read_header(data: bytes) -> tuple[Header, int]:
    """Return the header of an encrypted object, and where its ciphertext begins. CipherError for other data."""
    begins = len(MAGIC) + LENGTH.size
    if not data.startswith(MAGIC) or len(data) < begins:
        raise CipherError("it is not an encrypted object, or it has a newer format than this version reads")
    (length,) = LENGTH.unpack_from(data, len(MAGIC))
    try:
        header = _decode_header(data[begins : begins + length])
    except UNREADABLE as error:
        raise CipherError("its header is damaged") from error
    if len(header.nonce) != NONCE_BYTES:
        raise CipherError(f"its header is damaged: the nonce has {len(header.nonce)} bytes, not {NONCE_BYTES}")
    return header, begins + length
