"""Files that hold secrets: keys, tokens, credentials. Only their owner may read them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from natty.errors import TLSError

ORCHESTRATOR = Path("/run/secrets")
"""Where Docker and Podman mount secrets, by default readable by every process of the container."""
_WRITTEN_BY_KUBERNETES = re.compile(r"\.\.[0-9]{4}(_[0-9]{2}){5}\.[0-9]+")
"""The folder with the content of a volume, for example ..2026_11_22_18_00_00.123; the link ..data points to it."""


def exposure(path: str | Path) -> str:
    """Return which other users may read a file with a secret, and what to do; "" if none may. OSError.

    Only the owner may read and write it, with three exceptions. A group may also read a file of root, as services get
    their secrets this way. All processes of a container may read a file that Kubernetes, Docker or Podman mounted, as
    this is their default. Root may use a file of any owner, because in a container files keep their outside owners,
    and root trusts the file by naming it. Does not check pipes and other files that are not regular, nor any file on
    Windows, which has no modes.
    """
    facts = Path(path).stat()
    if os.name == "nt" or not stat.S_ISREG(facts.st_mode):
        return ""
    mode = stat.S_IMODE(facts.st_mode)
    refused = 0o077
    if facts.st_uid == 0:
        refused = 0o022 if _is_mounted(Path(path)) else 0o037
    return f"others may read or change it (mode {mode:04o}): chmod 600 {path}" if mode & refused else ""


def check_key_file(key: str | Path) -> None:
    """Raise TLSError if others may read a private key, by the rules of `exposure`."""
    try:
        exposed = exposure(key)
    except OSError:
        return  # reading the key raises the right error
    if exposed:
        raise TLSError(f"The key {key} is private, and {exposed}")


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder for keys and other files that git must not add: its .gitignore names all. OSError.

    A folder that exists stays as it is.
    """
    if folder.is_dir():
        return
    folder.mkdir(mode, parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")


def _is_mounted(path: Path) -> bool:
    """Return whether the file itself, not a link to it, is in a Kubernetes volume, or is a mounted secret."""
    real = path.resolve()
    if real.is_relative_to(ORCHESTRATOR.resolve()):
        return True
    return any(
        _WRITTEN_BY_KUBERNETES.fullmatch(folder.name) and (folder.parent / "..data").is_symlink()
        for folder in real.parents
    )
