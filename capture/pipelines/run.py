"""Decides what a run of a pipeline computes, and what its commit changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from heapq import heappop, heappush

import msgspec

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.errors import PipelineError
from capture.pipelines.commits import Change
from capture.pipelines.definition import LATEST, Pipeline
from capture.pipelines.derivation import SMALL_BYTES, Derivation, Derived, Input, OutputFile
from capture.pipelines.document import STREAM, PipelineTable, Run, file_of, progress_of, record_of
from capture.pipelines.upkeep import Upkeep

QUARANTINE = "{name}__quarantine"
"""The name of the table with the rows of a pipeline that did not meet its conditions."""
MOST_PLAN, MOST_ERROR = 20_000, 2_000
"""Characters of a plan, and of an error, in the record of a run."""


@dataclass(frozen=True)
class Method:
    """How a pipeline's table is kept, and why it is not kept in a cheaper way; "" if there is none."""

    upkeep: Upkeep
    why: str = ""

    @property
    def reads_all(self) -> bool:
        """Whether a run reads all messages, and not only new ones."""
        return self.upkeep in (Upkeep.GROUPS, Upkeep.WHOLE)


def choose_method(pipeline: Pipeline, others: Mapping[str, Pipeline]) -> Method:
    """Return how a pipeline's table is kept; `others` are all pipelines by their names.

    PipelineError if a table to which rows are only added would read one whose rows are replaced. ConfigError as
    `Pipeline.analysis`.
    """
    if pipeline.mode == "replace":
        return Method(Upkeep.WHOLE, 'its mode is "replace"')
    found = pipeline.analysis
    method = Method(found.upkeep, found.why) if found else Method(Upkeep.ROWS)
    replaced = [name for name in pipeline.reads if name in others and others[name].mode != "append"]
    if not replaced:
        return method
    if pipeline.mode == "append":
        raise PipelineError(
            f'pipeline {pipeline.name}: mode = "append" adds the rows of new messages, and it reads {replaced[0]},'
            ' whose rows are replaced: use mode = "upsert" with its key, or mode = "replace"'
        )
    return Method(Upkeep.WHOLE, f"it reads {replaced[0]}, whose rows are replaced")


def order_by_age(pipelines: Sequence[Pipeline], tables: Mapping[str, PipelineTable]) -> list[Pipeline]:
    """Return the pipelines, each after those that it reads; of several that may be next, the one that ran longest ago.

    So each gets its turn, also if leaders end sooner than all have run.
    """
    by_name = {one.name: one for one in pipelines}
    graph = TopologicalSorter({one.name: [name for name in one.reads if name in by_name] for one in pipelines})
    graph.prepare()
    ready: list[tuple[float, int, str]] = []
    place = {one.name: number for number, one in enumerate(pipelines)}
    ordered: list[Pipeline] = []
    while graph.is_active():
        for name in graph.get_ready():
            runs = tables[name].runs if name in tables else []
            heappush(ready, (runs[-1].began if runs else 0.0, place[name], name))
        _, _, name = heappop(ready)
        ordered.append(by_name[name])
        graph.done(name)
    return ordered


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What a run reads: the tables that its query names, and what the pipeline's table will have of them.

    `new` are sequences of streams, `numbers` the runs of other pipelines, and `rows` how many rows these have, where
    that is known. With `anew` all rows are made again. If nothing `is_new`, there is nothing to compute.
    `streamed_bytes` is the size of what a streaming query holds.
    """

    inputs: Mapping[str, Input]
    new: Mapping[str, Sequences] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    anew: bool = False
    is_new: bool = True
    streamed_bytes: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of the objects with new rows, each once, or of their payloads in a stream."""
        objects = {(one.store, part.stored.path): part.stored.bytes for one in self.inputs.values() for part in one.new}
        return sum(objects.values()) + self.streamed_bytes


def make_derivation(
    pipeline: Pipeline,
    method: Method,
    table: PipelineTable,
    gathered: Gathered,
    files: Sequence[Stored],
    *,
    store: str,
    folder: str,
) -> Derivation:
    """Return the request to Spark for a run; `files` are those of the pipeline's table, `store` is its store's URL."""
    found = pipeline.analysis
    keyed = pipeline.mode != "append"
    return Derivation(
        pipeline=pipeline.name,
        store=store,
        folder=folder,
        inputs=gathered.inputs,
        upkeep=method.upkeep,
        sql=pipeline.sql,
        merging=found.merging if found and method.upkeep is Upkeep.MERGE else None,
        groups=found.groups if found and method.upkeep is Upkeep.GROUPS else {},
        latest=latest_key(pipeline) if pipeline.kind == LATEST else "",
        python=pipeline.python,
        key=key_columns(pipeline) if keyed else [],
        partition=pipeline.partition,
        buckets=pipeline.buckets if keyed and pipeline.keys else 1,
        columns="" if gathered.anew else table.columns,
        files=[] if gathered.anew else [file_of(one) for one in files] if keyed else [],
        number=table.number + 1,
        small_bytes=0 if table.runs and table.runs[-1].error else SMALL_BYTES,  # what failed may have needed memory
        expect=pipeline.expect,
        on_violation=pipeline.on_violation,
    )


