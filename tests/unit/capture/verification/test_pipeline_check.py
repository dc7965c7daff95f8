"""`capture verify --pipeline` on tables that a leader has committed: what is proven, and what is found."""

import asyncio
import hashlib
import io
import threading

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archived import ARCHIVE, CREATED, KEYS, SIGNER, STREAM
from following import Following, begin
from pipeline_world import ALL, SUMS, World

from capture.archive import chain
from capture.archive.chain import Retired, document_path, seal
from capture.archive.iceberg_state import Expiry
from capture.archive.identity import claim
from capture.archive.index.contents import commit, load
from capture.archive.index.tree import Index
from capture.archive.manifest import Manifest, Removed
from capture.archive.sequences import Sequences
from capture.errors import ConfigError, NoArchiveError
from capture.iceberg import Exposer
from capture.pipelines.document import Pipelines, PipelineTable
from capture.reading.pipeline_view import PipelineView
from capture.testing import MemoryHead
from capture.verification.audit import UNVOUCHED
from capture.verification.pipelines import check_pipeline

NAMES = ("every", "sums")


class Proven(World):
    """A world whose tables other engines can read; "sums" has a file for each of five keys."""

    def __init__(self, folder):
        super().__init__(folder, (ALL, msgspec.structs.replace(SUMS, buckets=16)))

    async def begin(self, first=1):
        await claim(self.archive.store, ARCHIVE, STREAM, CREATED, None)
        await self.store(range(first, first + 7))
        self.run = self.lead(exposure=Exposer(self.home, Expiry()))
        assert await self.run() == {}
        return self

    async def check(self, name="sums", **how):
        return await check_pipeline(None, self.config, name, **how)

    async def document(self):
        return await load(self.home, await self._read())

    async def _read(self):
        return await chain.read(self.home, self.head.head, Pipelines)

    async def recommit(self, change, signer=None, *, loaded=True):
        """Commit the newest document with a change, as a leader with a fault would."""
        before = await self.document() if loaded else await self._read()
        self.token += 1
        pointer = MemoryHead(self.token, self.head, signer)
        index = Index(self.home, Pipelines.PAGES)
        await pointer.read()
        after = change(before)
        await commit(index, pointer, self.head.head, before, after, now=self.now, grace=900.0)

    async def file(self, table="sums"):
        return next(one for one in (await self.document()).files if one.stream == table)


@pytest.fixture
async def world(tmp_path):
    return await Proven(tmp_path).begin()


def of(*sequences):
    return Sequences.from_iterable(sequences)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", NAMES)
async def test_a_sound_table_has_exactly_the_messages_of_its_runs(world, name, deep):
    await world.store([8, 9])
    found = await world.check(name, deep=deep)
    (read,) = found.inputs
    assert (found.status, found.problems, found.notes) == (0, (), (UNVOUCHED,))
    assert (read.held, read.waiting, read.removed, read.strange) == (of(*range(1, 8)), of(8, 9), of(), of())
    assert read.since > 0
    assert (found.run, found.files.rows, found.waiting) == (1, {"every": 7, "sums": 5}[name], 2)
    assert max(map(len, found.sentences()[:3])) <= 80
    await world.run()
    (read,) = (await world.check(name, deep=deep)).inputs
    assert (len(read.held), read.waiting, read.since) == (9, of(), 0.0)


async def test_a_pipeline_that_never_ran_has_no_table_and_everything_waits(tmp_path):
    world = Proven(tmp_path)
    with pytest.raises(NoArchiveError):
        await world.check()
    await claim(world.archive.store, ARCHIVE, STREAM, CREATED, None)
    await world.store([3, 4])
    found = await world.check()
    assert (found.status, found.run, found.waiting, found.files.files) == (0, 0, 2, 0)
    assert "- it has not run yet, and has no table" in found.sentences()
    with pytest.raises(ConfigError, match="no pipeline 'other'"):
        await world.check("other")


