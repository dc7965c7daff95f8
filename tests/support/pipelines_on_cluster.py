"""A user's code for pipelines on a cluster: functions, and a store in which a task stops once it has written."""

import hashlib
from pathlib import Path

JOBS = '''
import os

from pyspark.sql import functions as F


def double(value):
    return value * 2


def features(spark, inputs, run):
    """Uses what this module has in the executors: by its name, not by value."""
    twice = F.udf(double, "int")
    return inputs["S"].select("k", twice("v").alias("v"))


def places(spark, inputs, run):
    """Return what each row's Python worker is: its folder, its parent, and the names of its variables."""
    @F.udf("array<string>")
    def look(value):
        return [os.getcwd(), str(os.getpid()), " ".join(sorted(os.environ))]

    java = "java_method('java.lang.System', 'getenv', concat('NATS_PASSWORD', substr(k, 1, 0)))"
    return inputs["S"].select("k", look("v").alias("seen"), F.expr(java).alias("java"))
'''

STORE = '''
import asyncio
import os
from pathlib import Path

from capture.stores import FileStore


class Stopping(FileStore):
    """Keeps the first task that has stored a file of a table from reporting it."""

    def __init__(self, folder, gate):
        super().__init__(Path(folder))
        self.gate = Path(gate)

    async def put(self, path, data, *, if_absent=True):
        await super().put(path, data, if_absent=if_absent)
        try:
            descriptor = os.open(self.gate, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(descriptor, f"{os.getpid()} {path}".encode())
        os.close(descriptor)
        await asyncio.sleep(3600)


def make(folder, gate):
    return Stopping(folder, gate)
'''


def write_modules(folder):
    """Write the modules `cluster_jobs`, `only_here` and `stopping_store` into a folder, and return it."""
    folder.mkdir(exist_ok=True)
    (folder / "cluster_jobs.py").write_text(JOBS)
    (folder / "stopping_store.py").write_text(STORE)
    (folder / "only_here.py").write_text(ELSEWHERE)
    return folder


def stopping_url(folder, gate):
    """Return the URL of the store, whose objects are in a folder."""
    return f"stopping_store:make?folder={folder}&gate={gate}"


ELSEWHERE = """
from pyspark.sql import functions as F


def double(value):
    return value * 2


def features(spark, inputs, run):
    return inputs["S"].select("k", F.udf(double, "int")("v").alias("v"))
"""


def parent_of(process):
    """Return the id of a process's parent; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def digests(folder):
    """Return the SHA-256 of each Parquet file below a folder, by its path."""
    files = folder.rglob("*.parquet")
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}
