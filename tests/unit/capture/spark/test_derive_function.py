"""What is said of an exception in a user's function: its text, and the line of the user's code."""

import pyspark
import pytest
from pyspark.errors import PySparkException

from capture.spark.derive_function import describe_fault

FAULT = """
Traceback (most recent call last):
{frames}{raised}
"""
MISSING = "ModuleNotFoundError: No module named 'my_jobs'"
HERE = pyspark.__path__[0]


def raised_by_executor(raised, *files):
    frames = "".join(f'  File "{file}", line {number}, in run\n    run()\n' for number, file in enumerate(files, 1))
    return PySparkException(FAULT.format(frames=frames, raised=raised))


@pytest.mark.parametrize(
    "package",
    [
        f"{HERE}/serializers.py",
        "/opt/venv/lib/python3.12/site-packages/pyspark/serializers.py",
        "/usr/lib/python3/dist-packages/pyspark/serializers.py",
        "/opt/spark/python/pyspark/serializers.py",
        "/data/nm/container_1_0001_01_000002/pyspark.zip/pyspark/worker.py",
        "/data/nm/container_1_0001_01_000002/py4j-0.10.9.9-src.zip/py4j/protocol.py",
        "/src/capture/spark/derive_task.py",
    ],
)
def test_a_line_of_a_package_that_an_executor_has_elsewhere_is_not_named(package):
    assert describe_fault(raised_by_executor("ValueError: no", package)) == "ValueError: no"
    fault = raised_by_executor("ValueError: no", "/jobs/my_jobs.py", package)
    assert describe_fault(fault) == "ValueError: no (my_jobs.py, line 1)"


@pytest.mark.parametrize("file", ["/home/me/pyspark/jobs.py", "/jobs/capture/jobs.py", "/jobs/python/jobs.py"])
def test_the_line_of_a_users_file_is_named_whatever_its_folders_are(file):
    assert describe_fault(raised_by_executor("ValueError: no", file)) == "ValueError: no (jobs.py, line 1)"


def test_a_module_that_executors_cannot_import_is_named_with_advice():
    said = describe_fault(raised_by_executor(MISSING, "/nm/pyspark.zip/pyspark/serializers.py"))
    assert said.startswith(f"{MISSING}: Spark's executors can't import it; put its folder into their PYTHONPATH")
    assert said.endswith("spark.submit.pyFiles")
