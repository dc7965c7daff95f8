"""The size of a table's document while it is kept fresh: `python tests/bench/bench_fresh_documents.py`.

30 minutes of commits every 2 s with a block a second and a merge every 5 minutes, in memory, by an archive's clock.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import sys
import time
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[1] / "support"))

from fresh_world import GRACE, Leader, World

from capture.archive import chain
from capture.archive.table import Table
from capture.maintenance.leading import FEW, Leading
from capture.maintenance.sweep import sweep

SECONDS, EVERY, MERGE_EVERY, BLOCKS = 1800, 2, 300, 2


def main() -> None:
    """Print a line for each merge."""
    print(f"a commit every {EVERY} s with {BLOCKS} blocks; sizes in kB; {os.cpu_count()} cores")
    asyncio.run(_measure())


async def _measure() -> None:
    world = World(keep_for=86_400.0)
    leader = Leader(world)
    leading = Leading(world.store, world.term(world.manifest), world.table.read, grace=GRACE)
    sizes: list[int] = []
    seconds: list[float] = []
    for number in range(SECONDS // EVERY):
        for place in range(BLOCKS):
            await world.block([number * BLOCKS + place + 1])
        full = number % (MERGE_EVERY // EVERY) == 0
        leading.objects, leading.listed = 0 if full else FEW + 1, math.inf
        await sweep(leading, now=world.now)
        began = time.process_time()
        await leader.step()
        seconds.append(time.process_time() - began)
        sizes.append(len(await world.store.get(world.table.head.path)))
        if (number + 1) * EVERY % MERGE_EVERY == 0:
            await leader.compact()
            await _print(world, sizes, seconds)
            sizes.clear()
            seconds.clear()
        world.now += EVERY


async def _print(world: World, sizes: list[int], seconds: list[float]) -> None:
    table = await chain.read(world.store, world.table.head, Table)
    parts = {name: len(msgspec.json.encode(getattr(table, name))) for name in ("retired", "consumed", "iceberg")}
    print(
        f"the document: median {statistics.median(sizes) / 1e3:.0f}, most {max(sizes) / 1e3:.0f};"
        f" after the merge: {', '.join(f'{name} {size / 1e3:.0f}' for name, size in parts.items())};"
        f" CPU of a fresh commit: median {statistics.median(seconds) * 1e3:.1f} ms;"
        f" {len(await world.store.list())} objects in the store",
        flush=True,
    )


if __name__ == "__main__":
    main()
