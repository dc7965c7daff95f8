"""The fresh table on a real server: other engines read messages that were swept and not merged yet."""

import asyncio
import contextlib

import polars
import pytest
from archiving import store_all
from electing import vacated_archive
from exposing import sequences_of, static_table
from indexed import read_whole
from patient import PATIENCE
from pyiceberg.exceptions import NoSuchTableError

from capture.archive.heads import COMPACTION, SWEEP
from capture.archive.manifest import Manifest
from capture.archive.table import Table
from capture.config.load import load
from capture.node.leader_tasks import Duty, Sweeps
from capture.stores import open_store
from capture.testing import ArrowEngine

EAGER = {"compaction__min_files": 1, "compaction__max_wait": 0.0}
DAY = 86_400.0  # seconds, the longest interval: a test hardly runs over its end


async def shown(store, stream, wanted):
    """Wait until an engine that knows only the folder sees these sequences."""
    found = None
    async with asyncio.timeout(PATIENCE):
        while found != wanted:
            await asyncio.sleep(0.02)
            with contextlib.suppress(NoSuchTableError, FileNotFoundError):
                found = sequences_of(static_table(store, stream))


@pytest.mark.long
async def test_what_is_swept_is_seen_by_engines_within_seconds_and_stays_when_it_is_merged(fleet):
    config = load(fleet.configure(partition="time", decoder="raw", table__fresh=0.05, limits__interval=DAY, **EAGER))
    store = open_store(config.store)
    duty = Duty(fleet.natty, store, config, "node-1")

    async def more(*payloads):
        await fleet.publish(list(payloads))
        await store_all(fleet.natty, config, store)

        async def work(term):
            await Sweeps(duty, term).run()

        await fleet.natty.election(SWEEP.election(config.name), lease=PATIENCE).run(work)

    async def leads(term):
        leading = duty.lead_compaction(term)
        async with duty._keep_fresh(leading).scope():
            await more(b"1", b"2")
            await shown(store, fleet.stream, [1, 2])
            await more(b"3")
            await shown(store, fleet.stream, [1, 2, 3])
            table = await read_whole(store, await COMPACTION.reader(fleet.natty, config.name)(), Table)
            assert table.files == []
            assert table.shown.objects == 2
            [key] = {one.key for one in (await read_manifest(fleet, config, store)).blocks}
            engine = static_table(store, fleet.stream)
            rows = polars.scan_iceberg(engine).filter(polars.col("key") == key).select("sequence").collect()
            assert sorted(rows["sequence"]) == [1, 2, 3]
            filtered = engine.scan(row_filter=f"key = '{key}' and sequence >= 2", selected_fields=("key", "sequence"))
            assert sorted(filtered.to_arrow()["sequence"].to_pylist()) == [2, 3]
            await duty.compact_once(leading, ArrowEngine())
            await shown(store, fleet.stream, [1, 2, 3])
            table = await read_whole(store, await COMPACTION.reader(fleet.natty, config.name)(), Table)
            assert len(table.files) == 1
            assert not table.shown.root
            await more(b"4")
            await shown(store, fleet.stream, [1, 2, 3, 4])
        assert duty.failing == {}

    await vacated_archive(fleet.natty, config.name)
    await fleet.natty.election(COMPACTION.election(config.name), lease=PATIENCE).run(leads)


async def read_manifest(fleet, config, store):
    return await read_whole(store, await SWEEP.reader(fleet.natty, config.name)(), Manifest)
