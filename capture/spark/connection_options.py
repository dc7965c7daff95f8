"""Makes the options of the data source from the settings of a connection: how a streaming query reaches NATS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from capture.errors import ConfigError
from natty.config.settings import Config, redact, resolve

CONNECTION = {
    "servers": "servers",
    "tlsCa": "tls_ca",
    "tlsCert": "tls_cert",
    "tlsKey": "tls_key",
    "tlsFirst": "tls_first",
    "tlsHostname": "tls_hostname",
    "credentials": "creds",
    "nkey": "nkey",
    "context": "context",
    "domain": "domain",
    "apiPrefix": "api_prefix",
    "inboxPrefix": "inbox_prefix",
    "timeout": "timeout",
    "connectTimeout": "connect_timeout",
}
"""Option → the keyword of `Natty`. Paths are of files that every executor has."""

_FILES = ("creds", "nkey", "tls_ca", "tls_cert", "tls_key")
_USERS = ("credentials", "nkey")
"""The options that say as whom to connect, besides a context, which also says to which servers."""
_VARIABLES = {"user": "NATS_USER", "password": "NATS_PASSWORD", "token": "NATS_TOKEN"}
_UNKNOWN = ("user_jwt", "sign_nonce", "ssl_context", "ignore_discovered_servers")
"""Settings that no option can have."""


def write_options(
    settings: Mapping[str, Any], own: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return options of the data source for a connection with these settings of `Natty`, and variables with secrets.

    `own` options replace them; with `credentials`, `nkey` or `context` among them, no user of the settings is passed.
    Environment and contexts count as for `Natty`. ConfigError for a setting that no option can have.
    """
    own = {_find_name(name): value for name, value in (own or {}).items()}
    if "context" in own:
        return own, {}
    config = resolve(settings)
    _check(config)
    options = {}
    defaults = Config()
    for option, keyword in CONNECTION.items():
        if option != "context" and (value := getattr(config, keyword)) != getattr(defaults, keyword):
            options[option] = _write(keyword, value)
    options["servers"] = _write("servers", config.servers)
    if config.tls_required:
        options["servers"] = options["servers"].replace("nats://", "tls://")
    has_own_user = any(name in own for name in _USERS)
    if has_own_user:
        options = {name: value for name, value in options.items() if name not in _USERS}
    secrets = {variable: getattr(config, keyword) for keyword, variable in _VARIABLES.items()}
    return options | own, {} if has_own_user else {name: str(value) for name, value in secrets.items() if value}


def _check(config: Config) -> None:
    """Raise ConfigError for a setting that no option can have."""
    for url in config.servers:
        if "@" in url:
            raise ConfigError(
                f"{redact(url)} has a login, which Spark would show in plans and logs: give user and password, or a"
                " token, apart from the URL"
            )
    for one in fields(config):
        if one.name in _UNKNOWN and getattr(config, one.name) != one.default:
            raise ConfigError(f"Spark can't connect with the setting {one.name}: [spark] source_options has its own")
    if callable(config.token):
        raise ConfigError("Spark can't connect with a token that a function returns")


def _find_name(option: str) -> str:
    known = {name.lower(): name for name in CONNECTION}
    if option.lower() not in known:
        raise ConfigError(f"source_options: there is no option {option}; there are {', '.join(sorted(CONNECTION))}")
    return known[option.lower()]


def _write(keyword: str, value: Any) -> str:
    if keyword == "servers":
        return ",".join(value)
    if keyword in _FILES:
        return str(Path(value).absolute())  # Spark's processes have another working directory
    return str(value).lower() if isinstance(value, bool) else str(value)
