"""What a pipeline is: `[[pipeline]]` in capture.toml. Checks what can be checked without data and without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from typing import Annotated, Literal

import msgspec

from capture.errors import ConfigError
from capture.maintenance.schedule import Schedule
from capture.pipelines.upkeep import HIDDEN, Analysis, Upkeep
from natty.config.units import parse_duration
from natty.errors import how_to_install

Mode = Literal["append", "upsert", "replace"]
Violation = Literal["fail", "drop", "quarantine"]
Trigger = Literal["schedule", "stream"]

LATEST = "latest"
STREAM = "stream"
EVERY: Mapping[Trigger, str] = {"schedule": "every 5m", "stream": "every 5s"}
"""When a pipeline runs by default, by its trigger."""
MOST_SQL = 100_000
"""Characters of a query: larger ones take long to parse."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}").fullmatch
_EVERY = "every "
_SUBJECT = "subject:"
_TOKEN = re.compile(r"subject:[1-9][0-9]{0,3}").fullmatch
_DECODER = "decoder:"
_FUNCTION = re.compile(r"[\w.]+:\w+").fullmatch
_NO_STREAM = 'trigger = "stream" computes rows from the new messages of one stream'
_INSTEAD = 'Use trigger = "schedule"'
_DECIDES = ("kind", "schema", "sql", "python", "mode", "key", "partition", "buckets", "inputs")
"""The settings that decide which rows the table has: with others, its rows must be computed again."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A table that is derived from streams, or from other pipelines' tables: `[[pipeline]]` in the file.

    It is computed by `sql`, by the function `python` ("module:function"), or it has the last message of each key
    (`kind = "latest"`). `mode` says what its rows are: "append", those of new messages are added; "upsert", a row
    replaces the one with its `key`; "replace", all are computed again. `schema` types the payload of messages: Spark's
    DDL, "decoder:module:Type", or "infer"; default: the typed columns that the archive has. `trigger` says whether it
    reads the archive by its schedule, or follows the stream. That does not decide which rows it has.
    """

    name: str
    kind: Literal["query", "latest"] = "query"
    trigger: Trigger = "schedule"
    schedule: str = ""  # or a cron expression, in UTC; default: see EVERY
    schema: str = ""
    sql: str = ""
    python: str = ""
    mode: Mode | None = None
    key: str | list[str] = []  # columns; of kind "latest": "subject", "subject:N" or a field of the payload
    partition: list[str] = []  # columns of the table that its files are separated by
    buckets: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16  # of a key's hash: an upsert reads those that change
    inputs: list[str] = []  # streams and pipelines; default: those that `sql` names
    expect: list[str] = []  # conditions that each row must meet
    on_violation: Violation = "fail"
    time_limit: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 3600.0  # seconds, of a run

    @property
    def keys(self) -> list[str]:
        """The columns of the key."""
        return [self.key] if isinstance(self.key, str) else self.key

    @cached_property
    def analysis(self) -> Analysis | None:
        """What is known of its SQL; None if it has none. ConfigError if it can't be parsed."""
        if not self.sql:
            return None
        _require_sqlglot()
        from capture.pipelines.sql import analyse  # here, so that the command line starts without it

        return analyse(self.sql, f"pipeline {self.name}: its SQL")

    @property
    def reads(self) -> tuple[str, ...]:
        """The streams and pipelines that it reads. ConfigError as `analysis`."""
        return self.analysis.inputs if self.analysis else tuple(self.inputs)

    @property
    def definition(self) -> str:
        """The settings that decide which rows the table has, as JSON: equal texts have equal rows."""
        return msgspec.json.encode({name: getattr(self, name) for name in _DECIDES}).decode()

    @property
    def follows(self) -> bool:
        """Whether it follows its stream."""
        return self.trigger == STREAM

    @property
    def when(self) -> str:
        """Its schedule, or the default."""
        return self.schedule or EVERY[self.trigger]

    def times(self) -> Schedule:
        """Return when it runs: "every 5m", or a cron expression in UTC. ConfigError."""
        if self.when.startswith(_EVERY):
            try:
                return Schedule(every=parse_duration(self.when.removeprefix(_EVERY).strip()))
            except ValueError as error:
                raise ConfigError(f"schedule: {error}") from error
        try:
            return Schedule(cron=self.when)
        except ConfigError as error:
            raise ConfigError(f'schedule is "every 5m" or a cron expression: {error}') from error

    def check(self) -> None:
        """Raise ConfigError, which names the pipeline, if it can't be as it is written."""
        try:
            self._check()
        except ConfigError as error:
            said = str(error)
            raise ConfigError(said if f"pipeline {self.name}" in said else f"pipeline {self.name}: {said}") from error

    def _check(self) -> None:
        if not _NAME(self.name):
            raise ConfigError("a name begins with a letter, and has only letters, digits and _ (A–Z, a–z, 0–9)")
        if HIDDEN in self.name:
            raise ConfigError(f"a name has no {HIDDEN}: that is for tables beside its own")
        self.times()
        if len(self.sql) > MOST_SQL:
            raise ConfigError(f"its SQL has {len(self.sql):,} characters: the most are {MOST_SQL:,}")
        means = [name for name in ("sql", "python") if getattr(self, name)] + [LATEST] * (self.kind == LATEST)
        if len(means) != 1:
            raise ConfigError('give one of sql = "SELECT …", python = "module:function" and kind = "latest"')
        if self.python and not _FUNCTION(self.python):
            raise ConfigError(f'python is "module:function", not {self.python!r}')
        if not self.sql and not self.inputs:
            raise ConfigError('name what it reads: inputs = ["STREAM"]')
        if self.sql and self.inputs and set(self.inputs) != set(self.reads):
            raise ConfigError(f"inputs are those that its SQL names, {', '.join(self.reads)}: leave them out")
        if self.kind == LATEST:
            self._check_latest()
        elif self.mode is None:
            raise ConfigError('mode is missing: "append", "upsert" or "replace"')
        elif self.mode == "upsert" and not self.keys:
            raise ConfigError('mode = "upsert" needs a key: the columns that no two rows share')
        elif self.mode == "append" and self.keys:
            raise ConfigError('mode = "append" replaces no rows, so it has no key: use mode = "upsert"')
        if twice := [one for one in self.inputs if self.inputs.count(one) > 1]:
            raise ConfigError(f"its inputs name {twice[0]} twice")
        if self.schema.startswith(_DECODER) and not _FUNCTION(self.schema.removeprefix(_DECODER)):
            raise ConfigError(f'schema is "decoder:module:Type", Spark\'s DDL, or "infer", not {self.schema!r}')
        for what, names in (("key", self.keys), ("partition", self.partition)):
            if twice := [one for one in names if names.count(one) > 1]:
                raise ConfigError(f"its {what} names {twice[0]} twice")
            if "" in names:
                raise ConfigError(f"its {what} names a column without a name")
            if any(one.startswith(HIDDEN) for one in names):
                raise ConfigError(f"its {what} can't name a column that begins with {HIDDEN}")
        if self.kind != LATEST and self.keys and (loose := [one for one in self.partition if one not in self.keys]):
            raise ConfigError(f"partition names {loose[0]}, which is not in its key: a row could change its partition")
        if self.analysis:
            self._check_query(self.analysis)
        if self.follows:
            self._check_following()
        for one in self.expect:
            _require_sqlglot()
            from capture.pipelines.sql import check_condition

            check_condition(one, f"its expect {one!r}")

    def _check_latest(self) -> None:
        if self.mode not in (None, "upsert"):
            raise ConfigError('kind = "latest" replaces rows by their key: leave mode out')
        if len(self.keys) != 1 or len(self.inputs) != 1:
            raise ConfigError('kind = "latest" has one input and one key: "subject", "subject:2" or a field')
        if self.keys[0].startswith(_SUBJECT) and not _TOKEN(self.keys[0]):
            raise ConfigError(f"its key is subject:N with the number of a token from 1, not {self.keys[0]!r}")
        if self.partition:
            raise ConfigError('kind = "latest" has no partitions: a key could change its partition')

    def _check_following(self) -> None:
        """Raise ConfigError if it can't follow a stream."""
        if self.times().cron:
            raise ConfigError('trigger = "stream" begins a batch "every 5s": its schedule can\'t be a cron expression')
        if len(self.reads) != 1:
            raise ConfigError(f"{_NO_STREAM}, and it reads {len(self.reads)} tables. {_INSTEAD}")
        found = self.analysis
        if self.mode == "replace":
            raise ConfigError(f'{_NO_STREAM}, and mode = "replace" needs all messages. {_INSTEAD}')
        if found and found.upkeep not in (Upkeep.ROWS, Upkeep.MERGE):
            raise ConfigError(f"{_NO_STREAM}, and this query needs others again: {found.why}. {_INSTEAD}")

    def _check_query(self, found: Analysis) -> None:
        if self.mode == "append" and found.upkeep is not Upkeep.ROWS:
            why = found.why or "it groups rows"
            raise ConfigError(
                'mode = "append" adds the rows of new messages, and here a row may depend on other messages:'
                f' {why}. Use mode = "upsert" with its key, or mode = "replace"'
            )
        known = "*" not in found.columns and bool(found.columns)
        for what, names in (("key", self.keys), ("partition", self.partition)):
            for name in names:
                if known and name not in found.columns:
                    raise ConfigError(f"its {what} {name} is not a column of its query: {', '.join(found.columns)}")
        if self.mode == "upsert" and found.groups and set(self.keys) != set(found.groups):
            raise ConfigError(f"its key must be what it groups by: {', '.join(found.groups)}")


