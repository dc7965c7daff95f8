"""Decides how a query is kept up to date: which of its results change with new messages, and how they are merged.

It reads the text of the query alone (by sqlglot, in Spark's dialect), so that `capture config check` needs no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import TokenType, exp

from capture.errors import ConfigError
from capture.pipelines.averages import AVERAGE, TOTAL
from capture.pipelines.parsing import DIALECT, find_rewritten, parse
from capture.pipelines.upkeep import HIDDEN, SEQUENCE, Analysis, Merging, Upkeep


def analyse(sql: str, where: str = "its SQL") -> Analysis:
    """Return how to keep a query's result. ConfigError, beginning with `where`, if it is not one query of tables."""
    query = parse(sql, where)
    inputs = tuple(sorted(_tables(query)))
    if not inputs:
        raise ConfigError(f"{where} reads no table: name a stream or another pipeline after FROM")
    if why := _why_whole(query, inputs):
        return Analysis(inputs, Upkeep.WHOLE, why)
    assert isinstance(query, exp.Select)
    columns = tuple(_names(query))
    _check_twice(columns)
    _order_aggregates(query)
    unknown = next(_unknown_aggregates(query), "")
    aggregates = unknown or any(isinstance(one, exp.AggFunc) for one in _own(query))
    if not aggregates and not any(query.args.get(one) for one in ("group", "having", "distinct")):
        return Analysis(inputs, Upkeep.ROWS, columns=columns)
    try:
        groups = _groups(query)
    except _Unsuitable as error:
        return Analysis(inputs, Upkeep.WHOLE, str(error), columns)
    if not groups:
        return Analysis(inputs, Upkeep.WHOLE, "it has no GROUP BY", columns)
    if rewritten := find_rewritten(sql):
        return Analysis(inputs, Upkeep.WHOLE, f"its parts can't be computed apart: {rewritten}", columns)
    if changing := next(_changing(query), ""):
        return Analysis(inputs, Upkeep.WHOLE, f"{changing} has another value in each run", columns)
    try:
        if unknown:
            raise _Unsuitable(f"{unknown} needs all messages of a group")
        return Analysis(inputs, Upkeep.MERGE, "", columns, groups, _merge(query, groups))
    except _Unsuitable as error:
        if query.args.get("laterals"):
            return Analysis(inputs, Upkeep.WHOLE, f"{error}, and it has a LATERAL VIEW", columns)
        return Analysis(inputs, Upkeep.GROUPS, str(error), columns, groups)


def order_rows(sql: str) -> str:
    """Return a query of Upkeep.ROWS whose rows also have SEQUENCE, the hidden column of their input.

    The rest of the text is as it was: sqlglot writes some functions in another way than Spark means them.
    """
    query = parse(sql, "its SQL")
    if any(_has_all(one, query) for one in query.expressions):
        return sql
    tokens = sqlglot.tokenize(sql, dialect=DIALECT)
    at = next(number for number, one in enumerate(tokens) if one.token_type is TokenType.SELECT)
    while tokens[at + 1].token_type in (TokenType.ALL, TokenType.HINT):
        at += 1
    after = tokens[at].end + 1
    return f"{sql[:after]} {SEQUENCE},{sql[after:]}"


def _has_all(one: exp.Expr, query: exp.Query) -> bool:
    """Return whether a column is `*` of the table; that of a struct gives its fields."""
    if isinstance(one, exp.Column) and isinstance(one.this, exp.Star):
        tables = {each.alias_or_name.lower() for each in query.find_all(exp.Table)}
        return one.table.lower() in tables and not one.args.get("db")
    return isinstance(one, exp.Star)


def order_aggregates(sql: str) -> str:
    """Return the query with `first`, `last`, `max_by` and `min_by` in the messages' order, if it has one table.

    For Spark, the order is that in which rows happen to arrive; so are equal values of `max_by`.
    """
    query = parse(sql, "its SQL")
    return query.sql(DIALECT) if not find_rewritten(sql) and _order_aggregates(query) else sql


class _Unsuitable(Exception):
    """The query can't be kept in this way; the text says why."""


def check_condition(text: str, where: str) -> None:
    """Raise ConfigError, beginning with `where`, if a text is not a condition that one row can meet."""
    try:
        query = parse(f"SELECT * FROM t WHERE (\n{text}\n)", where)
    except ConfigError as error:
        raise ConfigError(f"{where} is not a condition: it can't be parsed") from error
    condition = query.args.get("where")
    whole = isinstance(query, exp.Select) and condition and isinstance(condition.this, exp.Paren)
    if not whole or any(query.args.get(one) for one in ("group", "having", "order", "limit", "laterals", "joins")):
        raise ConfigError(f"{where} is not one condition")
    for kind in (exp.AggFunc, exp.Window, exp.Query):
        if any(one is not query for one in query.find_all(kind)):
            raise ConfigError(f"{where} must be about one row: it can't aggregate, nor read a table")


