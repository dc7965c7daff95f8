"""Proves what the table of a pipeline has: which messages, in which files, and that other engines read these."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from capture.archive.heads import PIPELINES
from capture.archive.iceberg_state import is_reachable
from capture.archive.sequences import Sequences
from capture.config.pipelines import find_pipeline, pipelines_name, pipelines_store, pipelines_trust
from capture.config.settings import CaptureConfig
from capture.errors import ManifestError, SignatureError
from capture.pipelines.document import Pipelines, PipelineTable
from capture.pipelines.run import QUARANTINE
from capture.reading.pipeline_view import PipelineView, compare_definitions
from capture.stores import open_store
from capture.verification.audit import ATTEMPTS, audit
from capture.verification.check import UNCHECKED, WELL, WRONG
from capture.verification.objects import Progress
from capture.verification.pipeline_files import FileFindings, check_files
from capture.verification.verdict import TOLD, list_some
from natty import Natty
from natty.config.units import show_time, write_count

JSON_VERSION = 1
"""The version of `PipelineCheck.as_dict`. It grows when a field changes its meaning or is removed."""


@dataclass(frozen=True, kw_only=True)
class InputCheck:
    """What the table has of an input. Of a stream: `held` are the sequences whose messages it has.

    `waiting` are in the archive and not in the table: the next run reads them. The oldest object with one of them was
    stored at `since` (Unix seconds; 0: not known). `removed` are in the table, and retention has removed them from the
    archive. `uncaptured` are in the table, and came from the stream: the archive does not have them, or not yet.
    `strange` are in the table, and the archive never had them, nor the stream, if the table follows it. Of another
    pipeline, the table has the rows of the runs up to `run`, and `last` is the last one.
    """

    name: str
    held: Sequences = field(default_factory=Sequences)
    waiting: Sequences = field(default_factory=Sequences)
    removed: Sequences = field(default_factory=Sequences)
    uncaptured: Sequences = field(default_factory=Sequences)
    strange: Sequences = field(default_factory=Sequences)
    since: float = 0.0
    is_stream: bool = True
    run: int = 0
    last: int = 0

    def sentences(self) -> list[str]:
        """Return what the table has of it, for people."""
        if not self.is_stream:
            behind = "" if self.run >= self.last else ": the next run reads the others"
            return [f"{self.name}: the table has the runs up to {self.run:,} of {self.last:,}{behind}"]
        said = [f"{self.name}: the table has {write_count(len(self.held), 'message')}{_describe(self.held)}"]
        if self.waiting:
            since = f", since {show_time(int(self.since) * 10**9)}" if self.since else ""
            count = write_count(len(self.waiting), "message")
            said.append(f"{self.name}: {count} for the next run{_describe(self.waiting)}{since}")
        if self.removed:
            count = write_count(len(self.removed), "message")
            said.append(f"{self.name}: retention has removed {count} of these from the archive")
        if self.uncaptured:
            count = write_count(len(self.uncaptured), "message")
            said.append(f"{self.name}: {count} came from the stream, and are not in the archive")
        return said

    def as_dict(self) -> dict[str, object]:
        """Return the figures for programs."""
        if not self.is_stream:
            return {"name": self.name, "run": self.run, "last_run": self.last}
        return {
            "name": self.name,
            "held": len(self.held),
            "held_runs": _list_runs(self.held),
            "waiting": len(self.waiting),
            "waiting_runs": _list_runs(self.waiting),
            "waiting_since": self.since or None,
            "removed": len(self.removed),
            "uncaptured": len(self.uncaptured),
            "uncaptured_runs": _list_runs(self.uncaptured),
            "strange": len(self.strange),
            "strange_runs": _list_runs(self.strange),
        }


@dataclass(frozen=True, kw_only=True)
class PipelineCheck:
    """A verdict on the table of a pipeline: `problems` are sentences that say what is missing, damaged or wrong.

    `run` is the number of its last committed run; 0: it has none. `uncompared` says why the committed tables could not
    be asked for in NATS. `notes` are other facts for an operator.
    """

    pipeline: str
    store: str
    run: int = 0
    inputs: tuple[InputCheck, ...] = ()
    files: FileFindings = field(default_factory=FileFindings)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    deep: bool = True
    uncompared: str = ""
    checked_at: float = 0.0
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """WRONG if something is missing or damaged; UNCHECKED if something could not be checked; otherwise WELL."""
        if self.problems:
            return WRONG
        return UNCHECKED if self.uncompared or self.files.unchecked else WELL

    @property
    def waiting(self) -> int:
        """How many messages wait for the next run."""
        return sum(len(one.waiting) for one in self.inputs)

    def sentences(self) -> list[str]:
        """Return the verdict for people, and a line for each fact."""
        judged = "nothing is missing or damaged" if self.status == WELL else ""
        found = f"{write_count(self.files.files, 'file')} with {write_count(self.files.rows, 'row')}"
        lines = [line for one in self.inputs for line in one.sentences()]
        if self.run:
            lines.append(f"{found}, of {write_count(self.run, 'run')}{self._describe_depth()}")
        elif not self.problems:
            lines.append("it has not run yet, and has no table")
        lines += [*list_some(self.problems), *list_some(self.files.unchecked)]
        lines += [f"NATS could not be asked for the committed tables: {self.uncompared}"] if self.uncompared else []
        what = f"{len(self.problems):,} WRONG" if self.problems else judged or "not everything could be checked"
        return [f"pipeline {self.pipeline}: {what}", *(f"- {line}" for line in [*lines, *self.notes])]

    def _describe_depth(self) -> str:
        return "" if self.deep else "; checksums and rows were not checked"

    def as_dict(self) -> dict[str, object]:
        """Return the verdict for programs: docs/verify.md describes every field."""
        return {
            "version": JSON_VERSION,
            "status": self.status,
            "ok": self.status == WELL,
            "pipeline": self.pipeline,
            "store": self.store,
            "checked_at": self.checked_at,
            "seconds": round(self.seconds, 3),
            "checksums": self.deep,
            "run": self.run,
            "inputs": [one.as_dict() for one in self.inputs],
            "waiting": self.waiting,
            "files": self.files.files,
            "rows": self.files.rows,
            "bytes": self.files.bytes,
            "tombstones": self.files.tombstones,
            "leftovers": self.files.leftovers,
            "problems": list(self.problems[:TOLD]),
            "more_problems": max(0, len(self.problems) - TOLD),
            "unchecked": list(self.files.unchecked[:TOLD]),
            "more_unchecked": max(0, len(self.files.unchecked) - TOLD),
            "uncompared": self.uncompared,
            "notes": list(self.notes),
        }


async def check_pipeline(
    natty: Natty | None,
    config: CaptureConfig,
    name: str,
    *,
    deep: bool = True,
    on_progress: Progress | None = None,
) -> PipelineCheck:
    """Prove what a pipeline's table has. Without `natty`, by the newest documents in the stores.

    The messages: exact sets against those that the archives hold. The files: each that the document names exists with
    its size and is named once; `deep` also compares its SHA-256, and the rows with their record: their number, columns
    and order, and that no two rows of a bucket have the same key. Iceberg: its current snapshot names exactly the files
    that readers may see. The documents: see `audit`; with public keys they must be signed.

    The document is read before the archives, which only get more. What a leader replaces meanwhile is no problem: after
    a problem the check begins again if there is a newer document. ConfigError if there is no such pipeline;
    NoArchiveError; StoreError.
    """
    began, store = time.time(), open_store(pipelines_store(config))
    read_head = PIPELINES.reader(natty, pipelines_name(config)) if natty else None
    trust = pipelines_trust(config)
    result = PipelineCheck(pipeline=name, store=store.url, deep=deep)
    for _ in range(ATTEMPTS):
        audited = await audit(
            store,
            {Pipelines: read_head} if read_head else None,
            archive=trust.archive,
            keys=trust.public_keys,
            deep=deep,
            chains=(Pipelines,),
            only=name,
        )
        view: PipelineView | None = None
        try:
            view = await PipelineView.open(config, natty)
            result = await _check_table(view, view.find(name), deep, on_progress)
        except (ManifestError, SignatureError) as error:
            if view is None:
                find_pipeline(config, name)
            result = PipelineCheck(pipeline=name, store=store.url, problems=(str(error),))
        problems = tuple(dict.fromkeys((*audited.problems, *result.problems)))
        result = replace(result, problems=problems, notes=(*result.notes, *audited.notes), deep=deep)
        if not problems or view is None or (await PipelineView.open(config, natty)).head == view.head:
            break
    return replace(result, checked_at=began, seconds=time.time() - began)


async def _check_table(view: PipelineView, name: str, deep: bool, on_progress: Progress | None) -> PipelineCheck:
    """Check what a document says of a pipeline. ManifestError; SignatureError; StoreError."""
    table = view.document.tables.get(name, PipelineTable(definition=""))
    inputs = [await _check_input(view, name, table, one) for one in _list_inputs(view, name)]
    tables = [one for one in (name, QUARANTINE.format(name=name)) if one in view.document.tables]
    files = await check_files(view, name, tables, deep=deep, on_progress=on_progress)
    problems = [
        f"{one.name}: the table has {write_count(len(one.strange), 'message')}{_describe(one.strange)} that the archive"
        " does not hold, and that its retention has not removed"
        for one in inputs
        if one.strange
    ]
    problems += [
        f"{one.name}: the table has the runs up to {one.run:,}, and there were {one.last:,}"
        for one in inputs
        if one.run > one.last
    ]
    return PipelineCheck(
        pipeline=name,
        store=view.store.url,
        run=table.number,
        inputs=tuple(inputs),
        files=files,
        problems=(*problems, *files.problems),
        notes=tuple(_list_notes(view, name, table, files)),
    )


def _list_inputs(view: PipelineView, name: str) -> list[str]:
    """Return the streams and pipelines that a pipeline reads, or that its table was made of."""
    if (pipeline := view.pipelines.get(name)) is not None:
        return [*pipeline.reads]
    return view.list_made_of(name)


async def _check_input(view: PipelineView, name: str, table: PipelineTable, read: str) -> InputCheck:
    if read in view.pipelines or read in table.inputs:
        other = view.document.tables.get(read)
        return InputCheck(name=read, is_stream=False, run=table.inputs.get(read, 0), last=other.number if other else 0)
    held = await view.read_progress(name, read)
    inventory = await view.open_archive(read) if read in view.streams else None
    if inventory is None:
        uncaptured = await view.find_streamed(name, read, held) if read in view.streams and held else Sequences()
        return InputCheck(name=read, held=held, uncaptured=uncaptured, strange=held - uncaptured)
    stored = await inventory.find_held(read)
    removed = (held - stored) & inventory.removed.get(read, Sequences())
    waiting, others = stored - held, held - stored - removed
    uncaptured = await view.find_streamed(name, read, others) if others else others
    return InputCheck(
        name=read,
        held=held,
        waiting=waiting,
        removed=removed,
        uncaptured=uncaptured,
        strange=others - uncaptured,
        since=await view.find_oldest(read, waiting),
    )


def _list_notes(view: PipelineView, name: str, table: PipelineTable, files: FileFindings) -> Iterator[str]:
    pipeline = view.pipelines.get(name)
    if pipeline is None:
        yield "the pipeline is not configured any more"
    elif table.number and (changed := sorted(compare_definitions(table.definition, pipeline.definition))):
        yield f"its settings have changed ({', '.join(changed)}): the table stays as it is until a rerun"
    if table.since_ns:
        yield f"it has the rows of messages since {show_time(table.since_ns)}: earlier ones were read and left out"
    if table.paused:
        yield "it is paused: it runs only on request"
    if table.runs and table.runs[-1].error:
        yield f"its last run failed: {table.runs[-1].error}"
    if files.leftovers:
        yield (
            f"{write_count(files.leftovers, 'file')} of runs that were not committed, or that a leader commits now:"
            " leftovers are deleted after the grace time"
        )
    if files.is_unexposed:
        location = view.config.table.location
        why = (
            "has no Iceberg table yet"
            if is_reachable(view.store, location)
            else "is in a store that only capture opens"
        )
        yield f"other engines can't read the table: it {why}"


def _list_runs(held: Sequences) -> list[list[int]]:
    return [[*run] for run in held.first_runs(TOLD)]


def _describe(held: Sequences) -> str:
    return f" ({held.describe()})" if held else ""
