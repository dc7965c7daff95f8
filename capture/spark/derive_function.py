"""Calls the user's function that computes a pipeline's rows."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import py4j
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from capture.errors import ConfigError, PipelineError
from capture.pipelines.derivation import Derivation, PipelineRun, Rows
from capture.spark.failure import sentence
from capture.stores.plugin import FAULTS, load_function

_LINE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:: \S.*)?$", re.MULTILINE)
_ABSENT = "ModuleNotFoundError: "
_ADVICE = (
    ": Spark's executors can't import it; put its folder into their PYTHONPATH, or the file into spark.submit.pyFiles"
)
_OURS = tuple(str(Path(one).parent) for one in (pyspark.__file__, py4j.__file__, str(Path(__file__).parent)))
_OURS_ELSEWHERE = re.compile(
    r"(?:^|/)(?:(?:site|dist)-packages|python|pyspark\.zip|py4j-[^/]+\.zip)/(?:pyspark|py4j)/|/capture/spark/[a-z_]+\.py$"
)
"""Files whose lines tell a user nothing: those of the driver's packages, and of the executors', whose paths differ."""


def call(asked: Derivation, scope: SparkSession, sources: Mapping[str, Rows], *, new: bool) -> DataFrame:
    """Return the rows that the user's function computes of the new rows, or of all.

    PipelineError if it can't be loaded, raises, or returns something else.
    """
    spec = asked.python
    try:
        function: Callable[..., Any] = load_function(spec, "function", ())
    except ConfigError as error:
        raise PipelineError(str(error)) from error
    inputs = {name: one.new() if new else one.all() for name, one in sources.items()}
    run = PipelineRun(pipeline=asked.pipeline, number=asked.number, everything=not new, _inputs=sources)
    try:
        rows = function(scope, inputs, run)
    except PipelineError:
        raise
    except FAULTS as error:
        raise PipelineError(f"{spec} failed: {describe_fault(error)}") from error
    if not isinstance(rows, DataFrame):
        raise PipelineError(f"{spec} returned {type(rows).__name__}, not a DataFrame")
    return rows


def describe_fault(error: BaseException) -> str:
    """Return an exception of the user's code in one sentence, with its place there."""
    if isinstance(error, PySparkException):
        text = (error.getMessage() or str(error)).partition("JVM stacktrace")[0]
        places, raised = list(_LINE.finditer(text)), _RAISED.findall(text)
        said = raised[-1] if places and raised else sentence(error)
        said += _ADVICE if said.startswith(_ABSENT) else ""
    else:
        said = f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")
        places = []
    places += list(_LINE.finditer("".join(traceback.format_tb(error.__traceback__)))) if not places else []
    mine = [one for one in places if not _is_ours(one["file"])]
    return f"{said} ({Path(mine[-1]['file']).name}, line {mine[-1]['line']})" if mine else said


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) or _OURS_ELSEWHERE.search(file) is not None
