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

app = typer.Typer(help="Keys to encrypt and to sign with.", no_args_is_help=True)


@app.command()
def new(name: Annotated[str, typer.Argument(help="The key's name: no colon, no space.")]) -> None:
    """Print a new secret key as NAME:BASE64, a line of a key file. It is kept nowhere else."""
    if not name or any(sign.isspace() or sign in ":#" for sign in name):
        raise ConfigError(f"{name!r} can't name a key: no colon, no '#', no space")
    if sys.stdout.isatty() is False and (exposed := _exposed_output()):
        print(
            f"capture: the file that the key goes to can be read by others (mode {exposed}): chmod 600", file=sys.stderr
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
    """Print the public keys of those that manifests are signed with, as NAME:BASE64: a file for capture verify."""
    wanted = settings.archive(config, {}, {}, needs=())
    keys = SigningKeys.load(wanted.signing_key_file)
    if keys is None:
        raise ConfigError(f"there is no key to sign with: name a signing_key_file, or set {SIGNING_VARIABLE}")
    for name, key in keys.public.lines().items():
        print(f"{name}:{key}")