async def test_messages_that_retention_removed_are_no_fault_and_others_are(world):
    state = world.archive.heads[Manifest]
    removed = [Removed(stream=STREAM, sequences=of(1, 2).to_text(), objects=1, bytes=1, at=1.0)]
    manifest = seal(Manifest(removed=removed), 9, state.head)
    data = msgspec.json.encode(manifest)
    path = document_path(Manifest, manifest.number, 9)
    await world.archive.store.put(path, data)
    found = await world.check()
    (read,) = found.inputs
    assert (read.removed, read.strange, found.status) == (of(1, 2), of(3, 4, 5, 6, 7), 3)
    assert found.problems == (
        "ORDERS: the table has 5 messages (3–7) that the archive does not hold, and that its retention has not removed",
    )
    assert "- ORDERS: retention has removed 2 messages of these from the archive" in found.sentences()


async def remove(world, one):
    await world.home.delete(one.path)


async def cut(world, one):
    await world.home.put(one.path, (await world.home.get(one.path))[:-1], if_absent=False)


@pytest.mark.parametrize(("damage", "said"), [(remove, "is missing"), (cut, "bytes, not")])
@pytest.mark.parametrize("deep", [False, True])
async def test_a_file_that_is_missing_or_cut_off_is_found_without_reading_it(world, damage, said, deep):
    one = await world.file()
    await damage(world, one)
    found = await world.check(deep=deep)
    assert found.status == 3
    (problem,) = found.problems
    assert problem.startswith(f"{one.path} ")
    assert said in problem
    assert (await world.check("every", deep=deep)).status == 0


async def test_a_file_that_was_changed_is_found_by_its_digest(world):
    one = await world.file()
    data = await world.home.get(one.path)
    await world.home.put(one.path, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], if_absent=False)
    assert (await world.check(deep=False)).status == 0
    found = await world.check()
    assert found.problems == (f"{one.path}: it was changed: its SHA-256 is not the recorded one",)


def replaced(one, **facts):
    def change(document):
        files = [msgspec.structs.replace(each, **facts) if each == one else each for each in document.files]
        return document.with_listed(files)

    return change


async def write(world, one, rows):
    """Replace a file's content, and its record, as a run with a fault would."""
    content = io.BytesIO()
    pq.write_table(rows, content)
    data = content.getvalue()
    await world.home.put(one.path, data, if_absent=False)
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "count": len(rows)}
    await world.recommit(replaced(one, **facts))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"k": [1, 2, 1], "n": [1, 1, 1], "total": [1, 1, 1]}, ": 1 row with a key that another row of its bucket has"),
        ({"k": [1], "n": [1], "total": [1], "more": [1]}, ": it has the column more, which the table does not have"),
        ({"n": [1], "total": [1]}, ": it has no column k, which is in the key"),
        (
            {"k": [1], "n": [1], "total": [1], "__sequence": [8]},
            ": it has rows of messages that the table is not said to have: 8",
        ),
    ],
)
async def test_rows_that_a_run_can_not_have_written_are_found(world, rows, said):
    one = await world.file()
    await write(world, one, pa.table(rows))
    assert f"{one.path}{said}" in (await world.check()).problems


async def test_a_key_in_two_files_of_a_bucket_is_found(world):
    one = await world.file()
    again = msgspec.structs.replace(one, path=f"{one.path}-2")
    await world.home.put(again.path, await world.home.get(one.path))
    await world.recommit(lambda document: document.with_listed([*document.files, again]))
    problems = (await world.check()).problems
    assert [one for one in problems if one.endswith("with a key that another row of its bucket has")]
    assert f"{again.path} is a file of the table, and its Iceberg metadata does not name it" in problems


