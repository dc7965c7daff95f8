"""A store that keeps objects as files in a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from asyncio import to_thread
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from capture.errors import (
    AlreadyStoredError,
    NotStoredError,
    StoreError,
    StoreFullError,
    StoreUnfitError,
    StoreUnreadableError,
)
from capture.stores.contract import SCRATCH, Listing, ObjectInfo, check_path, check_prefix, check_range, is_path

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNREADABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ESTALE}
NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
KNOWN_FOLDERS = 10_000
"""How many folders are remembered as durable. A forgotten one costs one more fsync."""
PRIVATE = "?private=true"
"""The end of a private store's URL."""
LINK = "{} in {} is a symbolic link, which is not followed: put its target there, or mount it (mount --bind)"
LISTED_AT_ONCE = 10_000
"""Files of a part of a listing."""
PIECE_BYTES = 128 << 10
"""Bytes of one write. One of some megabytes took up to ten times the CPU on a virtual machine (docs/benchmarks.md)."""
FOLDER_ATTEMPTS = 100
"""How often a folder is made again while other processes remove it as empty."""


class FileStore:
    """Objects as files in a folder of a local or network file system that has hard links.

    An object is written in `.tmp/`, synced, and linked to its name. So create-if-absent is an atomic operation of the
    file system, and no reader sees a part of an object. A killed writer leaves a file in `.tmp/` only.

    The folder itself may be a symbolic link. Symbolic links below it are not followed, since they may lead out of it.

    With `private` only the user may read the files (mode 0600, in folders of 0700); otherwise the umask decides.
    """

    def __init__(self, root: str | Path, *, private: bool = False) -> None:
        self.root = Path(root).absolute()
        self.private = private
        self.url = self.root.as_uri() + (PRIVATE if private else "")
        self._scratch = self.root / SCRATCH
        self._durable: set[Path] = set()
        self._tried = False
        self._place: tuple[int, int] | None = None  # device and inode of the folder, once an object was seen in it
        self._witness = ""  # the last object that was written, or the first that was read

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        """As in the contract. Returns when the file and every new folder above it are synced to the disk."""
        await to_thread(self._put, path, data, if_absent)

    async def get(self, path: str) -> bytes:
        """As in the contract."""
        return await to_thread(self._read, path, 0, -1)

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """As in the contract."""
        check_range(start, length)
        return await to_thread(self._read, path, start, length)

    async def list(self, prefix: str = "") -> Listing:
        """As in the contract. A folder that can't be read raises StoreUnreadableError; it is not listed as empty."""
        return await to_thread(self._list, prefix)

    async def list_parts(self, prefix: str = "") -> AsyncIterator[Listing]:
        """As in `ListsInParts`, with the errors of `list`."""
        found = self._walk_prefix(prefix)
        while part := await to_thread(self._take, found, prefix):
            yield part

    async def delete(self, path: str) -> None:
        """As in the contract. Folders that are empty afterwards are removed too, so that listings stay fast."""
        await to_thread(self._delete, path)

    async def remove_leftovers(self, older_than_seconds: float, now: float) -> int:
        """Delete unfinished files of killed writers that are older than this. Return their number."""
        return await to_thread(self._remove_leftovers, now - older_than_seconds)

    def __repr__(self) -> str:
        return f"FileStore({str(self.root)!r})"

    # --- blocking, in a thread ---------------------------------------------------------------------------------------

    def file(self, path: str) -> Path:
        """Return the file of an object. StoreUnreadableError if a symbolic link leads there."""
        if not is_path(path):
            check_path(path)  # raises the error about it
        self._refuse_links(path)
        return self.root / path

    def _refuse_links(self, path: str) -> None:
        found = self.root
        for part in path.split("/"):
            found /= part
            if found.is_symlink() and found != self.root:
                raise StoreUnreadableError(LINK.format(found.relative_to(self.root).as_posix(), self.root))

    def _put(self, path: str, data: bytes | Path, if_absent: bool) -> None:
        target = self.file(path)
        with self._translate_errors(f"writing {path}"):
            self._check_place()
            if if_absent and target.exists():  # saves writing a file that could not be linked
                self._try_writing()
                self._refuse(path, target)
            with self._write_part(data) as part:
                self._publish(path, part, target, if_absent)
            self._remember(path)

    def _remember(self, path: str) -> None:
        """Remember an object, and which folder the root is."""
        self._witness = path
        self._place = self._place or self._find_place()

    def _find_place(self) -> tuple[int, int]:
        facts = self.root.stat()
        return facts.st_dev, facts.st_ino

    def _check_place(self) -> None:
        """Raise StoreUnreadableError if the root became another folder, without the last object: its disk was lost.

        What is written there would be acknowledged, and hidden as soon as the disk is back.
        """
        if self._place is not None and self._place != (now := self._find_place()):
            if not (self.root / self._witness).exists():
                raise StoreUnreadableError(
                    f"the store {self.root} is another folder than before, without {self._witness}: mount its disk "
                    "again, or restart"
                )
            self._place = now

    def _try_writing(self) -> None:
        """Write a file, once: so a node whose first object exists detects at its start if it can't write."""
        if not self._tried:
            with self._write_part(b""):
                self._tried = True

    @contextlib.contextmanager
    def _write_part(self, data: bytes | Path) -> Iterator[Path]:
        self._refuse_links(SCRATCH)
        self._make_folder(self._scratch)
        part = self._scratch / uuid4().hex
        try:
            _write_and_sync(part, data, private=self.private)
            yield part
        finally:
            part.unlink(missing_ok=True)

    def _publish(self, path: str, part: Path, target: Path, if_absent: bool) -> None:
        """Give the written file its name. A folder that another process removed as empty is made again."""
        for attempt in range(FOLDER_ATTEMPTS):
            try:
                self._make_folder(target.parent)
                if if_absent:
                    self._link(path, part, target)
                else:
                    part.replace(target)
                break
            except (FileNotFoundError, FileExistsError):  # mkdir found a folder that was removed a moment later
                self._durable.clear()
                if attempt == FOLDER_ATTEMPTS - 1 or not part.exists():
                    raise
        with contextlib.suppress(FileNotFoundError):  # another process deleted it, with its folder
            _sync_folder(target.parent)

    def _link(self, path: str, part: Path, target: Path) -> None:
        try:
            target.hardlink_to(part)
        except FileExistsError:
            self._refuse(path, target)
        except OSError as error:
            if error.errno in NO_HARD_LINKS:
                raise StoreUnfitError(
                    f"{self.root} is on a file system that can't make a hard link ({error.strerror}), which is needed "
                    "to create an object exactly once: use a folder on one such as ext4, xfs, btrfs, apfs, NTFS or NFS"
                ) from error
            raise

    def _refuse(self, path: str, target: Path) -> NoReturn:
        """Raise AlreadyStoredError. Sync the folder before: the process that linked the object may have died first."""
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # deleted in between: it did exist
            self._make_folder(target.parent)
            _sync_folder(target.parent)
        raise AlreadyStoredError(f"{path} exists in {self.url} and was not touched")

    def _make_folder(self, folder: Path) -> None:
        """Create the folder, and those above it that are not known to be durable; sync the folder above each."""
        if folder in self._durable or folder == folder.parent:
            return
        self._make_folder(folder.parent)
        folder.mkdir(0o700 if self.private else 0o777, exist_ok=True)
        if folder.is_relative_to(self.root):
            _sync_folder(folder.parent)
        if len(self._durable) >= KNOWN_FOLDERS:
            self._durable.clear()
        self._durable.add(folder)

    def _read(self, path: str, start: int, length: int) -> bytes:
        opener = partial(_open_below, self.root, check_path(path))
        try:
            with self._translate_errors(f"reading {path}"), open(self.root / path, "rb", opener=opener) as file:
                file.seek(start)
                data = file.read(length)
            if self._place is None:
                self._remember(path)
            return data
        except (FileNotFoundError, IsADirectoryError):
            raise NotStoredError(f"there is no {path} in {self.url}") from None
        except StoreUnreadableError:
            self.file(path)  # raises the error about a link, if it was one
            raise

    def _list(self, prefix: str) -> Listing:
        with self._translate_errors(f"listing {prefix or 'everything'}"):
            return sorted(self._walk_prefix(prefix), key=lambda one: one.path)

    def _take(self, found: Iterator[ObjectInfo], prefix: str) -> Listing:
        with self._translate_errors(f"listing {prefix or 'everything'}"):
            return list(islice(found, LISTED_AT_ONCE))

    def _walk_prefix(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, slash, _ = check_prefix(prefix).rpartition("/")
        return (one for one in self._walk(folder + slash) if one.path.startswith(prefix))

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield every file below "folder/". Omits files that are deleted meanwhile; an unreadable one is an error."""
        try:
            entries = list(os.scandir(self.root / folder))
        except FileNotFoundError:
            return
        for entry in entries:
            path = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                if path != SCRATCH:
                    yield from self._walk(f"{path}/")
                continue
            if entry.is_dir():  # a link to a folder: the objects below it would be missing
                raise StoreUnreadableError(LINK.format(path, self.root))
            with contextlib.suppress(FileNotFoundError):
                facts = entry.stat(follow_symlinks=False)
                yield ObjectInfo(path, facts.st_size, facts.st_mtime)

    def _delete(self, path: str) -> None:
        target = self.root / check_path(path)  # if it is a link, the link is deleted
        self._refuse_links(path.rpartition("/")[0])
        with self._translate_errors(f"deleting {path}"):
            target.unlink(missing_ok=True)
        for folder in target.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone: nothing more to do
                return
            self._durable.discard(folder)

    def _remove_leftovers(self, before: float) -> int:
        removed = 0
        self._refuse_links(SCRATCH)
        with self._translate_errors("removing leftovers"), contextlib.suppress(FileNotFoundError):
            for part in self._scratch.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if part.stat().st_mtime < before:
                        part.unlink()
                        removed += 1
        return removed

    @contextlib.contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        """Turn errors of the operating system into errors of the store, by number, with advice on what to do."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError) as error:
            if not action.startswith("reading"):
                raise StoreUnreadableError(
                    f"the store {self.root} can't be used: {error.strerror} (while {action}); check that folders can "
                    f"be made there"
                ) from error
            raise  # the caller raises NotStoredError
        except OSError as error:
            if error.errno in FULL:
                raise StoreFullError(
                    f"{self.root} is full ({error.strerror}; {_free_bytes(self.root):,} bytes free, while {action}): "
                    f"free space there"
                ) from error
            if error.errno in UNREADABLE:
                raise StoreUnreadableError(
                    f"the store {self.root} can't be used: {error.filename or self.root}: {error.strerror} "
                    f"(while {action}); check that the store is a folder, mounted, and that this user has the "
                    f"permissions to read and write it"
                ) from error
            raise StoreError(f"{self.root}: {error.strerror or error} (while {action})") from error


def _write_and_sync(part: Path, data: bytes | Path, *, private: bool) -> None:
    with part.open("xb") as file:
        if private and hasattr(os, "fchmod"):  # not on Windows
            os.fchmod(file.fileno(), 0o600)
        if isinstance(data, Path):
            with data.open("rb") as source:
                shutil.copyfileobj(source, file, PIECE_BYTES)
        else:
            view = memoryview(data)
            for start in range(0, len(data), PIECE_BYTES):
                file.write(view[start : start + PIECE_BYTES])
        file.flush()
        os.fsync(file.fileno())


def _open_below(root: Path, path: str, _: str, flags: int) -> int:
    """Open an object without following a symbolic link below the root, even one that is created meanwhile.

    Windows has no such flags. OSError: a link, a pipe or a device (opening a pipe could block without end).
    """
    if os.open not in os.supports_dir_fd:
        return os.open(root / path, flags)
    *folders, name = path.split("/")
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    if not (stat.S_ISREG(mode := os.fstat(file).st_mode) or stat.S_ISDIR(mode)):  # opening a folder fails as it should
        os.close(file)
        raise OSError(errno.EPERM, "It is a pipe or a device, not a file")
    return file


def _sync_folder(folder: Path) -> None:
    """Make the folder's entries durable. Windows can't open folders and needs no such step."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _free_bytes(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0
