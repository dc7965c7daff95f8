"""Each way of keeping a pipeline's table gives what a computation over all messages gives."""

import random
from collections import Counter

import pytest
from derivations import Table, check_increments, messages
from spark_blocks import STARTED

from capture.pipelines.averages import settle_averages
from capture.pipelines.derivation import SMALL_BYTES
from capture.pipelines.sql import analyse
from capture.spark.derive_job import SMALL_ROWS

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("size_of_run"), pytest.mark.asyncio(loop_scope="session")]

SCHEMA = "country STRING, total DECIMAL(18,2), status STRING, day INT, n BIGINT"


def increments(store, count=4):
    """Blocks of which some have lower sequences than those before them, nulls, and one without messages of interest."""
    chance = random.Random(7)
    numbers = [range(1001, 1301), range(1, 301), [5000], range(301, 400)]
    made = []
    for at, some in enumerate(numbers[:count]):
        payloads = {
            number: {
                "country": chance.choice(["a", "b", "c", None]),
                "total": f"{chance.randrange(10 ** (3 + 4 * at))}.{chance.randrange(100):02}",
                "status": chance.choice("xyz"),
                "day": chance.choice([1, 2, None]),
                "n": chance.choice([number, None]),
            }
            for number in some
        }
        made.append([messages(store, f"b{at}", payloads)])
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    "query",
    [
        "SELECT country, day, sum(total) AS revenue, count(*) AS c, count(n) AS cn FROM S GROUP BY 1, 2",
        "SELECT country, min(n) AS low, max(total) AS high, max_by(status, sequence) AS s FROM S GROUP BY country",
        "SELECT country, avg(total) AS a, avg(-total / 7) AS b, round(avg(total), 3) AS c FROM S GROUP BY country",
        "SELECT day, last(status) AS l, first(status, true) AS f, any(n > 7) AS y FROM S GROUP BY 1",
        "SELECT day, avg(n) AS a, sum(n) FILTER (WHERE status = 'x') AS x FROM S WHERE total > 100 GROUP BY day",
        "SELECT country, date(time) AS at, count_if(n > 5) AS five, bool_or(n > 1000) AS big FROM S GROUP BY 1, 2",
    ],
)
async def test_merged_aggregates_are_those_of_all_messages(driver, store, query):
    table = await check_increments(driver, store, query, increments(store), schema=SCHEMA)
    assert table.upkeep == "merge"
    assert table.read()


@pytest.mark.long
async def test_groups_that_new_messages_touch_are_computed_again(driver, store):
    query = "SELECT country, count(DISTINCT status) AS n, sum(total) AS t FROM S GROUP BY country HAVING sum(n) < 55000"
    table = await check_increments(driver, store, query, increments(store), schema=SCHEMA)
    assert table.upkeep == "groups"
    assert 0 < len(table.read()) < 4, table.read()  # HAVING has taken some of the groups away


@pytest.mark.long
async def test_rows_of_new_messages_are_added(driver, store):
    query = "SELECT *, total * 2 AS doubled FROM S WHERE day = 1"
    table = await check_increments(driver, store, query, increments(store), schema=SCHEMA)
    assert table.upkeep == "rows"
    assert {"subject", "time", "sequence", "headers", "doubled"} <= set(table.read()[0])


@pytest.mark.long
async def test_a_small_run_that_makes_many_rows_is_an_ordinary_one(driver, store):
    """One message makes more rows than the driver's process holds: executors write them."""
    query = f"SELECT n.country, explode(sequence(1, {SMALL_ROWS * 2})) AS number FROM S AS n"
    table = Table(driver, store, query, schema=SCHEMA)
    for number in (1, 2):
        done = await table.run([messages(store, f"m{number}", {number: {"country": "DE"}})])
        assert done.rows_out == SMALL_ROWS * 2
    assert Counter(one["number"] for one in table.read()) == dict.fromkeys(range(1, SMALL_ROWS * 2 + 1), 2)