async def test_a_file_with_other_rows_than_recorded_is_found(world):
    one = await world.file()
    await world.recommit(replaced(one, count=one.count + 1))
    said = (
        f"{one.path} has {one.count + 1} rows in {one.bytes:,} bytes, and {one.count} in {one.bytes:,} in the Iceberg"
    )
    problems = (await world.check()).problems
    assert f"{one.path}: it has {one.count} rows, its record says {one.count + 1}" in problems
    assert f"{said} metadata" in problems


async def test_a_file_that_is_named_twice_or_by_another_table_is_found(world):
    one, other = await world.file(), await world.file("every")
    twice = msgspec.structs.replace(one, key="[9]")
    foreign = msgspec.structs.replace(other, stream="sums", key="[8]")
    await world.recommit(lambda document: document.with_listed([twice, foreign]), loaded=False)
    problems = (await world.check()).problems
    assert f"{one.path} is named twice: its rows count twice" in problems
    assert f"{other.path} is not in the folder of the pipeline's files, table/sums/" in problems
    problems = (await world.check("every")).problems
    assert f"{other.path} is a file of this pipeline, and the table sums has it" in problems


async def test_a_file_that_will_be_deleted_or_is_of_a_run_to_come_is_found(world):
    one = await world.file()
    await world.recommit(lambda document: msgspec.structs.replace(document, retired=[Retired(one.path, 1.0)]))
    assert (await world.check()).problems == (f"{one.path} is a file of the table, and is marked for deletion",)
    await world.recommit(lambda document: replaced(one, first=2, last=2)(document))
    assert f"{one.path} is said to be of run 2, and there were 1 run" in (await world.check()).problems


async def merge_files(world, first=1):
    """Let runs add so many files to "every" that they are merged; return the record of the merged file."""
    for sequence in range(first + 7, first + 16):
        await world.store([sequence])
        assert await world.run() == {}
    one = await world.file("every")
    assert (one.first, one.last, one.count) == (1, 10, 16)
    return one


@pytest.mark.parametrize("deep", [False, True])
async def test_merged_files_have_exactly_the_rows_of_their_runs(world, deep):
    one = await merge_files(world)
    found = await world.check("every", deep=deep)
    assert (found.status, found.problems, found.files.files, found.files.rows) == (0, (), 1, 16)
    assert found.inputs[0].held == of(*range(1, 17))
    await world.home.delete(one.path)
    assert f"{one.path} is missing" in (await world.check("every", deep=deep)).problems


async def test_numbers_of_runs_are_not_taken_for_sequences_of_messages(tmp_path):
    world = await Proven(tmp_path).begin(1000)
    await merge_files(world, 1000)
    found = await world.check("every")
    assert (found.status, found.problems) == (0, ())
    assert found.inputs[0].held == of(*range(1000, 1016))


LOST = "the files of every have 0 rows, and its runs have added 16: a file is missing, or there twice"


async def test_a_merged_file_that_no_document_names_or_that_is_there_twice_is_found(world):
    one = await merge_files(world)
    others = [each for each in (await world.document()).files if each.stream == "sums"]
    await world.recommit(lambda document: document.with_listed(others))
    assert LOST in (await world.check("every", deep=False)).problems
    again = msgspec.structs.replace(one, path=f"{one.path}-2")
    await world.home.put(again.path, await world.home.get(one.path))
    await world.recommit(lambda document: document.with_listed([*others, one, again]))
    assert LOST.replace("0 rows", "32 rows") in (await world.check("every", deep=False)).problems


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([1] * 15 + [11], "1 to 10, and have these numbers of runs: 1, 11"),
        ([1] * 15 + [9], "1 to 10, and have these numbers of runs: 1, 9"),
        ([1] * 14 + [10, None], "1 to 10, and have these numbers of runs: 1, 10"),
        (None, "1 to 10, and have these numbers of runs: none"),
    ],
)
@pytest.mark.long
async def test_rows_of_a_merged_file_with_other_numbers_of_runs_are_found(world, orders, said):
    """What reads the table incrementally would take such a row twice, or not at all."""
    one = await merge_files(world)
    rows = pa.table({"sequence": [*range(1, 17)]} | ({"__sequence": pa.array(orders, pa.int64())} if orders else {}))
    await write(world, one, rows)
    problem = f"{one.path}: its rows are of the runs {said}"
    assert problem in (await world.check("every")).problems


