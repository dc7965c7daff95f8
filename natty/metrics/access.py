"""Access to the pages that a process serves about itself: tokens, host names and the server's certificate.

These rules apply to every HTTP server of natty and of capture.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from natty.config.secret_files import check_key_file
from natty.errors import ConfigError

logger = logging.getLogger("natty.access")

SHORTEST_TOKEN = 16
"""Characters of a token: a shorter one could be guessed."""


class Tokens:
    """The tokens that give access: a client must present one of them. ConfigError if one is too short."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [token.encode() for token in tokens]
        if any(len(token) < SHORTEST_TOKEN for token in self._tokens):
            raise ConfigError(f"a token needs at least {SHORTEST_TOKEN} characters: shorter ones can be guessed")

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"Tokens({len(self)})"

    def admit(self, authorization: str, *, basic: bool = False) -> bool:
        """Return whether this `Authorization` header has one: as a bearer token or, with `basic`, as a password.

        `authorization` is the header decoded as UTF-8, with other bytes as surrogates. Never raises.
        """
        scheme, _, shown = authorization.partition(" ")
        given = shown.strip().encode("utf-8", "surrogateescape")
        if basic and scheme.lower() == "basic":
            try:
                given = b64decode(given, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        found = [hmac.compare_digest(given, token) for token in self._tokens]
        return any(found)


@dataclass(frozen=True)
class Hosts:
    """The names under which a server answers. It refuses other names that lead to a loopback address (DNS rebinding).

    An IP address is not a name: DNS can't redirect it.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, host: str, names: Iterable[str], *, has_tokens: bool) -> Hosts | None:
        """Return the names of a server at this address; None if it answers to every name.

        It does if a token protects it or if its address is public, unless `names` are given.
        """
        given = [name.casefold() for name in names]
        if not given and (has_tokens or not is_loopback(host)):
            return None
        return cls(frozenset({"localhost", host.casefold(), *given}))

    def admit(self, header: str) -> bool:
        """Return whether this `Host` header names the server, or is missing (""): every browser sends one."""
        name = header.strip().casefold()
        if not name:
            return True
        name = name[: name.rindex(":")] if ":" in name and not name.endswith("]") else name
        bare = name.removeprefix("[").removesuffix("]").rstrip(".")
        return bare in self.names or _is_address(bare)


REFUSED_HOST = "this server does not answer to that name: give --allow-host NAME if the name is right"


class Certificate:
    """A server's certificate chain and its key, PEM files; `refresh` reads them again after a change.

    ConfigError if they can't be used, or if others may read the key.
    """

    def __init__(self, cert: str | Path, key: str | Path) -> None:
        self._files = Path(cert), Path(key)
        check_key_file(key)
        self.context = self._read()
        self._stamp = self._read_stamp()

    def __repr__(self) -> str:
        return f"Certificate({self._files[0]})"

    def refresh(self) -> None:
        """Read the files again if they have changed: call it before each handshake.

        While certificate and key don't match or can't be used, keeps the old certificate and logs a warning.
        """
        stamp = self._read_stamp()
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._read()  # check the whole before using any part
            self.context.load_cert_chain(*self._files)
        except (ConfigError, OSError) as error:
            logger.warning("the server keeps its old certificate: %s", error, extra={"action": "certificate"})
        else:
            logger.info(
                "the server now uses the changed certificate %s", self._files[0], extra={"action": "certificate"}
            )

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...] | None:
        try:
            facts = [file.stat() for file in self._files]
        except OSError:
            return None  # the file is being replaced
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in facts)

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(*self._files, password=lambda: "")  # never ask for a password on the terminal
        except (OSError, ssl.SSLError) as error:
            cert, key = self._files
            raise ConfigError(f"{cert} and {key} are not a certificate and its key: {error}") from error
        return context


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def warn_if_open(what: str, host: str, *, has_tokens: bool) -> None:
    """Log a warning if every client that can reach the address gets an answer."""
    if not has_tokens and not is_loopback(host):
        logger.warning(
            "%s on %s answers every client that can reach it: give a token file", what, host or "every address",
            extra={"action": "open_to_all"},
        )  # fmt: skip


def _is_address(name: str) -> bool:
    """Return whether it is an IP address without a zone; `Host` headers have no zone."""
    if "%" in name or "@" in name:
        return False
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
