import asyncio
import hashlib
import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.archive.chain import document_path
from capture.archive.manifest import Partition, Stored, block_path, encode, entry_path
from capture.archive.picture import read_picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import CompactionError, FencedError, ManifestError, NotSweptError
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.merge.schema_evolution import read_columns
from capture.maintenance.schedule import AT_ONCE, Schedule
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import open_store
from capture.testing import ArrowEngine, HeadState, MemoryHead

NOW, GRACE = 100_000.0, 1_000.0
LATER = 1e10  # after every object's time of writing, and its grace
ALL = Policy(max_wait=0.0)
NOTHING = Policy(min_files=1000, max_wait=1e18)


async def store_block(store, sequences, *, key="k", extra=None, format="parquet"):
    """Store a block and its entry, as a node does."""
    rows, file = len(sequences), io.BytesIO()
    columns = {"stream": ["S"] * rows, "sequence": sequences, "subject": ["s"] * rows}
    pq.write_table(pa.table(columns | (extra or {})), file)
    data = file.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    record = Stored(
        path=block_path(Partition("S", key, 0, 3600), min(sequences), max(sequences), rows, sha256, ".parquet"),
        stream="S",
        key=key,
        interval=0,
        first=min(sequences),
        last=max(sequences),
        count=rows,
        bytes=len(data),
        sha256=sha256,
        format=format,
        sequences=Sequences.from_iterable(sequences).to_bytes(),
        stored_ns=int(NOW * 1e9),
    )
    await store.put(record.path, data)
    await store.put(entry_path(record.path), encode(record))
    return record


class Archive:
    """A store and its two heads. Every sweep and every compaction is a term of its own, unless one is given."""

    def __init__(self, name):
        self.store = open_store(f"memory://{name}")
        self.manifest, self.table = HeadState(), HeadState()
        self.tokens = 0

    def term(self, state):
        self.tokens += 1
        return MemoryHead(self.tokens, state)

    async def sweep(self, now=NOW, grace=GRACE):
        return await sweep(Leading(self.store, self.term(self.manifest), self.table.read, grace=grace), now=now)

    async def compact(self, engine=None, *, term=None, policy=ALL, now=NOW, grace=GRACE, schedule=AT_ONCE):
        term = term or self.term(self.table)
        engine = engine or ArrowEngine()
        leading = TableLeading(self.store, term, self.manifest.read, "leader-1", grace)
        return await compact(leading, engine, policy, now=now, schedule=schedule)

    async def picture(self):
        return await read_picture(self.store, self.manifest.read, self.table.read)

    async def rows(self):
        files = (await self.picture()).files
        tables = [pq.read_table(io.BytesIO(await self.store.get(one.path))) for one in files]
        return [table["sequence"].to_pylist() for table in tables]


@pytest.fixture
def archive(request):
    return Archive(request.node.name)


async def test_blocks_become_one_sorted_file_with_every_sequence_once(archive):
    blocks = [await store_block(archive.store, sequences) for sequences in ([3, 1, 2, 2], [2, 5, 4])]
    await archive.sweep()
    term = MemoryHead(3, archive.table)
    report = await archive.compact(term=term)
    assert (report.groups, report.inputs, report.outputs, report.rows_in, report.duplicates) == (1, 2, 1, 7, 2)
    picture = await archive.picture()
    assert picture.blocks == []
    assert await archive.rows() == [[1, 2, 3, 4, 5]]
    assert picture.table.leader == "leader-1"
    assert picture.table.consumed_paths == {one.path for one in blocks}
    assert "/c-3-" in picture.files[0].path
    assert report.head == archive.table.head


async def test_late_and_repeated_messages_join_the_table_once(archive):
    for sequences, key in (([1, 2, 3], "k"), ([3, 4], "k"), ([4, 5], "other"), ([1, 2, 3], "other")):
        await store_block(archive.store, sequences, key=key)
        await archive.sweep()
        await archive.compact()
    assert sorted(await archive.rows()) == [[1, 2, 3, 4], [5]]


