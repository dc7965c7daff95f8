"""What `capture pipeline` prints about pipelines: for people, and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from capture.archive.iceberg_state import Iceberg
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.pipelines.definition import LATEST, Pipeline
from capture.pipelines.document import Run
from capture.pipelines.upkeep import Upkeep
from capture.reading.pipeline_view import InputFacts, PipelineFacts, Reading
from natty.cli.tables import print_facts, print_table
from natty.cli.terminal import printable, say
from natty.config.units import show_duration, show_size, show_time, write_count

UPKEEPS = {
    Upkeep.ROWS: "each row comes from one message: a run reads the new ones",
    Upkeep.MERGE: "a run merges the aggregates of new messages with those in the table",
    Upkeep.GROUPS: "a run computes the groups of new messages again, from all of their messages",
    Upkeep.WHOLE: "a run computes everything again",
}
"""What a run does, by upkeep."""


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text, parts of which others may have written."""
    say(*(printable(line, also="\t") for line in lines))


def explain_change(name: str, settings: Sequence[str]) -> str:
    """Return a sentence about a pipeline whose settings are not those that its table was made with."""
    return f"the table of pipeline {name} was made with other settings ({', '.join(settings)}): it stays until a rerun"


# --- ls --------------------------------------------------------------------------------------------------------------


def print_list(found: Sequence[PipelineFacts]) -> None:
    """Print a row for each pipeline, and a sentence for each that failed or has to be made again."""
    columns = ("pipeline", "mode", "reads", "last run", ">rows", ">behind", "state")
    rows = []
    for one in found:
        reads = ", ".join(read.name for read in one.inputs)
        last = f"{_age(time.time() - one.last.ended)} ago" if one.last else ""
        rows.append((one.name, _mode(one.pipeline), reads, last, f"{one.rows:,}", f"{one.behind:,}", one.state))
    print_table(columns, rows)
    print_lines(sentence for one in found for sentence in _explain(one))


def summarise(one: PipelineFacts) -> dict[str, Any]:
    """Return the facts of `ls` for JSON."""
    last = None
    if one.last:
        last = {"began": one.last.began, "ended": one.last.ended, "number": one.last.number}
    return {
        "name": one.name,
        "mode": _mode(one.pipeline),
        "upkeep": str(one.method.upkeep) if one.method else "",
        "reads": [read.name for read in one.inputs],
        "state": one.state,
        "rows": one.rows,
        "files": one.files,
        "bytes": one.bytes,
        "behind": one.behind,
        "last_run": last,
        "error": one.error,
        "changed": sorted(one.changed),
    }


def _mode(pipeline: Pipeline | None) -> str:
    return "" if pipeline is None else LATEST if pipeline.kind == LATEST else pipeline.mode or ""


def _explain(one: PipelineFacts) -> Iterator[str]:
    if one.changed:
        yield f"• {explain_change(one.name, sorted(one.changed))}"
    if one.error:
        yield f"• {one.error}" if one.name in one.error else f"• {one.name}: {one.error}"


# --- show ------------------------------------------------------------------------------------------------------------


def print_page(one: PipelineFacts) -> None:
    """Print all about a pipeline."""
    if one.pipeline:
        own = {"name": "", "schedule": one.pipeline.when, "time_limit": show_duration(one.pipeline.time_limit)}
        given = msgspec.to_builtins(one.pipeline) | own
        query = one.pipeline.sql.strip().splitlines()
        given["sql"] = one.pipeline.sql.strip() if len(query) == 1 else ""
        print_facts(f"pipeline {one.name}", given.items())
        if len(query) > 1:
            print_lines(["", *(f"    {line}" for line in query)])
    else:
        print_lines([f"pipeline {one.name}, which is no longer configured"])
    say("")
    last = one.last
    facts: list[tuple[str, Any]] = [("state", one.state), ("changed", sorted(one.changed)), ("error", one.error)]
    if one.method:
        because = f", because {one.method.why}" if one.method.why else ""
        facts.append(("upkeep", f"{one.method.upkeep}: {UPKEEPS[one.method.upkeep]}{because}"))
    facts += [
        ("rows", one.rows),
        ("of messages since", show_time(one.table.since_ns) if one.table and one.table.since_ns else ""),
        ("files", one.files),
        ("size", show_size(one.bytes)),
        ("quarantined rows", one.quarantined or None),
        ("committed runs", one.table.number if one.table else 0),
        ("last run", _time(last.ended) if last else "none"),
    ]
    if one.iceberg:
        facts += [("Iceberg table", one.iceberg.location), ("metadata", _metadata(one.iceberg))]
    print_facts("table", facts)
    if columns := list_columns(one):
        say("")
        print_table(("column", "type", ""), [(each["name"], each["type"], each["role"]) for each in columns])
    if one.inputs:
        say("")
        print_table(("input", "the table has", ">behind", "new"), map(_input_row, one.inputs))


