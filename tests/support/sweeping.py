"""Archives for tests of the sweep: stored blocks, and a sweep beside a table."""

import hashlib

from indexed import read_whole

from capture.archive.manifest import Manifest, Partition, Stored, block_path, encode, entry_path
from capture.archive.sequences import Sequences
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep as sweep_with
from capture.stores import ObjectInfo
from capture.testing import HeadState

NOW, GRACE = 100_000.0, 1_000.0
OLD, YOUNG = NOW - GRACE - 1, NOW - 10


def block(first, last=None, stream="S"):
    last = first if last is None else last
    content = f"{stream} {first} {last}".encode()
    sha256 = hashlib.sha256(content).hexdigest()
    return Stored(
        path=block_path(Partition(stream, "k", 0, 3600), first, last, last - first + 1, sha256, ".parquet"),
        stream=stream,
        key="k",
        interval=0,
        first=first,
        last=last,
        count=last - first + 1,
        bytes=len(content),
        sha256=sha256,
        format="parquet",
        sequences=Sequences.from_range(first, last).to_bytes(),
    )


def listing(*blocks, at=YOUNG, entries=()):
    objects = [ObjectInfo(one if isinstance(one, str) else one.path, 1, at) for one in blocks]
    return objects + [ObjectInfo(entry_path(one.path), 1, at) for one in entries]


async def sweep(store, pointer, *, table=None, **options):
    """Sweep beside this table, or without one; no time passes meanwhile."""
    told = {name: options.pop(name) for name in ("grace", "node", "elapsed") if name in options}
    leading = Leading(store, pointer, (table or HeadState()).read, **{"elapsed": lambda: 0.0} | told)
    return await sweep_with(leading, **options)


async def write(store, *blocks, entries=True):
    for one in blocks:
        await store.put(one.path, f"{one.stream} {one.first} {one.last}".encode())
        if entries:
            await store.put(entry_path(one.path), encode(one))


async def committed(store, pointer):
    return await read_whole(store, pointer.state.head, Manifest)
