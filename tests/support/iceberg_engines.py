"""Helpers for tests of other engines: an archive, the expected rows of its table, and a separate Python."""

import subprocess
import sys

import msgspec
import pyarrow as pa
from exposing import HOUR, expose_files, table_file

from capture.archive import chain
from capture.archive.chain import Retired
from capture.archive.table import Table
from capture.iceberg import Exposer
from capture.maintenance.merge.schema_evolution import write_columns
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead

TOKEN = "a token that nobody guesses"


async def archive(url):
    """Create an archive with a table of two snapshots; return its store and head."""
    store, state = open_store(url), HeadState()
    exposer = Exposer(store, node="node-1")

    def typed(kind, values):
        return {pa.field("price", kind): pa.array(values, kind)}

    old = await table_file(store, [1, 2, 3], name="a", key="a/b %", own=False)
    small = await table_file(store, [4], name="b", typed=typed(pa.int32(), [7]))
    table = Table(files=[old, small], columns=write_columns(pa.schema([("price", pa.int32())])))
    table = await expose_files(exposer, [], table, now=HOUR)
    head = await chain.commit(store, MemoryHead(1, state), None, table)
    wide = await table_file(store, [4, 5], name="c", typed=typed(pa.int64(), [7, 2**40]))
    table = msgspec.structs.replace(
        await chain.read(store, head, Table),
        files=[old, wide],
        columns=write_columns(pa.schema([("price", pa.int64())])),
        retired=[Retired(small.path, HOUR)],
    )
    table = await expose_files(exposer, [old, small], table, token=2, now=HOUR + 60)
    await chain.commit(store, MemoryHead(2, state), head, table)
    await exposer.announce(table)
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
"""The expected answers of an engine about that archive, if its catalog calls it `orders`."""


def prepare(environment, *installed):
    """Return the Python of a virtual environment; create it with these arguments of pip if it is missing."""
    python = environment / "bin" / "python"
    if not (environment / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        for packages in installed:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        (environment / "made").touch()
    return python


def report(engine, found, expected):
    """Print whether an engine's answers are as expected; return the exit status."""
    wrong = {name: (found.get(name), wanted) for name, wanted in expected.items() if found.get(name) != wanted}
    for name, (answer, wanted) in wrong.items():
        print(f"{name}: {answer}, not {wanted}")
    print(f"{engine} reads {'another' if wrong else 'the'} table")
    return bool(wrong)