def _tables(query: exp.Query) -> set[str]:
    """Return the names of the tables that a query reads. ConfigError for a path or a name with a dot."""
    own = {one.alias for one in query.find_all(exp.CTE)}
    found = set()
    for one in query.find_all(exp.Table):
        if one.args.get("db") or not isinstance(one.this, exp.Identifier):
            raise ConfigError(
                f"{one.sql(DIALECT)} is not a table that a pipeline can read: name a stream or a pipeline"
            )
        if one.name not in own:
            found.add(one.name)
    return found


def _own(query: exp.Select) -> Iterator[exp.Expr]:
    """Yield the expressions of a query without subqueries."""
    for part in query.iter_expressions():
        yield from part.walk()


_WHOLE: Sequence[tuple[type[exp.Expr], str]] = (
    (exp.With, "it has a WITH"),
    (exp.Join, "it has a JOIN"),
    (exp.Subquery, "it has a subquery"),
    (exp.Window, "it has a window function"),
    (exp.Order, "it has an ORDER BY"),
    (exp.Limit, "it has a LIMIT"),
    (exp.Offset, "it has an OFFSET"),
    (exp.Qualify, "it has a QUALIFY"),
    (exp.Pivot, "it has a PIVOT"),
    (exp.TableSample, "it reads a sample"),
    (exp.Distinct, "it has a DISTINCT"),
)


def _why_whole(query: exp.Query, inputs: Sequence[str]) -> str:
    if not isinstance(query, exp.Select):
        return f"it is a {query.key.upper()}"
    if len(inputs) > 1:
        return "it reads several tables"
    for kind, why in _WHOLE:
        for one in query.find_all(kind):
            if not (kind is exp.Distinct and isinstance(one.parent, exp.AggFunc)):
                return why
    if sum(1 for _ in query.find_all(exp.Select)) > 1:
        return "it has a subquery"
    return ""


def _names(query: exp.Select) -> Iterator[str]:
    """Yield the names of the result's columns. ConfigError if an expression has none."""
    for one in query.expressions:
        if isinstance(one, exp.Star) or one.is_star:
            yield "*"
        elif one.alias_or_name:
            if one.alias_or_name.startswith(HIDDEN):
                raise ConfigError(f"{one.alias_or_name} can't name a column: {HIDDEN} is for a pipeline's own")
            yield one.alias_or_name
        else:
            raise ConfigError(f"{one.sql(DIALECT)} has no name: write {one.sql(DIALECT)} AS a_name")


def _check_twice(columns: Sequence[str]) -> None:
    """Raise ConfigError if two columns have a name: for Spark, the case of letters makes no difference."""
    known: set[str] = set()
    for one in columns:
        if one != "*" and one.lower() in known:
            raise ConfigError(f"two of its columns are named {one}")
        known.add(one.lower())


def _groups(query: exp.Select) -> dict[str, str]:
    """Return the expression of each column that names the group, by its name."""
    group = query.args.get("group")
    if group is None:
        return {}
    if any(group.args.get(one) for one in ("cube", "rollup", "grouping_sets", "all", "totals")):
        raise _Unsuitable("its GROUP BY is not a list of expressions")
    items = {one.alias_or_name: one.unalias() for one in query.expressions}
    groups: dict[str, str] = {}
    aliases = set()
    for one in group.expressions:
        expression = _resolve(one, query.expressions, items)
        text = expression.sql(DIALECT)
        if expression.find(exp.AggFunc) or not expression.find(exp.Column):
            raise _Unsuitable(f"it groups by {text}, which is not computed from one message")
        if window := next((each for each in expression.find_all(exp.Anonymous) if _is_window(each)), None):
            raise _Unsuitable(f"it groups by {window.sql(DIALECT)}, and a message may be in several windows")
        name = next((name for name, item in items.items() if item.sql(DIALECT) == text), None)
        if name is None:
            raise _Unsuitable(f"it groups by {text}, which is not one of its columns")
        groups[name] = text
        if isinstance(one, exp.Column) and expression is not one and not isinstance(expression, exp.Column):
            aliases.add(name)
    for name in aliases:
        others = {text for other, text in groups.items() if other != name}
        if all(one.sql(DIALECT) in others for one in items[name].find_all(exp.Column)):
            raise _Unsuitable(f"{name} may name a column of the input, by which Spark would group")
    for name, item in items.items():
        if name not in groups and not item.find(exp.AggFunc) and item.find(exp.Column):
            raise _Unsuitable(f"{name} is neither an aggregate nor in its GROUP BY")
    return groups


