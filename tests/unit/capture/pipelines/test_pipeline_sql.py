"""What a query's text says about how its result is kept."""

import pytest

from capture.errors import ConfigError
from capture.pipelines.averages import settle_averages
from capture.pipelines.group_queries import select_touched, select_with_groups
from capture.pipelines.sql import Upkeep, analyse, order_aggregates, order_rows

NOT_NULL = "IF(a IS NULL, NULL, __sequence)"
BY_B = "IF(b IS NULL, NULL, STRUCT(b AS by, __sequence AS at))"
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
        ("avg(a)", ["__TOTAL((a))", "COUNT(a)"], "__AVERAGE(__1, __2)"),
        ("mean(a)", ["__TOTAL((a))", "COUNT(a)"], "__AVERAGE(__1, __2)"),
        ("sum(a) / count(a) + avg(a)", ["SUM(a)", "COUNT(a)", "__TOTAL((a))"], "__1 / __2 + __AVERAGE(__3, __2)"),
        ("last(a)", ["MAX(__sequence)", "MAX_BY(a, __sequence)"], "__2"),
        ("last_value(a)", ["MAX(__sequence)", "MAX_BY(a, __sequence)"], "__2"),
        (
            "last(a, true)",
            ["MAX(IF(a IS NULL, NULL, __sequence))", "MAX_BY(a, IF(a IS NULL, NULL, __sequence))"],
            "__2",
        ),
        ("first(a)", ["MIN(__sequence)", "MIN_BY(a, __sequence)"], "__2"),
        ("max_by(a, b)", [f"MAX({BY_B})", f"MAX_BY(a, {BY_B})"], "__2"),
        ("count_if(a > 1)", ["COUNT_IF(a > 1)"], "__1"),
        ("bool_and(a)", ["BOOL_AND(a)"], "__1"),
        ("some(a) OR any(b)", ["BOOL_OR(a)", "BOOL_OR(b)"], "__1 OR __2"),
        ("every(a)", ["BOOL_AND(a)"], "__1"),
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
        ("SELECT mean(b) AS n FROM S", Upkeep.WHOLE, "it has no GROUP BY"),
        ("SELECT try_sum(b) AS n FROM S", Upkeep.WHOLE, "it has no GROUP BY"),
        ("SELECT a, try_sum(1) AS n FROM S GROUP BY a", Upkeep.GROUPS, "TRY_SUM(1) needs all messages of a group"),
        ("SELECT a, count(*) AS n FROM S WHERE t > now() GROUP BY a", Upkeep.WHOLE, "NOW() has another value in each"),
        ("SELECT a, current_date() AS at FROM S", Upkeep.ROWS, ""),
        (
            "SELECT a, count(DISTINCT x) AS n FROM S LATERAL VIEW explode(b) t AS x GROUP BY a",
            Upkeep.WHOLE,
            "LATERAL VIEW",
        ),
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
        ("SELECT 3 AS k, a, sum(b) AS s FROM S GROUP BY 1, 2", Upkeep.WHOLE, "it groups by 3, which is not computed"),
        ("SELECT 'x' AS k, sum(b) AS s FROM S GROUP BY k", Upkeep.WHOLE, "it groups by 'x', which is not computed"),
        ("SELECT max(a) AS k, sum(b) AS s FROM S GROUP BY k", Upkeep.WHOLE, "it groups by MAX(a), which is not"),
        ("SELECT lower(a) AS k, a, sum(b) AS s FROM S GROUP BY k, a", Upkeep.WHOLE, "k may name a column of the input"),
        ("SELECT lower(a) AS k, sum(b) AS s FROM S GROUP BY k", Upkeep.MERGE, ""),
        ("SELECT session_window(t, '5 m').start AS w, sum(b) AS s FROM S GROUP BY 1", Upkeep.WHOLE, "several windows"),
        ("SELECT window(t, '2 h', '1 h').end AS w, sum(b) AS s FROM S GROUP BY 1", Upkeep.WHOLE, "several windows"),
        ("SELECT window(t, '2 h').start AS w, sum(b) AS s FROM S GROUP BY 1", Upkeep.MERGE, ""),
        ("SELECT 1 AS one FROM S HAVING true", Upkeep.WHOLE, "it has no GROUP BY"),
        ("SELECT to_char(t, 'yyyy') AS y, sum(b) AS s FROM S GROUP BY 1", Upkeep.WHOLE, "computed apart: to_char"),
        ("SELECT floor(log10(a)) AS l, sum(b) AS s FROM S GROUP BY 1", Upkeep.WHOLE, "computed apart: log10"),
        ("SELECT a, max_by(b, c, 2) AS m FROM S GROUP BY a", Upkeep.WHOLE, "Argument 'count' is not supported"),
        ("SELECT a, listagg(b) AS l FROM S GROUP BY a", Upkeep.WHOLE, "computed apart: listagg"),
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
        ("SELECT a, java_method('java.lang.System', 'exit', 0) AS b FROM S", "must not run other programs: "),
        ("SELECT Reflect('java.lang.System', 'getenv', 'PATH') AS b FROM S", "must not run other programs: "),
        ("SELECT TRANSFORM(a) USING 'cat' AS (b) FROM S", "must not run other programs: "),
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


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a, b FROM S", "SELECT __sequence, a, b FROM S"),
        (
            "-- SELECT\nselect /*+ REPARTITION(3) */ a FROM S",
            "-- SELECT\nselect /*+ REPARTITION(3) */ __sequence, a FROM S",
        ),
        ("SELECT ALL a FROM S", "SELECT ALL __sequence, a FROM S"),
        ("SELECT *, a AS b FROM S", "SELECT *, a AS b FROM S"),
        ("SELECT s.* FROM S", "SELECT s.* FROM S"),
        ("SELECT address.* FROM S", "SELECT __sequence, address.* FROM S"),
        ("SELECT listagg(b) AS a FROM S", "SELECT __sequence, listagg(b) AS a FROM S"),
    ],
)
def test_rows_get_their_order_and_the_rest_of_the_text_stays(query, ordered):
    assert order_rows(query) == ordered


