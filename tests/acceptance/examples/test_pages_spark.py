"""The Python of docs/spark.md runs in one Spark session, which its second block starts, against a real server."""

import asyncio
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks_of
from pages_world import archive_orders, prepared
from patient import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.long]
PAGE = next(path for path in PAGES if path.name == "spark.md")
# The last one is run by tests/integration/capture/spark/test_spark_connect.py, in other words.
GROUPED, SESSION, UNITED, STREAMED, WRITTEN, _OVER_CONNECT = (
    one.body for one in blocks_of(PAGE) if one.language == "python"
)
PROGRAM = f"""
{SESSION}
{textwrap.indent(GROUPED + UNITED, "    ")}
    print(orders.selectExpr("concat('united ', count(*), ' ', count(DISTINCT sequence))").head()[0])
{textwrap.indent(STREAMED, "    ")}
    query.awaitTermination()
    print("streamed", spark.read.parquet("/lake/orders").count())
    rows = spark.createDataFrame([("eu", 7), ("us", 8)], "region string, total int")
{textwrap.indent(WRITTEN, "    ")}
"""


async def test_the_blocks_of_the_page_of_spark_do_what_they_say(page_server, tmp_path, monkeypatch):
    options = page_server.connect_options()
    connection = {"servers": page_server.url} | {
        name: options[ours] for name, ours in (("tlsCa", "tls_ca"), ("tlsCert", "tls_cert"), ("tlsKey", "tls_key"))
    }
    changes = {
        '"tls://nats.example.com:4222"': repr(connection["servers"]),
        '"/etc/nats/ca.pem"': repr(connection["tlsCa"]),
        '"/etc/nats/client.pem"': repr(connection["tlsCert"]),
        '"/etc/nats/client-key.pem"': repr(connection["tlsKey"]),
        "s3://lake/orders": str(tmp_path / "lake"),
        '"/lake/': f'"{tmp_path}/spark/',
    }
    classes = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # Spark's, which are kept there
    program = f"connection = {connection!r}\n{PROGRAM}"
    for shown, ours in changes.items():
        program = program.replace(shown, ours)
    async with prepared(page_server, tmp_path, monkeypatch) as client:
        await archive_orders(client, allow_direct=True)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": classes},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(6 * PATIENCE):
            said, complaint = (text.decode() for text in await process.communicate())
        assert process.returncode == 0, complaint[-5000:]
        written = [message.data async for message in client.read("ORDERS", from_sequence=21)]
    assert said.startswith("20\n"), said
    assert re.search(r"^\| +orders\.new\| +5\|$", said, re.MULTILINE), said
    assert re.search(r"^united 20 20\nstreamed 20$", said, re.MULTILINE), said
    assert sorted(written) == [b'{"region":"eu","total":7}', b'{"region":"us","total":8}']
