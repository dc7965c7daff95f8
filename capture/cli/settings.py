"""The options that several commands share: the streams, the archive, the checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from capture.archive.keyfile import check_private
from capture.cli import completion
from capture.config.load import load
from capture.config.settings import CaptureConfig
from capture.config.streams import each, only
from capture.errors import ConfigError

Config = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="CAPTURE_CONFIG", help="Configuration file, capture.toml.")
]
Stream = Annotated[str | None, typer.Option(help="Stream [env CAPTURE_STREAM].", autocompletion=completion.streams)]
Store = Annotated[str | None, typer.Option(help="Folder, s3://, az://, gs://, or module:function [env CAPTURE_STORE].")]
PublicKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Public keys, lines of NAME:BASE64; one must have signed the manifest."),
]
EncryptedOnly = Annotated[
    bool, typer.Option("--encrypted-only", help="Refuse an archive with objects that are not encrypted.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def archive(
    config: Path | None,
    flags: dict[str, Any],
    nats: dict[str, Any],
    *,
    needs: tuple[str, ...] = ("stream", "store"),
) -> CaptureConfig:
    """Return the configuration of a command: its flags win over the environment and the file. Raises ConfigError.

    With several streams, it is that of the named one. A command that needs nothing gets the configuration unchanged.
    """
    found = _load(config, flags, nats, needs)
    return only(found) if needs else found


def archive_beside_pipelines(
    config: Path | None, flags: dict[str, Any], nats: dict[str, Any]
) -> tuple[CaptureConfig, CaptureConfig]:
    """Return the configuration of the one archive of a command, and that of all streams, with pipelines. ConfigError.

    The pipelines are not checked, and there may be no store.
    """
    found = _load(config, flags, nats, ("stream",))
    return only(found), found


def checks(public_key: Path | None, encrypted_only: bool) -> dict[str, Any]:
    """Return the flags for the checks of an archive."""
    return {"public_key_file": public_key and str(public_key), "encrypted_only": encrypted_only or None}


def archives(config: Path | None, flags: dict[str, Any], nats: dict[str, Any]) -> list[CaptureConfig]:
    """Return the configuration of each stream. Raises ConfigError."""
    return each(whole(config, flags, nats))


def whole(config: Path | None, flags: dict[str, Any], nats: dict[str, Any]) -> CaptureConfig:
    """Return the configuration of all streams together. What its pipelines mean is not checked. Raises ConfigError."""
    return _load(config, flags, nats, ("stream", "store"))


def with_pipelines(config: Path | None, flags: dict[str, Any], nats: dict[str, Any]) -> CaptureConfig:
    """Return the configuration of all streams together, with its pipelines. Raises ConfigError if one is wrong."""
    return _load(config, flags, nats, ("stream", "store"), pipelines=True)


def _load(
    config: Path | None, flags: dict[str, Any], nats: dict[str, Any], needs: tuple[str, ...], *, pipelines: bool = False
) -> CaptureConfig:
    given = flags | {f"nats.{name}": value for name, value in nats.items()}
    return load(config, given, needs=needs, pipelines=pipelines)


def tokens(path: Path) -> list[str]:
    """Return the tokens in a file, one per line. Raises ConfigError if it is unreadable, open to others, or empty."""
    try:
        check_private(path, "the token file")
        found = lines(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} can't be read: {error}") from error
    if not found:
        raise ConfigError(f"the token file {path} has no token")
    return found


def lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank, stripped."""
    return [line.strip() for line in text.splitlines() if line.strip()]
