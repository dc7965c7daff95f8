"""A session of Spark in this process: how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import spark_ending
from patient import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_idle_workers_are_ended_before_spark_closes_their_connections_and_nobody_complains():
    """Those of a session with a query that goes on are not idle."""
    done = subprocess.run(
        [sys.executable, spark_ending.__file__],
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert done.stdout.split() == ["True", "False", "True", "ended"], done.stderr[-3000:]
    assert "Traceback" not in done.stderr
