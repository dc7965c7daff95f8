"""What a query's text says about how its result is kept."""

import pytest

from capture.errors import ConfigError
from capture.pipelines.sql import Upkeep, analyse

REVENUE = "SELECT country, date(time) AS day, sum(total) AS revenue FROM ORDERS GROUP BY 1, 2"


def test_sums_by_group_are_merged():
    found = analyse(REVENUE)
    assert (found.upkeep, found.inputs, found.columns) == (Upkeep.MERGE, ("ORDERS",), ("country", "day", "revenue"))
    assert found.groups == {"country": "country", "day": "CAST(time AS DATE)"}
    assert found.merging.partial == (
        "SELECT country AS `country`, CAST(time AS DATE) AS `day`, SUM(total) AS `__1` FROM ORDERS"
        " GROUP BY country, CAST(time AS DATE)"
    )
    assert found.merging.merged == "SELECT `country`, `day`, sum(__1) AS `__1` FROM __states GROUP BY `country`, `day`"
    assert found.merging.final == "SELECT `country`, `day`, __1 AS `revenue` FROM __merged"


@pytest.mark.parametrize(
    ("aggregate", "states", "final"),
    [
        ("count(*)", ["COUNT(*)"], "__1"),
        ("sum(a) FILTER (WHERE b > 0)", ["SUM(a) FILTER(WHERE b > 0)"], "__1"),
        ("min(a) - max(a)", ["MIN(a)", "MAX(a)"], "__1 - __2"),
        ("avg(a)", ["SUM(a)", "COUNT(a)"], "TRY_DIVIDE(__1, __2)"),
        ("sum(a) / count(a) + avg(a)", ["SUM(a)", "COUNT(a)"], "__1 / __2 + TRY_DIVIDE(__1, __2)"),
        ("last(a)", ["MAX(__sequence)", "MAX_BY(a, __sequence)"], "__2"),
        ("first(a)", ["MIN(__sequence)", "MIN_BY(a, __sequence)"], "__2"),
        ("max_by(a, b)", ["MAX(b)", "MAX_BY(a, b)"], "__2"),
        ("count_if(a > 1)", ["COUNT_IF(a > 1)"], "__1"),
        ("bool_and(a)", ["BOOL_AND(a)"], "__1"),
    ],
)
def test_an_aggregate_is_kept_by_states_that_can_be_merged(aggregate, states, final):
    merging = analyse(f"SELECT k, {aggregate} AS x FROM S GROUP BY k").merging
    kept = ", ".join(f"{one} AS `__{number}`" for number, one in enumerate(states, 1))
    assert merging.partial == f"SELECT k AS `k`, {kept} FROM S GROUP BY k"
    assert merging.final == f"SELECT `k`, {final} AS `x` FROM __merged"


@pytest.mark.parametrize(
    ("query", "upkeep", "why"),
    [
        ("SELECT * FROM S", Upkeep.ROWS, ""),
        ("SELECT a, explode(b) AS c FROM S WHERE d", Upkeep.ROWS, ""),
        ("SELECT a, count(DISTINCT b) AS n FROM S GROUP BY a", Upkeep.GROUPS, "needs all messages of a group"),
        ("SELECT a, percentile(b, 0.5) AS n FROM S GROUP BY a", Upkeep.GROUPS, "needs all messages of a group"),
        ("SELECT a, sum(b) AS n FROM S GROUP BY a HAVING sum(b) > 1", Upkeep.GROUPS, "it has a HAVING"),
        ("SELECT sum(b) AS n FROM S", Upkeep.WHOLE, "it has no GROUP BY"),
        ("SELECT sum(b) AS n FROM S GROUP BY a", Upkeep.WHOLE, "it groups by a, which is not one of its columns"),
        ("SELECT a, sum(b) AS n FROM S GROUP BY ROLLUP (a)", Upkeep.WHOLE, "it groups by ROLLUP (a), which"),
        ("SELECT date(t) AS t, sum(b) AS n FROM S GROUP BY t", Upkeep.WHOLE, "t names a column of the input and one"),
        ("SELECT DISTINCT a FROM S", Upkeep.WHOLE, "it has a DISTINCT"),
        ("SELECT a FROM S ORDER BY a LIMIT 5", Upkeep.WHOLE, "it has an ORDER BY"),
        ("SELECT x.a FROM S x JOIN T y ON x.a = y.a", Upkeep.WHOLE, "it reads several tables"),
        ("SELECT x.a FROM S x JOIN S y ON x.a = y.a", Upkeep.WHOLE, "it has a JOIN"),
        ("SELECT a FROM S UNION ALL SELECT a FROM S", Upkeep.WHOLE, "it is a UNION"),
        ("WITH t AS (SELECT a FROM S) SELECT a FROM t", Upkeep.WHOLE, "it has a WITH"),
        ("SELECT a FROM (SELECT a FROM S)", Upkeep.WHOLE, "it has a subquery"),
        ("SELECT a FROM S WHERE a IN (SELECT max(a) FROM S)", Upkeep.WHOLE, "it has a subquery"),
        ("SELECT a, sum(b) OVER (PARTITION BY a) AS s FROM S", Upkeep.WHOLE, "it has a window function"),
    ],
)
def test_a_query_that_is_not_a_sum_is_kept_in_the_cheapest_way_that_is_right(query, upkeep, why):
    found = analyse(query)
    assert found.upkeep is upkeep
    assert why in found.why
    assert bool(found.why) == bool(why)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT a FROM", "can't be parsed, line 1, column 13"),
        ("SELEC a FROM S", "can't be parsed"),
        ("", "must be one query"),
        ("SELECT 1; SELECT 2", "must be one query"),
        ("DROP TABLE S", "must be one query"),
        ("INSERT INTO S SELECT 1", "must be one query"),
        ("SELECT 1 AS a", "reads no table"),
        ("SELECT * FROM parquet.`/etc/passwd`", "is not a table that a pipeline can read"),
        ("SELECT a, sum(b) FROM S GROUP BY a", "SUM(b) has no name"),
        ("SELECT a AS __x FROM S", "can't name a column"),
        ("SELECT a, sum(b) AS s FROM S GROUP BY 3", "the query has 2 columns"),
    ],
)
def test_what_is_not_a_query_of_tables_is_refused_with_a_sentence(query, said):
    with pytest.raises(ConfigError) as error:
        analyse(query)
    assert said in str(error.value)
    assert "\x1b" not in str(error.value)
