"""The status of the pipelines: who leads them, their last runs, how far tables are behind, and what is wrong."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from capture.archive.heads import PIPELINES
from capture.config.pipelines import pipelines_name
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.ingest.board import ALLOWANCE
from capture.ingest.board_trouble import Trouble
from capture.pipelines.definition import Pipeline
from capture.pipelines.document import Run
from capture.pipelines.due import find_next
from capture.reading.pipeline_view import PipelineFacts, PipelineView
from natty import Natty, NattyError

READ_WITHIN = 5.0
"""Seconds within which the stores must say how the tables are."""
READ_EVERY = 5.0
"""Seconds for which one look at the stores answers a program that asks again and again."""
RECENT = 20
"""Runs of a pipeline that are reported."""
NO_LEADER = "no node leads the pipelines: a node with Spark and this configuration is needed"
NOT_KNOWN = "not known"
"""The state of a pipeline if the document of the tables can't be read."""
UNSCHEDULED = ("paused", "needs rerun", NOT_KNOWN)
"""The states in which no run is due."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is reported: times are Unix seconds, sizes bytes. `error` says why it failed.

    It may stand for several `batches` of a stream, one after the other. `seconds` is its duration, without pauses.
    """

    number: int
    began: float
    ended: float
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    leader: str
    error: str = ""
    batches: int = 0
    seconds: float = 0.0


