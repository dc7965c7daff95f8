"""Follows a log file through rotation and truncation: what was read, and where reading continues."""

import hashlib
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from log_shipper.settings import ShipperError

logger = logging.getLogger("shipper")

CHUNK_BYTES = 768 * 1024  # read at a time; a longer line arrives as several, as a message is at most 1 MiB
BEGINNING_BYTES = 1024  # of a file, that distinguishes it from another one with its inode
LINGER = 1.0  # seconds that a file which was renamed must be quiet: its writer may not know yet
_ROTATED = re.compile(r"[.-]\d[\d.:TZ_-]*")  # what logrotate and others put behind the name


class FileVanishedError(ShipperError):
    """The file to follow is gone, and no other has taken its place."""


@dataclass(frozen=True)
class Position:
    """Up to where a file has been read. Device, inode and beginning identify a file; `nonce` is its name in ids."""

    device: int
    inode: int
    nonce: str
    offset: int = 0
    beginning: str = ""  # the hash of its first `beginning_bytes`
    beginning_bytes: int = 0
    modified_ns: int = 0  # the file's time when it was read last: a copy of it is no older

    @property
    def file(self) -> str:
        """The identity that message ids begin with; no two contents of a file have the same."""
        return f"{self.device:x}-{self.inode:x}-{self.nonce}"

    def is_in(self, descriptor: int, *, copied: bool = False) -> bool:
        """Whether the open file is the position's: the same inode, or a copy, and it still begins as it did."""
        there = os.fstat(descriptor)
        if copied:
            same = self.beginning_bytes > 0 and there.st_mtime_ns >= self.modified_ns
        else:
            same = (there.st_dev, there.st_ino) == (self.device, self.inode)
        return same and self.intact(descriptor, self.offset)

    def intact(self, descriptor: int, read_up_to: int) -> bool:
        """Whether the open file begins as this one did, and reaches that far."""
        long_enough = os.fstat(descriptor).st_size >= read_up_to
        return long_enough and _hash(descriptor, self.beginning_bytes) == self.beginning


@dataclass(frozen=True)
class Chunk:
    """Lines of one file with the offsets between which they stand, and the position after them."""

    lines: list[tuple[int, int, bytes]]
    position: Position


class Follower:
    """Reads what is appended to a file, from a position on, or from the file's start.

    Rotation by rename: the old file is read to its end first. Several while nobody looked: in order. Truncation: what
    was not read yet is looked for in a copy (copytruncate), then the file is read from its start. Compressed files
    can't be read.
    """

    def __init__(self, path: Path, position: Position | None, *, patience: float = 30.0) -> None:
        self.path = path
        self._position = position
        self._patience = patience
        self._descriptor = -1  # of the open file
        self._missing_since: float | None = None
        self._quiet_since: float | None = None

    def read(self, now: float | None = None) -> Chunk | None:
        """Return the next lines, None if there are none now. FileVanishedError: missing for longer than `patience`."""
        now = time.monotonic() if now is None else now
        while self._descriptor >= 0 or self._begin(now):
            if chunk := self._next():
                self._quiet_since = None
                return chunk
            if not self._at.intact(self._descriptor, self._at.offset):
                self.close()  # truncated
            elif not self._left(now):
                return None
            elif chunk := self._next(unfinished=True):
                return chunk
            else:
                self._go_on(after_ns=os.fstat(self._descriptor).st_mtime_ns)
        return None

    @property
    def position(self) -> Position | None:
        """Where reading continues; None before a file was opened for the first time."""
        return self._position

    @property
    def _at(self) -> Position:
        assert self._position is not None
        return self._position

    def close(self) -> None:
        """Close the file that is open. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin(self, now: float) -> bool:
        """Open the file of the position, under whatever name; else the one to follow, from its start."""
        if self._position is not None and self._position.beginning_bytes:
            rotated = self._rotated()
            candidates = [(path, False) for path in (self.path, *rotated)] + [(path, True) for path in rotated[::-1]]
            for path, copied in candidates:
                descriptor = _open(path)
                if descriptor >= 0 and self._position.is_in(descriptor, copied=copied):
                    self._descriptor = descriptor
                    return True
                _close(descriptor)
        known = self._position
        if self._go_on(after_ns=known.modified_ns if known else sys.maxsize):
            if known is not None and known.beginning_bytes:
                logger.warning("%s was truncated, or the file that was read last is gone", self.path)
            return True
        self._wait_for_it(now)
        return False

    def _take(self, descriptor: int) -> None:
        """Read this file from its start."""
        self.close()
        there = os.fstat(descriptor)
        self._descriptor, self._missing_since, self._quiet_since = descriptor, None, None
        self._position = Position(there.st_dev, there.st_ino, secrets.token_hex(4), modified_ns=there.st_mtime_ns)

    def _next(self, *, unfinished: bool = False) -> Chunk | None:
        """Return complete lines from the position on; with `unfinished`, also a last one without its end."""
        at = self._at.offset
        data = os.pread(self._descriptor, CHUNK_BYTES, at)
        end = data.rfind(b"\n") + 1
        if not end and (unfinished or len(data) == CHUNK_BYTES):
            end = len(data)
        if not end or not self._at.intact(self._descriptor, at + end):  # truncated while it was read
            return None
        self._position = self._moved(at + end)
        return Chunk(list(_lines(data[:end], at)), self._at)

    def _moved(self, offset: int) -> Position:
        modified_ns = os.fstat(self._descriptor).st_mtime_ns
        position = replace(self._at, offset=offset, modified_ns=modified_ns)
        if position.beginning_bytes == BEGINNING_BYTES:
            return position
        size = min(offset, BEGINNING_BYTES)
        return replace(position, beginning=_hash(self._descriptor, size), beginning_bytes=size)

    def _left(self, now: float) -> bool:
        """Whether another file has replaced the open one, and no process writes to it any longer."""
        here = os.fstat(self._descriptor)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            self._wait_for_it(now)
            return False
        self._missing_since = None
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            return False
        if self._quiet_since is None:
            self._quiet_since = now
        return here.st_ino != self._at.inode or now - self._quiet_since >= LINGER

    def _go_on(self, *, after_ns: int) -> bool:
        """Open the oldest of the files rotated after this time, else the one to follow; return whether there is one."""
        for path in [*self._rotated(after_ns), self.path]:
            if (descriptor := _open(path)) >= 0:
                logger.info("now reading %s from its start", path)
                self._take(descriptor)
                return True
        return False

    def _rotated(self, after_ns: int = 0) -> list[Path]:
        """Return the rotated files, oldest first."""
        found = []
        for entry in os.scandir(self.path.parent):
            suffix = entry.name.removeprefix(self.path.name)
            if suffix != entry.name and _ROTATED.fullmatch(suffix) and entry.stat().st_mtime_ns > after_ns:
                found.append((entry.stat().st_mtime_ns, Path(entry.path)))
        return [path for _, path in sorted(found)]

    def _wait_for_it(self, now: float) -> None:
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= self._patience:
            raise FileVanishedError(
                f"there has been no file {self.path} for {self._patience:g} s: the lines that could be read are "
                "shipped;"
                " start the shipper again when it is there"
            )


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _lines(data: bytes, at: int) -> Iterator[tuple[int, int, bytes]]:
    *complete, rest = data.split(b"\n")
    for line in complete:
        yield at, at + len(line) + 1, line
        at += len(line) + 1
    if rest:
        yield at, at + len(rest), rest


def _hash(descriptor: int, size: int) -> str:
    return hashlib.blake2b(os.pread(descriptor, size, 0), digest_size=16).hexdigest() if size else ""