async def test_with_nothing_due_nothing_is_committed_but_the_take_over(archive):
    await archive.sweep()
    term = archive.term(archive.table)
    first = await archive.compact(term=term)
    again = await archive.compact(term=term)
    assert (first.groups, again.head, again.groups) == (0, first.head, 0)
    assert [one.path for one in await archive.store.list("_table/")] == [document_path(Table, 1, 2)]


async def test_before_the_first_sweep_there_is_nothing_to_compact(archive):
    await store_block(archive.store, [1])
    with pytest.raises(NotSweptError, match="the sweep's leader writes one"):
        await archive.compact()
    assert archive.table.head is None


class Interleaved(ArrowEngine):
    """An engine during whose work something else happens."""

    def __init__(self, meanwhile):
        super().__init__()
        self.meanwhile = meanwhile

    async def merge(self, store_url, groups):
        results = await super().merge(store_url, groups)
        changed_results = await self.meanwhile(results)
        return results if changed_results is None else changed_results


async def test_a_sweep_during_a_merge_costs_nothing(archive):
    await store_block(archive.store, [1, 2])
    await archive.sweep()

    async def meanwhile(results):
        await store_block(archive.store, [3])
        await archive.sweep()

    await archive.compact(Interleaved(meanwhile))
    assert [one.first for one in (await archive.picture()).blocks] == [3]
    assert await archive.rows() == [[1, 2]]


async def test_a_leader_that_is_deposed_during_a_merge_commits_nothing_and_its_outputs_are_swept(archive):
    await store_block(archive.store, [1, 2])
    await archive.sweep()
    term = archive.term(archive.table)

    async def meanwhile(results):
        await archive.compact(policy=NOTHING)  # of a successor, for whom nothing is due

    with pytest.raises(FencedError, match="is over"):
        await archive.compact(Interleaved(meanwhile), term=term)
    assert await archive.rows() == []
    assert len(await archive.store.list("table/")) == 1
    await archive.compact(policy=NOTHING, grace=1e9)
    assert len(await archive.store.list("table/")) == 1
    await archive.compact(policy=NOTHING, now=LATER)
    assert await archive.store.list("table/") == []
    await archive.compact()
    assert await archive.rows() == [[1, 2]]


async def test_two_leaders_that_compact_the_same_blocks_leave_every_sequence_once(archive):
    await store_block(archive.store, [1, 2])
    await store_block(archive.store, [2, 3])
    await archive.sweep()
    old = archive.term(archive.table)

    async def meanwhile(results):
        await archive.compact()

    with pytest.raises(FencedError):
        await archive.compact(Interleaved(meanwhile), term=old)
    assert await archive.rows() == [[1, 2, 3]]


async def test_what_was_compacted_is_let_go_deleted_and_forgotten_by_either_side(archive):
    """What the two name of each other does not grow with the archive."""
    for number in range(1, 6):
        await store_block(archive.store, [number])
        await archive.sweep(now=LATER * number)
        await archive.compact(now=LATER * number)
        await archive.sweep(now=LATER * number)
    picture = await archive.picture()
    assert await archive.rows() == [[1, 2, 3, 4, 5]]
    assert len(await archive.store.list("blocks/")) == len(picture.manifest.retired) == 1
    assert len(picture.table.consumed) <= 3
    assert len(picture.table.retired) <= 2
    assert len(await archive.store.list("table/")) <= 3


async def test_a_replaced_file_stays_for_the_grace_time(archive):
    for number in (1, 2):
        await store_block(archive.store, [number])
        await archive.sweep()
        await archive.compact()
    picture = await archive.picture()
    old = picture.table.retired[0]
    assert NOW < old.since < NOW + 60
    await archive.compact(now=NOW + GRACE)
    assert await archive.store.get(old.path)
    await archive.compact(now=NOW + GRACE + 60)
    assert [one.path for one in await archive.store.list("table/")] == [one.path for one in picture.files]