def key_columns(pipeline: Pipeline) -> list[str]:
    """Return the columns by which rows replace each other: of kind "latest" one that has the key."""
    return ["key"] if pipeline.kind == LATEST else pipeline.keys


def latest_key(pipeline: Pipeline) -> str:
    """Return the SQL expression of a message's key, for kind "latest": its subject, a token of it, or a field."""
    [key] = pipeline.keys
    kind, _, number = key.partition(":")
    if kind == "subject":
        return f"split_part(subject, '.', {int(number)})" if number else "subject"
    return f"`{key.replace('`', '``')}`"


def conclude(
    pipeline: Pipeline,
    table: PipelineTable,
    gathered: Gathered,
    derived: Derived,
    files: Sequence[Stored],
    run: Run,
    quarantine: PipelineTable | None = None,
) -> Change:
    """Return what the commit of a run changes. `run` says when and by whom; its figures are filled in here.

    PipelineError if the result does not fit the table's files: then nothing may be committed.
    """
    number = table.number + 1
    gone = list(files) if gathered.anew else _find_gone(pipeline, derived, files)
    came = [
        record_of(one, pipeline.name, number, node=run.leader, stored_ns=int(run.ended * 1e9)) for one in derived.came
    ]
    _check_units(pipeline, derived.came, [one for one in files if one.path not in {each.path for each in gone}])
    run = msgspec.structs.replace(
        run,
        number=number,
        rows_in=derived.rows_in,
        rows_out=derived.rows_out,
        bytes_in=gathered.bytes,
        bytes_out=sum(one.bytes for one in derived.came),
        files=len(came),
        replaced=len(gone),
        violations=derived.violations,
        plan=derived.plan[:MOST_PLAN],
    )
    after = msgspec.structs.replace(
        table,
        definition=pipeline.definition,
        number=number,
        rebuilt=number if gathered.anew else table.rebuilt,
        columns=derived.columns or table.columns,
        partition=pipeline.partition,
        payload_schemas={**({} if gathered.anew else table.payload_schemas), **derived.payload_schemas},
        inputs={**table.inputs, **gathered.numbers},
        rows=_count_rows(table, files, derived.came, gathered.anew) if pipeline.mode == "append" else None,
        input_rows={**table.input_rows, **gathered.rows},
        streamed=run.why == STREAM or (table.streamed and not gathered.anew),
    ).with_run(run)
    tables = {pipeline.name: after}
    if derived.quarantined or quarantine:
        name, before = QUARANTINE.format(name=pipeline.name), quarantine or PipelineTable(definition="")
        came += [record_of(one, name, before.number + 1, node=run.leader) for one in derived.quarantined]
        tables[name] = msgspec.structs.replace(
            before,
            number=before.number + 1,
            columns=derived.quarantine_columns or before.columns,
            rebuilt=before.number + 1 if gathered.anew else before.rebuilt,  # earlier rows may have other columns
            rows=_count_rows(before, None, derived.quarantined, anew=False),
        )
    progress = {progress_of(pipeline.name, stream): new for stream, new in gathered.new.items()}
    return Change(tables=tables, came=came, gone=gone, progress=progress, anew=list(progress) if gathered.anew else [])


def fail(table: PipelineTable, name: str, run: Run, error: str, plan: str = "") -> Change:
    """Return the commit that records a failed run of the pipeline with this name: nothing else changes."""
    run = msgspec.structs.replace(run, number=table.number + 1, error=error[:MOST_ERROR], plan=plan[:MOST_PLAN])
    return Change(tables={name: table.with_run(run)})


def _count_rows(
    before: PipelineTable, files: Sequence[Stored] | None, came: Sequence[OutputFile], anew: bool
) -> int | None:
    """Return the rows of a table to which the files that `came` are added; None if it is not known how many it had.

    A version that did not count them has left the table: then the rows of its `files` are counted, if they are known.
    """
    known = 0 if anew or not before.number else before.rows
    if known is None and files is not None:
        known = sum(one.count for one in files)
    return None if known is None else known + sum(one.rows for one in came)


def _find_gone(pipeline: Pipeline, derived: Derived, files: Sequence[Stored]) -> list[Stored]:
    known = {one.path: one for one in files}
    if strange := [path for path in derived.gone if path not in known]:
        raise PipelineError(f"pipeline {pipeline.name}: {strange[0]} is to be replaced, and is not a file of its table")
    return [known[path] for path in derived.gone]


def _check_units(pipeline: Pipeline, came: Sequence[OutputFile], stay: Sequence[Stored]) -> None:
    """PipelineError if a unit of a table with a key would have rows that the run did not read."""
    if pipeline.mode == "append":
        return
    units = {one.unit.to_text() for one in came}
    if twice := [one.path for one in stay if one.key in units]:
        raise PipelineError(f"pipeline {pipeline.name}: {twice[0]} has rows of a unit that was written without it")
