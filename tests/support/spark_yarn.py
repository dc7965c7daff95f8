"""Settings for Spark on an existing YARN cluster; HADOOP_CONF_DIR names the folder with its address.

The cluster's only node must be this machine: the tests look at its processes, and their servers listen on loopback.
"""

import os
import time
from pathlib import Path

import pyspark
import pytest
from patient import PATIENCE
from spark_cluster import command_line
from spark_sealed import HOST, sealed

from capture.spark.options import as_properties
from natty.testing import DevCA

EXECUTOR = b"YarnCoarseGrainedExecutorBackend"
ROOT = Path(__file__).parents[2]


class SparkOnYarn:
    """A driver's properties files, from `settings`. `executors` are the processes on this machine."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = DevCA.create("Spark test CA")
        self.given = {"PYTHONPATH": str(ROOT), **({"JAVA_HOME": java} if (java := os.environ.get("JAVA_HOME")) else {})}

    def settings(self, name, **changed):
        """Write a properties file: a secret that YARN passes on, TLS, encrypted disks, two executors."""
        folder = self.folder / name
        security = sealed(folder, self.ca)
        file = folder / "spark.conf"
        file.touch(mode=0o600)
        file.write_text(
            as_properties(
                {
                    "spark.master": "yarn",
                    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
                    "spark.yarn.am.memory": "512m",
                    "spark.executor.instances": "2",
                    "spark.driver.host": HOST,
                    "spark.driver.bindAddress": HOST,
                    **security,
                    **{f"spark.executorEnv.{key}": value for key, value in self.given.items()},
                    **changed,
                }
            )
        )
        return str(file)

    def give(self, variables):
        """Give executors these variables."""
        self.given |= variables

    def executors(self):
        """Return the ids of the executors' JVMs, without the shells that start them."""
        lines = {path.parent.name: command_line(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline")}
        java = [one for one, line in lines.items() if line.partition(b"\0")[0].endswith(b"java")]
        return [int(one) for one in java if EXECUTOR in lines[one]]

    def wait(self, condition, what):
        """Wait until a condition holds."""
        deadline = time.monotonic() + 3 * PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {3 * PATIENCE} s"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def spark_on_yarn(tmp_path_factory):
    if not os.environ.get("HADOOP_CONF_DIR"):
        pytest.fail("HADOOP_CONF_DIR names no cluster", pytrace=False)
    return SparkOnYarn(tmp_path_factory.mktemp("yarn"))