@pytest.mark.long
@pytest.mark.parametrize(
    "query",
    [
        "SELECT country, max(n) AS n, min(day) AS day FROM S GROUP BY country",
        "SELECT country, n, day FROM S",
    ],
    ids=["merge", "rows"],
)
async def test_a_small_change_of_a_large_table_is_written_by_executors(driver, store, query):
    """What the driver's process reads is bounded by the files that change, too."""
    table = Table(
        driver, store, query, schema=SCHEMA, key=["country"], buckets=2, expect=["n > 0"], on_violation="drop"
    )
    many = {number: {"country": f"c{number}", "n": 1, "day": number % 5} for number in range(1, 20_001)}
    await table.run([messages(store, "many", many)])
    few = {number: {"country": f"c{number % 7}", "n": number, "day": 9} for number in range(30_000, 30_020)}
    wrong = {40_000: {"country": "wrong", "n": 0}}
    late = {25_000: {"country": "c1", "n": 25_000, "day": 8}}
    for at, some in enumerate((few, wrong, late)):
        table.small_bytes = sum(one.bytes for one in table.files) - 1
        done = await table.run([messages(store, f"few{at}", some)])
        assert bool(done.violations) is (some is wrong)
    wanted = {one["country"]: (one["n"], one["day"]) for one in many.values()}
    for one in few.values():
        day = min(wanted.get(one["country"], (0, 9))[1], 9) if "min" in query else 9
        wanted[one["country"]] = (one["n"], day)
    assert {one["country"]: (one["n"], one["day"]) for one in table.read()} == wanted


@pytest.mark.long
async def test_everything_else_is_computed_again(driver, store):
    query = "SELECT country, total, row_number() OVER (PARTITION BY country ORDER BY total, sequence) AS r FROM S"
    table = await check_increments(driver, store, query, increments(store, 2), schema=SCHEMA)
    assert table.upkeep == "whole"


@pytest.mark.long
async def test_the_last_value_is_that_of_the_last_message_however_a_table_is_kept(driver, store):
    query = "SELECT country, last(status) AS l, first(n) AS f, count(DISTINCT day) AS d FROM S GROUP BY country"
    table = await check_increments(driver, store, query, increments(store), schema=SCHEMA)
    assert table.upkeep == "groups"
    merged = await check_increments(driver, store, query.replace("DISTINCT ", ""), increments(store), schema=SCHEMA)
    assert [(one["l"], one["f"]) for one in merged.read()] == [(one["l"], one["f"]) for one in table.read()]


@pytest.mark.long
async def test_an_average_of_large_whole_numbers_is_a_double_and_does_not_overflow(driver, store):
    block = increments(store, 1)[0]
    table = Table(driver, store, "SELECT day, avg(time_ns) AS t FROM S GROUP BY day", schema=SCHEMA)
    await table.run(block)
    assert [round(one["t"] / 1e9) for one in table.read()] == [round(STARTED / 1e9)] * 3


@pytest.mark.long
@pytest.mark.parametrize(("digits", "scale"), [(10, 2), (18, 6), (28, 2), (38, 4), (20, 0), (9, 9), (36, 10)])
async def test_an_average_of_decimals_is_rounded_once_as_spark_does(driver, digits, scale):
    kind, high = (
        f"DECIMAL({digits},{scale})",
        min(28, digits) - scale - 6 if scale <= 6 else min(18, digits - scale) - 6,
    )
    large = f"cast(pmod(hash(id), 100003) AS DECIMAL(38,0)) * 1{'0' * max(0, high)}BD" if high >= 0 else "0BD"
    small = f"cast(cast(pmod(xxhash64(id), 977) AS DECIMAL(38,0)) / 1{'0' * scale}BD AS {kind})"
    values = f"SELECT id % 50 AS g, cast(if(id % 3 = 0, -1, 1) * {large} AS {kind}) + {small} AS x FROM range(4000)"
    values = f"SELECT g, cast(x AS {kind}) AS x FROM ({values})"
    merging = analyse("SELECT g, avg(x) AS a FROM S GROUP BY g").merging
    settled = settle_averages(merging, {"__1": f"decimal({min(38, digits + 10)},{scale})"})
    states = f"WITH S AS ({values}), __states AS ({settled.partial}), __merged AS ({settled.merged})"
    sql = f"{states}, kept AS ({settled.final}), plain AS (SELECT g, avg(x) AS a FROM S GROUP BY g)"
    answer = await driver.query(
        "/", {}, f"{sql} SELECT count(*), count_if(kept.a = plain.a) FROM kept JOIN plain USING (g)"
    )
    assert answer.rows == [[50, 50]]


@pytest.mark.long
async def test_nested_states_are_merged_whatever_the_sizes_of_runs(driver, store):
    """Spark refuses to cast a nested type to itself if one allows null values and the other does not."""
    query = (
        "SELECT country, max_by(array(1, 2), sequence) AS a, first(named_struct('x', 1, 'y', subject)) AS s,"
        " last(array(array(sequence))) AS l FROM S GROUP BY country"
    )
    table = Table(driver, store, query, schema=SCHEMA, key=["country"])
    for number, size in enumerate((SMALL_BYTES, SMALL_BYTES, 0, 0, SMALL_BYTES), 1):
        table.small_bytes = size
        await table.run([messages(store, f"m{number}", {number: {"country": "DE"}})])
    [row] = table.read()
    assert (row["a"], row["s"]["x"], row["l"]) == ([1, 2], 1, [[5]])
