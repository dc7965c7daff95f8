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
"""The folder with the content of a volume: ..2026_11_22_18_00_00.123, to which the link ..data beside it leads."""


def exposure(path: str | Path) -> str:
    """Return who else may read a file with a secret, and what to do; "" if no other may. OSError.

    The owner alone may read and write it. A file of root's may be readable by a group, too, which is how a service gets
    it; and one that Kubernetes, Docker or Podman mounted may be readable by all processes of its container, which
    is their default. Root may use a file of any owner, whom it trusts by naming the file: in a container files keep the
    owners that they have outside. What is not a regular file, a pipe say, and Windows, which has no modes, are not
    looked at.
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
    """Raise TLSError if others may read a private key, as `exposure` says."""
    try:
        exposed = exposure(key)
    except OSError:
        return  # who reads it says why it can't be read
    if exposed:
        raise TLSError(f"The key {key} is private, and {exposed}")


def _is_mounted(path: Path) -> bool:
    """Whether the file itself, not a link to it, is in a volume that Kubernetes writes, or a mounted secret."""
    real = path.resolve()
    if real.is_relative_to(ORCHESTRATOR.resolve()):
        return True
    return any(
        _WRITTEN_BY_KUBERNETES.fullmatch(folder.name) and (folder.parent / "..data").is_symlink()
        for folder in real.parents
    )
