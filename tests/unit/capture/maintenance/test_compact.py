import hashlib
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.archive.chain import Retired
from capture.archive.manifest import Manifest, Partition, Stored, block_path
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table, path_of
from capture.errors import CompactionError, ConfigError
from capture.maintenance.compaction import apply
from capture.maintenance.compaction_plan import Policy, plan
from capture.maintenance.engine import Merged

NOW = 100_000.0
ALL = Policy(max_wait=0.0)


def names():
    numbers = count(1)
    return lambda: f"{next(numbers):032x}"


def block(sequences, *, key="k", interval=0, stream="S", size=100, age=0.0, rows=None, seconds=3600):
    held = Sequences.from_iterable(sequences)
    sha256 = hashlib.sha256(f"{list(held)} {key} {size} {age}".encode()).hexdigest()
    rows = len(held) if rows is None else rows
    return Stored(
        path=block_path(Partition(stream, key, interval, seconds), held.first, held.last, rows, sha256, ".parquet"),
        stream=stream,
        key=key,
        interval=interval,
        first=held.first,
        last=held.last,
        count=rows,
        bytes=size,
        sha256=sha256,
        format="parquet",
        sequences=held.to_bytes(),
        stored_ns=int((NOW - age) * 1e9),
    )


def archive(blocks=(), files=(), **table):
    return Picture(Manifest(number=5, blocks=list(blocks)), Table(number=3, files=list(files), **table))


def planned(picture, policy=ALL, now=NOW):
    return plan(picture, policy, now=now, token=7, unique=names())


def held(objects):
    return Sequences.union_of(Sequences.from_bytes(one.sequences) for one in objects)


def merged(group):
    """Merge by set arithmetic alone: what every engine must come to."""
    kept = held(group.inputs) - Sequences.from_text(group.exclude)
    rows = sum(one.count for one in group.inputs)
    if not kept:
        return Merged(rows_in=rows, duplicates=rows)
    output = Stored(
        path=group.output,
        stream=group.stream,
        key=group.key,
        interval=group.interval,
        first=kept.first,
        last=kept.last,
        count=len(kept),
        bytes=10 * len(kept),
        sha256="0" * 64,
        format="parquet",
        sequences=kept.to_bytes(),
    )
    return Merged(outputs=[output], rows_in=rows, duplicates=rows - len(kept))


# --- what is due -----------------------------------------------------------------------------------------------------


def test_a_bin_with_enough_blocks_is_due_and_one_with_fewer_waits():
    policy = Policy(min_files=3, max_wait=60.0)
    few = [block([number]) for number in (1, 2)]
    assert planned(archive(few), policy) == []
    (group,) = planned(archive([*few, block([3])]), policy)
    assert [one.first for one in group.inputs] == [1, 2, 3]
    assert group.output == "table/stream=S/key=k/date=1970-01-01/hour=00/c-7-00000000000000000000000000000001.parquet"
    assert group.exclude == ""


def test_a_block_that_has_waited_long_enough_is_due_alone():
    policy = Policy(min_files=3, max_wait=60.0)
    assert planned(archive([block([1], age=59.0)]), policy) == []
    assert len(planned(archive([block([1], age=60.0)]), policy)) == 1


def test_blocks_of_different_streams_keys_intervals_and_lengths_of_interval_are_never_merged():
    blocks = [
        block([1]),
        block([2], key="l"),
        block([3], interval=3600),
        block([4], stream="T"),
        block([5], seconds=86_400),
    ]
    groups = planned(archive(blocks))
    assert sorted(len(group.inputs) for group in groups) == [1] * 5
    assert len({group.output.rpartition("/")[0] for group in groups}) == 5


def test_a_small_table_file_is_merged_with_new_blocks_a_large_one_is_left_and_without_blocks_nothing_is():
    small = msgspec.structs.replace(
        block([1], size=74), path="table/stream=S/key=k/date=1970-01-01/hour=00/c-1-aa.parquet"
    )
    large = msgspec.structs.replace(
        block([2], size=75), path="table/stream=S/key=k/date=1970-01-01/hour=00/c-1-bb.parquet"
    )
    policy = Policy(max_wait=0.0, target_bytes=100)
    (group,) = planned(archive([block([3], size=10)], [small, large]), policy)
    assert [one.first for one in group.inputs] == [1, 3]
    assert planned(archive(files=[small, large]), policy) == []


def test_a_bin_is_cut_at_the_target_size_in_order_of_sequences():
    blocks = [block([number], size=40) for number in (5, 3, 1, 2, 4)]
    groups = planned(archive(blocks), Policy(max_wait=0.0, target_bytes=100))
    assert [[one.first for one in group.inputs] for group in groups] == [[1, 2], [3, 4], [5]]