class PipelineState(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as it is reported.

    `state` is that of `capture pipeline ls`. `run` counts committed runs, and `failures` the failed ones since the last
    good one, which ended at `good` (Unix seconds; None: there is none among the last runs). `behind` counts messages
    and rows that its inputs have and its table does not (None: not known); the oldest of these messages is in the
    archive since `waiting_since` (Unix seconds; None: none waits). It is due again at `next` (Unix seconds; None: it is
    not scheduled). `runs` are the last ones, the newest at the end.
    `changed` are the settings that its table was not made with.
    """

    name: str
    state: str
    schedule: str
    run: int = 0
    failures: int = 0
    good: float | None = None
    behind: int | None = None
    waiting_since: float | None = None
    next: float | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    quarantined: int | None = None
    changed: list[str] = []
    error: str = ""
    runs: list[RunState] = []

    @property
    def last(self) -> RunState | None:
        """The last run, which may have failed."""
        return self.runs[-1] if self.runs else None

    def describe_trouble(self) -> str:
        """Return a sentence about what is wrong; "" if nothing is."""
        named = self.error if f"pipeline {self.name}" in self.error else f"pipeline {self.name}: {self.error}"
        if self.state == "needs rerun":
            return (
                f"pipeline {self.name} needs a rerun: its table was made with other settings"
                f" ({', '.join(self.changed)}), and stays as it is until `capture pipeline rerun {self.name}`"
            )
        if self.state == "failed" and self.failures > 1:
            return f"{named} (failed {self.failures:,} times in a row)"
        return named if self.state == "failed" else ""


@dataclass(frozen=True)
class PipelinesStatus:
    """The pipelines of a configuration, and the node that leads them by the election, "" if none does.

    `unreadable` says why nothing is known of their tables; "" if it is. The stores were read at `at` (Unix seconds).
    """

    name: str
    leader: str
    pipelines: list[PipelineState] = field(default_factory=list)
    unreadable: str = ""
    at: float = 0.0

    @property
    def troubles(self) -> list[Trouble]:
        """A sentence for each problem."""
        return self.list_troubles()

    def list_troubles(self, known: Sequence[Trouble] = ()) -> list[Trouble]:
        """Return a sentence for each problem, without pipelines that `known` ones name: nodes report some, too."""
        found = [] if self.leader else [Trouble(NO_LEADER, "capturepipelinesnotled")]
        if self.unreadable:
            unreadable = f"the tables of the pipelines can't be read: {self.unreadable}"
            found.append(Trouble(unreadable, "capturepipelinesunreadable"))
        for one in self.pipelines:
            is_known = any(re.search(rf": pipeline {re.escape(one.name)}(?!\w)", other.text) for other in known)
            if not is_known and (sentence := one.describe_trouble()):
                found.append(Trouble(sentence, "capturepipelinefailing"))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the status for programs."""
        troubles = self.troubles
        return {
            "name": self.name,
            "ok": not troubles,
            "troubles": msgspec.to_builtins(troubles),
            "leader": self.leader or None,
            "unreadable": self.unreadable,
            "read_at": self.at,
            "pipelines": msgspec.to_builtins(self.pipelines),
        }


class PipelinesLook:
    """Looks at the pipelines of a configuration. The stores are read at most every READ_EVERY seconds."""

    def __init__(self, config: CaptureConfig) -> None:
        self._config = config
        self._found: PipelinesStatus | None = None

    def __repr__(self) -> str:
        return f"PipelinesLook({self._found!r})"

    async def read(self, natty: Natty) -> PipelinesStatus | None:
        """Return the status; None if there are no pipelines. NattyError if NATS does not answer.

        If the stores can't be read, or do not answer in time, it says so, and has the pipelines' names.
        """
        config = self._config
        if not config.pipeline:
            return None
        name = pipelines_name(config)
        leader = await natty.election(PIPELINES.election(name)).holder(ALLOWANCE)
        if self._found is None or time.time() >= self._found.at + READ_EVERY:
            self._found = await _read_tables(natty, config, name)
        return replace(self._found, leader=leader.id if leader else "")


async def _read_tables(natty: Natty, config: CaptureConfig, name: str) -> PipelinesStatus:
    try:
        if not config.store:
            raise CaptureError("no store is configured")
        async with asyncio.timeout(READ_WITHIN):
            view = await PipelineView.open(config, natty)
            found = [await _look(view, one) for one in config.pipeline]
        return PipelinesStatus(name, "", found, at=time.time())
    except TimeoutError:
        why = f"the store has not answered for {READ_WITHIN:g} s"
    except (CaptureError, NattyError) as error:
        why = str(error)
    unknown = [PipelineState(name=one.name, state=NOT_KNOWN, schedule=one.when) for one in config.pipeline]
    return PipelinesStatus(name, "", unknown, why, time.time())


async def _look(view: PipelineView, pipeline: Pipeline) -> PipelineState:
    facts = await view.outline(pipeline)
    times = [await view.find_oldest(one.name, one.new) for one in facts.inputs if one.new]
    found = summarise(facts, pipeline, min(filter(None, times), default=None))
    if pipeline.follows or found.state in UNSCHEDULED:
        return found
    runs = facts.table.runs if facts.table else []
    return msgspec.structs.replace(found, next=find_next(pipeline.times(), runs, time.time()))


def summarise(facts: PipelineFacts, pipeline: Pipeline, waiting_since: float | None = None) -> PipelineState:
    """Return what is reported of a pipeline; pure."""
    runs = facts.table.runs if facts.table else []
    well = [number for number, one in enumerate(runs) if not one.error]
    return PipelineState(
        name=facts.name,
        state=facts.state,
        schedule=pipeline.when,
        run=facts.table.number if facts.table else 0,
        failures=len(runs) - 1 - well[-1] if well else len(runs),
        good=runs[well[-1]].ended if well else None,
        behind=facts.behind,
        waiting_since=waiting_since,
        rows=facts.rows,
        files=facts.files,
        bytes=facts.bytes,
        quarantined=facts.quarantined,
        changed=sorted(facts.changed),
        error=facts.error,
        runs=_list_recent(runs),
    )


def _list_recent(runs: Sequence[Run]) -> list[RunState]:
    return [
        RunState(
            number=one.number,
            began=one.began,
            ended=one.ended,
            rows_in=one.rows_in,
            rows_out=one.rows_out,
            bytes_in=one.bytes_in,
            bytes_out=one.bytes_out,
            leader=one.leader,
            error=one.error,
            batches=one.batches,
            seconds=one.took,
        )
        for one in runs[-RECENT:]
    ]
