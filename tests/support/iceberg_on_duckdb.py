"""DuckDB with its own Iceberg extension, which reads archives' tables in a process beside the tests.

`make test-iceberg-duckdb`, and long tests. DuckDB downloads extensions from its own host. PyPI has those of some
versions in packages by other authors; DuckDB checks its own signature on extensions that it loads. They are for an
earlier DuckDB than ours, so they get a virtual environment.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from asyncio.subprocess import PIPE
from pathlib import Path

from iceberg_engines import EXPECTED, TOKEN, archive, prepare, report
from patient import PATIENCE

from capture.archive.iceberg_state import archive_location, folder
from capture.node.status.iceberg_rest import Archive, RestCatalog
from natty.metrics.http import serve

VERSION = "1.5.5"
EXTENSIONS = ("avro", "httpfs", "iceberg")
PACKAGES = [f"{name}=={VERSION}" for name in ("duckdb", *(f"duckdb-extension-{one}" for one in EXTENSIONS))]
ENVIRONMENT = Path(__file__).parents[2] / ".venv-iceberg-duckdb"

ANSWERS = """
import glob, json, os, sys
import duckdb

connection = duckdb.connect(config={"autoinstall_known_extensions": False})
for name in sys.argv[1:]:
    [file] = glob.glob(os.path.join(sys.prefix, "lib", "**", name + ".duckdb_extension"), recursive=True)
    connection.load_extension(file)
for line in sys.stdin:
    try:
        answer = {"rows": connection.execute(json.loads(line)).fetchall()}
    except duckdb.Error as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer, default=str), flush=True)
"""


class Refused(Exception):
    """DuckDB could not answer."""


class DuckDB:
    """A DuckDB in a separate process, which answers one query after the other."""

    def __init__(self, process):
        self._process = process

    async def ask(self, *questions):
        """Return the rows of the last answer, each a list; Refused with DuckDB's reason.

        Values without a JSON type are text; a query can't return a TIMESTAMPTZ, but its epoch.
        """
        for question in questions:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            async with asyncio.timeout(PATIENCE):
                answer = json.loads(await self._process.stdout.readline())
            if "refused" in answer:
                raise Refused(answer["refused"])
        return answer["rows"]

    async def ask_column(self, question):
        """Return the first column of the answer."""
        return [row[0] for row in await self.ask(question)]


@contextlib.asynccontextmanager
async def running(python):
    """Yield a DuckDB; its process and state end with the block."""
    process = await asyncio.create_subprocess_exec(str(python), "-c", ANSWERS, *EXTENSIONS, stdin=PIPE, stdout=PIPE)
    try:
        yield DuckDB(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def attach(url, *, token=TOKEN, options=""):
    """Return the statement that attaches a catalog as `lake`."""
    return f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{url}', TOKEN '{token}'{options})"


async def answers(duck, location):
    """Return DuckDB's answers about the archive, by its folder and by the attached catalog."""
    table = f"iceberg_scan('{location}')"
    [[first]] = await duck.ask(f"SELECT arg_min(snapshot_id, sequence_number) FROM iceberg_snapshots('{location}')")
    [[headers, payload]] = await duck.ask(f"SELECT headers, decode(payload) FROM {table} WHERE sequence = 1")
    return {
        "rows": await duck.ask(f"SELECT sequence, key, price FROM {table} ORDER BY sequence"),
        "intervals": await duck.ask_column(f"SELECT DISTINCT epoch(interval)::BIGINT FROM {table}"),
        "filtered": await duck.ask_column(
            f"SELECT sequence FROM {table} WHERE key = 'a/b %' AND sequence >= 2 ORDER BY 1"
        ),
        "headers": headers,
        "payload": payload,
        "before": await duck.ask_column(
            f"SELECT sequence FROM iceberg_scan('{location}', snapshot_from_id = {first}) ORDER BY 1"
        ),
        "namespaces": await duck.ask_column("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'lake'"),
        "tables": await duck.ask_column("SELECT name FROM (SHOW ALL TABLES)"),
        "by_catalog": await duck.ask("SELECT key, count(*) FROM lake.orders.S GROUP BY key ORDER BY key"),
    }


async def ask(python):
    """Return DuckDB's answers about an archive."""
    with tempfile.TemporaryDirectory() as root:
        store, state = await archive(f"{root}/an archive")
        catalog = RestCatalog({"orders": Archive(store, state.read)}, [TOKEN])
        async with serve(catalog.application(), "127.0.0.1", 0, None) as url, running(python) as duck:
            await duck.ask(attach(url))
            return await answers(duck, f"{archive_location(store)}/{folder('S')}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    given = parser.parse_args()
    found = asyncio.run(ask(prepare(given.environment.absolute(), PACKAGES)))
    sys.exit(report(f"DuckDB {VERSION}", found, EXPECTED))


if __name__ == "__main__":
    main()