def test_the_oldest_come_first_and_a_run_takes_no_more_than_its_groups():
    blocks = [block([number], key=f"k{number}", age=float(number)) for number in range(1, 6)]
    groups = planned(archive(blocks), Policy(max_wait=0.0, max_groups=2))
    assert [group.key for group in groups] == ["k5", "k4"]


def test_a_group_leaves_out_what_the_table_holds_elsewhere():
    elsewhere = msgspec.structs.replace(block([1, 2], key="other"), path="table/x/c-1-aa.parquet")
    (group,) = planned(archive([block([2, 3])], [elsewhere]))
    assert list(Sequences.from_text(group.exclude)) == [2]


def test_a_group_leaves_out_what_an_earlier_one_of_the_plan_takes():
    blocks = [block([1, 2], key="a", age=2.0), block([2, 3], key="b", age=1.0), block([2, 3], stream="T", key="c")]
    groups = planned(archive(blocks))
    assert [list(Sequences.from_text(group.exclude)) for group in groups] == [[], [2], []]


def test_impossible_policies_are_refused():
    for wrong in ({"min_files": 0}, {"max_wait": -1.0}, {"target_bytes": 0}, {"max_groups": 0}):
        with pytest.raises(ConfigError, match="not negative"):
            Policy(**wrong)


overlapping = st.lists(
    st.lists(
        st.tuples(st.sets(st.integers(1, 40), min_size=1, max_size=12), st.sampled_from("abc"), st.integers(10, 200)),
        max_size=5,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(overlapping, st.integers(1, 6), st.data())
def test_whatever_overlaps_the_table_holds_every_sequence_once(rounds, max_groups, data):
    policy = Policy(max_wait=0.0, target_bytes=300, max_groups=max_groups)
    blocks, table, unique, seen = {}, Table(), names(), Sequences()

    def compacted(choose):
        picture = Picture(Manifest(blocks=list(blocks.values())), table)
        groups = [group for group in plan(picture, policy, now=NOW, token=1, unique=unique) if choose()]
        after = apply(picture, groups, [merged(group) for group in groups], now=NOW)
        assert sum(one.count for one in after.files) == len(held(after.files))
        assert held(after.files) | held(Picture(picture.manifest, after).blocks) == seen
        return after

    for fresh in rounds:
        stored = [block(sequences, key=key, size=size, age=size / 7) for sequences, key, size in fresh]
        blocks |= {one.path: one for one in stored}
        seen |= held(stored)
        table = compacted(lambda: data.draw(st.booleans()))  # any part of a plan may fail
    while set(blocks) - table.consumed_paths:
        table = compacted(lambda: True)
    assert held(table.files) == seen
    assert sum(one.count for one in table.files) == len(seen)


# --- what it changes -------------------------------------------------------------------------------------------------


def test_applied_results_replace_their_inputs_which_are_consumed_or_retired():
    small = msgspec.structs.replace(block([4]), path="table/stream=S/key=k/date=1970-01-01/hour=00/c-1-aa.parquet")
    picture = archive([block([1, 2]), block([2, 3]), block([9], key="other")], [small], retired=[Retired("old", 1.0)])
    groups = [group for group in planned(picture) if group.key == "k"]
    after = apply(picture, groups, [merged(groups[0])], now=NOW)
    assert [one.path for one in after.files] == [groups[0].output]
    assert after.files[0].count == 4
    assert after.consumed_paths == {one.path for one in picture.blocks[:2]}
    assert after.retired == [Retired("old", 1.0), Retired(small.path, NOW)]
    assert (after.of_manifest, after.created) == (5, NOW)
    assert Picture(picture.manifest, after).blocks == [block([9], key="other")]


def test_a_consumed_block_is_named_until_the_manifest_has_retired_it():
    waiting, let_go, forgotten = block([1]), block([2]), block([3])
    manifest = Manifest(number=5, blocks=[waiting, block([4])], retired=[Retired(let_go.path, NOW)])
    before = Picture(manifest, Table(consumed=[one.path for one in (waiting, let_go, forgotten)]))
    (group,) = planned(before)
    assert group.inputs == [block([4])]
    after = apply(before, [group], [merged(group)], now=NOW)
    assert [path_of(one) for one in after.consumed] == [waiting.path, block([4]).path]


def test_a_group_of_which_nothing_is_left_leaves_no_file():
    tabled = msgspec.structs.replace(block([1, 2], key="other"), path="table/x/c-1-aa.parquet")
    picture = archive([block([1, 2])], [tabled])
    (group,) = planned(picture)
    after = apply(picture, [group], [merged(group)], now=NOW)
    assert (after.files, after.consumed_paths) == ([tabled], {block([1, 2]).path})


def changed(result, **changes):
    return msgspec.structs.replace(result, outputs=[msgspec.structs.replace(result.outputs[0], **changes)])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda it: changed(it, path="table/elsewhere"), "a file table/elsewhere was written without a request"),
        (lambda it: changed(it, key="else"), "the output is described as"),
        (lambda it: changed(it, count=2), "the output is described as"),
        (lambda it: changed(it, sequences=Sequences.from_iterable([1, 3]).to_bytes()), "missing: 2; too many: none"),
        (lambda it: changed(it, sequences=Sequences.from_range(1, 4).to_bytes()), "missing: none; too many: 4"),
        (lambda it: msgspec.structs.replace(it, rows_in=3), "3 rows were read, the inputs have 4"),
        (lambda it: msgspec.structs.replace(it, duplicates=0), "4 rows less 0 duplicates are not 3 sequences"),
        (lambda it: msgspec.structs.replace(it, outputs=[]), "nothing was written for sequences 1–3"),
    ],
)
def test_results_that_do_not_add_up_are_refused(wrong, text):
    picture = archive([block([1, 2]), block([2, 3])])
    (group,) = planned(picture)
    with pytest.raises(CompactionError, match=text):
        apply(picture, [group], [wrong(merged(group))], now=NOW)


