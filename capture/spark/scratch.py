"""Folders for temporary files, removed at the end; if the owner was killed, by the next process that creates one.

All of Spark's files are in one. Those of a merge have their own, since an executor may be killed alone.
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
"""Seconds in which a folder without an owner may be one that is just being created."""


class Scratch:
    """Our own folder (0700), locked for as long as this process lives."""

    def __init__(self, *, now: float | None = None) -> None:
        parent = Path(tempfile.gettempdir())
        remove_orphans(parent, now=time.time() if now is None else now)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock: IO[bytes] = (self.path / "lock").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __repr__(self) -> str:
        return f"Scratch({self.path})"

    def remove(self) -> None:
        """Delete the folder; files that can't be deleted stay."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_orphans(parent: Path, *, now: float) -> None:
    """Delete the folders of dead owners. The system released their locks when it ended them."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # not ours, deleted meanwhile, or locked by a living owner
            facts = folder.lstat()
            if folder.is_symlink() or facts.st_uid != os.getuid() or now - facts.st_mtime < YOUNG:
                continue
            with (folder / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
