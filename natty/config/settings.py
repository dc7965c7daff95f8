from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict
from urllib.parse import urlsplit

import msgspec

from natty.config.contexts import read_context, selected
from natty.config.units import parse_duration
from natty.errors import BadSubjectError, ConfigError
from natty.names import check_subject

DEFAULT_URL = "nats://127.0.0.1:4222"
CONNECT_TIMEOUT = 2.0  # seconds for one server: TCP, TLS, authentication
REQUEST_TIMEOUT = 5.0  # seconds for an answer
PING_INTERVAL = 5.0  # seconds between two looks at the link; two unanswered ones end it

_ENVIRONMENT = {
    "NATS_URL": "servers",
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_TOKEN": "token",
    "NATS_CREDS": "creds",
    "NATS_NKEY": "nkey",
    "NATS_CERT": "tls_cert",
    "NATS_KEY": "tls_key",
    "NATS_CA": "tls_ca",
    "NATS_TIMEOUT": "timeout",
    "NATS_CONNECT_TIMEOUT": "connect_timeout",
}


class ConnectionSettings(TypedDict, total=False):
    """The settings of a connection as keywords: the fields of `Config`, without the servers.

    What is not given comes from the environment, then from a context of the `nats` tool; see `resolve`.
    """

    name: str
    """Name of this client in the server's lists. Default "natty"."""
    user: str
    """User name. Default ""."""
    password: str
    """Password of the user. Default ""."""
    token: str
    """Token. Default ""."""
    creds: str
    """Path of a credentials file (JWT and seed). Default ""."""
    nkey: str
    """Path of a file with the seed of an nkey. Default ""."""
    tls: bool | None
    """Whether to use TLS. Default None: if a URL is tls://, or one of the PEM files below is named."""
    tls_ca: str
    """Path of the CA that the server's certificate is verified with, PEM. Default "": the system's CAs."""
    tls_cert: str
    """Path of the client's certificate, PEM. Default ""."""
    tls_key: str
    """Path of the client certificate's private key, PEM. Default ""."""
    tls_first: bool
    """Begin TLS before the server's INFO is read (`handshake_first` on the server). Default False."""
    tls_hostname: str
    """Host name that the server's certificate must have. Default "": that of the URL."""
    connect_timeout: float | str
    """Seconds, or text ("500ms"), for TCP, TLS and authentication with one server. Default 2.0."""
    timeout: float | str
    """Seconds, or text ("1m"), that the server has to answer a request. Default 5.0."""
    ping_interval: float | str
    """Seconds, or text, between two pings; a session with two unanswered ones ends. Default 5.0."""
    inbox_prefix: str
    """Subject prefix of the answers to this client. Default "_INBOX"."""
    ignore_discovered_servers: bool
    """Connect to the named servers only: behind a NAT or a proxy. Default False."""
    domain: str
    """JetStream domain. Default ""."""
    api_prefix: str
    """Subject prefix of JetStream's API. Default "": `$JS.API`, or that of the domain."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """How to reach and talk to the servers. Seconds are floats; `ConnectionSettings` describes each field."""

    servers: tuple[str, ...] = (DEFAULT_URL,)
    name: str = "natty"
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = ""
    nkey: str = ""
    tls: bool | None = None
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_first: bool = False
    tls_hostname: str = ""
    connect_timeout: float = CONNECT_TIMEOUT
    timeout: float = REQUEST_TIMEOUT
    ping_interval: float = PING_INTERVAL
    inbox_prefix: str = "_INBOX"
    ignore_discovered_servers: bool = False
    domain: str = ""
    api_prefix: str = ""

    def __post_init__(self) -> None:
        for url in self.servers:
            _check_url(url)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError(
                "a client certificate needs its key, and a key its certificate: give both tls_cert and tls_key"
            )
        if self.tls is False and (self.wants_tls_files or any(url.startswith("tls://") for url in self.servers)):
            raise ConfigError("tls=False and a tls:// URL or certificates contradict each other: drop one of them")
        for name in ("inbox_prefix", "domain", "api_prefix"):
            _check_prefix(name, getattr(self, name), needed=name == "inbox_prefix")

    def __repr__(self) -> str:
        urls = ", ".join(redact(url) for url in self.servers)
        return f"Config({urls}{', TLS required' if self.tls_required else ''})"

    @property
    def wants_tls_files(self) -> bool:
        """Whether a certificate, a key or a CA is named."""
        return bool(self.tls_ca or self.tls_cert or self.tls_key)

    @property
    def tls_required(self) -> bool:
        """Whether nothing may be sent before TLS is up."""
        if self.tls is not None:
            return self.tls
        return self.tls_first or self.wants_tls_files or any(url.startswith("tls://") for url in self.servers)


def resolve(
    explicit: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    context: str | None = None,
) -> Config:
    """Return the configuration: keyword or flag, then environment, then nats context file, then default.

    `context` names a context of the `nats` tool, or is its path. None takes one only where no server is named more
    explicitly: without `servers`, the one of `NATS_CONTEXT`; without `NATS_URL` too, the selected one. Credentials of a
    context are for its own servers.
    ConfigError on an unknown name, a broken context file, a setting of it that natty can't honour, or a value of the
    wrong kind.
    """
    given = {name: value for name, value in (explicit or {}).items() if value is not None}
    known = {f.name for f in dataclasses.fields(Config)}
    if unknown := sorted(set(given) - known):
        raise ConfigError(f"unknown setting {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    context = context or _context_of(given, environment)
    values = read_context(context, environment) if context else {}
    values |= {setting: environment[name] for name, setting in _ENVIRONMENT.items() if environment.get(name)}
    values |= given
    if "servers" in values:
        values["servers"] = _urls(values["servers"])
    for name in ("timeout", "connect_timeout", "ping_interval"):
        if isinstance(values.get(name), str):
            values[name] = _seconds(name, values[name])
    for name in ("creds", "nkey", "tls_ca", "tls_cert", "tls_key"):
        if name in values:
            values[name] = os.path.expanduser(str(values[name]))  # noqa: PTH111 - strings in, strings out
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the connection's settings: {error}") from error


def _context_of(given: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the context that counts where none is named; "" if a server is named more explicitly than a context."""
    if "servers" in given:
        return ""
    return environment.get("NATS_CONTEXT") or ("" if environment.get("NATS_URL") else selected(environment))