def detail(one: PipelineFacts) -> dict[str, Any]:
    """Return the facts of `show` for JSON."""
    iceberg = one.iceberg
    return summarise(one) | {
        "settings": msgspec.to_builtins(one.pipeline) if one.pipeline else None,
        "why": one.method.why if one.method else "",
        "since": show_time(one.table.since_ns) if one.table and one.table.since_ns else "",
        "columns": list_columns(one),
        "partition": one.table.partition if one.table else [],
        "quarantined": one.quarantined,
        "inputs": [_describe_input(each) for each in one.inputs],
        "iceberg": {"location": iceberg.location, "metadata": _metadata(iceberg)} if iceberg else None,
    }


def _metadata(iceberg: Iceberg) -> str:
    """Return the location of the metadata file, which readers without a catalog open."""
    return f"{iceberg.location}/metadata/{iceberg.metadata.rpartition('/')[2]}"


def list_columns(one: PipelineFacts) -> list[dict[str, str]]:
    """Return name, type and role of each column that the table has."""
    if not one.table or not one.table.columns:
        return []
    from capture.maintenance.merge.schema_evolution import read_columns

    keys = one.pipeline.keys if one.pipeline and one.pipeline.kind != LATEST else []
    roles = dict.fromkeys(keys, "key")
    for name in one.table.partition:
        roles[name] = f"{roles[name]}, partition" if name in roles else "partition"
    columns = read_columns(one.table.columns)
    return [{"name": each.name, "type": str(each.type), "role": roles.get(each.name, "")} for each in columns]


def _input_row(one: InputFacts) -> tuple[str, str, str, str]:
    if one.held is None:
        return one.name, f"runs up to {one.run} of {one.last}", f"{one.count:,}", ""
    held = f"{one.held.describe()} ({write_count(len(one.held), 'message')})" if one.held else "nothing"
    new = one.new | one.after
    return one.name, held, f"{one.count:,}", new.describe() if new else ""


def _describe_input(one: InputFacts) -> dict[str, Any]:
    if one.held is None:
        return {"name": one.name, "run": one.run, "last_run": one.last, "behind": one.count}
    after = {"in_stream": _list_runs(one.after)} if one.after else {}
    return {"name": one.name, "has": _list_runs(one.held), "behind": one.count, "new": _list_runs(one.new)} | after


def _list_runs(one: Sequences) -> list[list[int]]:
    return [[first, last] for first, last in one.runs()]


# --- plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What the next run of a pipeline would do: what it reads, and the `files` of its table."""

    facts: PipelineFacts
    readings: Sequence[Reading]
    files: Sequence[Stored]

    def sentences(self) -> Iterator[str]:
        """Yield lines for people."""
        one, method = self.facts, self.facts.method
        assert method
        if one.changed:
            yield f"{explain_change(one.name, sorted(one.changed))}. The pipeline does not run until then."
            return
        if one.pipeline and one.pipeline.follows:
            yield from self._describe_following(one.pipeline)
        waiting = [each.name for each in one.inputs if each.held is None and not each.last]
        if waiting:
            yield f"pipeline {one.name} waits for the first run of {', '.join(waiting)}."
            return
        if not any(each.new or each.held is None for each in one.inputs) or not one.behind:
            if one.pipeline and one.pipeline.follows:
                yield f"A run over the archive would find nothing new for pipeline {one.name}."
            else:
                yield f"pipeline {one.name} has nothing to do: its table has everything that its inputs have."
            return
        if one.state == "paused":
            yield f"pipeline {one.name} is paused: it runs only on request."
        over = " over the archive" if one.pipeline and one.pipeline.follows else ""
        yield f"The next run{over} of pipeline {one.name} would"
        for each in self.readings:
            yield f"- read {_describe_reading(each)}"
        because = f", because {method.why}" if method.why else ""
        yield f"- keep its table by {method.upkeep}: {UPKEEPS[method.upkeep]}{because}"
        yield f"- {self._describe_files()}"

    def _describe_following(self, pipeline: Pipeline) -> Iterator[str]:
        """Yield a line about the next batch of a stream."""
        [stream] = pipeline.reads
        every = show_duration(pipeline.times().every)
        waiting = sum(len(each.after) for each in self.facts.inputs)
        come = f"{write_count(waiting, 'message')} of it are still to come" if waiting else "it has all of it"
        yield f"pipeline {pipeline.name} follows {stream}: at most every {every} a batch of new messages; {come}."

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        method = self.facts.method
        assert method
        return {
            "name": self.facts.name,
            "upkeep": str(method.upkeep),
            "why": method.why,
            "follows": bool(self.facts.pipeline and self.facts.pipeline.follows),
            "runs": self.facts.state in ("behind", "failed", "never ran") and self.facts.behind > 0,
            "changed": sorted(self.facts.changed),
            "inputs": [
                _describe_input(each.input)
                | {"objects": len(each.new), "bytes": _size(each.new)}
                | {"all_objects": len(each.all), "all_bytes": _size(each.all)}
                for each in self.readings
            ],
            "files": len(self.files),
            "files_that_may_be_replaced": self._count_replaced(),
            "buckets": self._buckets(),
        }

    def _buckets(self) -> int:
        pipeline = self.facts.pipeline
        assert pipeline
        return pipeline.buckets if _mode(pipeline) in ("upsert", LATEST) else 0

    def _count_replaced(self) -> int:
        """Return how many files of the table the run may replace: those of the rows' keys are known only afterwards."""
        method = self.facts.method
        assert method
        if _mode(self.facts.pipeline) == "append":
            return 0
        return len(self.files)

    def _describe_files(self) -> str:
        if _mode(self.facts.pipeline) == "append":
            return f"add files, and replace none of the {len(self.files):,} that the table has"
        many = write_count(len(self.files), "file")
        method = self.facts.method
        assert method
        if method.upkeep is Upkeep.WHOLE:
            return f"replace all of the table: {many}, {show_size(self.facts.bytes)}"
        return f"replace the files of the buckets that its keys are in ({self._buckets():,} buckets): at most {many}"


