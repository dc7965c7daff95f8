"""An archive of the classes that Spark loads; with it a session starts in half the time.

For Java 25 it is an AOT cache (JEP 514), for earlier versions a dynamic class-data archive (JEP 350). A recorded run
makes either of them. Java ignores one that does not fit.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from capture.errors import SparkError
from capture.spark.java import Java

AOT_SINCE = 25
"""The first Java that makes an AOT cache in one run."""

RECORD_TIMEOUT = 180.0
"""Seconds that a recorded JVM has to write the archive at its end; a loaded machine needs 60."""

UNUSED_FOR = 30 * 86_400.0
"""Seconds without a session after which an archive of another Java or Spark is deleted: each has 200 MB."""

Record = Callable[[list[str]], None]
"""Runs one session with these options of Java, exercises it as usual sessions do, and ends it."""

log = logging.getLogger("capture.spark.class_data")


def archive_of(java: Java) -> tuple[Path, int | None]:
    """Return the path of the archive for this Java and Spark, and its size (0: it can't be made, None: there is none).

    OSError, RuntimeError: there is no folder for it.
    """
    path = _path(java, _cache())
    if path.exists():
        return path, path.stat().st_size
    place = next(one for one in path.parents if one.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise PermissionError(f"{place} can't be written")
    return path, None


def is_made(java: Java) -> bool:
    """Return whether it was made, or tried; also True if there is no folder for it."""
    try:
        return _path(java, _cache()).exists()
    except (OSError, RuntimeError):
        return True


def flags(java: Java, record: Record, *, folder: Path | None = None) -> list[str]:
    """Return Java's options for a session that starts from the archive. If there is none, it is made now.

    That takes half a minute, once for each Java and Spark. Returns no options while another process makes it, if
    `folder` (by default in the user's cache) can't be written, or if this Java can't make one.
    """
    try:
        archive = _path(java, folder or _cache())
        if not archive.exists():
            archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(java, archive, record)
        if not archive.stat().st_size:  # it was tried, and this Java can't
            return []
        with suppress(OSError):  # an archive that can't be touched is usable too, for example in an image
            os.utime(archive)
    except (OSError, RuntimeError) as error:
        log.debug("Spark starts without an archive of its classes: %s", error)
        return []
    if java.version >= AOT_SINCE:
        return [f"-XX:AOTCache={archive}", "-Xlog:aot*=off"]
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"]


def _make(java: Java, archive: Path, record: Record) -> None:
    """Make the archive, or an empty file if this Java can't. OSError if that is not possible now."""
    with archive.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another process makes it: BlockingIOError
        if archive.exists():
            return
        _remove(archive.parent.glob(f"{archive.stem}-making-*"))  # its maker was killed: we have its lock
        _remove(archive.parent.glob("*.archive"), before=time.time() - UNUSED_FOR)
        made = Path(tempfile.mkdtemp(prefix=f"{archive.stem}-making-", dir=archive.parent)) / "archive"
        try:
            how = "AOTCacheOutput" if java.version >= AOT_SINCE else "ArchiveClassesAtExit"
            with suppress(SparkError):  # the next session reports the reason
                record([f"-XX:{how}={made}"])
            made.touch()
            made.replace(archive)
        finally:
            shutil.rmtree(made.parent, ignore_errors=True)


def _remove(found: Iterable[Path], *, before: float = math.inf) -> None:
    """Delete files and folders that were not used since `before`."""
    for one in found:
        with suppress(OSError):
            if one.stat().st_mtime < before:
                shutil.rmtree(one) if one.is_dir() else one.unlink()


def _path(java: Java, folder: Path) -> Path:
    """Return its path. Its name identifies the installed Java and Spark, since it fits no others."""
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    executable, jars = java.path.resolve(), Path(spark.origin).parent / "jars"
    installed = [f"{path}:{path.stat().st_mtime_ns}" for path in (executable, jars)]
    digest = hashlib.sha256("\n".join(installed).encode()).hexdigest()
    return folder / f"java-{java.version}-spark-{version('pyspark')}-{digest[:12]}.archive"


def _cache() -> Path:
    """Return the user's cache. RuntimeError: this user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "natty-nats" / "spark"