def _check_url(url: str) -> None:
    """ConfigError if it is no URL of a server."""
    if "://" not in url:
        return
    if not re.match("(nats|tls)://", url):
        raise ConfigError(f"{redact(url)}: only nats:// and tls:// are spoken; take the server's client port")
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # what the port, or an address in brackets, is
        named = False
    if not named:
        raise ConfigError(f"{redact(url)} names no host and port; write tls://nats.example.com:4222")


def _check_prefix(name: str, prefix: str, *, needed: bool) -> None:
    """ConfigError if no subject can begin so: the server would end each session at the first one."""
    try:
        if prefix or needed:
            check_subject(prefix)
    except BadSubjectError as error:
        raise ConfigError(f"{name} can't be the beginning of a subject: {error}") from error


def redact(url: str) -> str:
    """Return a URL without its user information."""
    scheme, slashes, rest = url.partition("//")
    _, at, host = rest.rpartition("@")
    return f"{scheme}//***@{host}" if slashes and at else url


def beside(url: str, address: str) -> str:
    """Return the URL of another server of the same cluster: the same scheme and user information."""
    scheme, _, rest = url.partition("://")
    login, at, _ = rest.rpartition("@")
    return f"{scheme}://{login}{at}{address}"


def _urls(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"servers is {value!r}; write URLs, a list of them or one text with commas")
    urls = tuple(text.strip() if "://" in text else f"nats://{text.strip()}" for text in texts if text.strip())
    if not urls:
        raise ConfigError("no server URL was given; name one, for instance tls://nats.example.com:4222")
    return urls


def _seconds(name: str, text: str) -> float:
    try:
        return parse_duration(text.strip())
    except ValueError:
        variable = f" (NATS_{name.upper()})" if f"NATS_{name.upper()}" in _ENVIRONMENT else ""
        raise ConfigError(f"{name}{variable} is {text!r}, which is not a duration; write 5s, 500ms or 5") from None
