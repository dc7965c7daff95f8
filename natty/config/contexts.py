"""Contexts of the `nats` tool: the settings that natty reads from them, and those that it refuses to ignore."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from natty.config.secret_files import exposure
from natty.errors import UNREADABLE, ConfigError

logger = logging.getLogger("natty.contexts")

_SETTINGS = {
    "url": "servers",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
    "tls_first": "tls_first",
    "inbox_prefix": "inbox_prefix",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "api_prefix",
}
_PATHS = {"creds", "nkey", "cert", "key", "ca"}
_SECRETS = {"password": "NATS_PASSWORD", "token": "NATS_TOKEN", "creds": "NATS_CREDS", "nkey": "NATS_NKEY"}
_JWT = "write the JWT and its seed into a credentials file, and name that file as `creds`"
_WINDOWS = "export the certificates as PEM files, and name those as `cert`, `key` and `ca`"
_REFUSED = {
    "socks_proxy": "natty connects to servers directly: name a server that can be reached without a proxy",
    "user_jwt": _JWT,
    "user_seed": _JWT,
    "nsc": "`nsc generate profile` shows the URL and the credentials file: name them as `url` and `creds`",
    "windows_cert_store": _WINDOWS,
    "windows_cert_match": _WINDOWS,
    "windows_cert_match_by": _WINDOWS,
    "windows_ca_certs_match": _WINDOWS,
}
_WITHOUT_EFFECT = {"name", "description", "color_scheme", "jetstream_event_prefix"}  # events: natty subscribes to none
_REFERENCE = re.compile(r"(op|nsc|env|data|file):", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def find_selected(environment: Mapping[str, str]) -> str:
    """Return the name of the selected context, "" if there is none. ConfigError if its file is broken."""
    file = _home(environment) / "context.txt"
    try:
        return file.read_text("utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ConfigError(f"{file}, which names the nats context, can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}, which names the nats context, is not UTF-8: `nats context select`") from error


def read_context(name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a context, named as in `Config`; `name` is its name or its path.

    ConfigError, with what to do, if it can't be read, has a setting that natty can't apply as the `nats` tool does, or
    holds a password or a token that others may read.
    """
    path = Path(name) if name.startswith("/") else _home(environment) / "context" / f"{name}.json"
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"nats context {name!r} can't be read: {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigError(f"nats context {path} is broken: {error}") from error
    content = {key: value for key, value in content.items() if value}
    for key in content:
        if key in _REFUSED:
            raise ConfigError(f"nats context {path} sets {key}, which natty does not support: {_REFUSED[key]}")
        if key not in _SETTINGS and key not in _WITHOUT_EFFECT:
            text = "nats context %s sets %s, which natty does not know: natty ignores it"
            logger.warning(text, path, key, extra={"action": "context"})
    settings = {
        setting: _value(path, key, content[key], environment) for key, setting in _SETTINGS.items() if key in content
    }
    _check_exposure(path, content)
    return settings


def _check_exposure(path: Path, content: Mapping[str, Any]) -> None:
    """ConfigError if the file holds secrets, and others may read it. The `nats` tool writes it with mode 0600."""
    secrets = [key for key in ("password", "token") if key in content]
    secrets += ["url"] if "@" in str(content.get("url", "")) else []
    try:
        exposed = exposure(path) if secrets else ""
    except OSError as error:
        raise ConfigError(f"nats context {path} can't be read: {error.strerror}") from error
    if exposed:
        raise ConfigError(f"nats context {path} holds secrets ({', '.join(secrets)}), and {exposed}")


def _home(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(home) / "nats"


def _value(path: Path, key: str, value: Any, environment: Mapping[str, str]) -> Any:
    if not isinstance(value, str) or key not in _PATHS | _SECRETS.keys():
        return value
    if key in _PATHS:
        value = value.removeprefix("file://")
    if reference := _REFERENCE.match(value):
        instead = f"give the secret itself by {_SECRETS[key]}" if key in _SECRETS else "write the path of a file"
        raise ConfigError(
            f"the {key} of nats context {path} is a reference, {reference[1]}:…, which natty can't look up: {instead}"
        )
    return _expand(path, key, value, environment) if key in _PATHS else value


def _expand(path: Path, key: str, value: str, environment: Mapping[str, str]) -> str:
    def look_up(found: re.Match[str]) -> str:
        variable = found[1] or found[2]
        if variable not in environment:
            raise ConfigError(f"the {key} of nats context {path} is {value}, and the variable {variable} is not set")
        return environment[variable]

    return _VARIABLE.sub(look_up, value)
