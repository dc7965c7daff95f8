"""Encryption at rest on our side: whoever owns the store can't read the blocks.

Each object is encrypted by AES-256-GCM with a random key of its own; that key, wrapped by an envelope key (AES Key
Wrap, RFC 3394), lies in the object's header with the envelope key's name. The header says what the object holds and is
authenticated with it: an object that lies in another's place is noticed. docs/formats.md has it byte for byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from capture.errors import CipherError, KeyMissingError
from capture.keyfile import KEY_BYTES, check_keys, load_keys, parse_keys

MAGIC = b"CAPENC1\n"
ENDING = "enc"
NONCE_BYTES = 12
VARIABLE = "CAPTURE_KEYS"
LENGTH = struct.Struct(">I")


class Facts(msgspec.Struct, frozen=True):
    """Which object it is: authenticated, and compared with what the archive says of it."""

    stream: str
    key: str
    interval: int
    first: int
    last: int
    count: int

    @classmethod
    def of(cls, described: object) -> Facts:
        """Return the facts of what has such attributes: a sealed block, an entry."""
        return cls(*(getattr(described, name) for name in cls.__struct_fields__))

    def __str__(self) -> str:
        return f"{self.stream} {self.first}–{self.last}, key {self.key!r}"


class Header(msgspec.Struct, frozen=True):
    """What an encrypted object begins with, as JSON; bytes in base64."""

    key_id: str
    wrapped_key: bytes
    nonce: bytes
    holds: Facts


class Keys:
    """Envelope keys by their names. The first encrypts; each decrypts, so a new one is put before the others."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        check_keys(keys)
        self._keys = dict(keys)

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)})"

    def __reduce__(self) -> str:
        raise TypeError("keys are read where they are used; they are never sent anywhere")

    @classmethod
    def parse(cls, text: str, where: str) -> Keys:
        """Return the keys of a text of `NAME:BASE64`, a line or a word each; "#" begins a comment.

        ConfigError names `where` the text is from, and never quotes it.
        """
        return cls(parse_keys(text, where))

    @classmethod
    def load(cls, key_file: str = "", environment: Mapping[str, str] = os.environ) -> Keys | None:
        """Return the keys of the file, else of the variable CAPTURE_KEYS; None if neither is given. ConfigError."""
        keys = load_keys(key_file, VARIABLE, environment)
        return None if keys is None else cls(keys)

    def encrypt(self, data: bytes, described: object) -> bytes:
        """Return the encrypted object that holds `data`. Every call gives other bytes."""
        name, envelope_key = next(iter(self._keys.items()))
        key, nonce = AESGCM.generate_key(8 * KEY_BYTES), os.urandom(NONCE_BYTES)
        header = msgspec.json.encode(Header(name, aes_key_wrap(envelope_key, key), nonce, Facts.of(described)))
        begin = MAGIC + LENGTH.pack(len(header)) + header
        return begin + AESGCM(key).encrypt(nonce, data, begin)

    def decrypt(self, data: bytes, described: object) -> bytes:
        """Return what was encrypted. CipherError: no such key, a wrong one, a changed object, or another one's."""
        header, begins = read_header(data)
        if header.key_id not in self._keys:
            raise KeyMissingError(f"it is encrypted with the key {header.key_id!r}; the given ones are {self!r}")
        try:
            key = aes_key_unwrap(self._keys[header.key_id], header.wrapped_key)
        except (InvalidUnwrap, ValueError) as error:
            text = f"the given key {header.key_id!r} is not the one that it was encrypted with"
            raise KeyMissingError(text) from error
        try:
            plain = AESGCM(key).decrypt(header.nonce, memoryview(data)[begins:], data[:begins])
        except (InvalidTag, ValueError) as error:
            raise CipherError("it was changed or cut off after it was encrypted") from error
        if header.holds != Facts.of(described):
            raise CipherError(f"it is another object, {header.holds}, put in the place of {Facts.of(described)}")
        return plain


def read_header(data: bytes) -> tuple[Header, int]:
    """Return the header of an encrypted object, and where its ciphertext begins. CipherError if it is none."""
    begins = len(MAGIC) + LENGTH.size
    if not data.startswith(MAGIC) or len(data) < begins:
        raise CipherError("it is no encrypted object, or one of a newer format than this version reads")
    (length,) = LENGTH.unpack_from(data, len(MAGIC))
    try:
        return msgspec.json.decode(data[begins : begins + length], type=Header), begins + length
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CipherError("its header is damaged") from error