async def test_a_merged_file_of_runs_to_come_is_found(world):
    one = await merge_files(world)
    await world.recommit(lambda document: replaced(one, last=11)(document))
    problems = (await world.check("every", deep=False)).problems
    assert f"{one.path} is said to be of the runs 1 to 11, and there were 10 runs" in problems


async def test_iceberg_names_exactly_the_files_that_readers_may_see(world):
    one = await world.file()
    await world.recommit(lambda document: document.with_listed([each for each in document.files if each != one]))
    found = await world.check()
    assert found.problems == (f"{one.path} is named by the Iceberg metadata, and is not a file of the table",)
    assert "- other engines can't read the table" not in "\n".join(found.sentences())


@pytest.mark.parametrize("which", ["metadata.json", ".avro"])
async def test_iceberg_s_own_files_are_compared_with_the_document(world, which):
    exposed = (await world.document()).iceberg["sums"]
    paths = [path for path in exposed.objects() if path.endswith(which)]
    for path in paths:
        await world.home.delete(path)
    problems = (await world.check(deep=False)).problems
    assert any(path in problem and "is missing" in problem for path in paths for problem in problems)
    assert (await world.check("every", deep=False)).status == 0


@pytest.mark.parametrize("newest", [True, False])
async def test_a_document_that_was_changed_is_found(world, newest):
    path = world.head.head.path
    data = await world.home.get(path)
    assert data.count(b'"rows_out":5') == 1
    if not newest:
        await world.recommit(lambda document: document)
    await world.home.put(
        path, data[:-20] if newest else data.replace(b'"rows_out":5', b'"rows_out":6'), if_absent=False
    )
    found = await world.check()
    assert found.status == 3
    assert found.problems[0].startswith(f"{path} ")


async def test_the_totals_beside_the_index_and_the_progress_are_added_up(world):
    def change(document):
        progress = dict(document.progress.streams)
        held = msgspec.structs.replace(progress[f"sums {STREAM}"].held, count=8)
        progress[f"sums {STREAM}"] = msgspec.structs.replace(progress[f"sums {STREAM}"], held=held)
        return msgspec.structs.replace(document, progress=msgspec.structs.replace(document.progress, streams=progress))

    await world.recommit(change)
    (problem,) = (await world.check(deep=False)).problems
    assert problem.endswith(f"is wrong: it says 8 sequences of sums {STREAM}, and its progress has 7")


async def test_what_no_commit_names_is_a_leftover_and_no_fault(world):
    await world.home.put("table/sums/9-killed/0.parquet", b"a run that was killed")
    found = await world.check()
    assert (found.status, found.files.leftovers) == (0, 1)
    assert "1 file of runs that were not committed" in found.notes[0]


async def test_a_table_that_a_leader_replaces_meanwhile_is_no_fault(world):
    before = [one.path for one in (await world.document()).files]
    calls = []

    async def lead():
        other = Proven(world.folder)
        other.head, other.token, other.now, other.archive.heads = world.head, 7, world.now, world.archive.heads
        await other.store(range(8, 20))
        assert await other.lead(exposure=Exposer(other.home, Expiry()))() == {}
        for path in before:
            if "/sums/" in path:
                await other.home.delete(path)

    def replace_all(done, total):
        if not calls:
            thread = threading.Thread(target=asyncio.run, args=(lead(),))
            thread.start()
            thread.join()
        calls.append(done)

    found = await world.check(on_progress=replace_all)
    assert (found.problems, found.run, len(found.inputs[0].held)) == ((), 2, 19)


