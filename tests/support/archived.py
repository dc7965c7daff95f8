"""A whole archive in memory, with an object of every kind, made by the same code as in production."""

from __future__ import annotations

import time
from uuid import uuid4

import msgspec

from capture.archive.chain import current
from capture.archive.identity import claim
from capture.archive.manifest import Manifest
from capture.archive.readme import VERSION
from capture.archive.recording import HOUR, Recording, Seen, StreamRecord, follow_up, read_digests, update_record
from capture.archive.scope import Asked, write_record
from capture.archive.sequences import Sequences
from capture.archive.signing import Signer, SigningKeys
from capture.archive.table import Table
from capture.formats import writer
from capture.iceberg import Exposer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.record import Records
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import open_store
from capture.testing import ArrowEngine, HeadState, MemoryHead
from natty.streams.listing import Listing

ARCHIVE, STREAM, CREATED = "orders", "ORDERS", "2026-11-21T03:00:00.123456789Z"
NOW, GRACE = 1_795_230_000.0, 900.0
KEYS = SigningKeys({"mine": bytes(range(32))})
SIGNER = Signer(ARCHIVE, KEYS)
CONFIG = {"name": STREAM, "subjects": ["orders.>"], "allow_msg_ttl": True, "of_a_newer_server": {"kept": [1]}}
TTL = b"NATS/1.0\r\nNats-TTL: 1h\r\nColour: red\r\nColour: blue\r\n\r\n"


class Settled:
    """Ignores acks."""

    def ack(self, messages):
        pass

    def nak(self, messages, delay=0.0):
        pass


def records(sequences):
    """Messages of every kind, one for each sequence."""
    sequences = list(sequences)
    return Records(
        STREAM,
        sequences,
        [1_795_230_000_123_456_000 + one for one in sequences],
        [b"orders.\xff" if one % 7 == 3 else b"orders.%d" % one for one in sequences],
        [TTL if one % 2 else b"" for one in sequences],
        [b"\x00\xff" if one % 5 == 4 else b"%d" % one for one in sequences],
        [1] * len(sequences),
        [b"reply"] * len(sequences),
        [None] * len(sequences),
    )


async def store_block(store, sequences, made_by=None, key="eu", interval=1_795_230_000, clock=time.time):
    """Store a block with its entry, as a node does."""
    block = SealedBlock(STREAM, key, interval, records(sequences), "age")
    settled, options = Settled(), CommitOptions(node="node")
    committer = Committer(store, made_by or writer("parquet"), settled, options, clock=clock)
    return await committer.commit(block)


class Archived:
    """An archive; `await make()` puts an object of every kind into it."""

    def __init__(self, signer=None, token=1, folder=None):
        self.signer = signer
        self.now = NOW
        self.store = open_store(str(folder) if folder else f"memory://archived-{uuid4().hex}")
        self.store._clock = lambda: self.now  # when an object was written: memory only
        self.heads = {Manifest: HeadState(), Table: HeadState(), Recording: HeadState()}
        self.token = token

    def pointer(self, kind, signer=None):
        return MemoryHead(self.token, self.heads[kind], signer or self.signer)

    @property
    def readers(self):
        """The readers of heads, in place of NATS."""
        return {kind: state.read for kind, state in self.heads.items()}

    async def sweep(self):
        self.now += 10.0
        table = self.heads[Table].read
        return await sweep(Leading(self.store, self.pointer(Manifest), table, grace=GRACE), now=self.now)

    async def compact(self):
        policy = Policy(min_files=1, max_wait=0.0)
        pointer, manifest = self.pointer(Table), self.heads[Manifest].read
        leading = TableLeading(self.store, pointer, manifest, grace=GRACE, exposure=Exposer(self.store))
        return await compact(leading, ArrowEngine(), policy, now=self.now)

    async def record(self, state=None, deleted=(), config=None, consumers=()):
        """Record what a server would report at `self.now`."""
        await claim(self.store, ARCHIVE, STREAM, CREATED, self.signer)
        head, before = await current(self.store, self.pointer(Recording), Recording, self.now)
        seen = Seen(
            config=config or CONFIG,
            state=state or {"messages": 4, "first_seq": 1, "last_seq": 9},
            consumers=Listing(list(consumers)),
            deleted=Sequences.from_iterable(deleted),
        )
        streams = {STREAM: update_record(before.streams.get(STREAM, StreamRecord(created=CREATED)), seen, self.now)}
        after = msgspec.structs.replace(
            before,
            archive=ARCHIVE,
            readme=VERSION,
            fixed=await read_digests(self.store, before.fixed),
            streams=streams,
            created=self.now,
            leader="node",
            of_manifest=self.heads[Manifest].head.number if self.heads[Manifest].head else 0,
        )
        await follow_up(self.store, self.pointer(Recording), head, before, after, grace=GRACE)

    async def make(self):
        """Make adopted, compacted and waiting blocks, an entry, documents of each chain, and two hours of history."""
        await claim(self.store, ARCHIVE, STREAM, CREATED, self.signer)
        await write_record(self.store, Asked(stream=STREAM, durable="capture", created=CREATED))
        await store_block(self.store, [1, 2, 3, 4])
        await self.sweep()
        await self.record(deleted=[5])
        await self.compact()
        for sequence in (6, 7):
            await store_block(self.store, [sequence], writer("ndjson", compression="zstd"))
        await self.sweep()
        for hours in (1, 2):
            self.now = NOW + hours * HOUR
            await self.record(state={"messages": 4, "first_seq": hours, "last_seq": 9})
        await store_block(self.store, [8, 9], key="us")  # not adopted yet
        return self

    async def paths(self, prefix=""):
        """Return the paths of all objects below a prefix."""
        return [one.path for one in await self.store.list(prefix)]

    async def change(self, path, data):
        """Change an object, as any client with write access can; None removes it."""
        await self.store.delete(path)
        if data is not None:
            await self.store.put(path, data)
