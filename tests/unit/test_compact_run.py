import asyncio
import hashlib
import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compact import Policy, compact, plan
from capture.errors import CompactionError, Fenced
from capture.manifest import Manifest, Stored, block_path, commit_manifest, encode, entry_path, read_manifest
from capture.sequences import Sequences
from capture.stores import MemoryStore, open_store
from capture.sweep import sweep
from capture.testing import ArrowEngine, HeadState, MemoryHead

NOW = 100_000.0
ALL = Policy(max_wait=0.0)


async def store_block(store, sequences, *, key="k"):
    """Store a block and its entry, as a node does."""
    rows, file = len(sequences), io.BytesIO()
    pq.write_table(pa.table({"stream": ["S"] * rows, "sequence": sequences, "subject": ["s"] * rows}), file)
    data = file.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    record = Stored(
        path=block_path("S", key, 0, 3600, min(sequences), max(sequences), rows, sha256, ".parquet"),
        stream="S",
        key=key,
        interval=0,
        first=min(sequences),
        last=max(sequences),
        count=rows,
        bytes=len(data),
        sha256=sha256,
        format="parquet",
        sequences=Sequences.from_iterable(sequences).to_text(),
        stored_ns=int(NOW * 1e9),
    )
    await store.put(record.path, data)
    await store.put(entry_path(record.path), encode(record))
    return record


@pytest.fixture
def store(request):
    return open_store(f"memory://{request.node.name}")


async def committed(store, pointer):
    return await read_manifest(store, await pointer.read())


async def rows_of(store, manifest):
    tables = [pq.read_table(io.BytesIO(await store.get(one.path))) for one in manifest.table]
    return [table["sequence"].to_pylist() for table in tables]


async def test_blocks_become_one_sorted_file_with_every_sequence_once(store):
    pointer = MemoryHead(3)
    await store_block(store, [3, 1, 2, 2])
    await store_block(store, [2, 5, 4])
    await sweep(store, pointer, now=NOW)
    report = await compact(store, pointer, ArrowEngine(), ALL, now=NOW, node="leader-1")
    assert (report.groups, report.inputs, report.outputs, report.rows_in, report.duplicates) == (1, 2, 1, 7, 2)
    manifest = await committed(store, pointer)
    assert manifest.blocks == []
    assert await rows_of(store, manifest) == [[1, 2, 3, 4, 5]]
    assert manifest.leader == "leader-1"
    assert "/c-3-" in manifest.table[0].path
    assert report.head == await pointer.read()


async def test_late_and_repeated_messages_join_the_table_once(store):
    pointer = MemoryHead()
    for sequences, key in (([1, 2, 3], "k"), ([3, 4], "k"), ([4, 5], "other"), ([1, 2, 3], "other")):
        await store_block(store, sequences, key=key)
        await sweep(store, pointer, now=NOW)
        await compact(store, pointer, ArrowEngine(), ALL, now=NOW)
    manifest = await committed(store, pointer)
    assert sorted(await rows_of(store, manifest)) == [[1, 2, 3, 4], [5]]


async def test_with_nothing_due_nothing_is_committed(store):
    report = await compact(store, MemoryHead(), ArrowEngine(), ALL, now=NOW)
    assert (report.head, report.groups) == (None, 0)
    assert await store.list() == []


class Interleaved(ArrowEngine):
    """An engine during whose work something else happens."""

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    async def merge(self, store_url, groups):
        results = await super().merge(store_url, groups)
        changed_results = await self.meanwhile(results)
        return results if changed_results is None else changed_results


async def test_a_sweep_during_a_merge_costs_nothing(store):
    pointer = MemoryHead()
    await store_block(store, [1, 2])
    await sweep(store, pointer, now=NOW)

    async def meanwhile(results):
        await store_block(store, [3])
        await sweep(store, pointer, now=NOW)

    await compact(store, pointer, Interleaved(meanwhile), ALL, now=NOW)
    manifest = await committed(store, pointer)
    assert [one.first for one in manifest.blocks] == [3]
    assert await rows_of(store, manifest) == [[1, 2]]


