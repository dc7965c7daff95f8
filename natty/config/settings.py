"""The settings of a connection: keywords, environment variables and contexts of the `nats` tool."""

from __future__ import annotations

import dataclasses
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict
from urllib.parse import urlsplit

import msgspec

from natty.config.contexts import find_selected, read_context
from natty.config.units import parse_duration
from natty.errors import BadSubjectError, ConfigError
from natty.names import check_subject

DEFAULT_URL = "nats://127.0.0.1:4222"
CONNECT_TIMEOUT = 2.0  # seconds for one server: TCP, TLS, authentication
REQUEST_TIMEOUT = 5.0  # seconds for an answer
PING_INTERVAL = 5.0  # seconds between two pings; two unanswered ones end the session

TextCallback = Callable[[], str | Awaitable[str]]
"""Returns a token or a JWT; `def` or `async def`. Called before each connection, on the event loop that opens it."""

SignCallback = Callable[[bytes], bytes | Awaitable[bytes]]
"""Returns the Ed25519 signature, 64 bytes, of a server's nonce; `def` or `async def`. Called at each connection."""

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

    Missing settings come from the environment, then from a context of the `nats` tool; see `resolve`.
    """

    name: str
    """Name of this client in the server's lists. Default "natty"."""
    user: str
    """User name. Default ""."""
    password: str
    """Password of the user. Default ""."""
    token: str | TextCallback
    """Token, or a function that returns it, called before each connection. Default ""."""
    user_jwt: TextCallback | None
    """Function that returns the user's JWT, called before each connection. Default None."""
    sign_nonce: SignCallback | None
    """Function that signs the server's nonce with the seed of `user_jwt`; a bearer JWT needs none. Default None."""
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
    ssl_context: ssl.SSLContext | None
    """Context to use instead of the PEM files; it must verify the server and its host name. Default None."""
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


_OBJECTS = ("token", "user_jwt", "sign_nonce", "ssl_context")  # settings that can be objects, which a file can't hold


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """The settings that a file or a variable can hold."""

    servers: tuple[str, ...] = (DEFAULT_URL,)
    name: str = "natty"
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
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


@dataclass(frozen=True, kw_only=True)
class Config(_Plain):
    """The settings of a connection. Seconds are floats; `ConnectionSettings` describes each field."""

    token: str | TextCallback = field(default="", repr=False)
    user_jwt: TextCallback | None = field(default=None, repr=False)
    sign_nonce: SignCallback | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for url in self.servers:
            _check_url(url)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError(
                "a client certificate needs its key, and a key its certificate: give both tls_cert and tls_key"
            )
        for name in ("connect_timeout", "timeout", "ping_interval"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; write more than 0 seconds")
        _check_objects(self)
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
        """Whether TLS must be up before anything is sent."""
        if self.tls is not None:
            return self.tls
        named = self.tls_first or self.wants_tls_files or self.ssl_context is not None
        return named or any(url.startswith("tls://") for url in self.servers)


def resolve(
    explicit: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    context: str | None = None,
) -> Config:
    """Return the configuration: keyword or flag, then environment, then nats context file, then default.

    `context` is the name or the path of a context of the `nats` tool. None uses a context only if no server is named
    more explicitly: without `servers`, the context of `NATS_CONTEXT`; also without `NATS_URL`, the selected one. The
    credentials of a context are only for its own servers. ConfigError on an unknown name, a broken context file, a
    setting in it that natty can't apply, or a value of the wrong type.
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
    objects = {name: values.pop(name) for name in _OBJECTS if name in values}
    try:
        return Config(**vars(msgspec.convert(values, _Plain)), **objects)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the connection's settings: {error}") from error


def _check_objects(config: Config) -> None:
    """ConfigError if a function or an SSL context has the wrong type, or contradicts another setting."""
    token, context = config.token, config.ssl_context
    for name, right, expected in (
        ("token", isinstance(token, str) or callable(token), "a text, or a function that returns it"),
        ("user_jwt", config.user_jwt is None or callable(config.user_jwt), "a function"),
        ("sign_nonce", config.sign_nonce is None or callable(config.sign_nonce), "a function"),
        ("ssl_context", context is None or isinstance(context, ssl.SSLContext), "an ssl.SSLContext"),
    ):
        if not right:
            raise ConfigError(f"{name} must be {expected} and is of type {type(getattr(config, name)).__name__}")
    if config.sign_nonce is not None and config.user_jwt is None:
        raise ConfigError("sign_nonce signs for a JWT: give user_jwt, too")
    rivals = {"user_jwt": ("creds", "nkey"), "ssl_context": ("tls_ca", "tls_cert", "tls_key")}
    variables = {setting: name for name, setting in _ENVIRONMENT.items()}
    for name, others in rivals.items():
        for other in others if getattr(config, name) is not None else ():
            if getattr(config, other):
                raise ConfigError(
                    f"{name} and {other} ({variables[other]} in the environment) exclude each other: give one of them"
                )
    if context is not None and config.tls is False:
        raise ConfigError("tls=False and ssl_context contradict each other: drop one of them")
    if context is not None and not (context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname):
        raise ConfigError(
            "ssl_context does not verify the server: it needs verify_mode=ssl.CERT_REQUIRED and check_hostname=True, as"
            " ssl.create_default_context() has them"
        )


def _context_of(given: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the context to use if none is named; "" if a server is named more explicitly."""
    if "servers" in given:
        return ""
    return environment.get("NATS_CONTEXT") or ("" if environment.get("NATS_URL") else find_selected(environment))


def _check_url(url: str) -> None:
    """ConfigError if it is not a URL of a server."""
    if "://" not in url:
        return
    if not re.match("(nats|tls)://", url):
        raise ConfigError(f"{redact(url)}: only nats:// and tls:// are supported; use the server's client port")
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a malformed port, or address in brackets
        named = False
    if not named:
        raise ConfigError(f"{redact(url)} names no host and port; write tls://nats.example.com:4222")


def _check_prefix(name: str, prefix: str, *, needed: bool) -> None:
    """ConfigError if no subject can begin with the prefix: the server would end each session at the first one."""
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
        raise ConfigError(f"servers is {value!r}; write URLs: a list, or one text with commas")
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
