"""A session of Spark in this process: how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import spark_ending
import spark_failing
from patient import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_idle_workers_are_ended_before_spark_closes_their_connections_and_nobody_complains():
    """Those of a session with a query that goes on are not idle: Spark ends them, and they may complain."""
    done = subprocess.run(
        [sys.executable, spark_ending.__file__],
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert done.stdout.split() == ["True", "False", "True", "ended"], done.stderr[-3000:]
    complaints, ended, _ = done.stderr.partition(spark_ending.IDLE_ENDED)
    assert ended
    assert "Traceback" not in complaints


def test_the_last_line_of_a_program_that_an_error_of_the_data_source_ends_is_its_sentence():
    """The session, and the JVM that has the texts of Spark's errors, end before Python prints it."""
    done = subprocess.run(
        [sys.executable, spark_failing.__file__, "raise"],
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert done.returncode == 1
    said = "there is no option streem; did you mean stream?"
    assert done.stdout.splitlines() == [said]
    assert done.stderr.splitlines()[-1] == said
    assert "pyspark.errors.exceptions.captured.AnalysisException: " in done.stderr
    assert "str() failed" not in done.stderr
