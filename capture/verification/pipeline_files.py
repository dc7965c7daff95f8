"""Checks the files of a pipeline's table against the document, their own content, and Iceberg's metadata."""

from __future__ import annotations

import tempfile
from asyncio import to_thread
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from capture.archive.manifest import TABLE, Stored, quote_key
from capture.archive.retired_pages import read_retired
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import is_open
from capture.errors import CaptureError, FormatError, ManifestError, NotStoredError
from capture.pipelines.definition import Pipeline
from capture.pipelines.document import PipelineTable
from capture.pipelines.run import key_columns
from capture.pipelines.upkeep import HIDDEN
from capture.reading.pipeline_view import PipelineView
from capture.verification.objects import LARGE_AT_ONCE, SPOOL_BYTES, Progress, copy_object
from natty.config.units import write_count
from natty.wire.background import map_concurrently


@dataclass(frozen=True, kw_only=True)
class FileFindings:
    """The files of a pipeline's table, and of the table with rows that did not meet a condition.

    `rows` are those that readers see; `tombstones` are keys that were deleted. `leftovers` are files in its folder that
    nothing names. `is_unexposed`: there are files, and no Iceberg table. `problems` are sentences about what is
    missing, damaged or wrong, `unchecked` about files that could not be read.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0
    tombstones: int = 0
    leftovers: int = 0
    is_unexposed: bool = False
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


async def check_files(
    view: PipelineView, name: str, tables: Sequence[str], *, deep: bool, on_progress: Progress | None = None
) -> FileFindings:
    """Check the files of these tables, whose files are all in the folder of the pipeline `name`.

    See `verification.pipelines.check_pipeline`. ManifestError if a page of the index can't be read; StoreError.
    """
    work = _Work(view, f"{TABLE}{quote_key(name)}/", on_progress)
    files = await work.read_records(tables)
    await work.check_sizes(files)
    if deep:
        await work.read_files(name, files)
    unexposed = [await work.compare_iceberg(one, [each for each in files if each.stream == one]) for one in tables]
    return FileFindings(
        files=len(files),
        rows=sum(one.count for one in files if is_open(one.format)),
        bytes=sum(one.bytes for one in files),
        tombstones=sum(one.count for one in files if not is_open(one.format)),
        leftovers=work.leftovers,
        is_unexposed=any(unexposed),
        problems=tuple(work.problems),
        unchecked=tuple(work.unchecked),
    )


@dataclass
class _Work:
    view: PipelineView
    folder: str
    on_progress: Progress | None
    leftovers: int = 0
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    _gone: set[str] = field(default_factory=set)
    _retired: set[str] = field(default_factory=set)
    _done: int = 0

    async def read_records(self, tables: Sequence[str]) -> list[Stored]:
        """Return the records of the tables' files. Each file is named once, in the folder of its pipeline."""
        found: dict[str, Stored] = {}
        pages = await read_retired(self.view.store, self.view.document.retired_pages)
        self._retired = {one.path for one in self.view.document.retired}.union(*pages.values())
        retired = self._retired
        async for part in self.view.scan_files():
            for one in part:
                if one.stream not in tables:
                    if one.path.startswith(self.folder):
                        self.problems.append(
                            f"{one.path} is a file of this pipeline, and the table {one.stream} has it"
                        )
                    continue
                if one.path in found:
                    self.problems.append(f"{one.path} is named twice: its rows count twice")
                elif not one.path.startswith(self.folder):
                    self.problems.append(f"{one.path} is not in the folder of the pipeline's files, {self.folder}")
                elif one.path in retired:
                    self.problems.append(f"{one.path} is a file of the table, and is marked for deletion")
                table = self.view.document.tables[one.stream]
                if not 1 <= one.first <= one.last <= table.number:
                    said, runs = self._describe_runs(one), write_count(table.number, "run")
                    self.problems.append(f"{one.path} is said to be of {said}, and there were {runs}")
                found[one.path] = one
        for name in tables:
            self._count_rows(name, found.values())
        return [*found.values()]

    def _count_rows(self, name: str, files: Iterable[Stored]) -> None:
        """Compare the rows of a table's files with what its runs have added; the merge of files does not count rows."""
        table = self.view.document.tables.get(name)
        rows = sum(one.count for one in files if one.stream == name)
        if table and table.rows is not None and rows != table.rows:
            self.problems.append(
                f"the files of {name} have {rows:,} rows, and its runs have added {table.rows:,}: a file is missing, or"
                " there twice"
            )

    def _describe_runs(self, one: Stored) -> str:
        return f"run {one.first:,}" if one.first == one.last else f"the runs {one.first:,} to {one.last:,}"

    async def check_sizes(self, files: Iterable[Stored]) -> None:
        """Check that each file exists with its size, and count what else is in the folder."""
        sizes = {one.path: one.bytes for one in await self.view.store.list(self.folder)}
        for one in files:
            size = sizes.pop(one.path, None)
            if size != one.bytes:
                self._gone.add(one.path)
                what = "is missing" if size is None else f"has {size:,} bytes, not {one.bytes:,}"
                self.problems.append(f"{one.path} {what}")
        self.leftovers = len(sizes.keys() - self.view.document.list_named() - self._retired)

    async def read_files(self, name: str, files: Iterable[Stored]) -> None:
        """Read the files that exist. Those of a bucket of a table with a key are compared with each other."""
        pipeline = _find_maker(name, self.view.document.tables.get(name))
        key = key_columns(pipeline) if pipeline and pipeline.mode != "append" else []
        orders = await self._find_orders(name, pipeline)
        groups = defaultdict[tuple[str, str], list[Stored]](list)
        present = [one for one in files if one.path not in self._gone]
        for one in present:
            has_key = bool(key) and one.stream == name
            groups[one.stream, one.key if has_key else one.path].append(one)

        async def look(group: list[Stored]) -> None:
            of_table = group[0].stream == name
            await self._read_group(group, key if of_table else [], orders if of_table else None, len(present))

        await map_concurrently(groups.values(), look, at_once=LARGE_AT_ONCE)

    async def _find_orders(self, name: str, pipeline: Pipeline | None) -> Sequences | None:
        """Return the sequences that may be the order of a row; None if it may be something else."""
        if (
            pipeline is None
            or pipeline.python
            or pipeline.mode == "append"  # merged files have the numbers of runs
            or len(pipeline.reads) != 1
            or pipeline.reads[0] not in self.view.streams
        ):
            return None
        return await self.view.read_progress(name, pipeline.reads[0])

    async def _read_group(
        self, group: Sequence[Stored], key: Sequence[str], orders: Sequences | None, total: int
    ) -> None:
        from capture.reading.pipeline_rows import count_repeated  # here: the arithmetic needs no pyarrow

        keys = []
        for one in group:
            try:
                keys.append(await self._read_file(one, key, orders))
            except NotStoredError:
                self.problems.append(f"{one.path} is missing")
            except FormatError as error:
                self.problems.append(f"{one.path}: {error}")
            except CaptureError as error:
                self.unchecked.append(f"{one.path} can't be read: {error}")
            self._done += 1
            if self.on_progress is not None:
                self.on_progress(self._done, total)
        known = [one for one in keys if one is not None]
        if known and (repeated := await to_thread(count_repeated, known)):
            rows = write_count(repeated, "row")
            self.problems.append(f"{group[0].path}: {rows} with a key that another row of its bucket has")

    async def _read_file(self, one: Stored, key: Sequence[str], orders: Sequences | None) -> object:
        """Return the keys of a file's rows; None without a key. FormatError if it is not what its record says."""
        from capture.maintenance.merge.schema_evolution import read_columns
        from capture.reading.pipeline_rows import read_file_rows

        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as file:
            if await copy_object(self.view.store, one, file) != one.sha256:
                raise FormatError("it was changed: its SHA-256 is not the recorded one")
            found = await to_thread(read_file_rows, file, key)
        if found.rows != one.count:
            raise FormatError(f"it has {found.rows:,} rows, its record says {one.count:,}")
        if one.first < one.last and (found.unordered or found.orders is None or not _spans(found.orders, one)):
            said = found.orders.describe() if found.orders else "none"
            raise FormatError(f"its rows are of {self._describe_runs(one)}, and have these numbers of runs: {said}")
        table = self.view.document.tables[one.stream]
        known = read_columns(table.columns).names if table.columns else []
        if strange := [name for name in found.columns if not name.startswith(HIDDEN) and name not in known]:
            raise FormatError(f"it has the column {strange[0]}, which the table does not have")
        if orders is not None and found.orders is not None and (more := found.orders - orders):
            raise FormatError(f"it has rows of messages that the table is not said to have: {more.describe()}")
        return found.keys

    async def compare_iceberg(self, table: str, files: Iterable[Stored]) -> bool:
        """Compare the files that readers may see with those that Iceberg's metadata names; return whether it has none.

        A file that is missing is reported once, not here again.
        """
        visible = {one.path: one for one in files if is_open(one.format)}
        exposed = self.view.document.iceberg.get(table)
        if exposed is None:
            return bool(visible)
        try:
            from capture.iceberg.named_files import read_named_files

            named = await read_named_files(self.view.store, table, exposed)
        except ManifestError as error:
            self.problems.append(str(error))
            return False
        except ModuleNotFoundError as error:
            self.unchecked.append(f"the Iceberg table of {table} can't be read without {error.name}")
            return False
        for path in sorted(visible.keys() - named):
            self.problems.append(f"{path} is a file of the table, and its Iceberg metadata does not name it")
        for path in sorted(named.keys() - visible):
            self.problems.append(f"{path} is named by the Iceberg metadata, and is not a file of the table")
        for path in sorted(named.keys() & visible):
            said, one = named[path], visible[path]
            if said != (one.count, one.bytes):
                self.problems.append(
                    f"{path} has {one.count:,} rows in {one.bytes:,} bytes, and {said.rows:,} in {said.bytes:,} in the"
                    " Iceberg metadata"
                )
        return False


def _spans(orders: Sequences, one: Stored) -> bool:
    return bool(orders) and (orders.first, orders.last) == (one.first, one.last)


def _find_maker(name: str, table: PipelineTable | None) -> Pipeline | None:
    """Return the pipeline as it was when it made this table; None if that is not known."""
    try:
        made = msgspec.json.decode(table.definition if table else b"", type=dict[str, object])
        return msgspec.convert({**made, "name": name}, Pipeline)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