def _require_sqlglot() -> None:
    if find_spec("sqlglot") is None:
        raise ConfigError(f"a pipeline with SQL needs sqlglot; {how_to_install('spark')}")


def order(pipelines: Sequence[Pipeline], streams: Iterable[str]) -> list[Pipeline]:
    """Return the pipelines, each after those that it reads.

    ConfigError for a cycle, a name that is there twice (names differ in more than the case of letters: for some
    engines, and some file systems, they are equal otherwise), or an input that is neither a stream nor a pipeline.
    """
    by_name: dict[str, Pipeline] = {}
    streams = set(streams)
    known = {one.lower() for one in streams}
    for one in pipelines:
        if one.name.lower() in known:
            raise ConfigError(f"pipeline {one.name}: another pipeline or a stream has this name")
        known.add(one.name.lower())
        by_name[one.name] = one
    graph: Mapping[str, list[str]] = {one.name: [name for name in one.reads if name in by_name] for one in pipelines}
    for one in pipelines:
        for name in one.reads:
            if name not in by_name and name not in streams:
                raise ConfigError(
                    f"pipeline {one.name} reads {name}, which is neither a captured stream nor a pipeline; there are:"
                    f" {', '.join(sorted(streams | by_name.keys()))}"
                )
    try:
        return [by_name[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise ConfigError(f"pipelines read each other in a circle: {' ← '.join(error.args[1])}") from error