async def test_a_sweep_between_the_last_look_and_the_commit_costs_nothing(store):
    state = HeadState()
    await store_block(store, [1, 2])
    await sweep(store, MemoryHead(1, state), now=NOW)

    class Overtaken(MemoryHead):
        overtakes = 2

        async def commit(self, head):
            if self.overtakes:
                self.overtakes -= 1
                later = MemoryHead(1, state)
                state_head, manifest = state.head, await committed(store, later)
                await store_block(store, [10 + self.overtakes])
                state.head = state_head
                manifest = msgspec.structs.replace(manifest, created=float(self.overtakes))
                await commit_manifest(store, later, state_head, manifest)
            await super().commit(head)

    await compact(store, Overtaken(1, state), ArrowEngine(), ALL, now=NOW)
    manifest = await committed(store, MemoryHead(1, state))
    assert manifest.blocks == []
    assert await rows_of(store, manifest) == [[1, 2]]


async def test_a_leader_that_is_deposed_during_a_merge_commits_nothing(store):
    state = HeadState()
    pointer = MemoryHead(1, state)
    await store_block(store, [1, 2])
    await sweep(store, pointer, now=NOW)
    before = state.head

    async def meanwhile(results):
        MemoryHead(2, state)

    with pytest.raises(Fenced, match="term 1 is over"):
        await compact(store, pointer, Interleaved(meanwhile), ALL, now=NOW)
    assert state.head == before


async def test_two_leaders_that_compact_the_same_blocks_leave_every_sequence_once(store):
    state = HeadState()
    old = MemoryHead(1, state)
    await store_block(store, [1, 2])
    await store_block(store, [2, 3])
    await sweep(store, old, now=NOW)

    async def meanwhile(results):
        await compact(store, MemoryHead(2, state), ArrowEngine(), ALL, now=NOW)

    with pytest.raises((Fenced, CompactionError)):
        await compact(store, old, Interleaved(meanwhile), ALL, now=NOW)
    manifest = await committed(store, old)
    assert await rows_of(store, manifest) == [[1, 2, 3]]
    await sweep(store, MemoryHead(3, state), now=NOW * 1e9, grace=1.0)
    await sweep(store, MemoryHead(3, state), now=NOW * 1e9, grace=1.0)
    assert [one.path for one in await store.list("table/")] == [one.path for one in manifest.table]
    assert await store.list("blocks/") == []


async def test_an_output_that_is_not_in_the_store_is_never_committed(store):
    pointer = MemoryHead()
    await store_block(store, [1, 2])
    await sweep(store, pointer, now=NOW)
    before = await pointer.read()

    async def lose(results):
        await store.delete(results[0].output.path)

    async def cut(results):
        await store.put(results[0].output.path, b"half", if_absent=False)

    for meanwhile in (lose, cut):
        with pytest.raises(CompactionError, match=r"bytes in memory://.*nothing was committed"):
            await compact(store, pointer, Interleaved(meanwhile), ALL, now=NOW)
    assert await pointer.read() == before


async def test_a_commit_without_an_answer_is_found_by_the_next_run(store):
    state = HeadState()
    await store_block(store, [1, 2])
    await sweep(store, MemoryHead(1, state), now=NOW)

    class Silent(MemoryHead):
        async def commit(self, head):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await compact(store, Silent(1, state), ArrowEngine(), ALL, now=NOW)
    report = await compact(store, MemoryHead(1, state), ArrowEngine(), ALL, now=NOW)
    assert report.groups == 0
    manifest = await committed(store, MemoryHead(1, state))
    assert manifest.blocks == []
    assert await rows_of(store, manifest) == [[1, 2]]


async def test_the_arrow_engine_reads_parquet_only():
    store = MemoryStore()
    record = msgspec.structs.replace(await store_block(store, [1]), format="ndjson")
    with pytest.raises(CompactionError, match="is ndjson"):
        await ArrowEngine().merge("memory://unused", plan(Manifest(blocks=[record]), ALL, now=NOW, token=1))


async def test_a_merge_of_excluded_rows_alone_writes_nothing(store):
    pointer = MemoryHead()
    for key in ("a", "b"):
        await store_block(store, [1, 2], key=key)
    await sweep(store, pointer, now=NOW)
    report = await compact(store, pointer, ArrowEngine(), ALL, now=NOW)
    assert (report.groups, report.outputs, report.rows_in, report.duplicates) == (2, 1, 4, 2)
    assert await rows_of(store, await committed(store, pointer)) == [[1, 2]]


def test_the_seconds_of_a_run_come_from_the_event_loop(store):
    assert asyncio.run(compact(store, MemoryHead(), ArrowEngine(), ALL, now=NOW)).seconds == 0.0
