"""Conditions that rows must meet: the run fails, or the rows are left out, or they go to a table of their own."""

import pytest
from derivations import Table, check_increments, messages

from capture.errors import PipelineError
from capture.maintenance.merge.schema_evolution import read_columns
from capture.pipelines.upkeep import Upkeep

LONG_FOR_EACH_SIZE = [pytest.mark.spark, pytest.mark.long, pytest.mark.usefixtures("size_of_run")]
pytestmark = [*LONG_FOR_EACH_SIZE, pytest.mark.asyncio(loop_scope="session")]

SCHEMA = "k STRING, v INT"
POSITIVE, SHORT = "v >= 0", "length(k) < 3"


def block(store, name, first, *values):
    return messages(store, name, {first + at: {"k": k, "v": v} for at, (k, v) in enumerate(values)})


def table_of(driver, store, query="SELECT k, v FROM S", how="drop", conditions=(POSITIVE, SHORT), **settings):
    return Table(
        driver, store, query, schema=SCHEMA, expect=list(conditions), on_violation=how, **settings
    )  # fmt: skip


def quarantined(table):
    return [(one["k"], one["v"], one["reason"]) for one in table.read(files=table.quarantined)]


async def test_rows_that_do_not_meet_a_condition_fail_the_run_with_counts_and_an_example(driver, store):
    table = table_of(driver, store, how="fail")
    with pytest.raises(PipelineError) as caught:
        await table.run([block(store, "a", 1, ("a", 1), ("long", -5), ("b", -2))])
    said = (
        "pipeline p: rows do not meet its conditions ('v >= 0': 2, 'length(k) < 3': 1), for example: k = long, v = -5"
    )
    assert str(caught.value) == said
    assert table.files == []
    done = await table.run([block(store, "b", 4, ("a", 1), (None, None))])  # null passes, as in a CHECK of SQL
    assert (done.violations, table.read()) == ({}, [{"k": "a", "v": 1}, {"k": None, "v": None}])


async def test_rows_are_left_out_and_counted(driver, store):
    table = table_of(driver, store)
    done = await table.run([block(store, "a", 1, ("a", 1), ("long", -5), ("b", -2), ("c", 3))])
    assert done.violations == {POSITIVE: 2, SHORT: 1}
    assert (done.rows_in, done.rows_out, table.read()) == (4, 2, [{"k": "a", "v": 1}, {"k": "c", "v": 3}])
    assert done.quarantined == []


async def test_rows_are_put_into_quarantine_with_the_first_reason(driver, store):
    table = table_of(driver, store, how="quarantine", partition=["k"])
    done = await table.run([block(store, "a", 1, ("a", 1), ("long", -5), ("longer", 2), ("b", -2))])
    assert done.violations == {POSITIVE: 2, SHORT: 2}
    assert quarantined(table) == [("b", -2, POSITIVE), ("long", -5, POSITIVE), ("longer", 2, SHORT)]
    assert table.read() == [{"k": "a", "v": 1}]
    assert {one.name: str(one.type) for one in read_columns(table.quarantine_columns)} == {
        "k": "string", "v": "int32", "reason": "string"
    }  # fmt: skip


async def test_a_row_that_is_left_out_replaces_no_other(driver, store):
    table = table_of(driver, store, how="quarantine", key=["k"], buckets=1)
    await table.run([block(store, "a", 1, ("a", 1), ("b", 2))])
    done = await table.run([block(store, "b", 3, ("a", -1), ("b", 4))])
    assert (table.read(), done.violations) == ([{"k": "a", "v": 1}, {"k": "b", "v": 4}], {POSITIVE: 1})
    assert quarantined(table) == [("a", -1, POSITIVE)]
    done = await table.run([block(store, "c", 5, ("b", 5))])
    assert (table.read(), done.violations) == ([{"k": "a", "v": 1}, {"k": "b", "v": 5}], {})


async def test_a_sum_that_is_left_out_is_kept_for_later_messages(driver, store):
    query = "SELECT k, sum(v) AS v FROM S GROUP BY k"
    table = table_of(driver, store, query, how="quarantine", key=["k"], buckets=1)
    assert table.upkeep is Upkeep.MERGE
    done = await table.run([block(store, "a", 1, ("a", -10), ("b", 2))])
    assert (table.read(), done.violations) == ([{"k": "b", "v": 2}], {POSITIVE: 1})
    done = await table.run([block(store, "b", 3, ("b", 3))])
    assert (table.read(), done.violations) == ([{"k": "b", "v": 5}], {})  # nothing new is known of a
    await table.run([block(store, "c", 4, ("a", 4), ("b", -6))])
    assert table.read() == []
    await table.run([block(store, "d", 6, ("a", 7))])
    assert table.read() == [{"k": "a", "v": 1}]
    assert quarantined(table) == [("a", -10, POSITIVE), ("a", -6, POSITIVE), ("b", -1, POSITIVE)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, sum(v) AS v, count(*) AS n FROM S GROUP BY k",
        "SELECT k, sum(v) AS v, count(DISTINCT v) AS n FROM S GROUP BY k",
    ],
)
async def test_increments_leave_out_what_a_computation_of_all_leaves_out(driver, store, query):
    chosen = [("a", -4), ("b", 1), ("a", 5), ("c", -1), ("b", -2), ("long", 1), ("c", 0), ("d", 1), ("a", 1), ("b", 9)]
    increments = [[block(store, f"b{at}", at + 1, one)] for at, one in enumerate(chosen)]
    settings = {"expect": [POSITIVE, SHORT], "on_violation": "drop", "key": ["k"]}
    table = await check_increments(driver, store, query, increments, schema=SCHEMA, **settings)
    assert {one["k"] for one in table.read()} == {"a", "b", "d"}


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("v >=", r"its condition 'v >=' can't be checked: Syntax error"),
        ("w > 1", r"its condition 'w > 1' can't be checked: .*`w` cannot be resolved"),
        ("v + 1", r"its condition 'v \+ 1' is not true or false but int"),
        ("sum(v) > 1", r"its condition 'sum\(v\) > 1' can't be checked"),
    ],
)
async def test_a_condition_that_is_none_is_named(driver, store, condition, said):
    table = table_of(driver, store, conditions=[POSITIVE, condition])
    with pytest.raises(PipelineError, match=rf"^pipeline p: {said}"):
        await table.run([block(store, "a", 1, ("a", 1))])
