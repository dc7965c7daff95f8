"""How Spark is started: its options, Spark's own settings in a properties file, and which of them are secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from capture.errors import SparkError
from natty.config.secret_files import exposure

MASTER = "local[2]"
DRIVER_MEMORY = "1g"
"""Of the JVM; a merge's rows are in its workers. Queries spill beyond it."""

SECRET = re.compile("secret|password|token|access.?key|credential", re.IGNORECASE)
"""A setting whose name matches has a secret value; much as Spark itself recognises them."""

PLACE = re.compile(r"(file|\.secrets\.[^.]+|\.secretKeyRef\..+)$", re.IGNORECASE)
"""The end of a name whose value is not the secret itself, but where it is stored, here or in Kubernetes."""

MASTERS = ("local", "spark://", "k8s://")
"""The prefixes of `spark.master`, except for yarn."""

_LINE = re.compile(r"\s*((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_MEANT = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Spark is started.

    `java` is a Java home or a `java` executable; None looks for one (`capture.spark.java.choose`). `properties` are
    Spark's own settings and override ours, including `spark.master`. They never appear on a command line, so they may
    hold secrets. `properties_file` is a file as for `spark-submit`, which may hold secrets too; `properties` override
    it. `queries` means that it answers queries: their rows pass through the JVM, so Java's optimising compiler pays
    off. A merge has no rows in the JVM; without that compiler it takes half the time to its first commit, and less
    memory. `encrypted` means that files on the disks of driver and executors are encrypted with a key of this session,
    unless `properties` say otherwise; SparkDriver sets it if there are keys. `environment` names variables that Spark's
    processes get besides those that they need: a query can read them. `class_data` keeps an archive of Spark's classes
    in the user's cache: with it a session starts in half the time.
    """

    master: str = MASTER
    driver_memory: str = DRIVER_MEMORY
    java: str | None = None
    properties: Mapping[str, str] = {}
    properties_file: str = ""
    class_data: bool = True
    environment: Sequence[str] = ()
    queries: bool = False
    encrypted: bool = False

    def __repr__(self) -> str:
        return f"SparkOptions(master={self.master!r}, java={self.java!r}, properties={sorted(self.properties)})"


def read_properties(path: str) -> dict[str, str]:
    """Return the settings of a properties file. SparkError if it can't be read, or others may read secrets in it.

    Format: https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)
    """
    file = Path(path).expanduser()
    try:
        text, exposed = file.read_text(), exposure(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SparkError(f"Spark's properties file {path} can't be read: {why}") from error
    settings = dict(map(_setting, _logical_lines(text)))
    secrets = [name for name in settings if SECRET.search(name) and not PLACE.search(name)]
    if secrets and exposed:
        raise SparkError(f"{path} holds secrets ({', '.join(sorted(secrets))}), and {exposed}")
    return settings


def as_properties(settings: dict[str, str]) -> str:
    """Return the text of a properties file."""
    return "".join(f"{_escape(name, key=True)}={_escape(value)}\n" for name, value in settings.items())


def check_master(master: str, environ: Mapping[str, str] = os.environ) -> None:
    """SparkError if Spark can't find the cluster that `master` means; Spark would report that only in its log."""
    if master == "yarn" and not (environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR")):
        raise SparkError(
            "spark.master is yarn, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set: one of them names the folder"
            " of the cluster's yarn-site.xml and core-site.xml"
        )
    if master.startswith("sc://"):
        raise SparkError(
            f"spark.master is {master}: the compaction needs a session of its own, whose jobs end with its term, and"
            " Spark Connect has none; the data source jetstream works there"
        )
    if master != "yarn" and not master.startswith(MASTERS):
        raise SparkError(
            f"spark.master is {master!r}: write local[2], spark://HOST:PORT, k8s://https://HOST:PORT or yarn"
        )


def _logical_lines(text: str) -> list[str]:
    """Return the lines that hold a setting; a line that ends in a backslash is joined with the next."""
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text)
    return [line.lstrip() for line in joined.splitlines() if line.strip() and line.lstrip()[0] not in "#!"]


def _setting(line: str) -> tuple[str, str]:
    found = _LINE.match(line)
    assert found is not None, "it is not blank"
    return _unescape(found[1]), _unescape(found[2])


def _unescape(text: str) -> str:
    def replace_escape(found: re.Match[str]) -> str:
        what = found[1]
        return chr(int(what[1:], 16)) if len(what) == 5 else _MEANT.get(what, what)

    return _ESCAPE.sub(replace_escape, text)


def _escape(text: str, *, key: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if key:
        return re.sub(r"([\s=:#!])", r"\\\1", escaped)
    return f"\\{escaped}" if escaped.startswith((" ", "\t")) else escaped
