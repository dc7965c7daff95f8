"""How the pipelines of a configuration are: their tables, exactly what these have of their inputs, and what is new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, latest_offline
from capture.archive.heads import PIPELINES, newest_readers
from capture.archive.iceberg_state import ANNOUNCED, Iceberg, hint_path
from capture.archive.identity import list_claimed, require_archive
from capture.archive.index.tree import Index, Where
from capture.archive.index.update import held_of
from capture.archive.index.version import Total
from capture.archive.manifest import Manifest, Stored
from capture.archive.sequences import WIDEST, Sequences
from capture.archive.stored_formats import is_open
from capture.archive.table import Table
from capture.archive.trust import read_trusted_documents
from capture.config.pipelines import archives, pipelines_name, pipelines_store, pipelines_trust, read_pipelines
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError, NoArchiveError, NotStoredError
from capture.ingest.source import stream_info
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Part
from capture.pipelines.document import Pipelines, PipelineTable, Run, count_new_rows, progress_of
from capture.pipelines.run import QUARANTINE, Method, choose_method
from capture.reading.inventory import Inventory
from capture.stores import Store, open_store
from natty import Natty, StreamNotFoundError

MOST_LOOKED = 20_000
"""Objects that are looked at to find since when messages wait."""


@dataclass(frozen=True, kw_only=True)
class InputFacts:
    """An input of a pipeline. Of a stream, the table has the messages in `held`, and the archive also those in `new`.

    If the table follows the stream, `after` are the sequences up to its end that come after those in the table.

    Of another pipeline's table, it has the rows of the runs up to `run`; the last one is `last`. `count` is the number
    of new messages or rows.
    """

    name: str
    held: Sequences | None = None
    new: Sequences = field(default_factory=Sequences)
    after: Sequences = field(default_factory=Sequences)
    run: int = 0
    last: int = 0
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class PipelineFacts:
    """A pipeline and its table; `pipeline` is None if the table's pipeline is no longer configured."""

    name: str
    pipeline: Pipeline | None = None
    method: Method | None = None
    table: PipelineTable | None = None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    quarantined: int = 0
    inputs: list[InputFacts] = field(default_factory=list)
    iceberg: Iceberg | None = None

    @property
    def last(self) -> Run | None:
        """The last run, which may have failed."""
        return self.table.runs[-1] if self.table and self.table.runs else None

    @property
    def error(self) -> str:
        """Why the last run failed; "" if it did not."""
        return self.last.error if self.last else ""

    @property
    def changed(self) -> frozenset[str]:
        """The settings that decide which rows the table has, and that differ from those it was computed by."""
        if self.pipeline is None or self.table is None or not self.table.number:
            return frozenset()
        return compare_definitions(self.table.definition, self.pipeline.definition)

    @property
    def behind(self) -> int:
        """The number of messages and rows of its inputs that the table does not have."""
        return sum(one.count for one in self.inputs)

    @property
    def state(self) -> str:
        """What people need to know first, in two words."""
        if self.pipeline is None:
            return "not configured"
        if self.table and self.table.paused:
            return "paused"
        if self.changed:
            return "needs rerun"
        if self.error:
            return "failed"
        if self.table is None or not self.table.number:
            return "never ran"
        return "behind" if self.behind else "current"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a run reads of one input: objects with new rows, and of all rows if it needs them."""

    input: InputFacts
    new: list[Part]
    all: list[Part]


class PipelineView:
    """The committed tables of a configuration's pipelines, and its archives, each read once. Changes nothing.

    `document` is what `head` names. The methods raise ManifestError, StoreError and SignatureError.
    """

    def __init__(self, config: CaptureConfig, natty: Natty | None, head: Head | None, document: Pipelines) -> None:
        self.config, self.head, self.document = config, head, document
        self.store = open_store(pipelines_store(config))
        self.streams = {one.stream: one for one in archives(config)}
        self._index, self._natty = Index(self.store, Pipelines.PAGES), natty
        self._inventories: dict[str, Inventory | None] = {}

    def __repr__(self) -> str:
        return f"PipelineView({', '.join(one.name for one in self.config.pipeline)})"

    @cached_property
    def pipelines(self) -> dict[str, Pipeline]:
        """The configured pipelines, each after those that it reads. ConfigError if one is wrong."""
        return {one.name: one for one in read_pipelines(self.config)}

    @classmethod
    async def open(cls, config: CaptureConfig, natty: Natty | None = None) -> PipelineView:
        """Return the tables as last committed, by the head in NATS; without it, by the newest document in the store.

        NoArchiveError if there is no archive in any of the stores.
        """
        await _require_one([open_store(one.store) for one in archives(config)])
        store = open_store(pipelines_store(config))
        head = await PIPELINES.reader(natty, pipelines_name(config))() if natty else None
        head = head or await latest_offline(store, Pipelines)
        document = await chain.read(store, head, Pipelines, check=pipelines_trust(config).check_document)
        return cls(config, natty, head, document)

    def find(self, name: str) -> str:
        """Return the name of a pipeline, or of a table whose pipeline is no longer configured. ConfigError."""
        if name in self.list_names():
            return name
        raise ConfigError(f"there is no pipeline {name!r}; there are: {', '.join(self.list_names()) or 'none'}")

    def list_names(self) -> list[str]:
        """Return the names of the pipelines in the order of their runs, then of tables that no longer have one."""
        quarantines = {QUARANTINE.format(name=name) for name in self.pipelines}
        ours, tables = {*self.pipelines, *quarantines}, self.document.tables
        others = [one for one in sorted(tables) if one not in ours and tables[one].number]
        return [*self.pipelines, *others]

    async def is_announced(self, name: str) -> bool:
        """Return whether readers without a catalog find this version of a table: its hint follows the commit."""
        if not (table := self.document.iceberg.get(name)):
            return True  # there is nothing for them
        try:
            return int(await self.store.get(hint_path(name))) >= table.number
        except (NotStoredError, ValueError):  # none yet, or what no version of ours has written
            return False

    async def wait_until_announced(self, name: str, within: float = ANNOUNCED) -> None:
        """Wait until readers without a catalog find this version of a table, at most `within` seconds."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            if await self.is_announced(name):
                return
            await asyncio.sleep(0.25)

    async def describe(self, name: str) -> PipelineFacts:
        """Return the facts about a pipeline and its table. ConfigError if a pipeline is wrong."""
        pipeline = self.pipelines.get(name)
        method = choose_method(pipeline, self.pipelines) if pipeline else None
        return await self._gather_facts(name, pipeline, method, list(pipeline.reads) if pipeline else [])

    async def outline(self, pipeline: Pipeline) -> PipelineFacts:
        """Return the facts about a pipeline and its table, without its method.

        Its SQL is not parsed, which takes a while, if it has a table: the inputs are those that this was made of.
        """
        table = self.document.tables.get(pipeline.name)
        reads = self.list_made_of(pipeline.name) if table and table.number else list(pipeline.reads)
        return await self._gather_facts(pipeline.name, pipeline, None, reads)

    def list_made_of(self, name: str) -> list[str]:
        """Return the streams and pipelines that a table was made of."""
        table, prefix = self.document.tables.get(name), progress_of(name, "")
        streams = [one.removeprefix(prefix) for one in self.document.progress.streams if one.startswith(prefix)]
        return [*streams, *(table.inputs if table else ())]

    async def _gather_facts(
        self, name: str, pipeline: Pipeline | None, method: Method | None, reads: Sequence[str]
    ) -> PipelineFacts:
        table = self.document.tables.get(name)
        total = self.document.index.streams.get(name, Total())
        rows, files, size = total.messages, total.objects, total.bytes
        if not all(map(is_open, total.formats)):  # keys of deleted rows are not rows
            parts = [one for one in await self.list_files(name) if is_open(one.format)]
            rows, files, size = sum(one.count for one in parts), len(parts), sum(one.bytes for one in parts)
        return PipelineFacts(
            name=name,
            pipeline=pipeline,
            method=method,
            table=table,
            files=files,
            rows=rows,
            bytes=size,
            quarantined=self.document.index.streams.get(QUARANTINE.format(name=name), Total()).messages,
            inputs=[await self._look_at(name, table, one) for one in reads],
            iceberg=self.document.iceberg.get(name),
        )

    async def list_readings(self, facts: PipelineFacts) -> list[Reading]:
        """Return what the next run of a pipeline would read of each of its inputs."""
        from capture.reading.increment import find_all_parts, find_parts  # here: the rest needs no pyarrow

        assert facts.pipeline
        assert facts.method
        found = []
        for one in facts.inputs:
            if one.held is None:
                files = [each for each in await self.list_files(one.name) if is_open(each.format)]
                new, every = [Part(stored=each) for each in files if each.last > one.run], [*map(_as_part, files)]
            else:
                inventory = await self.open_archive(one.name)
                new = await find_parts(inventory, one.name, one.new) if inventory else []
                every = await find_all_parts(inventory, one.name) if inventory and facts.method.reads_all else []
            found.append(Reading(input=one, new=new, all=every if facts.method.reads_all else []))
        return found

    async def list_files(self, name: str) -> list[Stored]:
        """Return the files of a table, those with the keys of deleted rows too."""
        found = self._index.scan(self.document.index, Where(stream=name))
        return [one async for part in found for one in part]

    async def read_progress(self, name: str, stream: str) -> Sequences:
        """Return exactly the sequences of a stream whose messages a pipeline's table has."""
        return await held_of(self._index, self.document.progress, progress_of(name, stream))

    def follows(self, name: str) -> bool:
        """Return whether a pipeline follows its stream."""
        pipeline = self.pipelines.get(name)
        return bool(pipeline and pipeline.follows)

    async def find_streamed(self, name: str, stream: str, held: Sequences) -> Sequences:
        """Return those of these sequences of a table that may have come from the stream: it has or had them.

        Without a server, all may. None of them if the pipeline never followed it, or if it is another one by now.
        """
        table = self.document.tables.get(name)
        if not (self.follows(name) or (table and table.streamed)):
            return Sequences()
        if self._natty is None:
            return held
        state = await self._find_state(stream)
        return held.within(1, state["last_seq"]) if state else Sequences()

    async def _find_state(self, stream: str) -> Mapping[str, int]:
        """Return the state of a captured stream; empty if it does not exist, or is another one by now. NattyError."""
        assert self._natty is not None
        created = {one.stream: one.created for one in await list_claimed(open_store(self.streams[stream].store))}
        try:
            info = await stream_info(self._natty, stream)
        except StreamNotFoundError:
            return {}
        return info["state"] if info["created"] == created.get(stream) else {}

    async def find_oldest(self, stream: str, wanted: Sequences) -> float:
        """Return when the oldest object with one of these sequences was stored, in Unix seconds; 0 if it is not known.

        Of very many objects only those of the earliest intervals are looked at.
        """
        inventory = await self.open_archive(stream) if wanted else None
        if inventory is None:
            return 0.0
        oldest, looked = 0, 0
        where = Where(stream=stream, sequences=(wanted.first, wanted.last))
        async with aclosing(inventory.scan(where)) as parts:
            async for part in parts:
                for one in part:
                    if one.stored_ns and not Sequences.from_bytes(one.sequences).isdisjoint(wanted):
                        oldest = min(oldest or one.stored_ns, one.stored_ns)
                if (looked := looked + len(part)) >= MOST_LOOKED:
                    break
        return oldest / 1e9

    async def scan_files(self) -> AsyncIterator[list[Stored]]:
        """Yield the files of all tables, a leaf of the index at a time."""
        async for part in self._index.scan(self.document.index):
            yield [*part]

    async def _look_at(self, name: str, table: PipelineTable | None, read: str) -> InputFacts:
        if read not in self.streams:
            other, run = self.document.tables.get(read), table.inputs.get(read, 0) if table else 0
            last = other.number if other else 0
            if other and 0 < run < other.rebuilt:
                run = 0
            count = count_new_rows(table, read, other, run) if table and other else None
            if count is None:
                files = await self.list_files(read) if run < last else []
                count = sum(one.count for one in files if one.last > run and is_open(one.format))
            return InputFacts(name=read, run=run, last=last, count=count)
        held = await self.read_progress(name, read)
        inventory = await self.open_archive(read)
        new = await inventory.find_held(read) - held if inventory else Sequences()
        after = Sequences()
        if self._natty is not None and self.follows(name) and not self.streams[read].filter_subjects:
            state = await self._find_state(read)
            last = state.get("last_seq", 0)
            first = max(held.last + 1 if held else 1, state.get("first_seq", 1), last - WIDEST + 2)
            after = Sequences.from_range(first, last)
        return InputFacts(name=read, held=held, new=new, after=after, count=len(new | after))

    async def open_archive(self, stream: str) -> Inventory | None:
        """Return what the archive of a stream has, read once; None if there is no archive yet."""
        if stream not in self._inventories:
            config = self.streams[stream]
            store = open_store(config.store)
            self._inventories[stream] = None
            try:
                await require_archive(store)
            except NoArchiveError:
                return None
            heads = newest_readers(self._natty, config.name, store)
            picture = await read_trusted_documents(store, heads[Manifest], heads[Table], config.trust())
            self._inventories[stream] = Inventory(store, picture, trust=config.trust())
        return self._inventories[stream]


async def _require_one(stores: Sequence[Store]) -> None:
    """Raise NoArchiveError if there is no archive in any of the stores."""
    for number, store in enumerate(stores, 1):
        try:
            await require_archive(store)
            return
        except NoArchiveError:
            if number == len(stores):
                raise


def _as_part(one: Stored) -> Part:
    return Part(stored=one)


def compare_definitions(before: str, after: str) -> frozenset[str]:
    """Return the names of the settings that differ between two of `Pipeline.definition`."""
    old, new = (msgspec.json.decode(one, type=dict[str, object]) if one else {} for one in (before, after))
    return frozenset(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
