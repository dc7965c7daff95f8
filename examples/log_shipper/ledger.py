"""The hosts' files, and the ledger that tells what is certainly in them: one SQLite file a partition, beside them."""

import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from log_shipper.settings import DAY, KEEP_DAYS, ShipperError

logger = logging.getLogger("shipper")

BUSY_TIMEOUT = 5.0  # seconds for the one before us to let go of the ledger

Line = tuple[str, int, bytes]
"""(host, when its stream stored it in Unix nanoseconds, the line)."""


class Ledger:
    """Appends lines to the files of a partition's hosts: each line once, whatever kills the process.

    `sequence` is the stream's, up to which every line is on disk. It changes in one transaction with the files'
    lengths, after they were synced; opening a ledger cuts off what a dead process wrote beyond them. The files are
    the shipper's alone.
    """

    def __init__(self, directory: Path, output: str, name: str, *, keep_days: int = KEEP_DAYS) -> None:
        self.directory, self._output, self._keep_days = directory, output, keep_days
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f".{name}.ledger"
        self._database = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        self._files: set[str] = set()
        self.sequence = 0

    def __enter__(self) -> Self:
        """Take the ledger for this process alone and mend the files. ShipperError if another process has it."""
        try:
            with self._translate_errors():
                self._take()
        except BaseException:
            self._database.close()
            raise
        self._mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def _take(self) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("CREATE TABLE IF NOT EXISTS file (path TEXT PRIMARY KEY, day INTEGER, length INTEGER) WITHOUT ROWID")
        execute("CREATE TABLE IF NOT EXISTS stream (id INTEGER PRIMARY KEY CHECK (id = 0), sequence INTEGER)")
        execute("INSERT OR IGNORE INTO stream VALUES (0, 0)")
        (self.sequence,) = execute("SELECT sequence FROM stream").fetchone()

    def _mend(self) -> None:
        """Cut off what was written and not entered: it comes again."""
        for name, length in self._database.execute("SELECT path, length FROM file").fetchall():
            self._files.add(name)
            path = self.directory / name
            if path.exists() and path.stat().st_size > length:
                logger.info("%s: %d bytes of an unfinished write are cut off", path, path.stat().st_size - length)
                os.truncate(path, length)

    def write(self, lines: Iterable[Line], sequence: int) -> None:
        """Append the lines, each to its host's file of its day; return when they and `sequence` are on disk.

        OSError, ShipperError: the disk is full, say. Then open the ledger again.
        """
        by_file: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        for host, time_ns, line in lines:
            by_file[host, time_ns // (DAY * 1_000_000_000)].append(line)
        named = {self._name(host, day): (day, lines) for (host, day), lines in by_file.items()}
        self._begin({name: day for name, (day, _) in named.items() if name not in self._files})
        lengths = [(_append(self.directory / name, lines), name) for name, (_, lines) in named.items()]
        with self._translate_errors(), self._database:
            self._database.execute("BEGIN")
            self._database.executemany("UPDATE file SET length = ? WHERE path = ?", lengths)
            self._database.execute("UPDATE stream SET sequence = ?", (sequence,))
        self.sequence = sequence

    def expire(self, now: float) -> list[Path]:
        """Remove the files of days that ended more than `keep_days` before `now`, in Unix seconds; return them."""
        last = int(now) // DAY - self._keep_days - 1
        names = [name for (name,) in self._database.execute("SELECT path FROM file WHERE day <= ?", (last,))]
        for name in names:
            (self.directory / name).unlink(missing_ok=True)
        with self._translate_errors():
            self._database.execute("DELETE FROM file WHERE day <= ?", (last,))
        self._files.difference_update(names)
        return [self.directory / name for name in names]

    def _name(self, host: str, day: int) -> str:
        return f"{host}/{datetime.fromtimestamp(day * DAY, UTC).strftime(self._output)}"

    def _begin(self, new: dict[str, int]) -> None:
        """Enter new files before anything is written to them."""
        if not new:
            return
        for name in new:
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            for folder in {path.parent, self.directory}:
                _sync_folder(folder)
        rows = [(name, day, (self.directory / name).stat().st_size) for name, day in new.items()]
        with self._translate_errors(), self._database:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO file VALUES (?, ?, ?)", rows)
        self._files.update(new)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            if code == sqlite3.SQLITE_BUSY:
                raise ShipperError(
                    f"another process writes the files of {self.path}: stop it, or read other partitions here"
                ) from None
            if code == sqlite3.SQLITE_FULL:
                raise ShipperError(f"{self.path}: the disk is full") from None
            raise ShipperError(f"{self.path}: {error}") from error


def _append(path: Path, lines: list[bytes]) -> int:
    try:
        with path.open("ab") as file:
            file.write(b"\n".join(lines) + b"\n")
            file.flush()
            os.fdatasync(file.fileno())
            return file.tell()
    except OSError as error:
        raise ShipperError(
            f"{path} can't be written: {error.strerror}; what is not on disk stays in the stream"
        ) from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