def test_results_for_an_archive_that_has_moved_on_are_refused():
    picture = archive([block([1, 2])])
    groups = planned(picture)
    results = [merged(group) for group in groups]
    with pytest.raises(CompactionError, match="not in the archive's picture"):
        apply(Picture(picture.manifest, apply(picture, groups, results, now=NOW)), groups, results, now=NOW)
    with pytest.raises(CompactionError, match="1 group was sent to the merge, and 0 results were returned"):
        apply(picture, groups, [], now=NOW)
    tabled = msgspec.structs.replace(block([2], key="other"), path="table/x/c-1-aa.parquet")
    with pytest.raises(CompactionError, match="sequences 2 of S twice"):
        apply(archive([block([1, 2])], [tabled]), groups, results, now=NOW)


# --- how much, and of what kind --------------------------------------------------------------------------------------


def test_a_run_takes_its_bytes_and_one_group_at_least():
    blocks = [block([number], key=f"k{number}", age=float(10 - number), size=100) for number in range(1, 6)]
    for most, taken in ((1, 1), (100, 1), (250, 2), (500, 5)):
        assert len(planned(archive(blocks), Policy(max_wait=0.0, max_bytes=most))) == taken


def test_blocks_of_after_a_slots_begin_wait_for_the_next_one():
    blocks = [block([1], age=100.0), block([2], age=50.0)]
    groups = plan(archive(blocks), ALL, now=NOW, token=1, unique=names(), stored_by=NOW - 70)
    assert [one.first for group in groups for one in group.inputs] == [1]


def test_a_group_above_the_split_size_becomes_files_of_about_as_many_messages_each():
    blocks = [block(range(first, 2**40, 2**33), size=100) for first in (1, 2)]
    (group,) = planned(archive(blocks), Policy(max_wait=0.0, target_bytes=1000, split_bytes=70))
    wanted = held(blocks)
    counts = [len(wanted.within(part.first, part.last)) for part in group.parts]
    assert (len(counts), sum(counts), max(counts) - min(counts) <= 1) == (3, len(wanted), True)
    stem = group.output.removesuffix(".parquet")
    assert [part.output for part in group.parts] == [group.output, f"{stem}-2.parquet", f"{stem}-3.parquet"]
    (whole,) = planned(archive(blocks), Policy(max_wait=0.0, target_bytes=1000, split_bytes=200))
    assert whole.bounds == []


def test_what_was_encrypted_stays_encrypted_unless_it_is_to_be_decrypted():
    blocks = [block([1]), msgspec.structs.replace(block([2]), format="ndjson.enc")]
    (group,) = planned(archive(blocks))
    assert group.output.endswith(".parquet.enc")
    (plain,) = planned(archive(blocks), Policy(max_wait=0.0, decrypt=True))
    assert plain.output.endswith(".parquet")
    (without_keys,) = planned(archive(blocks), Policy(max_wait=0.0, encrypted=False))
    assert without_keys.inputs == blocks[:1]


def test_groups_are_told_the_tables_columns_and_by_what_messages_are_distinct():
    (group,) = planned(archive([block([1])], columns="a schema"), Policy(max_wait=0.0, distinct="message_id"))
    assert (group.columns, group.distinct) == ("a schema", "message_id")
