"""A Spark Connect server of the wheel from PyPI, with a token, and a program that is its client.

    python spark_connect.py FOLDER OPTIONS JOB …

OPTIONS are the data source's as JSON, with the server's address under "remote"; the token is in the environment.
"""

import json
import os
import secrets
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pyspark
import pytest
from patient import PATIENCE
from spark_cluster import ROOT, listens
from spark_sealed import HOST

from capture.spark.gateway import module_options
from capture.spark.java import choose
from capture.spark.options import as_properties
from natty.elections.guard import kill
from natty.testing import free_ports
from natty.testing.spawner import spawn

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
MICRO_BATCH = 400


class ConnectServer:
    """The server's process; its clients need `url` and `token`."""

    def __init__(self, folder):
        self.folder, self.token = folder, secrets.token_hex(16)
        [self.port] = free_ports(1)
        self.url = f"sc://localhost:{self.port}"  # clear text, and so a token, is sent only to this name
        self.log = folder / "server.log"
        self.process = None

    def start(self):
        """Start it, and wait until it listens."""
        settings = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(self.folder),
            "spark.sql.warehouse.dir": (self.folder / "warehouse").as_uri(),
        }
        file = self.folder / "spark.conf"
        file.write_text(as_properties(settings))
        java, home = choose(), Path(pyspark.__file__).parent
        command = [
            str(java.path),
            "-cp", str(home / "jars" / "*"),
            "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            *module_options(java.version),
            "org.apache.spark.deploy.SparkSubmit",
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--properties-file", str(file), "spark-internal",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_SCALA_VERSION": "2.13",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYSPARK_PYTHON": Path(sys.executable).name,  # by name: Spark gives a path to a shell, unquoted
            "PYTHONPATH": str(ROOT),  # as if this package were installed there
            TOKEN: self.token,
        }
        with self.log.open("ab") as output:
            self.process = spawn(command, output=output, folder=self.folder, environ=environment)
        deadline = time.monotonic() + 3 * PATIENCE
        while not listens(self.port):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def client(self, folder, options, *jobs, token=None):
        """Run jobs in a client's process; return its exit status, the result of each job, and its standard error."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), TOKEN: token or self.token}
        arguments = [str(folder), json.dumps(options | {"remote": self.url}), *jobs]
        done = subprocess.run(
            [sys.executable, __file__, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE,
        )
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def close(self):
        """Kill it, and its Python workers."""
        if self.process is not None:
            self.process.kill()
            kill(self.process.pid)
            self.process.wait()


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory):
    """A server for the tests of one file."""
    server = ConnectServer(tmp_path_factory.mktemp("spark-connect"))
    try:
        server.start()
        yield server
    finally:
        server.close()


class Jobs:
    """The jobs of a client; each returns its result."""

    def __init__(self, spark, folder, options):
        self.spark, self.folder, self.options = spark, folder, options

    def _read(self, **more):
        return self.spark.read.format("jetstream").options(**self.options, **more).load()

    def batch(self):
        """Read the stream as one batch, in several tasks."""
        rows = self._read(partitions="4")
        [first] = rows.orderBy("sequence").select("subject", "payload", "headers").head(1)
        return {
            "count": rows.count(),
            "distinct": rows.select("sequence").distinct().count(),
            "first": [first.subject, bytes(first.payload).decode(), first.headers],
            "client": type(self.spark).__module__,
        }

    def refused(self):
        """Read with an unknown option."""
        try:
            self._read(startSequense="1").count()
        except Exception as error:
            return {"said": str(error)}
        return {"said": ""}

    def stream(self):
        """Read micro-batches into Parquet until no more messages are available."""
        options = self.options | {"maxMessagesPerTrigger": str(MICRO_BATCH)}
        rows = self.spark.readStream.format("jetstream").options(**options).load()
        path, checkpoint = str(self.folder / "rows"), str(self.folder / "checkpoint")
        writing = rows.writeStream.format("parquet").option("path", path).option("checkpointLocation", checkpoint)
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        stored = self.spark.read.parquet(path)
        ends = [json.loads(progress["sources"][0]["endOffset"])["next"] for progress in query.recentProgress]
        return {"rows": stored.count(), "distinct": stored.select("sequence").distinct().count(), "ends": ends}

    def write(self):
        """Publish the rows twice under one name: as a batch, and as micro-batches."""
        target = self.options | {"stream": self.options["stream"] + "_OUT"}
        subject = f"concat('{target['stream']}.', sequence % 3) AS subject"
        for _ in range(2):
            rows = self._read(partitions="2").selectExpr(subject, "payload", "headers")
            rows.write.format("jetstream").options(**target, writeId="job-7").mode("append").save()
        return {}

    def write_stream(self):
        """Publish micro-batches."""
        target = self.options | {"stream": self.options["stream"] + "_FLOW"}
        rows = self.spark.readStream.format("jetstream").options(**self.options).load()
        rows = rows.selectExpr(f"concat('{target['stream']}.', sequence % 3) AS subject", "payload")
        writing = rows.writeStream.format("jetstream").options(**target)
        query = writing.option("checkpointLocation", str(self.folder / "flow")).trigger(availableNow=True).start()
        query.awaitTermination()
        return {}


def main(folder, options, *jobs):
    """Run the jobs in one session, and print the result of each."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    from pyspark.sql import SparkSession

    options = json.loads(options)
    spark = SparkSession.builder.remote(f"{options.pop('remote')}/;token={os.environ[TOKEN]}").getOrCreate()
    todo = Jobs(spark, Path(folder), options)
    for job in jobs:
        print(json.dumps({"job": job, **getattr(todo, job)()}, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
