"""Parses the SQL of pipelines, in Spark's dialect and without Spark."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import ErrorLevel, SqlglotError, UnsupportedError

from capture.errors import ConfigError

DIALECT = "spark"
_PROGRAMS = ("java_method", "reflect", "try_reflect")
"""Functions that call any method of Java: one of them ends Spark."""

_REWRITTEN = {"instr", "listagg", "log10", "log2", "parse_json", "percentile_cont", "percentile_disc", "string_agg"}
_REWRITTEN |= {"time", "timestamp_nanos", "to_char", "to_varchar", "try_parse_json", "unix_date"}
"""Functions that sqlglot writes so that Spark computes another value: found by Spark's examples of all functions."""


def find_rewritten(sql: str) -> str:
    """Return what in a query sqlglot does not write as the user means it; "" if there is nothing.

    Spark must get such a query as it is: no part of it can be used alone.
    """
    for one, after in pairwise(sqlglot.tokenize(sql, dialect=DIALECT)):
        if one.text.lower() in _REWRITTEN and after.token_type in (TokenType.L_PAREN, TokenType.STRING):
            return one.text
    try:
        parse(sql, "its SQL").sql(DIALECT, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        return str(error).partition("\n")[0]
    return ""


def parse(sql: str, where: str) -> exp.Query:
    """Return the query that a text is. ConfigError, beginning with `where`, if it is not one query."""
    try:
        found = [one for one in sqlglot.parse(sql, dialect=DIALECT) if one is not None]
    except SqlglotError as error:
        said: dict[str, Any] = next(iter(getattr(error, "errors", [])), {})
        if not said:
            raise ConfigError(f"{where} can't be parsed: {error}; is a text or a comment not closed?") from error
        text = said["description"].partition("<Token")[0].rstrip()
        at = f", line {said['line']}, column {said['col']}"
        raise ConfigError(f"{where} can't be parsed{at}: {text} near {said['highlight']!r}") from error
    except RecursionError as error:
        raise ConfigError(f"{where} can't be parsed: it is nested too deeply") from error
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        raise ConfigError(f"{where} must be one query: SELECT …")
    for one in found[0].find_all(exp.Anonymous, exp.QueryTransform):
        if isinstance(one, exp.QueryTransform) or one.name.lower() in _PROGRAMS:
            raise ConfigError(f"{where} must not run other programs: {one.sql(DIALECT)}")
    return found[0]
