"""Turns errors of Spark and Java into one sentence."""

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from capture.errors import CaptureError

_SQLSTATE = re.compile(r"(?<!\s)\s*SQLSTATE: \w+")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*: (?P<said>\S.*)$", re.MULTILINE)
_REPEATED = re.compile(r"\.? Received status: Status\(.*")  # Kubernetes' client repeats its message
_WRAPPING = "Job aborted due to stage failure"
_WORKER_ENDED = "Python worker exited unexpectedly"  # it has no condition by which it could be recognised


def sentence(error: BaseException) -> str:
    """Return the reason of a failure in one sentence; Spark's traces are for the log."""
    if isinstance(error, CaptureError):
        return str(error)
    if isinstance(error, Py4JJavaError):
        return _java_sentence(error)
    said = error.getMessage() or str(error) if isinstance(error, PySparkException) else repr(error)
    if "Traceback (most recent call last)" in said:  # from a Python worker: its own error is the last one
        raised = _RAISED.findall(said.split("JVM stacktrace")[0])
        return raised[-1] if raised else _first_line(said)
    return _first_line(said)


def keep_text(error: BaseException) -> None:
    """Let `str(error)` work after the JVM has ended, which has the texts of its errors; the sentence comes last.

    Otherwise the last line of a program that did not catch it is "<exception str() failed>". The error's class stays a
    subclass of its own, with the same name.
    """
    if not isinstance(error, PySparkException | Py4JJavaError):
        return
    said, text, kind = sentence(error), str(error).rstrip(), type(error)
    text = text if text.endswith(said) else f"{text}\n{said}"
    fields = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__str__": lambda _: text}
    error.__class__ = type(kind.__name__, (kind,), fields)


def _java_sentence(error: Py4JJavaError) -> str:
    """Return the outermost and the innermost reason: "while reading file …: it is not a Parquet file"."""
    chain = [_first_line(thrown.getMessage() or thrown.getClass().getName()) for thrown in _causes(error)]
    if any(said.startswith(_WORKER_ENDED) for said in chain):
        return "a Python worker of Spark has ended: it was killed, or had no memory left"
    telling = [said for said in chain if not said.startswith(_WRAPPING)] or chain
    if telling[-1] in telling[0]:
        return telling[0]
    return f"{telling[0].rstrip('.')}: {telling[-1]}"


def _causes(error: Py4JJavaError) -> Iterator[Any]:
    thrown = error.java_exception
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _first_line(text: str) -> str:
    lines = [line.strip() for line in _REPEATED.sub("", _SQLSTATE.sub("", text)).splitlines() if line.strip()]
    return _CONDITION.sub("", lines[0]) if lines else "no reason was given"