async def test_a_changed_definition_and_a_failed_run_are_told(world):
    other = msgspec.structs.replace(world.config.pipeline[1], sql=SUMS.sql.replace("% 5", "% 7"))
    world.config = msgspec.structs.replace(world.config, pipeline=[other])
    found = await world.check()
    assert (found.status, found.problems) == (0, ())
    assert found.notes[0] == "its settings have changed (sql): the table stays as it is until a rerun"
    assert (await world.check("every")).notes[0] == "the pipeline is not configured any more"


async def test_what_an_operator_has_asked_for_is_told(world):
    def change(document):
        table = msgspec.structs.replace(document.tables["sums"], paused=True, since_ns=1_795_230_000 * 10**9)
        return msgspec.structs.replace(document, tables=document.tables | {"sums": table})

    await world.recommit(change)
    found = await world.check()
    assert found.status == 0
    assert found.notes[:2] == (
        "it has the rows of messages since 2026-11-21T03:00:00Z: earlier ones were read and left out",
        "it is paused: it runs only on request",
    )


async def test_a_document_must_be_signed_if_there_are_public_keys(world, tmp_path):
    keys = tmp_path / "public"
    keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.public.lines().items()))
    world.config = msgspec.structs.replace(world.config, public_key_file=str(keys))
    found = await world.check()
    assert found.status == 3
    assert f"{world.head.head.path} is not signed" in found.problems
    await world.recommit(lambda document: document, SIGNER)
    problems = (await world.check(deep=False)).problems
    assert not [one for one in problems if "_pipeline/" in one]


async def test_a_table_of_a_pipeline_has_the_rows_of_runs(world):
    table = PipelineTable(definition="", number=1, inputs={"every": 4})
    await world.recommit(lambda document: msgspec.structs.replace(document, tables={**document.tables, "top": table}))
    found = await world.check("top")
    assert found.problems == ("every: the table has the runs up to 4, and there were 1",)


async def test_messages_that_came_from_the_stream_are_no_fault_if_it_has_or_had_them(tmp_path):
    world = World(tmp_path, [msgspec.structs.replace(SUMS, trigger="stream")])
    stream = await begin(world)
    following = Following(world, stream)
    stream.publish(10)
    await following.until_all()
    await world.store([1, 2, 3])
    await following.end()
    found = await check_pipeline(None, world.config, "sums")
    (read,) = found.inputs
    assert (found.status, found.problems) == (0, ()), found.sentences()
    assert (read.uncaptured, read.strange) == (of(*range(4, 11)), of())
    assert "- ORDERS: 7 messages came from the stream, and are not in the archive" in found.sentences()
    assert read.as_dict()["uncaptured_runs"] == [[4, 10]]

    class Asked(PipelineView):
        async def _find_state(self, stream):
            return state

    view = await Asked.open(world.config)
    view._natty = object()  # a server answers
    state = {"first_seq": 9, "last_seq": 9}
    assert await view.find_streamed("sums", STREAM, of(8, 9, 10)) == of(8, 9), "it never had 10"
    state = {}
    assert await view.find_streamed("sums", STREAM, of(8, 9, 10)) == of(), "it is another stream"
    world.config = msgspec.structs.replace(world.config, pipeline=[SUMS])
    state = {"first_seq": 9, "last_seq": 9}
    view = await Asked.open(world.config)
    view._natty = object()
    assert not view.follows("sums")
    assert await view.find_streamed("sums", STREAM, of(8, 9, 10)) == of(8, 9), "they stay those of the stream"


async def test_messages_that_only_the_stream_has_make_a_table_that_reads_the_archive_wrong(world):
    state = world.archive.heads[Manifest]
    manifest = seal(Manifest(), 9, state.head)
    await world.archive.store.put(document_path(Manifest, manifest.number, 9), msgspec.json.encode(manifest))
    assert (await world.check()).inputs[0].strange == of(*range(1, 8))
