"""Reads every snapshot of a table while nodes and servers are killed, as an engine that knows only the folder."""

import asyncio
import time
from collections import Counter

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StaticTable

from capture.archive import chain
from capture.archive.heads import COMPACTION
from capture.archive.iceberg_state import archive_location, folder
from capture.archive.index.contents import Indexes
from capture.archive.index.update import held_of
from capture.archive.sequences import Sequences
from capture.archive.table import Table

PAUSE = 0.1  # seconds between two looks


class Snapshots:
    """The sequences of each snapshot, by its id, and what was wrong with any."""

    def __init__(self, store, stream):
        self.read, self.wrongs = {}, []
        self.newest, self.place = None, ""  # the id of the last one that was committed, and its metadata
        self.with_blocks = 0  # of those that were read
        self._store, self._stream = store, stream

    @property
    def count(self):
        """Number of snapshots that were read."""
        return len(self.read)

    async def run(self):
        """Read until cancelled. A snapshot with blocks is kept for a minute: each is found here, or at the end."""
        place = f"{archive_location(self._store)}/{folder(self._stream)}"
        while True:
            await asyncio.to_thread(self._read_all, place)
            await asyncio.sleep(PAUSE)

    async def look(self, natty):
        """Read the committed table's snapshots; the newest has the sequences of its files and shown blocks."""
        head = await COMPACTION.reader(natty, self._stream)()
        table, index = await chain.read(self._store, head, Table), Indexes(self._store).files
        shown = table.iceberg[self._stream]
        self.place = shown.location.removesuffix(folder(self._stream)) + shown.metadata
        await asyncio.to_thread(self._read_all, self.place)
        said = Sequences.union_of([await held_of(index, one, self._stream) for one in table.list_versions()])
        self.newest = shown.snapshots[-1].id
        found = self.read.get(self.newest, Sequences())
        if wrong := [*(found - said).first_runs(3), *(said - found).first_runs(3)]:
            self._complain(self.newest, f"has other sequences than files and shown blocks: {wrong}")

    def compare(self, known):
        """Return what is wrong; `known` are the sequences that the stream has or had."""
        for number, rows in self.read.items():
            if invented := rows - known:
                self._complain(number, f"has sequences that the stream never had: {invented.describe()}")
        return self.wrongs

    def _read_all(self, place):
        try:
            table = StaticTable.from_metadata(place)
        except (NoSuchTableError, FileNotFoundError):  # not yet, or it was replaced just now
            return
        for one in table.metadata.snapshots:
            if one.snapshot_id not in self.read:
                began = time.monotonic()
                try:
                    scan = table.scan(snapshot_id=one.snapshot_id, selected_fields=("sequence",))
                    rows = scan.to_arrow()["sequence"].to_pylist()
                    self.with_blocks += any("/blocks/" in task.file.file_path for task in scan.plan_files())
                except Exception as error:
                    late = time.time() - one.timestamp_ms / 1000, time.monotonic() - began
                    self._complain(one.snapshot_id, f"made {late[0]:.0f} s ago, not read in {late[1]:.0f} s: {error!r}")
                    self.read[one.snapshot_id] = Sequences()
                    continue
                again = [row for row, count in Counter(rows).items() if count > 1]
                if again:
                    self._complain(one.snapshot_id, f"has sequences twice: {sorted(again)[:10]}")
                self.read[one.snapshot_id] = Sequences.from_iterable(rows)

    def _complain(self, snapshot, what):
        self.wrongs.append(f"snapshot {snapshot} {what}")
