"""Says for each server why it could not be reached."""

from __future__ import annotations

import errno
import socket
import ssl

from natty.config import tls
from natty.config.settings import Config, redact
from natty.errors import (
    AuthorizationError,
    ConfigError,
    ConnectError,
    NattyError,
    SessionEndedError,
    TLSClosedError,
    TLSError,
    TLSHandshakeError,
    TLSRequiredError,
)


def connect_error(failures: list[tuple[str, Exception]], config: Config) -> NattyError:
    """Return one error of the most telling kind, whose text names every server and what was wrong with it.

    ConfigError is about no server: a file of our own can't be used.
    """
    if ours := [error for _, error in failures if isinstance(error, ConfigError)]:
        return ConfigError(str(ours[0]))
    kinds: list[type[ConnectError]] = []
    texts = []
    for url, error in failures:
        kind, text = _reason(error, config)
        kinds.append(kind)
        texts.append(f"{redact(url)}: {text}")
    for kind in (AuthorizationError, TLSRequiredError, TLSHandshakeError, TLSClosedError):
        if kind in kinds:
            return kind("; ".join(texts))
    return ConnectError("no server could be reached. " + "; ".join(texts))


def _reason(error: Exception, config: Config) -> tuple[type[ConnectError], str]:
    if isinstance(error, TLSRequiredError):
        return TLSRequiredError, str(error)
    if isinstance(error, SessionEndedError):
        return ConnectError, str(error)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TLSClosedError, tls.explain(error)
    if isinstance(error, ssl.SSLError):
        return TLSHandshakeError, tls.explain(error, _describe_trust(config))
    if isinstance(error, TLSError):
        return TLSHandshakeError, str(error)
    if isinstance(error, AuthorizationError) and _refuses_login(str(error).lower()):
        return AuthorizationError, "it refused these credentials; check user, password, token, creds or nkey"
    if isinstance(error, TimeoutError):
        return ConnectError, str(error)  # `Session.open` says what did not end
    if isinstance(error, ConnectionResetError | BrokenPipeError) and config.tls_required:
        hint = "check that its CA signed it" if config.tls_cert else "it probably wants one: give tls_cert and tls_key"
        return (
            TLSClosedError,
            f"it closed the connection after the TLS handshake, without an answer to our client certificate; {hint}",
        )
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return ConnectError, "it closed the connection; it probably requires TLS: use tls:// and name its CA"
    if isinstance(error, socket.gaierror):
        return ConnectError, "the host name is not known; check its spelling"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return ConnectError, "nothing listens there; check the port, and that the server runs"
    return ConnectError, str(error) or type(error).__name__


def _describe_trust(config: Config) -> str:
    if config.ssl_context is not None:
        return "a CA that the given ssl_context trusts"
    return f"the CA in {config.tls_ca}" if config.tls_ca else tls.SYSTEM


def _refuses_login(said: str) -> bool:
    """Return whether the server's words say so: "authorization violation", "user authentication expired", …"""
    return "auth" in said and "timeout" not in said  # an overloaded server drops logins that it has not checked
