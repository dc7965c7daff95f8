"""What checking an archive costs without reading its objects, by their number: `python tests/bench/bench_verify.py`.

The records are those of bench_index.py. The objects do not exist:
the store lists their paths and sizes from a file, a thousand at a time, as an object store does. Each figure is of a
process of its own: CPU time, and memory beyond what is in use after the imports.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from itertools import islice
from pathlib import Path

from bench_index import build, records

from capture.archive.chain import latest_offline
from capture.archive.manifest import Manifest
from capture.archive.picture import read_documents
from capture.archive.table import Table
from capture.stores.contract import Listing, ObjectInfo
from capture.stores.file import FileStore
from capture.verification.objects import read_archive
from capture.verification.verdict import StreamReport, compare

SIZES = (10_000, 100_000, 1_000_000)
KEYS = (1, 100, 1_000)
PATHS = "paths"
PAGE = 1000


class Listed(FileStore):
    """A folder with pages and documents, and a list of objects that do not exist."""

    async def list_parts(self, prefix: str = "") -> AsyncIterator[Listing]:
        with (self.root / PATHS).open() as file:
            while part := list(islice(file, PAGE)):
                yield [ObjectInfo(one.rstrip("\n"), 300_000, 0.0) for one in part if one.startswith(prefix)]


async def measure(folder: Path) -> None:
    store = Listed(folder)
    before, began, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), time.process_time()
    heads = partial(latest_offline, store, Manifest), partial(latest_offline, store, Table)
    [held] = (await read_archive(store, await read_documents(store, *heads), deep=False)).values()
    verdict = compare(held, StreamReport(first=1, last=held.stored.last))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    assert verdict.ok, verdict.sentence()
    print(
        f"{cpu:6.2f} s of CPU, {held.objects / wall:9,.0f} objects a second, {used / 1024:6.0f} MiB,"
        f" {len(held.stored):,} messages"
    )


def main() -> None:
    for keys in KEYS:
        for objects in map(int, sys.argv[1:] or SIZES):
            with tempfile.TemporaryDirectory() as name:
                asyncio.run(build(Path(name), objects, keys, "index"))
                with (Path(name) / PATHS).open("w") as file:
                    file.writelines(f"{one.path}\n" for one in records(objects, keys))
                print(f"{objects:9,} objects, {keys:5,} keys: ", end="", flush=True)
                subprocess.run([sys.executable, __file__, "measure", name], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        asyncio.run(measure(Path(sys.argv[2])))
    else:
        main()