async def test_a_leader_whose_lease_ends_before_it_deletes_leaves_that_to_its_successor(archive):
    for number in (1, 2):
        await store_block(archive.store, [number])
        await archive.sweep()
        await archive.compact()

    class Late(MemoryHead):
        def check(self):
            super().check()
            if self.state.head.token == self.token:  # it has taken over meanwhile
                raise FencedError("the lease is over")

    with pytest.raises(FencedError, match="lease"):
        await archive.compact(term=Late(99, archive.table), now=LATER)
    assert len(await archive.store.list("table/")) == 2
    await archive.compact(term=MemoryHead(100, archive.table), now=LATER)
    assert len(await archive.store.list("table/")) == 1


async def test_an_output_that_is_not_in_the_store_is_never_committed(archive):
    await store_block(archive.store, [1, 2])
    await archive.sweep()
    term = archive.term(archive.table)
    before = (await archive.compact(term=term, policy=NOTHING)).head

    async def lose(results):
        await archive.store.delete(results[0].outputs[0].path)

    async def cut(results):
        await archive.store.put(results[0].outputs[0].path, b"half", if_absent=False)

    for meanwhile in (lose, cut):
        with pytest.raises(CompactionError, match=r"nothing was committed: .* bytes in memory://"):
            await archive.compact(Interleaved(meanwhile), term=term)
    assert archive.table.head == before


async def test_an_output_that_holds_something_else_stops_the_run_and_nothing_is_replaced(archive):
    await store_block(archive.store, [1, 2])
    await archive.sweep()
    term = archive.term(archive.table)
    before = (await archive.compact(term=term, policy=NOTHING)).head
    blocks = (await archive.picture()).blocks

    async def exchange(results):
        sink = io.BytesIO()
        output = results[0].outputs[0]
        rows = pq.read_table(io.BytesIO(await archive.store.get(output.path)))
        pq.write_table(rows.set_column(1, "sequence", pa.array([1, 3], pa.int64())), sink)
        await archive.store.put(output.path, sink.getvalue(), if_absent=False)
        facts = {"bytes": len(sink.getvalue()), "sha256": hashlib.sha256(sink.getvalue()).hexdigest()}
        return [msgspec.structs.replace(results[0], outputs=[msgspec.structs.replace(output, **facts)])]

    async def misreport(results):
        wrong = msgspec.structs.replace(results[0].outputs[0], sequences=Sequences.from_range(2, 3).to_bytes())
        return [msgspec.structs.replace(results[0], outputs=[wrong])]

    for meanwhile, text in (
        (exchange, "it holds the sequences 1, 3"),
        (misreport, "sequences missing: 1; too many: 3"),
    ):
        with pytest.raises(CompactionError, match=f"nothing was committed.*{text}"):
            await archive.compact(Interleaved(meanwhile), term=term)
    assert archive.table.head == before
    assert (await archive.picture()).blocks == blocks


async def test_a_group_that_can_not_be_read_is_left_out_and_told_of(archive):
    bad = await store_block(archive.store, [1, 2], key="bad")
    await archive.store.put(bad.path, b"x" * bad.bytes, if_absent=False)
    await archive.sweep()
    with pytest.raises(CompactionError, match=r"could not be merged: .* can't be read as Parquet"):
        await archive.compact()
    await store_block(archive.store, [3], key="good")
    await archive.sweep()
    report = await archive.compact()
    assert (report.groups, report.rows_in, len(report.failed)) == (1, 1, 1)
    assert [one.path for one in (await archive.picture()).blocks] == [bad.path]
    assert await archive.rows() == [[3]]


