"""Small files of a table to which rows are added become few: which ones, when, and what a leader commits of it."""

import random
import shutil
from collections import Counter, defaultdict
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_world import ALL, COPY, SUMS, World

from capture.archive import chain
from capture.archive.index.contents import load
from capture.errors import PipelineError, SparkError
from capture.node import pipeline_packer
from capture.node.pipeline_packer import REST
from capture.node.pipeline_requests import Request
from capture.pipelines import packing
from capture.pipelines.commits import Change, PipelineLeading
from capture.pipelines.derivation import OutputFile, PackedUnit, Unit
from capture.pipelines.document import Pipelines, PipelineTable, Run, record_of
from capture.pipelines.packing import FAN, MOST_FILES, SMALL_BYTES, TARGET_BYTES, conclude, plan
from capture.testing import MemoryHead

WHOLE = Unit()


def file(number, run, *, rows=1, size=1000, unit=WHOLE):
    made = OutputFile(path=f"table/t/{number}.parquet", unit=unit, rows=rows, bytes=size, sha256="0" * 64)
    return record_of(made, "t", run)


def merge(files, packs, number):
    """Return the files after the merged ones were committed, as a deriver without faults writes them."""
    packed = []
    for at, some in enumerate(packs):
        came = OutputFile(
            path=f"table/t/{number}-{at}.parquet",
            unit=Unit.from_text(some[0].key),
            rows=sum(one.count for one in some),
            bytes=sum(one.bytes for one in some),
            sha256="0" * 64,
        )
        packed.append(PackedUnit(unit=some[0].key, came=[came], gone=[one.path for one in some]))
    change = conclude("t", packs, packed, node="n", now=1.0)
    assert change.same_rows
    gone = {one.path for one in change.gone}
    return [*(one for one in files if one.path not in gone), *change.came]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 2)), min_size=1, max_size=300))
def test_a_unit_has_few_files_and_each_row_is_written_again_once_for_each_level(runs):
    files, written, rows, longest = [], defaultdict(int), Counter(), 0
    for run, (number, bucket) in enumerate(runs, 1):
        unit = Unit(partition=[f"p{bucket}"])
        files.append(file(run, run, rows=number, size=1000 + number, unit=unit))
        rows[unit.to_text()] += number
        while packs := plan(files):
            for some in packs:
                assert len(some) >= FAN
                for one in some:
                    for each in range(one.first, one.last + 1):
                        if f"p{runs[each - 1][1]}" == Unit.from_text(one.key).partition[0]:
                            written[each] += 1
            files = merge(files, packs, f"m{run}-{len(written)}-{sum(written.values())}")
        longest = max(longest, *Counter(one.key for one in files).values())
    levels = len(str(sum(rows.values())))
    assert longest < FAN * levels
    assert max(written.values(), default=0) < levels
    assert {key: sum(one.count for one in files if one.key == key) for key in rows} == rows


def test_a_file_of_some_size_or_of_an_earlier_definition_stays():
    small = [file(run, run) for run in range(1, FAN)]
    assert plan([*small, file(FAN, FAN, size=SMALL_BYTES)]) == []
    [merged] = plan([*small, file(FAN, FAN, size=SMALL_BYTES - 1)])
    assert [one.first for one in merged] == [*range(1, FAN + 1)]
    many = [file(run, run) for run in range(1, 2 * FAN)]
    [merged] = plan(many, FAN)
    assert [one.first for one in merged] == [*range(FAN, 2 * FAN)]
    assert plan(many, FAN + 1) == []


def test_a_level_with_fewer_files_waits_and_other_levels_and_units_do_not_count():
    files = [file(run, run, rows=10 ** (run % 2), unit=Unit(partition=["p"])) for run in range(1, 2 * FAN - 1)]
    others = [file(f"o{run}", run, unit=Unit(partition=["q"])) for run in range(1, FAN)]
    assert plan([*files, *others]) == []


@pytest.mark.parametrize("size", [10, SMALL_BYTES - 1])
def test_what_is_merged_after_a_run_is_bounded_and_the_longest_backlog_is_first(size):
    files = [file(run, run, size=size) for run in range(1, 3 * MOST_FILES)]
    files += [file(f"o{run}", run, size=size, unit=Unit(partition=["p"])) for run in range(1, 5 * MOST_FILES)]
    assert Unit.from_text(plan(files)[0][0].key).partition == ["p"]
    for turn in range(5):
        packs = plan(files)
        assert packs
        assert sum(map(len, packs)) <= MOST_FILES
        assert sum(one.bytes for some in packs for one in some) <= TARGET_BYTES
        files = merge(files, packs, f"m{turn}")


