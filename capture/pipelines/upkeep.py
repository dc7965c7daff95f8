"""What a run of a pipeline does with new messages, and the queries that it runs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

HIDDEN = "__"
"""The prefix of columns that a table's files have and its schema does not: the state of aggregates."""
SEQUENCE = f"{HIDDEN}sequence"
"""The hidden column of all inputs, and of rows with a key, by which a later row replaces an earlier one.

It is the sequence of a message; of a row of another pipeline, the number of the run that made it."""


class Upkeep(StrEnum):
    """What a run does with new messages: the cheapest way that gives the result of a computation over all of them."""

    ROWS = "rows"
    """Each row comes from one message: the rows of the new messages are the change."""
    MERGE = "merge"
    """The aggregates of the new messages are merged with those in the table."""
    GROUPS = "groups"
    """The groups that the new messages touch are computed again, from all of their messages."""
    WHOLE = "whole"
    """Everything is computed again."""


class Merging(msgspec.Struct, frozen=True, kw_only=True):
    """Three queries that keep aggregates. Pure text in Spark's dialect.

    `partial` reads the input and gives the group's columns and a state of each aggregate; `merged` reads such rows
    from the view `__states` and gives one row a group; `final` reads these from the view `__merged` and gives the
    columns of the query. A state's columns begin with HIDDEN. `averages.settle_averages` makes averages of them that
    Spark can run.
    """

    partial: str
    merged: str
    final: str
    final_with_states: str
    states: tuple[str, ...]


class Analysis(msgspec.Struct, frozen=True):
    """What is known of a query without its data. `why` says what keeps it from a cheaper `upkeep`; "" if nothing."""

    inputs: tuple[str, ...]
    upkeep: Upkeep
    why: str = ""
    columns: tuple[str, ...] = ()
    groups: Mapping[str, str] = {}
    merging: Merging | None = None
