"""Formats a check for monitoring systems: one line for Nagios-compatible ones, a text file for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from capture.errors import ConfigError
from capture.verification.check import UNCHECKED, WELL, WRONG, Check
from capture.verification.pipelines import PipelineCheck
from capture.verification.verdict import COUNTED

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
"""Nagios' exit statuses."""
_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_NAGIOS = {WELL: OK, UNCHECKED: WARNING, WRONG: CRITICAL}
VERIFY, PIPELINE = "capture_verify", "capture_verify_pipeline"
"""The beginnings of metrics' names."""
LONGEST = 1000
"""The limit of a Nagios line's text, in characters: some compatible systems read no more."""


# --- Nagios: the plug-in guidelines of monitoring-plugins.org --------------------------------------------------------


def nagios(check: Check) -> tuple[int, str]:
    """Return the exit status and the line: the verdict, then the counts as performance data.

    CRITICAL: something is missing or damaged. WARNING: no damage was found, but not everything could be checked.
    """
    status = _NAGIOS[check.status]
    counts = {name: len(getattr(check.verdict, name)) for name in COUNTED}
    measured = {
        **counts,
        "duplicates": check.verdict.duplicates,
        "problems": len(check.verdict.problems),
        "unchecked": len(check.verdict.unchecked),
        "unacknowledged": check.unacknowledged,
        "objects": check.held.objects,
    }
    data = [f"{name}={value}{_LIMITS.get(name, '')}" for name, value in measured.items()]
    data += [f"size={check.held.bytes}B", f"time={check.seconds:.3f}s"]
    return status, f"{_line(status, check.sentence())} | {' '.join(data)}"


def nagios_pipeline(check: PipelineCheck) -> tuple[int, str]:
    """Return the exit status and the line for the table of a pipeline; as `nagios`."""
    status, files = _NAGIOS[check.status], check.files
    measured = {"waiting": check.waiting, "problems": len(check.problems), "unchecked": len(files.unchecked)}
    measured |= {"files": files.files, "rows": files.rows}
    data = [f"{name}={value}{_LIMITS.get(name, '')}" for name, value in measured.items()]
    data += [f"size={files.bytes}B", f"time={check.seconds:.3f}s"]
    return status, f"{_line(status, ' '.join(check.sentences()))} | {' '.join(data)}"


def nagios_unknown(reason: str) -> tuple[int, str]:
    """Return the exit status and the line for a check that was not possible at all."""
    return UNKNOWN, _line(UNKNOWN, reason)


_LIMITS = {"missing": ";;0", "duplicates": ";;0", "problems": ";;0", "unchecked": ";0", "unexplained": ";0"}
"""Warning and critical thresholds: above zero."""


def _line(status: int, text: str) -> str:
    """Return the text as one line, without the "|" that starts the performance data."""
    said = " ".join(text.replace("|", "/").split())
    return f"CAPTURE {_NAMES[status]} - {said if len(said) <= LONGEST else said[: LONGEST - 1] + '…'}"


# --- Prometheus: the text format, for node_exporter's textfile collector ---------------------------------------------


def prometheus(check: Check) -> str:
    """Return the check's figures in Prometheus' text format. No label contains a subject."""
    verdict, of_stream = check.verdict, labels(stream=check.stream)
    sequences = [(labels(stream=check.stream, state=name), float(len(getattr(verdict, name)))) for name in COUNTED]
    return _outcome(of_stream, check.status, check.checked_at) + "".join(
        (
            _metric("sequences", "Sequences of the stream, by state.", sequences),
            *(
                _metric(name, text, [(of_stream, float(value))])
                for name, text, value in (
                    ("duplicates", "Surplus rows in the compacted table.", verdict.duplicates),
                    ("problems", "Damaged or missing objects and documents.", len(verdict.problems)),
                    ("unchecked", "Objects that could not be checked.", len(verdict.unchecked)),
                    ("unacknowledged", "Messages that capture has not acknowledged yet.", check.unacknowledged),
                    ("compared", "Whether the stream could be compared.", verdict.asked and not check.uncompared),
                    ("objects", "Objects that were checked.", check.held.objects),
                    ("bytes", "Bytes of the checked objects.", check.held.bytes),
                    ("seconds", "Seconds that the check took.", round(check.seconds, 3)),
                )
            ),
        )
    )


def prometheus_pipeline(check: PipelineCheck) -> str:
    """Return the figures of the table of a pipeline in Prometheus' text format."""
    files, of_pipeline = check.files, labels(pipeline=check.pipeline)
    counts = [
        (labels(pipeline=check.pipeline, input=one.name, state=state), float(len(getattr(one, state))))
        for one in check.inputs
        if one.is_stream
        for state in ("held", "waiting", "removed", "strange")
    ]
    return _outcome(of_pipeline, check.status, check.checked_at, PIPELINE) + "".join(
        (
            metric(f"{PIPELINE}_messages", "Messages of the table's inputs, by state.", counts),
            *(
                metric(f"{PIPELINE}_{name}", text, [(of_pipeline, float(value))])
                for name, text, value in (
                    ("problems", "What is missing, damaged or wrong.", len(check.problems)),
                    ("unchecked", "Files that could not be checked.", len(files.unchecked)),
                    ("files", "Files that were checked.", files.files),
                    ("rows", "Rows of the table.", files.rows),
                    ("bytes", "Bytes of the checked files.", files.bytes),
                    ("seconds", "Seconds that the check took.", round(check.seconds, 3)),
                )
            ),
        )
    )


def prometheus_failure(stream: str, now: float, *, pipeline: str = "") -> str:
    """Return the figures of a check that was not possible: its status and its time (Unix seconds)."""
    if pipeline:
        return _outcome(labels(pipeline=pipeline), UNCHECKED, now, PIPELINE)
    return _outcome(labels(stream=stream), UNCHECKED, now)


def _outcome(given: str, status: int, now: float, prefix: str = VERIFY) -> str:
    return (
        metric(
            f"{prefix}_ok",
            "Whether nothing is missing or damaged, and everything was checked.",
            [(given, status == WELL)],
        )
        + metric(
            f"{prefix}_status",
            "Exit status of the check: 0 ok, 1 not everything checked, 3 missing or damaged.",
            [(given, status)],
        )
        + metric(f"{prefix}_timestamp_seconds", "When the check began, Unix seconds.", [(given, now)])
    )


def _metric(name: str, text: str, samples: list[tuple[str, float]]) -> str:
    return metric(f"{VERIFY}_{name}", text, samples)


def metric(name: str, text: str, samples: Iterable[tuple[str, float]]) -> str:
    """Return a gauge with a value for each set of `labels`."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    lines += [f"{name}{{{given}}} {_number(value)}" for given, value in samples]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def labels(**given: str) -> str:
    """Return labels in the form that is written between braces."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in given.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old one or the new one. ConfigError if that fails.

    All users may read it, as far as this process's umask allows: the collector is another user.
    """
    part = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        try:
            with part.open("x") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}; check --prometheus") from error