def test_a_merged_file_with_other_rows_is_not_committed():
    packs = [[file(f"{unit}{run}", run, rows=3, unit=Unit(partition=[unit])) for run in range(1, 11)] for unit in "ab"]
    packed = []
    for some, rows in zip(packs, (30, 29), strict=True):
        came = OutputFile(path="m", unit=Unit.from_text(some[0].key), rows=rows, bytes=1, sha256="")
        packed.append(PackedUnit(unit=some[0].key, came=[came], gone=[one.path for one in some]))
    with pytest.raises(PipelineError, match=r'differ by rows: 1 in \["b",0\]. Nothing was committed'):
        conclude("t", packs, packed, node="n", now=1.0)
    with pytest.raises(PipelineError, match=r"differ by rows: 30 in"):
        conclude("t", packs, [msgspec.structs.replace(packed[0], came=[])], node="n", now=1.0)
    assert conclude("t", packs, packed[:1], node="n", now=1.0).gone == packs[0]


def test_a_merge_of_some_of_the_files_takes_the_place_of_these():
    [some] = packs = [[file(run, run, rows=3) for run in range(1, 11)]]
    gone = some[2:5]
    came = OutputFile(path="m", unit=WHOLE, rows=9, bytes=1, sha256="")
    packed = PackedUnit(unit=some[0].key, came=[came], gone=[one.path for one in gone])
    change = conclude("t", packs, [packed], node="n", now=1.0)
    assert change.gone == gone
    assert [(one.path, one.first, one.last, one.count) for one in change.came] == [("m", 3, 5, 9)]


def test_a_unit_that_rests_stops_no_other_one():
    files = [file(f"{unit}{run}", run, unit=Unit(partition=[unit])) for run in range(1, FAN + 1) for unit in "ab"]
    assert {some[0].key for some in plan(files)} == {'["a",0]', '["b",0]'}
    [only] = plan(files, resting=['["a",0]'])
    assert {one.key for one in only} == {'["b",0]'}


# --- a leader


async def files_of(world, name):
    document = await load(world.home, await chain.read(world.home, world.head.head, Pipelines))
    return document.tables[name], [one for one in document.files if one.stream == name]


@pytest.mark.long
async def test_each_row_comes_once_to_a_pipeline_that_reads_the_table_also_if_it_was_paused(tmp_path):
    """Files that it reads are merged before and between its runs: some have old rows beside new ones."""
    world, dice = World(tmp_path, (ALL, COPY)), random.Random(7)
    run, first, most, seen, rows = world.lead(), 1, 0, 0, []
    for step in range(60):
        last = first + dice.choice([0, 0, 1, 3, 20])
        await world.store(range(first, last + 1))
        first = last + 1
        if step % 10 == 0:
            what = "resume" if step >= 50 else dice.choice(["pause", "resume"])
            world.requests["copy"] = Request(what=what, id=str(step))
        if step % 37 == 0:
            run = world.lead()  # another leader
        assert await run() == {}
        before, rows = len(rows), [one["sequence"] for one in (await world.read()).get("copy", [])]
        assert len(rows) == len(set(rows))
        if len(rows) > before:
            copy, _ = await files_of(world, "copy")
            assert copy.runs[-1].rows_in == len(rows) - before
        if world.requests["copy"].what == "resume":
            await world.check()
        table, files = await files_of(world, "every")
        most = max(most, len(files))
        seen += any(one.first < one.last for one in files)
    assert (table.number, table.rows) == (60, len(world.stored))
    assert seen > 40
    assert most < FAN * len(str(len(world.stored)))
    packed = sum(run.packed for run in table.runs)
    assert packed > 2 * FAN
    copy, _ = await files_of(world, "copy")
    assert copy.input_rows == {"every": len(world.stored)}


