"""What runs of pipelines read: the archives and the other pipelines' tables, as they were at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from capture.archive.heads import newest_readers
from capture.archive.manifest import Manifest
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import is_open
from capture.archive.table import Table
from capture.archive.trust import read_trusted_documents
from capture.config.pipelines import archives, settle_schema
from capture.config.settings import CaptureConfig
from capture.errors import PipelineError
from capture.pipelines.commits import PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import INFER, Input, Part
from capture.pipelines.document import Pipelines, PipelineTable, count_new_rows
from capture.pipelines.run import Gathered, Method
from capture.reading.increment import find_all_parts, find_new, find_parts
from capture.reading.inventory import Inventory
from capture.stores import Store, open_store
from capture.stores.own_store import opening_url
from natty import Natty


@dataclass(frozen=True)
class _Look:
    """An archive at one moment; `columns` are the typed columns of its table."""

    store: Store
    inventory: Inventory
    columns: str


@dataclass
class PipelineInputs:
    """The inputs of pipelines. Each archive is read when a pipeline first needs it, and not again: all see the same.

    `document` has the pipelines' tables. Objects that it names are deleted a grace time after they were replaced.
    """

    natty: Natty | None  # None: the newest documents in the stores
    config: CaptureConfig
    leading: PipelineLeading
    document: Pipelines
    _looks: dict[str, _Look] = field(default_factory=dict, init=False, repr=False)

    async def gather(self, pipeline: Pipeline, method: Method, table: PipelineTable, anew: bool = False) -> Gathered:
        """Return what a run reads: what the last committed one did not have, or everything with `anew`.

        All rows are made anew also if another pipeline's table that it reads was. Nothing is new as long as such a
        table does not exist. ManifestError; StoreError; SignatureError; FencedError.
        """
        streams = {one.stream: one for one in archives(self.config)}
        others = {name: self.document.tables.get(name) for name in pipeline.reads if name not in streams}
        if not all(one is not None and one.number for one in others.values()):
            return Gathered(inputs={}, is_new=False)
        tables = {name: one for name, one in others.items() if one is not None}
        anew = anew or any(0 < table.inputs.get(name, 0) < one.rebuilt for name, one in tables.items())
        new: dict[str, Sequences] = {}
        inventories: dict[str, Inventory] = {}
        for name in pipeline.reads:
            if name in streams:
                inventories[name] = (await self._look(streams[name])).inventory
                progress = Sequences() if anew else await self.leading.read_progress(pipeline.name, name)
                new[name] = await find_new(inventories[name], name, progress)
        numbers = {name: one.number for name, one in tables.items()}
        is_new = any(new.values()) or any(table.inputs.get(name, 0) < number for name, number in numbers.items())
        if not is_new and not anew:
            return Gathered(inputs={}, is_new=False)
        inputs: dict[str, Input] = {}
        for name, inventory in inventories.items():
            inputs[name] = await self._of_stream(pipeline, method, table, streams[name], inventory, new[name])
        for name, one in tables.items():
            given = await self._of_table(name, one, method, 0 if anew else table.inputs.get(name, 0))
            inputs[name] = msgspec.structs.replace(given, rows=count_new_rows(table, name, one, given.after))
        rows = {name: one.rows for name, one in tables.items() if one.rows is not None}
        return Gathered(inputs=inputs, new=new, numbers=numbers, rows=rows, anew=anew)

    async def find_first(self, config: CaptureConfig) -> int:
        """Return the first sequence that the archive of a stream has, or had until retention; 0 if there is none."""
        inventory = (await self._look(config)).inventory
        held = await inventory.find_held(config.stream) | inventory.removed.get(config.stream, Sequences())
        return held.first if held else 0

    async def _look(self, config: CaptureConfig) -> _Look:
        """Return the archive of a stream, as it was when this was first called."""
        if config.stream not in self._looks:
            store = open_store(config.store)
            heads = newest_readers(self.natty, config.name, store)
            picture = await read_trusted_documents(store, heads[Manifest], heads[Table], config.trust())
            inventory = Inventory(store, picture, trust=config.trust())
            self._looks[config.stream] = _Look(store, inventory, picture.table.columns)
        return self._looks[config.stream]

    async def _of_stream(
        self,
        pipeline: Pipeline,
        method: Method,
        table: PipelineTable,
        config: CaptureConfig,
        inventory: Inventory,
        new: Sequences,
    ) -> Input:
        look = await self._look(config)
        if pipeline.follows and look.columns and not pipeline.schema:
            raise PipelineError(
                f"pipeline {pipeline.name} follows stream {config.stream}, which has no typed columns as its archive"
                " has: give a schema"
            )
        return Input(
            store=opening_url(look.store),
            new=await find_parts(inventory, config.stream, new),
            all=await find_all_parts(inventory, config.stream) if method.reads_all else [],
            payload_schema=choose_schema(pipeline, table.payload_schemas, config.stream),
            typed=look.columns,
            is_plain=pipeline.follows,
            since_ns=table.since_ns,
            key_file=_make_absolute(config.key_file),
        )

    async def _of_table(self, name: str, table: PipelineTable, method: Method, known: int) -> Input:
        known_files = await self.leading.list_files(name, self.document)  # later ones are of runs that are not `number`
        files = [one for one in known_files if is_open(one.format)]
        return Input(
            store=opening_url(self.leading.store),
            new=[Part(stored=one) for one in files if one.last > known],
            all=[Part(stored=one) for one in files] if method.reads_all else [],
            columns=table.columns,
            after=known,
        )


def _make_absolute(path: str) -> str:
    """Return the path for Spark's processes, which have another working directory."""
    return path and str(Path(path).absolute())


def choose_schema(pipeline: Pipeline, inferred: Mapping[str, str], stream: str) -> str:
    """Return the type of a stream's payloads: as configured, or as the first run has inferred it. ConfigError."""
    wanted = settle_schema(pipeline)
    return inferred.get(stream, wanted) if wanted == INFER else wanted
