"""One long merge does not stop Spark's driver from answering others: its pools are FAIR."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import spark_sharing
from patient import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_a_small_merge_and_a_query_are_answered_while_a_merge_has_all_cores_and_tasks_that_wait(tmp_path):
    done = subprocess.run(
        [sys.executable, spark_sharing.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    after_merge, after_query = json.loads(done.stdout.splitlines()[-1])
    assert spark_sharing.TASKS > after_merge > after_query > 1  # the last one frees a core without any sharing
