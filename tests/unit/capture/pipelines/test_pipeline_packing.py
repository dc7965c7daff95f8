"""Small files of a table to which rows are added become few: which ones, when, and what a leader commits of it."""

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_world import ALL, COPY, SUMS, World

from capture.archive import chain
from capture.archive.index.contents import load
from capture.errors import PipelineError
from capture.node.pipeline_requests import Request
from capture.pipelines.derivation import OutputFile, Unit
from capture.pipelines.document import Pipelines, PipelineTable, Run, record_of
from capture.pipelines.packing import FAN, MOST_FILES, SMALL_BYTES, TARGET_BYTES, conclude, plan

WHOLE = Unit()


def file(number, run, *, rows=1, size=1000, unit=WHOLE):
    made = OutputFile(path=f"table/t/{number}.parquet", unit=unit, rows=rows, bytes=size, sha256="0" * 64)
    return record_of(made, "t", run)


def merge(files, packs, number):
    """Return the files after the merged ones were committed, as a deriver without faults writes them."""
    came = [
        OutputFile(
            path=f"table/t/{number}-{at}.parquet",
            unit=Unit.from_text(some[0].key),
            rows=sum(one.count for one in some),
            bytes=sum(one.bytes for one in some),
            sha256="0" * 64,
        )
        for at, some in enumerate(packs)
    ]
    change = conclude("t", packs, came, node="n", now=1.0)
    assert change.same_rows
    gone = {one.path for one in change.gone}
    return [*(one for one in files if one.path not in gone), *change.came]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 2)), min_size=1, max_size=300))
def test_a_unit_has_few_files_and_each_row_is_written_again_once_for_each_level(runs):
    files, written, rows, longest = [], defaultdict(int), Counter(), 0
    for run, (count, bucket) in enumerate(runs, 1):
        unit = Unit(partition=[f"p{bucket}"])
        files.append(file(run, run, rows=count, size=1000 + count, unit=unit))
        rows[unit.to_text()] += count
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
    came = [
        OutputFile(path=unit, unit=Unit(partition=[unit]), rows=rows, bytes=1, sha256="")
        for unit, rows in (("a", 30), ("b", 29))
    ]
    with pytest.raises(PipelineError, match=r'differ by rows: 1 in \["b",0\]. Nothing was committed'):
        conclude("t", packs, came, node="n", now=1.0)
    with pytest.raises(PipelineError, match=r"differ by rows: 30 in"):
        conclude("t", packs, came[1:], node="n", now=1.0)


# --- a leader


async def files_of(world, name):
    document = await load(world.home, await chain.read(world.home, world.head.head, Pipelines))
    return document.tables[name], [one for one in document.files if one.stream == name]


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
    run = world.lead()
    world.pack_with = PipelineError("small files of every can't be merged: it was changed")
    for sequence in range(1, FAN + 3):
        await world.store([sequence])
        assert await run() == {}
        await world.check()
    table, files = await files_of(world, "every")
    assert not [one.error for one in table.runs if one.error]
    assert len(files) == FAN + 2
    assert "it was changed; they stay for now" in caplog.text
    world.pack_with = None
    await world.store([100])
    assert await run() == {}
    _, files = await files_of(world, "every")
    assert len(files) == 1
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
