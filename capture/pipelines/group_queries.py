"""The queries that find the groups of new messages, and all messages of these groups: of the user's own FROM and WHERE.

A column, or a table's alias, means there what it means in the user's query, and rows that its WHERE leaves out are in
no group: their groups may be null, or fail to be computed.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from capture.pipelines.parsing import DIALECT, parse
from capture.pipelines.upkeep import HIDDEN

GROUP = f"{HIDDEN}group_"
"""The prefix of a column with a part of a row's group."""


def select_touched(sql: str, groups: Mapping[str, str]) -> str:
    """Return a query for the groups that the rows of its table are in, each once."""
    return f"SELECT DISTINCT {_list(groups)} {_source(sql)}"


def select_with_groups(sql: str, groups: Mapping[str, str]) -> str:
    """Return a query for the rows of its table, with the columns of their group: their names begin with GROUP."""
    return f"SELECT *, {_list(groups, GROUP)} {_source(sql)}"


def _source(sql: str) -> str:
    """Return the FROM and the WHERE of a query of one table."""
    query = parse(sql, "its SQL")
    where = query.args.get("where")
    return " ".join(one.sql(DIALECT) for one in (query.args["from_"], where) if one is not None)


def _list(groups: Mapping[str, str], prefix: str = "") -> str:
    return ", ".join(f"{text} AS {_quote(prefix + name)}" for name, text in groups.items())


def _quote(name: str) -> str:
    return str(exp.to_identifier(name, quoted=True).sql(DIALECT))