async def test_a_merge_that_fails_is_no_failure_of_the_run_and_is_tried_again_later(tmp_path, caplog):
    world = World(tmp_path, (ALL,))
    run = world.lead(elapsed=lambda: world.now)
    world.pack_with = PipelineError("small files of every can't be merged: it was changed")
    for sequence in range(1, FAN + 3):
        await world.store([sequence])
        assert await run() == {}
        await world.check()
    table, files = await files_of(world, "every")
    assert not [one.error for one in table.runs if one.error]
    assert len(files) == FAN + 2
    assert "it was changed; they stay for now" in caplog.text
    assert world.packings == 1
    world.pack_with = None
    world.now += REST
    await world.store([100])
    assert await run() == {}
    _, files = await files_of(world, "every")
    assert len(files) == 1
    await world.check()


async def test_a_unit_whose_merge_fails_rests_longer_each_time_and_stops_no_other_one(tmp_path, caplog):
    world = World(tmp_path, (ALL,))
    world.units, world.quarantines = 2, True
    run = world.lead(elapsed=lambda: world.now)
    world.pack_fails = {"[0]": "its store is away"}

    async def add(first):
        await world.store(range(first, first + 2))
        assert await run() == {}
        await world.check()
        files = Counter((one.stream, one.key) for one in await world.list_files())
        return files["every", "[0]"], files["every", "[1]"], files["every__quarantine", "[0]"]

    for step in range(FAN - 1):
        assert await add(2 * step) == (step + 1, step + 1, step + 1)
    assert await add(20) == (FAN, 1, FAN)  # the quarantine has the same unit
    assert world.packings == 2
    assert "small files of every can't be merged, in [0]: its store is away; they stay for now" in caplog.text
    assert await add(22) == (FAN + 1, 2, FAN + 1)
    assert world.packings == 2
    for pause in (REST, 2 * REST):
        world.now += pause - 30
        before = world.packings
        await add(int(world.now) * 2)
        assert world.packings == before
        world.now += 30
        await add(int(world.now) * 2)
        assert world.packings == before + 2
    world.pack_fails = {}
    world.now += 4 * REST
    assert await add(int(world.now) * 2) == (1, 7, 1)


async def test_a_file_that_is_refused_stays_and_the_others_are_merged(tmp_path, caplog):
    world = World(tmp_path, (ALL,))
    run = world.lead()
    for sequence in range(1, 3 * FAN):
        await world.store([sequence])
        assert await run() == {}
        if sequence == 1:
            [damaged] = await world.list_files()
            world.refused = {damaged.path: f"{damaged.path} was changed"}
    await world.check()
    files = await world.list_files()
    assert damaged in files
    assert [one.count for one in files if one.first < one.last] == [2 * (FAN - 1), FAN]  # 9 rows were on the same level
    assert caplog.text.count("was changed: this file of every is not merged with others") == 1


FAULTS = [PipelineError("away"), SparkError("it has ended"), ValueError("ours"), KeyError("x"), TimeoutError()]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
async def test_whatever_fails_in_a_merge_the_run_is_committed_and_the_quarantine_is_tried(tmp_path, caplog, fault):
    world = World(tmp_path, (ALL,))
    world.quarantines = True
    run = world.lead()
    for sequence in range(1, FAN + 1):
        if sequence == FAN:
            world.pack_with = fault
        await world.store([sequence])
        assert await run() == {}
    table, files = await files_of(world, "every")
    assert not [one.error for one in table.runs if one.error]
    assert len(files) == FAN
    assert world.packings == 2  # of its quarantine, too
    assert "they stay for now" in caplog.text