def test_first_and_last_are_those_of_the_messages_and_not_of_spark():
    query = "SELECT a, last(b) AS l, count(DISTINCT c) AS n FROM S GROUP BY a"
    assert order_aggregates(query) == ("SELECT a, MAX_BY(b, __sequence) AS l, COUNT(DISTINCT c) AS n FROM S GROUP BY a")
    for untouched in (
        "select  a, last(b) OVER (PARTITION BY a ORDER BY c) AS l FROM S",
        "select  s.a, last(s.b) AS l FROM S s JOIN T USING (a) GROUP BY s.a",
        "select  listagg(a) AS l FROM S",
        "select  last(a) AS l, to_char(max(t), 'y') AS y FROM S",
    ):
        assert order_aggregates(untouched) == untouched


def test_an_average_has_the_sum_and_the_quotient_of_its_type():
    merging = analyse("SELECT k, avg(a + b) AS x, sum(c) AS s, avg(d) AS y FROM S GROUP BY k").merging
    settled = settle_averages(merging, {"__1": "bigint", "__3": "bigint", "__4": "decimal(20,2)"})
    assert settled.partial == (
        "SELECT k AS `k`, SUM(1D * (a + b)) AS `__1`, COUNT(a + b) AS `__2`, SUM(c) AS `__3`, SUM((d)) AS `__4`,"
        " COUNT(d) AS `__5` FROM S GROUP BY k"
    )
    assert "try_divide(__1, __2) AS `x`" in settled.final
    assert "AS DECIMAL(14,6)) AS `y`" in settled.final
    assert "__A" not in settled.final_with_states


def test_groups_of_new_messages_are_found_by_the_query_s_own_table_and_condition():
    query = "SELECT o.`a b` AS k, count(DISTINCT n) AS c FROM S AS o WHERE o.`a b` IS NOT NULL GROUP BY 1"
    groups = analyse(query).groups
    assert groups == {"k": "o.`a b`"}
    source = "FROM S AS o WHERE NOT o.`a b` IS NULL"
    assert select_touched(query, groups) == f"SELECT DISTINCT o.`a b` AS `k` {source}"
    assert select_with_groups(query, groups) == f"SELECT *, o.`a b` AS `__group_k` {source}"


def test_of_equal_values_max_by_takes_the_last_message_and_min_by_the_first():
    query = "SELECT a, max_by(b, c) FILTER (WHERE d) AS x, count(DISTINCT d) AS n FROM S GROUP BY a"
    order = "IF(c IS NULL, NULL, STRUCT(c AS by, __sequence AS at))"
    assert order_aggregates(query) == (
        f"SELECT a, MAX_BY(b, {order}) FILTER(WHERE d) AS x, COUNT(DISTINCT d) AS n FROM S GROUP BY a"
    )
