"""A stream on a server, and an archive in memory that holds the messages of it that a test chooses."""

import time
from uuid import uuid4

from archived import Settled

from capture.archive.identity import claim
from capture.archive.trust import NO_CHECKS
from capture.config.settings import CaptureConfig
from capture.formats import writer
from capture.formats.envelope import to_records
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.record import Records
from capture.reading import duck
from capture.reading.merge import make_look
from capture.reading.stream_range import StreamRange, read_range, stream_facts
from capture.reading.tail import list_captured, take_snapshot
from capture.stores import open_store

COUNTED = "SELECT count(*), count(DISTINCT sequence), coalesce(sum(sequence), 0)::BIGINT FROM messages"


class TwoTiers:
    """`await publish(n)`, `await store(sequences)`, `await ask(sql)`; what was reported is in `gone` and `absent`."""

    def __init__(self, natty, stream, store=""):
        self.natty, self.stream = natty, stream
        self.store = open_store(store or f"memory://two-tiers-{uuid4().hex}")
        self.config = CaptureConfig(stream=stream, store=self.store.url, archive=f"archive-{stream}")
        self.gone, self.absent = [], []

    async def create(self, **config):
        await self.natty.create_stream(self.stream, subjects=[f"{self.stream}.>"], **{"allow_direct": True} | config)
        return await self.claim()

    async def claim(self):
        """Begin the archive of a stream that exists."""
        await claim(self.store, self.config.archive, self.stream, (await self.facts()).created)
        return self

    async def facts(self):
        return await stream_facts(self.natty, self.stream)

    async def publish(self, count, payload=b'{"n": 1}'):
        for number in range(count):
            headers = {"Number": str(number)} if number % 3 == 0 else None
            await self.natty.publish(f"{self.stream}.{number % 2}", payload, headers=headers)

    async def read(self, sequences):
        """Return messages of the stream, as capture takes them."""
        facts, found = await self.facts(), Records()
        async for messages in read_range(self.natty, StreamRange(facts, min(sequences), max(sequences))):
            messages = to_records(messages)
            messages.replies = [b""] * len(messages)
            found.extend(messages.select([at for at, one in enumerate(messages.sequences) if one in sequences]))
        return found

    async def write(self, messages, made_by=None):
        """Store these messages as a block with its entry, as a node does."""
        block = SealedBlock(self.stream, "eu", 1_795_230_000, messages, "age")
        committer = Committer(
            self.store, made_by or writer("parquet"), Settled(), CommitOptions(node="node"), clock=time.time
        )
        return await committer.commit(block)

    async def keep(self, sequences, made_by=None):
        """Store messages of the stream in the archive."""
        return await self.write(await self.read(set(sequences)), made_by)

    async def remove(self, sequence):
        await self.natty.jetstream.request(f"STREAM.MSG.DELETE.{self.stream}", {"seq": sequence})

    async def snapshot(self):
        streams = await list_captured(self.config, self.store, self.natty, NO_CHECKS)
        return await take_snapshot(streams, make_look(self.store, self.stream), self.absent.append)

    async def look(self):
        return await make_look(self.store, self.stream)()

    async def ask_archive(self, sql=COUNTED):
        return (await duck.query(self.store, await self.look(), sql)).rows

    async def answer(self, snapshot, sql=COUNTED, **options):
        tail = snapshot.read_tails(lambda _, gone: self.gone.append(list(gone)))
        return (await duck.query(self.store, snapshot.objects, sql, tail=tail, **options)).rows

    async def ask(self, sql=COUNTED, **options):
        return await self.answer(await self.snapshot(), sql, **options)
