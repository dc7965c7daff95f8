"""The whole chain: published, captured, compacted by Spark, the disk lost, restored: byte for byte the same."""

import shutil

import pytest
from archiving import compact_once
from patient import NEVER, PATIENT
from restoring import Capturing, all_kinds, configured, delete, dumped, positions, read_some, restored, send
from spark_blocks import QUICK

from capture.spark import SparkDriver, SparkOptions
from natty import Natty
from natty.testing import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.long]


async def test_what_spark_has_compacted_is_restored_exactly(natty_tls, nats_server_binary, natty_name, tmp_path):
    name = natty_name("compacted")
    with NatsServer(folder=tmp_path / "lost", tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await all_kinds(natty, name, allow_msg_ttl=True)
            await send(natty, f"{name}.ttl", b"lives", b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n")
            await natty.ensure_consumer(name, "reader", ack_wait=NEVER)
            assert await read_some(natty, name, "reader", 3) == [3, 4, 5]
            captured = Capturing(natty, name, tmp_path, partition="subject:2")
            await captured.capture()
            await delete(natty, name, 6)
            await captured.capture()
            async with SparkDriver(SparkOptions(properties=QUICK), log=tmp_path / "driver.log") as driver:
                await compact_once(natty, captured.config, captured.store, driver)
            await captured.capture()
            assert len(await captured.store.list("table/")) > 1
            await send(natty, f"{name}.later", b"after the compaction")
            await captured.capture()
            before, config = await dumped(natty, name), await configured(natty, name)
            places = await positions(natty, name)
        server.kill()
        shutil.rmtree(tmp_path / "lost" / "jetstream")
        server.start()
        for block in (tmp_path / name / "blocks").rglob("*.parquet"):
            if f"-{before[0]['last_seq']}-1-" not in block.name:
                block.unlink()  # as a sweep does after its grace: from here on the table alone has these
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            done = await restored(natty, captured)
            assert await dumped(natty, name) == before
            assert (await configured(natty, name), await positions(natty, name)) == (config, places)
            assert done.messages == before[0]["messages"]
            assert await read_some(natty, name, "reader", 2) == [7, 8]