async def test_a_merge_without_an_answer_is_given_up(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(pipeline_packer, "LIMIT", 0.0)
    monkeypatch.setattr(pipeline_packer, "PATIENCE", 0.0)
    world = World(tmp_path, (ALL,))
    run = world.lead()
    world.hangs = True
    for sequence in range(1, FAN + 2):
        await world.store([sequence])
        assert await run() == {}
    assert world.packings == 1
    await world.check()
    assert caplog.text.count("the merge of small files of every had no result after 0 s; they stay for now") == 1


async def test_merges_follow_each_other_while_any_is_due_and_there_is_time(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "MOST_FILES", FAN)
    world, ticks = World(tmp_path, (ALL,)), count(step=10.0)
    world.units = 3
    for sequence in range(FAN):
        if sequence == FAN - 1:
            hurried = world.copy(shutil.copytree(tmp_path, tmp_path.parent / "hurried"))
            hurried.units = 3
        await world.store(range(3 * sequence, 3 * sequence + 3))
        assert await (run := world.lead(elapsed=lambda: 0.0))() == {}
    assert world.packings == 3
    assert [one.count for one in await world.list_files()] == [FAN] * 3
    [*_, last] = (await files_of(world, "every"))[0].runs
    assert (last.packed, last.bytes_packed) == (3 * FAN, world.keeper.counts["every"]["bytes_packed"])
    await hurried.store(range(3 * FAN - 3, 3 * FAN))
    run = hurried.lead(elapsed=lambda: next(ticks))
    for merged in (1, 2, 3):
        assert await run() == {}
        assert hurried.packings == merged
        await hurried.store([1000 + merged])
    assert await run() == {}
    await hurried.check()


async def test_the_files_of_a_table_are_listed_once_for_a_run_and_the_merges_after_it(tmp_path, monkeypatch):
    listed, list_files = [], PipelineLeading.list_files

    async def list_and_count(leading, table, document=None):
        listed.append(table)
        return await list_files(leading, table, document)

    monkeypatch.setattr(PipelineLeading, "list_files", list_and_count)
    world = World(tmp_path, (ALL,))
    run = world.lead()
    for sequence in range(1, FAN + 1):
        world.quarantines = sequence in (1, 3)
        await world.store([sequence])
        assert await run() == {}
    assert Counter(listed) == {"every": FAN, "every__quarantine": 2}
    assert len(await world.list_files()) == 1 + 2


async def test_a_table_whose_rows_an_earlier_version_did_not_count_has_their_number_after_its_next_run(tmp_path):
    world = World(tmp_path, (ALL, COPY))
    run = world.lead()
    for sequence in range(1, FAN):
        await world.store([sequence])
        assert await run() == {}
    leading = PipelineLeading(world.home, MemoryHead(world.token + 1, world.head))
    table = (await leading.read(world.now)).tables["every"]
    assert table.rows == FAN - 1
    await leading.commit(Change(tables={"every": msgspec.structs.replace(table, rows=None)}), world.now)
    world.token += 1
    run = world.lead()
    await world.store([FAN])
    assert await run() == {}
    copy, _ = await files_of(world, "copy")
    assert (await files_of(world, "every"))[0].rows == FAN
    assert copy.input_rows == {"every": FAN}
    assert copy.runs[-1].rows_in == 1
    await world.check()


async def test_documents_of_format_1_are_read_and_a_version_that_only_knows_that_refuses_later_ones(
    tmp_path, monkeypatch
):
    world = World(tmp_path, (ALL, COPY))
    monkeypatch.setattr(Pipelines, "FORMAT", 1)
    before = world.lead()
    await world.store(range(1, 5))
    assert await before() == {}
    monkeypatch.undo()
    assert (await chain.read(world.home, world.head.head, Pipelines)).format == 1
    run = world.lead()
    await world.store([5])
    assert await run() == {}
    await world.check()
    assert (await chain.read(world.home, world.head.head, Pipelines)).format == 2
    monkeypatch.setattr(Pipelines, "FORMAT", 1)
    number = world.head.head.number
    [said] = (await world.lead()()).values()
    assert "has format 2; this version reads up to 1: use the version that wrote it" in said
    assert world.head.head.number == number


async def test_the_bytes_of_merged_files_are_counted(tmp_path):
    world = World(tmp_path, (ALL, SUMS))
    run = world.lead()
    for sequence in range(1, FAN + 1):
        await world.store([sequence])
        await run()
    table, _ = await files_of(world, "every")
    assert [one.packed for one in table.runs] == [0] * (FAN - 1) + [FAN]
    assert world.keeper.counts["every"]["bytes_packed"] == table.runs[-1].bytes_packed > 1000
    assert world.keeper.counts["sums"]["bytes_packed"] == 0


def test_batches_of_an_hour_add_up_what_was_merged_after_them():
    table = PipelineTable(definition="")
    for number in range(1, 4):
        batch = Run(number=number, began=number, ended=number, why="stream", batches=1)
        table = table.with_run(batch).with_packed(10, 1000)
    [run] = table.runs
    assert (run.batches, run.packed, run.bytes_packed) == (3, 30, 3000)
