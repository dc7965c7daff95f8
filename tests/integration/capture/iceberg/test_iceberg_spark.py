"""Another Spark, with Iceberg's own runtime, reads the table: by its folder and by the REST catalog."""

import asyncio

import pytest
from iceberg_engines import EXPECTED, prepare
from iceberg_on_spark import ENVIRONMENT, RUNTIME, SPARK, ask

pytestmark = [pytest.mark.spark, pytest.mark.long]


async def test_spark_3_5_with_icebergs_runtime_reads_the_table():
    python = await asyncio.to_thread(prepare, ENVIRONMENT, SPARK, RUNTIME)
    assert await ask(python) == EXPECTED