def _resolve(one: exp.Expr, columns: Sequence[exp.Expr], items: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return the expression of a GROUP BY, which may be a column's number or its alias."""
    if isinstance(one, exp.Literal) and one.is_int:
        number = int(one.this)
        if not 1 <= number <= len(columns):
            raise ConfigError(f"GROUP BY {number}: the query has {len(columns)} columns")
        return columns[number - 1].unalias()
    if isinstance(one, exp.Column) and not one.table and one.name in items:
        item = items[one.name]
        if not isinstance(item, exp.Column) and any(column.name == one.name for column in item.find_all(exp.Column)):
            raise _Unsuitable(f"{one.name} names a column of the input and one of the result")
        return item
    return one


def _is_window(one: exp.Anonymous) -> bool:
    return one.name.lower() == "session_window" or (one.name.lower() == "window" and len(one.expressions) > 2)


_FIRST, _LAST = (exp.First, exp.FirstValue), (exp.Last, exp.LastValue)
_CHANGING = (exp.CurrentDate, exp.CurrentTimestamp, exp.Localtimestamp, exp.Rand, exp.Randn, exp.Uuid)
_CHANGING_NAMES = ("now", "monotonically_increasing_id", "spark_partition_id", "input_file_name", "random")
_OTHER_NAMES: Mapping[str, type[exp.AggFunc]] = {
    "mean": exp.Avg, "some": exp.LogicalOr, "any": exp.LogicalOr, "every": exp.LogicalAnd
}  # fmt: skip
"""Aggregates of Spark that sqlglot does not know by these names."""
_UNKNOWN = re.compile(r"std|try_sum|try_avg|measure|histogram_numeric|count_min_sketch|collect_union|\w+_agg(_\w+)?")
"""Names of Spark's aggregates that sqlglot takes for any function."""


def _order_aggregates(query: exp.Query) -> bool:
    """Replace `first` and `last` by aggregates that name the order, and other names of aggregates by those known.

    Of several messages with the highest value `max_by` takes the last, of those with the lowest `min_by` the first.
    """
    if sum(1 for _ in query.find_all(exp.Select, exp.Table)) != 2:  # not one SELECT of one table
        return False
    changed = False
    for one in list(query.find_all(exp.Anonymous, exp.Any)):
        known = _OTHER_NAMES.get("any" if isinstance(one, exp.Any) else one.name.lower())
        arguments = [one.this.unnest()] if isinstance(one, exp.Any) else one.expressions
        if known and len(arguments) == 1:
            one.replace(known(this=arguments[0].copy()))
    for best in list(query.find_all(exp.ArgMax, exp.ArgMin)):
        if best.args.get("count"):
            continue
        if not best.find_ancestor(exp.Window):
            by = best.expression.sql(DIALECT)
            order = f"IF({by} IS NULL, NULL, STRUCT({by} AS by, {SEQUENCE} AS at))"
            best.set("expression", sqlglot.parse_one(order, dialect=DIALECT))
            changed = True
    for found in list(query.find_all(*_FIRST, *_LAST)):
        outer = found.parent if isinstance(found.parent, exp.IgnoreNulls | exp.RespectNulls) else found
        if outer.find_ancestor(exp.Window):
            continue
        value = found.this.sql(DIALECT)
        order = f"IF({value} IS NULL, NULL, {SEQUENCE})" if isinstance(outer, exp.IgnoreNulls) else SEQUENCE
        function = "MAX_BY" if isinstance(found, _LAST) else "MIN_BY"
        outer.replace(sqlglot.parse_one(f"{function}({value}, {order})", dialect=DIALECT))
        changed = True
    return changed


def _changing(query: exp.Query) -> Iterator[str]:
    for one in query.find_all(*_CHANGING, exp.Anonymous):
        if not isinstance(one, exp.Anonymous) or one.name.lower() in _CHANGING_NAMES:
            yield one.sql(DIALECT)


def _unknown_aggregates(query: exp.Query) -> Iterator[str]:
    for one in query.find_all(exp.Anonymous):
        if _UNKNOWN.fullmatch(one.name.lower()):
            yield one.sql(DIALECT)


# --- aggregates that are merged --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """A column of an aggregate's state: what makes it of messages, and of states."""

    name: str
    partial: str
    merged: str


_SAME = (exp.Min, exp.Max, exp.LogicalAnd, exp.LogicalOr, exp.BitwiseAndAgg, exp.BitwiseOrAgg, exp.BitwiseXorAgg)


def _merge(query: exp.Select, groups: Mapping[str, str]) -> Merging:
    """Return the queries that keep the aggregates of this query."""
    if query.args.get("having"):
        raise _Unsuitable("it has a HAVING")
    states: dict[str, _State] = {}
    finals: list[str] = []
    for item in query.expressions:
        name, expression = item.alias_or_name, item.unalias().copy()
        if name in groups:
            finals.append(_quote(name))
            continue
        expression = expression.transform(lambda one: _replace(one, states))
        loose = [one for one in expression.find_all(exp.Column) if not one.name.startswith(HIDDEN)]
        if loose:
            raise _Unsuitable(f"{name} uses {loose[0].sql(DIALECT)} outside of an aggregate")
        finals.append(f"{expression.sql(DIALECT)} AS {_quote(name)}")
    keys = [f"{text} AS {_quote(name)}" for name, text in groups.items()]
    partial = query.copy()
    partial.set(
        "expressions", [sqlglot.parse_one(one, dialect=DIALECT) for one in _list_columns(keys, states, "partial")]
    )
    partial.set("group", exp.Group(expressions=[sqlglot.parse_one(one, dialect=DIALECT) for one in groups.values()]))
    names = ", ".join(map(_quote, groups))
    merged = ", ".join(_list_columns(map(_quote, groups), states, "merged"))
    return Merging(
        partial=partial.sql(DIALECT),
        merged=f"SELECT {merged} FROM __states GROUP BY {names}",
        final=f"SELECT {', '.join(finals)} FROM __merged",
        final_with_states=f"SELECT {', '.join([*finals, *map(_quote, states)])} FROM __merged",
        states=tuple(states),
    )


def _list_columns(keys: Iterable[str], states: Mapping[str, _State], which: str) -> list[str]:
    return [*keys, *(f"{getattr(one, which)} AS {_quote(one.name)}" for one in states.values())]


def _replace(one: exp.Expr, states: dict[str, _State]) -> exp.Expr:
    """Return an aggregate as an expression of its states, which are added; other expressions as they are."""
    filtered = one if isinstance(one, exp.Filter) else None
    aggregate = one.this if filtered else one
    if not isinstance(aggregate, exp.AggFunc):
        return one
    where = f" FILTER({filtered.expression.sql(DIALECT)})" if filtered else ""

    def state(partial: str, merged: str) -> str:
        for known in states.values():
            if (known.partial, known.merged.replace(known.name, "")) == (f"{partial}{where}", merged.replace("?", "")):
                return known.name
        name = f"{HIDDEN}{len(states) + 1}"
        states[name] = _State(name, f"{partial}{where}", merged.replace("?", name))
        return name

    def first_of(value: str, by: str, function: str) -> str:
        order = "max" if function == "max_by" else "min"
        place = state(f"{order.upper()}({by})", f"{order}(?)")
        return state(f"{function.upper()}({value}, {by})", f"{function}(?, {place})")

    if aggregate.find(exp.Distinct):
        raise _Unsuitable(f"{aggregate.sql(DIALECT)} needs all messages of a group")
    argument = aggregate.this.sql(DIALECT) if isinstance(aggregate.this, exp.Expr) else "1"
    text = aggregate.sql(DIALECT)
    match aggregate:
        case exp.Sum():
            said = state(text, "sum(?)")
        case exp.Count() | exp.CountIf():
            said = state(text, "sum(?)")
        case exp.Avg():
            total, count = state(f"{TOTAL}(({argument}))", "sum(?)"), state(f"COUNT({argument})", "sum(?)")
            said = f"{AVERAGE}({total}, {count})"
        case exp.ArgMax() | exp.ArgMin():
            by = aggregate.expression.sql(DIALECT)
            said = first_of(argument, by, "max_by" if isinstance(aggregate, exp.ArgMax) else "min_by")
        case _ if isinstance(aggregate, _SAME):
            function = text.partition("(")[0]
            said = state(text, f"{function}(?)")
        case _:
            raise _Unsuitable(f"{text} needs all messages of a group")
    return sqlglot.parse_one(said, dialect=DIALECT)


def _quote(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(DIALECT)
