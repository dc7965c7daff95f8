"""The costs of a store at a distance: history, deletions, reads of small objects; before and after. Prints figures.

python tests/bench/bench_distance.py [--delay 0.03] [--hours 2000] [--objects 10000] [--blocks 1000]

A real S3 server over TLS, behind a proxy that delays each answer. "Before" is what capture did without pointers,
without requests that delete many objects, and with two objects read ahead; the same process measures both.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from archived import STREAM, store_block
from stores import StoreServer, running_seaweedfs

from capture.archive import chain
from capture.archive.history import recording_at
from capture.archive.identity import claim
from capture.archive.manifest import Manifest
from capture.archive.picture import Picture
from capture.archive.recording import HISTORY, HOUR, Earlier, Recording, StreamRecord, add_hour, history_path
from capture.archive.table import Table
from capture.maintenance.leading import Leading
from capture.maintenance.merge.inputs import fetch_blocking
from capture.maintenance.sweep import sweep
from capture.reading import arrowfs, merge
from capture.reading.duck import query
from capture.reading.merge import make_look, merge_shares
from capture.reading.shares import plan_shares
from capture.stores import Store, contract, open_store
from capture.stores.contract import read_ahead
from capture.stores.deletion import delete_all
from capture.testing import HeadState, MemoryHead
from capture.verification import objects as verification
from capture.verification.audit import audit
from capture.verification.objects import read_archive
from natty.config.tls import DevCA
from natty.testing import Proxy
from natty.wire.background import map_concurrently

BEGINNING = 1_795_230_000.0 // HOUR * HOUR


class Counted:
    """A store that counts calls; nearly each is one request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return await found(*arguments, **options)

        return call


async def measure(title: str, store: Store, work: Callable[[Any], Awaitable[object]]) -> float:
    """Print the seconds and the calls that this work takes."""
    counted, began = Counted(store), time.perf_counter()
    await work(counted)
    took = time.perf_counter() - began
    print(f"{title:44} {took:8.2f} s   {dict(counted.calls)}", flush=True)
    return took


async def make_history(store: Store, hours: int, *, pointers: bool) -> Recording:
    """Store a history of so many hours, and a newest recording."""
    document, objects = Recording(), {}
    for number in range(1, hours + 1):
        record = StreamRecord(created="2026-11-21T03:00:00Z", state={"messages": number, "last_seq": number})
        document = msgspec.structs.replace(
            document, number=number, token=1, created=BEGINNING + number * HOUR - 1, streams={"ORDERS": record}
        )
        data = msgspec.json.encode(document)
        hour = Earlier(history_path(document), chain.hashlib.sha256(data).hexdigest())
        objects[hour.path] = data
        following = msgspec.structs.replace(document, created=BEGINNING + number * HOUR)
        document = add_hour(following, document, hour) if pointers else msgspec.structs.replace(following, earlier=hour)
    await map_concurrently(objects, lambda path: store.put(path, objects[path]), at_once=32)
    newest = msgspec.structs.replace(document, number=hours + 1, created=BEGINNING + hours * HOUR + 60)
    await store.put(chain.document_path(Recording, hours + 1, 1), msgspec.json.encode(newest))
    print(f"  {len(msgspec.json.encode(newest)):,} bytes in the newest of {hours:,} hours", flush=True)
    return newest


