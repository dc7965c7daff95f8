"""Files in an archive's folder that capture can't have stored: what leaders do about them."""

import os
import time

import msgspec
import pytest
from archived import store_block

from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import FileStore
from capture.testing import ArrowEngine, HeadState, MemoryHead

STRANGE = [b"a\\b", b"a\nb", b"\x1b[31m", b"\xff\xfe", b"a\\-1-2-3-deadbeef.parquet"]
"""Names of files that no archive has: other programs make them, by mistake."""


@pytest.mark.parametrize("folder", ["blocks", "_entries", "_index/blocks", "table", "iceberg", "_index/table"])
async def test_files_with_names_that_no_archive_has_stop_neither_the_sweep_nor_the_compaction(folder, tmp_path, caplog):
    store, manifest, table = FileStore(tmp_path), HeadState(), HeadState()
    files = [tmp_path / folder / os.fsdecode(name) for name in STRANGE]
    (tmp_path / folder).mkdir(parents=True)
    for file in files:
        file.touch()
        os.utime(file, (1.0, 1.0))
    await store_block(store, [1, 2, 3])
    now = time.time()
    swept = await sweep(Leading(store, MemoryHead(1, manifest), table.read), now=now)
    assert swept.adopted == 1
    assert len(swept.unreadable) == (len(STRANGE) if folder == "_entries" else 0)
    assert msgspec.json.encode(swept.unreadable)
    leading = TableLeading(store, MemoryHead(1, table), manifest.read)
    done = await compact(leading, ArrowEngine(), Policy(min_files=1, max_wait=0.0), now=now)
    assert done.outputs == 1
    assert all(file.exists() for file in files)
    assert all(record.getMessage().isprintable() for record in caplog.records)
