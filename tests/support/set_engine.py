"""An engine whose objects are lists of sequences in JSON."""

import hashlib
import json

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.maintenance.engine import Merged


class SetEngine:
    """Merges objects that are lists of sequences."""

    def __init__(self, store):
        self._store = store

    async def merge(self, store_url, groups):
        return [await self._merge(group) for group in groups]

    async def _merge(self, group):
        rows = [row for one in group.inputs for row in json.loads(await self._store.get(one.path))]
        kept = Sequences.from_iterable(rows) - Sequences.from_text(group.exclude)
        if not kept:
            return Merged(rows_in=len(rows), duplicates=len(rows))
        output = described(group.output, list(kept), interval=group.interval)
        await self._store.put(group.output, json.dumps(list(kept)).encode())
        return Merged(outputs=[output], rows_in=len(rows), duplicates=len(rows) - len(kept))


async def read_back(store, outputs):
    """Compare the objects in the store with the reported outputs."""
    for one in outputs:
        assert json.loads(await store.get(one.path)) == list(Sequences.from_bytes(one.sequences))


def described(path, sequences, stored_at=0.0, interval=0):
    data = json.dumps(sequences).encode()
    held = Sequences.from_iterable(sequences)
    return Stored(
        path=path,
        stream="S",
        key="k",
        interval=interval,
        first=held.first,
        last=held.last,
        count=len(sequences),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format="parquet",
        sequences=held.to_bytes(),
        stored_ns=int(stored_at * 1e9),
    )