async def measure_history(near: Callable[[str], Store], far: Callable[[str], Store], hours: int) -> None:
    for name, pointers in (("without pointers", False), ("with pointers", True)):
        newest = await make_history(near(name), hours, pointers=pointers)
        for age in (hours - 1, hours // 2, min(30, hours - 1)):
            at = newest.created - age * HOUR

            async def restore(store: Store, newest: Recording = newest, at: float = at) -> None:
                assert await recording_at(store, newest, at) is not None

            await measure(f"restore --at {age:,} h ago, {name}", far(name), restore)

        async def verify(store: Store) -> None:
            found = await audit(store, archive="orders", deep=True)
            assert not any(HISTORY in problem for problem in found.problems)

        await measure(f"deep audit of {hours:,} h, {name}", far(name), verify)


async def measure_deletions(near: Callable[[str], Store], far: Callable[[str], Store], objects: int) -> None:
    for size in (1, 1000):
        paths = [f"blocks/ORDERS/{number:06}.parquet" for number in range(objects)]
        store = far("deletions")
        store.deletes_at_once = size  # type: ignore[attr-defined]
        await map_concurrently(paths, lambda path: near("deletions").put(path, b"x" * 100), at_once=32)

        async def delete(store: Store, paths: list[str] = paths) -> None:
            await delete_all(store, paths)

        await measure(f"delete {objects:,} objects, {size:,} a request", store, delete)
        assert await near("deletions").list() == []


async def measure_reads(near: Callable[[str], Store], far: Callable[[str], Store], blocks: int) -> None:
    """Read small blocks by the merge of readers, by that of the compaction, from Spark's executors, and by SQL."""
    near_store = near("reads")
    await claim(near_store, "orders", STREAM, "2026-11-21T03:00:00Z")
    await map_concurrently(
        range(blocks), lambda n: store_block(near_store, range(10 * n + 1, 10 * n + 11), key=""), at_once=16
    )
    await sweep(Leading(near_store, MemoryHead(1, HeadState()), HeadState().read, grace=900.0), now=time.time())
    objects = sorted(await make_look(near_store)(), key=lambda one: one.first)
    print(f"  {blocks:,} blocks of {sum(one.bytes for one in objects) // blocks:,} bytes", flush=True)

    async def cat(store: Store) -> None:
        plan = plan_shares(objects)
        assert sum([len(batch) async for batch in merge_shares(store, plan)]) == 10 * blocks

    async def executor(store: Store) -> None:
        assert len([one async for one in read_ahead(store, objects)]) == blocks

    async def worker(store: Store) -> None:
        assert len(await asyncio.to_thread(lambda: list(fetch_blocking(store, objects)))) == blocks

    async def serial(store: Store) -> None:
        await asyncio.to_thread(lambda: [asyncio.run(store.get(one.path)) for one in objects])

    async def sql(store: Store) -> None:
        found = await query(store, objects, "SELECT count(*), sum(octet_length(payload)) FROM messages")
        assert found.rows[0][0] == 10 * blocks

    async def verify(store: Store) -> None:
        found = await read_archive(store, Picture(Manifest(), Table()), pending_entries=objects)
        assert len(found[STREAM].stored) == 10 * blocks

    with pytest.MonkeyPatch.context() as before:
        before.setattr(arrowfs, "SMALL_BYTES", -1)
        before.setattr(verification, "OBJECTS_AT_ONCE", 4)
        before.setattr(merge, "AHEAD_SMALL", merge.AHEAD)
        before.setattr(contract, "AHEAD_OBJECTS", 8)
        await measure("cat, read, restore: 2 ahead", far("reads"), cat)
        await measure("compaction: 8 ahead", far("reads"), executor)
        await measure("Spark's executors: one after the other", far("reads"), serial)
        await measure("sql: by ranges", far("reads"), sql)
        await measure("verify: 4 at a time", far("reads"), verify)
    await measure("cat, read, restore: 32 ahead", far("reads"), cat)
    await measure("compaction: 32 ahead", far("reads"), executor)
    await measure("Spark's executors: 32 ahead", far("reads"), worker)
    await measure("sql: 32 ahead", far("reads"), sql)
    await measure("verify: 16 at a time", far("reads"), verify)


@asynccontextmanager
async def stores(delay: float) -> Any:
    """Return how to open a store near and far."""
    with tempfile.TemporaryDirectory() as name:
        tls = DevCA.create().write(Path(name) / "tls")
        with running_seaweedfs(Path(name) / "seaweedfs", tls) as server:
            os.environ.update(server.environment)
            async with Proxy("127.0.0.1", int(server.endpoint.rpartition(":")[2])) as proxy:
                proxy.delay(delay / 2)  # each way
                yield _opener(server, server.endpoint), _opener(server, f"https://127.0.0.1:{proxy.port}")


def _opener(server: StoreServer, endpoint: str) -> Callable[[str], Store]:
    known: dict[str, Store] = {}

    def opened(prefix: str) -> Store:
        if prefix not in known:
            known[prefix] = open_store(server.url(prefix, endpoint=endpoint))
        return known[prefix]

    return opened


async def main(options: argparse.Namespace) -> None:
    async with stores(options.delay) as (near, far):
        print(f"S3 over TLS, {options.delay * 1000:g} ms for each answer")
        await measure_history(near, far, options.hours)
        await measure_deletions(near, far, options.objects)
        await measure_reads(near, far, options.blocks)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.03)
    parser.add_argument("--hours", type=int, default=2000)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=1000)
    asyncio.run(main(parser.parse_args()))