def _describe_reading(one: Reading) -> str:
    noun = "row" if one.input.held is None else "message"
    text = f"{write_count(one.input.count, f'new {noun}')} of {one.input.name}"
    if one.input.held is not None and one.input.new:
        text += f" ({one.input.new.describe()})"
    text += f": {write_count(len(one.new), 'object')}, {show_size(_size(one.new))}"
    if one.all:
        text += f"; and all of {write_count(len(one.all), 'object')}, {show_size(_size(one.all))}"
    return text


def _size(parts: Iterable[Any]) -> int:
    return sum(each.stored.bytes for each in parts)


# --- history, check, lineage -----------------------------------------------------------------------------------------


def print_runs(name: str, runs: Sequence[Run]) -> None:
    """Print a row for each run, the last one at the end."""
    if not runs:
        say(f"pipeline {name} has not run yet")
        return
    columns = (">run", "began", ">took", ">rows in", ">rows out", ">in", ">out", ">files", ">replaced", ">merged")
    print_table((*columns, "result"), [_run_row(one) for one in runs])


def _run_row(one: Run) -> tuple[str, ...]:
    result = f"failed: {one.error}" if one.error else one.why
    if one.batches and not one.error:
        result += f", {one.batches:,} {'batch' if one.batches == 1 else 'batches'}"
    if one.violations:
        counts = [f"{write_count(count, 'row')} do not meet {what}" for what, count in one.violations.items()]
        result += f"; {', '.join(counts)}"
    took = show_duration(round(one.took, 1))
    sizes = show_size(one.bytes_in), show_size(one.bytes_out)
    rows, files = (one.rows_in, one.rows_out), (one.files, one.replaced, one.packed)
    numbers = (*(f"{count:,}" for count in rows), *sizes, *(f"{count:,}" for count in files))
    return str(one.number), _time(one.began), took, *numbers, result


def list_checks(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of `check` for a table."""
    return [(one["name"], one["upkeep"], one["table"], ", ".join(one["changed"])) for one in rows]


def explain_checks(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each pipeline that is not kept in the cheapest way, and for each that needs a rerun."""
    for one in rows:
        if one["why"]:
            yield f"• {one['name']}: {UPKEEPS[Upkeep(one['upkeep'])]}, because {one['why']}"
        if one["changed"]:
            yield f"• {explain_change(one['name'], one['changed'])}"


def draw_lineage(pipelines: Sequence[Pipeline]) -> Iterator[str]:
    """Yield the lines of trees: below each stream the pipelines that read it, and below these their readers.

    A pipeline that is below several has its readers at its first place only.
    """
    names = {one.name: one for one in pipelines}
    drawn: set[str] = set()

    def draw(name: str, indent: str) -> Iterator[str]:
        readers = [one for one in pipelines if name in one.reads]
        for number, one in enumerate(readers, 1):
            is_last = number == len(readers)
            again = one.name in drawn
            more = " …" if again and any(one.name in each.reads for each in pipelines) else ""
            yield f"{indent}{'└─' if is_last else '├─'} {one.name} ({_mode(one)}){more}"
            if not again:
                drawn.add(one.name)
                yield from draw(one.name, indent + ("   " if is_last else "│  "))

    for stream in sorted({read for one in pipelines for read in one.reads} - names.keys()):
        yield stream
        yield from draw(stream, "")


def _age(seconds: float) -> str:
    """Return seconds for people, in their two largest units: 12s, 5m, 3h20m, 2d5h."""
    unit = next(unit for least, unit in ((172_800, 3600), (7200, 60), (120, 60), (0, 1)) if max(0.0, seconds) >= least)
    return show_duration(max(0.0, seconds) // unit * unit)


def _time(at: float) -> str:
    return show_time(int(at) * 10**9)
