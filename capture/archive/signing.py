"""Signatures of an archive's documents (Ed25519, RFC 8032): write access to the store is not enough to forge them.

The signature is the last field of a document. The signed bytes are a line with the archive's name and the path,
followed by the document without that field. So a document at another path, or in another archive, is detected.
The archive's own README specifies each byte; `verification.audit` checks a whole archive.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from capture.archive.keyfile import check_keys, load_keys, parse_keys, read_key_file
from capture.errors import ConfigError, SignatureError

SIGNING_VARIABLE = "CAPTURE_SIGNING_KEYS"

# Base64 of 64 bytes has only one form: the last character carries two bits.
_SIGNED = re.compile(rb',"signature":(\{"key":"(?:[^"\\]|\\.)*","ed25519":"[A-Za-z0-9+/]{85}[AQgw]=="\})\}\Z')


class Signature(msgspec.Struct, frozen=True):
    """The name of the key, and its 64-byte signature of the document; base64 in JSON."""

    key: str
    ed25519: bytes


_decode_signature = msgspec.json.Decoder(Signature).decode


def split(data: bytes) -> tuple[bytes, Signature | None]:
    """Return a document without its signature, and the signature; None if it is not signed."""
    found = _SIGNED.search(data)
    if found is None:
        return data, None
    return data[: found.start()] + b"}", _decode_signature(found[1])


class PublicKeys:
    """The trusted public keys, by name."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        check_keys(keys)
        self._keys = {name: Ed25519PublicKey.from_public_bytes(key) for name, key in keys.items()}

    def __repr__(self) -> str:
        return f"PublicKeys({', '.join(self._keys)})"

    @classmethod
    def load(cls, key_file: str) -> PublicKeys:
        """Return the keys of a file with lines of `NAME:BASE64`, as `capture keys public` prints them. ConfigError."""
        return cls(parse_keys(read_key_file(key_file), key_file))

    def lines(self) -> dict[str, str]:
        """Return each key in base64, by name."""
        return {name: b64encode(key.public_bytes_raw()).decode() for name, key in self._keys.items()}

    def check(self, archive: str, path: str, data: bytes) -> None:
        """Raise SignatureError unless one of these keys has signed this document for this path in this archive."""
        document, signature = split(data)
        if signature is None:
            raise SignatureError(f"{path} is not signed")
        if signature.key not in self._keys:
            raise SignatureError(f"{path} is signed with the key {signature.key!r}; the trusted ones are {self!r}")
        try:
            self._keys[signature.key].verify(signature.ed25519, _message(archive, path, document))
        except InvalidSignature:
            raise SignatureError(
                f"{path} has a wrong signature: it was changed, moved there from another place, or signed with another"
                f" key that is called {signature.key!r}"
            ) from None


class SigningKeys:
    """Private keys by name. The first one signs; the public keys of all are trusted. So put a new key first."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        check_keys(keys)
        self._keys = {name: Ed25519PrivateKey.from_private_bytes(key) for name, key in keys.items()}
        self.public = PublicKeys({name: key.public_key().public_bytes_raw() for name, key in self._keys.items()})

    def __repr__(self) -> str:
        return f"SigningKeys({', '.join(self._keys)})"

    def __reduce__(self) -> str:
        raise TypeError("keys are read where they are used; they are never sent anywhere")

    @classmethod
    def load(cls, key_file: str = "", environment: Mapping[str, str] = os.environ) -> SigningKeys | None:
        """Return the keys of the file, or of the variable CAPTURE_SIGNING_KEYS; None if neither is given.

        They are lines of `NAME:BASE64` of 32 random bytes, as `capture keys new` prints them. ConfigError.
        """
        keys = load_keys(key_file, SIGNING_VARIABLE, environment)
        return None if keys is None else cls(keys)

    def sign(self, archive: str, path: str, data: bytes) -> bytes:
        """Return the document, a JSON object with at least one field, with the first key's signature as its last field.

        ValueError if it is already signed.
        """
        if split(data)[1] is not None:
            raise ValueError(f"{path} is signed already")
        name, key = next(iter(self._keys.items()))
        signature = msgspec.json.encode(Signature(name, key.sign(_message(archive, path, data))))
        return data[:-1] + b',"signature":' + signature + b"}"


@dataclass(frozen=True)
class Signer:
    """The keys with which the leader of one archive signs, and which it trusts."""

    archive: str
    keys: SigningKeys

    def sign(self, path: str, data: bytes) -> bytes:
        """Return the document, signed for this path."""
        return self.keys.sign(self.archive, path, data)

    def check(self, path: str, data: bytes) -> None:
        """Raise SignatureError unless one of our keys has signed it for this path."""
        self.keys.public.check(self.archive, path, data)


def vouch(signer: Signer | None, path: str, data: bytes, *, unsigned_too: bool) -> None:
    """Raise SignatureError unless a leader with this signer, or without one, may continue from this document.

    A signed document must be signed by one of the leader's own keys. `unsigned_too` also accepts a document without a
    signature, because something other than a signature vouches for it: that is how signing begins.
    """
    signature = split(data)[1]
    if signer is None:
        if signature is not None:
            raise SignatureError(
                f"{path} is signed with the key {signature.key!r}, and this node has no key to sign with: name the file"
                f" in signing_key_file, or set {SIGNING_VARIABLE}"
            )
    elif signature is not None or not unsigned_too:
        signer.check(path, data)


def load_signer(archive: str, key_file: str) -> Signer | None:
    """Return the signer for this archive; None if no key is given. ConfigError."""
    keys = SigningKeys.load(key_file)
    if keys is not None and not archive:
        raise ConfigError("an archive without a name can't be signed: give archive, or stream")
    return None if keys is None else Signer(archive, keys)


def _message(archive: str, path: str, document: bytes) -> bytes:
    return f"capture 1 {archive} {path}\n".encode() + document
