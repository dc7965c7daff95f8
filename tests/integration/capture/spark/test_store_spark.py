import contextlib
import json
from pathlib import Path

import pytest
from spark_blocks import QUICK, group, parquet_block, row, rows_of, stored
from stores import SECRET

from capture.spark import SparkDriver, SparkOptions, View
from capture.stores import FileStore, open_store

pytestmark = [pytest.mark.spark, pytest.mark.long]


async def copied(source, target):
    """Put every object of a store into another."""
    for one in await source.list():
        await target.put(one.path, await source.get(one.path))


def ndjson_block(store, name, rows):
    bytes_too = {"header_block_base64": None, "payload_base64": None}
    lines = [json.dumps(row | bytes_too | {"payload": row["payload"].decode()}, ensure_ascii=False) for row in rows]
    path = f"blocks/stream=FLIGHTS/key=a%2Fb/{name}.ndjson"
    return stored(store, path, rows, lambda file: file.write_text("".join(f"{line}\n" for line in lines)))


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            yield path.read_bytes()


async def test_spark_reads_and_writes_an_object_store_by_our_own_client(s3, tmp_path):
    rows = {number: row(number, headers=[("Colour", ["red"])], payload=b"\xff%d" % number) for number in range(1, 501)}
    rows |= {number: row(number, payload=f"\u2028 {number}\n".encode()) for number in (501, 502)}
    one = parquet_block(tmp_path, "one", [rows[number] for number in range(400, 0, -1)])
    two = parquet_block(tmp_path, "two", [rows[number] for number in range(300, 501)])
    three = ndjson_block(tmp_path, "three", [rows[502], rows[501]])
    store = open_store(s3.url())
    await copied(FileStore(tmp_path), store)
    async with SparkDriver(SparkOptions(properties=QUICK)) as driver:
        [merged] = await driver.merge(store.url, [group(one, two, three)])
        view = View(objects=merged.outputs)
        counted = await driver.query(store.url, {"t": view}, "SELECT count(*), sum(sequence) FROM t")
        commands = list(command_lines())
    assert any(b"org.apache.spark" in command for command in commands)
    assert not any(SECRET.encode() in command for command in commands)
    assert (merged.failed, merged.rows_in, merged.duplicates) == ("", 603, 101)
    await copied(store, FileStore(tmp_path / "back"))
    assert rows_of(tmp_path / "back", merged.outputs[0].path) == list(rows.values())
    assert counted.rows == [[502, sum(range(503))]]