async def test_groups_that_fail_at_each_look_hold_up_nobody(archive):
    """They are the oldest, and as many as a run takes."""
    for key in ("bad 1", "bad 2", "good"):
        one = await store_block(archive.store, [len(key), 9], key=key)
        if key != "good":
            await archive.store.put(one.path, b"x" * one.bytes, if_absent=False)
    await archive.sweep()
    narrow = Policy(max_wait=0.0, max_groups=1)
    report = await archive.compact(policy=narrow)
    assert (report.groups, len(report.failed)) == (1, 2)
    assert await archive.rows() == [[4, 9]]
    with pytest.raises(CompactionError, match=r"bad%201.* could not be merged.*bad%202.* could not be merged"):
        await archive.compact(policy=narrow)


async def test_the_schedules_slot_decides_which_blocks_are_taken(archive):
    await store_block(archive.store, [1, 2])  # at NOW
    await archive.sweep()
    nightly = Schedule(every=86_400.0)
    for now, groups in ((NOW + 60, 0), (NOW - NOW % 86_400 + 86_400, 1), (NOW + 2 * 86_400, 0)):
        assert (await archive.compact(now=now, schedule=nightly)).groups == groups
    await store_block(archive.store, [3, 4])
    await archive.sweep()
    assert (await archive.compact(now=NOW + 60, schedule=Schedule(every=86_400.0, waiting_files=1))).groups == 1


async def test_blocks_that_no_merge_takes_begin_no_slot(archive):
    soon = Schedule(every=86_400.0, waiting_files=4)
    for number in (1, 2, 3):
        await store_block(archive.store, [number, number + 1], format="csv.gz")
    await store_block(archive.store, [5])
    await archive.sweep()
    assert (await archive.compact(now=NOW + 60, schedule=soon)).groups == 0
    for number in (6, 7, 8):
        await store_block(archive.store, [number])
    await archive.sweep()
    report = await archive.compact(now=NOW + 60, schedule=soon)
    assert (report.groups, report.inputs) == (1, 4)


async def test_typed_columns_of_a_run_are_known_to_the_next(archive):
    await store_block(archive.store, [1], extra={"n": pa.array([1], pa.int64())})
    await archive.sweep()
    await archive.compact()
    await store_block(archive.store, [2], key="other", extra={"n": pa.array(["x"], pa.string())})
    await archive.sweep()
    report = await archive.compact()
    assert report.conflicts == {"n": 1}
    assert read_columns((await archive.picture()).table.columns).field("n").type == pa.int64()


async def test_a_commit_without_an_answer_is_found_by_the_next_run(archive):
    await store_block(archive.store, [1, 2])
    await archive.sweep()
    term = archive.term(archive.table)
    await archive.compact(term=term, policy=NOTHING)

    class Silent(MemoryHead):
        async def commit(self, head):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await archive.compact(term=Silent(term.token, archive.table))
    report = await archive.compact(term=term)
    assert report.groups == 0
    assert (await archive.picture()).blocks == []
    assert await archive.rows() == [[1, 2]]


async def test_a_manifest_that_is_older_than_the_table_is_not_compacted(archive):
    await archive.sweep()
    lagging = archive.manifest.head
    await store_block(archive.store, [1, 2])
    await archive.sweep()
    await archive.compact()
    archive.manifest.head = lagging
    with pytest.raises(ManifestError, match="older than the table: nothing was compacted"):
        await archive.compact()


async def test_a_merge_of_excluded_rows_alone_writes_nothing(archive):
    for key in ("a", "b"):
        await store_block(archive.store, [1, 2], key=key)
    await archive.sweep()
    report = await archive.compact()
    assert (report.groups, report.outputs, report.rows_in, report.duplicates) == (2, 1, 4, 2)
    assert await archive.rows() == [[1, 2]]


def test_the_seconds_of_a_run_come_from_the_event_loop(archive):
    asyncio.run(archive.sweep())
    assert asyncio.run(archive.compact()).seconds == 0.0
