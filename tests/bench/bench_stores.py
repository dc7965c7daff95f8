"""The costs of stores: blocks of 8 MiB and small objects, ours beside bare obstore, and a folder. Prints figures.

python tests/bench/bench_stores.py [small objects]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from stores import running_seaweedfs

from capture.stores import FileStore, Store, open_store
from natty.config.tls import DevCA

BLOCKS, BLOCK_BYTES = 16, 8 * 1024 * 1024
SMALL_BYTES = 600  # an entry
AT_ONCE = 16

Put = Callable[[str, bytes], Awaitable[object]]


async def put_all(put: Put, names: list[str], data: bytes) -> float:
    """Return the seconds that putting `data` under all these names takes, a few at a time."""
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await put(name, data)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


async def read_all(store: Store, names: list[str]) -> float:
    """Return the seconds that reading these objects one after the other takes."""
    began = time.perf_counter()
    for name in names:
        await store.get(name)
    return time.perf_counter() - began


async def measure(title: str, put: Put, store: Store, count: int, reference: dict[str, float]) -> None:
    """Print one way to put; the first one of a reference is what the others are compared with."""
    block = os.urandom(BLOCK_BYTES)
    blocks, small = [f"{title}/b/{n}" for n in range(BLOCKS)], [f"{title}/s/{n}" for n in range(count)]
    await put(f"{title}/warm", b"")
    took = {
        "MiB/s put": BLOCKS * BLOCK_BYTES / 2**20 / await put_all(put, blocks, block),
        "small/s put": count / await put_all(put, small, block[:SMALL_BYTES]),
        "MiB/s get": BLOCKS * BLOCK_BYTES / 2**20 / await read_all(store, blocks),
    }
    began = time.perf_counter()
    listed = len(await store.list(f"{title}/s/"))
    took["listed/s"] = listed / (time.perf_counter() - began)
    reference.update({name: value for name, value in took.items() if name not in reference})
    figures = "  ".join(f"{name} {value:8.0f} ({value / reference[name]:.2f})" for name, value in took.items())
    print(f"{title:16} {figures}")


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = DevCA.create().write(folder / "tls")
        with running_seaweedfs(folder / "seaweedfs", tls) as server:
            os.environ.update(server.environment)
            ours, raw, file = open_store(server.url()), open_store(server.url()), FileStore(folder / "lake")
            client = raw._client  # type: ignore[attr-defined]
            reference: dict[str, float] = {}
            print(f"{BLOCKS} blocks of {BLOCK_BYTES / 2**20:.0f} MiB, {count} objects, {AT_ONCE} at once; S3 over TLS")

            async def bare(path: str, data: bytes) -> None:
                await obstore.put_async(client, path, data, mode="create")

            await measure("obstore bare, S3", bare, raw, count, reference)
            await measure("ours, S3", ours.put, ours, count, reference)
            await measure("ours, folder", file.put, file, count, {})


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
