"""A process whose steps on disk and network are counted, with an event at one of them.

The disk is a real folder. Unsynced changes are recorded, so that a power cut can be simulated: unsynced files are then
lost, and files that were removed without a sync are back.
"""

import contextlib
import errno
import io
import os
import shutil
import stat
from pathlib import Path

KILLED = "killed after it"  # which is before the next one
FAILS = "it fails"
FAILS_AFTER = "it fails, having done all the same what it should"


class Killed(BaseException):
    """The process was killed, and takes no further step."""


class Steps:
    """Counts the steps of one process; at the step of this number, counted from 1, an event happens.

    `done` are the names of the steps that it took.
    """

    def __init__(self, at=0, way=FAILS):
        self.at, self.way = at, way
        self.done = []
        self.dead = False

    def __call__(self, name, do, *arguments, **options):
        if self.dead:
            raise Killed
        self.done.append(name)
        way = self.way if len(self.done) == self.at else ""
        try:
            if way != FAILS:
                do(*arguments, **options)
        finally:
            self.dead = self.dead or way == KILLED  # also after a step that fails, such as to remove what is gone
        if self.dead:
            raise Killed
        if way:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Disk:
    """Replaces the operating system's calls that change files below a folder; a context manager.

    Removed files are kept in the graveyard, an empty folder beside it, until the removal is synced.
    """

    def __init__(self, folder, steps, graveyard):
        self.folder, self.steps = folder, steps
        self._graveyard = graveyard
        self._unsynced = set()  # inodes with content
        self._added = set()  # names, of files and folders
        self._removed = {}  # name → its current path
        self._real = {"fsync": os.fsync, "link": os.link, "mkdir": os.mkdir, "unlink": os.unlink, "rmdir": os.rmdir}

    def __enter__(self):
        self._open = io.open
        for name in self._real:
            setattr(os, name, getattr(self, f"_{name}"))
        io.open = self._open_file  # what pathlib calls
        return self

    def __exit__(self, *_):
        for name, real in self._real.items():
            setattr(os, name, real)
        io.open = self._open

    def cut_power(self):
        """Undo all changes that were not synced."""
        for path, grave in self._removed.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(grave)
        for path in sorted(self._added, key=str, reverse=True):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._unsynced:
                os.truncate(path, 0)

    def _fsync(self, handle):
        where = Path(f"/proc/self/fd/{handle}").readlink()
        self._change("sync", where, lambda: None)  # no need to trouble the real disk
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            self._added = {path for path in self._added if path.parent != where}
            self._removed = {path: grave for path, grave in self._removed.items() if path.parent != where}
        else:
            self._unsynced.discard(os.fstat(handle).st_ino)

    def _link(self, source, target, **options):
        self._change("link", target, self._real["link"], source, target, **options)
        self._added.add(Path(target))

    def _mkdir(self, path, *mode, **options):
        known = Path(path).exists()
        self._change("make", path, self._real["mkdir"], path, *mode, **options)
        if self._below(path) and not known:
            self._added.add(Path(path))

    def _unlink(self, path, **options):
        grave = self._graveyard / f"{len(list(self._graveyard.iterdir()))}"
        synced = self._below(path) and Path(path).exists() and Path(path) not in self._added
        if synced:
            self._real["link"](path, grave)
        self._change("remove", path, self._real["unlink"], path, **options)
        self._added.discard(Path(path))
        if synced:
            self._removed[Path(path)] = grave

    def _rmdir(self, path, **options):
        """Remove an empty folder; after a power cut it is back only if a file in it is."""
        self._change("remove", path, self._real["rmdir"], path, **options)
        self._added.discard(Path(path))

    def _open_file(self, file, mode="r", *more, **options):
        if mode != "xb" or not self._below(file):
            return self._open(file, mode, *more, **options)
        self.steps(f"create {self._named(file)}", lambda: self._open(file, mode).close())
        stream = self._open(file, "r+b", buffering=0)
        self._added.add(Path(file))
        self._unsynced.add(os.fstat(stream.fileno()).st_ino)
        return _Written(stream, self.steps, self._named(file))

    def _change(self, word, path, do, *arguments, **options):
        if self._below(path):
            self.steps(f"{word} {self._named(path)}", do, *arguments, **options)
        else:
            do(*arguments, **options)

    def _below(self, path):
        return Path(path) == self.folder or self.folder in Path(path).parents

    def _named(self, path):
        return "/".join(Path(path).relative_to(self.folder).parts[:1]) or "the store"


class _Written(io.BufferedWriter):
    """A file that is written in two halves."""

    def __init__(self, raw, steps, name):
        super().__init__(raw)
        self._steps, self._name = steps, name

    def write(self, data):
        half = len(data) // 2
        self._steps(f"write half of {self._name}", self._flushed, data[:half])
        self._steps(f"write all of {self._name}", self._flushed, data[half:])
        return len(data)

    def _flushed(self, data):
        super().write(data)
        self.flush()
