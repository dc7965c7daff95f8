"""`capture keys`: creates keys for encrypting or signing, and prints the public keys that others verify with."""

from __future__ import annotations

import os
import stat
import sys
from base64 import b64encode
from typing import Annotated

import typer

from capture.archive.keyfile import KEY_BYTES
from capture.archive.signing import SIGNING_VARIABLE, SigningKeys
from capture.cli import settings
from capture.errors import ConfigError

app = typer.Typer(help="Create and show keys for encryption and signatures.", no_args_is_help=True)


@app.command()
def new(name: Annotated[str, typer.Argument(help="Name of the key, without colon, '#' or space.")]) -> None:
    """Print a new secret key as NAME:BASE64, a line of a key file. Does not store it."""
    if not name or any(sign.isspace() or sign in ":#" for sign in name):
        raise ConfigError(
            f"{name!r} can't be the name of a key: it must not be empty, or contain a colon, '#' or a space"
        )
    if sys.stdout.isatty() is False and (exposed := _exposed_output()):
        print(
            f"capture: other users can read the file that the key is written to (mode {exposed}): chmod 600",
            file=sys.stderr,
        )
    print(f"{name}:{b64encode(os.urandom(KEY_BYTES)).decode()}")


def _exposed_output() -> str:
    """Return the mode of standard output if it is a file that others may read; otherwise ""."""
    try:
        facts = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):  # it has no file descriptor
        return ""
    mode = stat.S_IMODE(facts.st_mode)
    return f"{mode:04o}" if os.name != "nt" and stat.S_ISREG(facts.st_mode) and mode & 0o077 else ""


@app.command()
def public(config: settings.Config = None) -> None:
    """Print the public keys of the keys that sign manifests, as NAME:BASE64: a file for capture verify --public-key."""
    wanted = settings.archive(config, {}, {}, needs=())
    keys = SigningKeys.load(wanted.signing_key_file)
    if keys is None:
        raise ConfigError(f"there is no signing key: set signing_key_file or {SIGNING_VARIABLE}")
    for name, key in keys.public.lines().items():
        print(f"{name}:{key}")
