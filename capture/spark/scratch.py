"""A folder that temporary files lie in, removed at the end; where its owner was killed, by the next to make one.

All of Spark's lie in one, and those of a merge in one of its own, since an executor may be killed alone.
"""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX = "capture-spark-"

YOUNG = 60.0
"""Seconds in which a folder without an owner may be one that is just being made."""


class Scratch:
    """A folder of our own (0700), locked for as long as this process lives."""

    def __init__(self, *, now: float | None = None) -> None:
        parent = Path(tempfile.gettempdir())
        remove_orphans(parent, now=time.time() if now is None else now)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock: IO[bytes] = (self.path / "lock").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __repr__(self) -> str:
        return f"Scratch({self.path})"

    def remove(self) -> None:
        """Delete the folder; what can't be deleted stays."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_orphans(parent: Path, *, now: float) -> None:
    """Delete the folders of owners that no longer live. The system gave their locks back when it ended them."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another's, or gone meanwhile, or locked: its owner lives
            facts = folder.lstat()
            if folder.is_symlink() or facts.st_uid != os.getuid() or now - facts.st_mtime < YOUNG:
                continue
            with (folder / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
