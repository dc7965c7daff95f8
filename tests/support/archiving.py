"""Archives of real streams without a node: the test's process stores existing messages once, and sweeps once."""

import asyncio
import time

import msgspec
from electing import vacated_archive
from patient import PATIENCE

from capture.archive.heads import COMPACTION, RECORDING, SWEEP, TermHead
from capture.archive.identity import claim
from capture.archive.recording import record
from capture.config.settings import Compacting
from capture.decoders import decoder
from capture.formats import writer
from capture.iceberg import Exposer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.durable import prepare
from capture.ingest.pipeline import group
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.node.leader_tasks import Duty
from capture.partitioners import partitioner
from capture.stores import open_store
from capture.testing import ArrowEngine
from natty import Batch


class Settling:
    """Settles the messages of a pull."""

    def __init__(self, pull):
        self.pull = pull

    def ack(self, messages):
        self.pull.ack(messages.replies)

    def nak(self, messages, delay=0.0):
        self.pull.nak(messages.replies, delay)


async def store_all(natty, config, store, *, leave_out=()):
    """Store and acknowledge the messages of capture's durable consumer; only acknowledge those in `leave_out`."""
    info = await natty.jetstream.request(f"STREAM.INFO.{config.stream}")
    await claim(store, config.name, config.stream, info["created"])
    await prepare(natty, store, config.consumer())
    decode, partition = decoder(config.decoder), partitioner(config.partition)
    keys = config.keys() if config.encrypt else None
    pull = natty.pull(config.stream, config.durable)
    committer = Committer(store, writer(config.format, compression=config.compression, keys=keys), Settling(pull))
    waiting = (await natty.jetstream.request(f"CONSUMER.INFO.{config.stream}.{config.durable}"))["num_pending"]
    if not waiting:
        return
    arrived = []
    async for batch in pull:
        arrived += batch.raw
        pull.finish(len(batch))
        if len(arrived) < waiting:  # one block for each key, no matter how many pieces the messages arrive in
            continue
        records = decode(Batch(arrived))
        kept = [index for index, sequence in enumerate(records.sequences) if sequence not in leave_out]
        stored = records.select(kept)
        for key, interval, some in group(stored, partition(stored), config.limits.interval) if kept else ():
            await committer.commit(SealedBlock(config.stream, key, interval, some, "stop"))
        pull.ack([records.replies[index] for index, one in enumerate(records.sequences) if one in leave_out])
        pull.stop()
    await acknowledged(natty, config)


async def acknowledged(natty, config):
    """Wait until the server has no unacknowledged messages."""
    async with asyncio.timeout(PATIENCE):
        while True:
            state = await natty.jetstream.request(f"CONSUMER.INFO.{config.stream}.{config.durable}")
            if not state["num_pending"] and not state["num_ack_pending"]:
                return
            await asyncio.sleep(0.01)


async def compact_once(natty, config, store, engine=None):
    """Compact the archive as the elected leader; without Spark, unless that is the engine."""

    async def work(term):
        reader, policy = SWEEP.reader(natty, config.name), Policy(min_files=1, max_wait=0.0)
        leading = TableLeading(store, TermHead(term, COMPACTION), reader, grace=config.sweep.grace)
        leading.exposure = Exposer(store, config.table, node=term.node)
        return await compact(leading, engine or ArrowEngine(), policy, now=time.time())

    await vacated_archive(natty, config.name)
    return await natty.election(COMPACTION.election(config.name), lease=PATIENCE).run(work)


async def sweep_once(natty, config, store):
    """Adopt the stored blocks, and record the stream, as the elected leader."""

    async def work(term):
        told = {"now": time.time(), "grace": config.sweep.grace}
        table = COMPACTION.reader(natty, config.name)
        report = await sweep(Leading(store, TermHead(term, SWEEP), table, grace=told["grace"]), now=told["now"])
        await record(store, TermHead(term, RECORDING), natty, archive=config.name, **told)
        return report

    await vacated_archive(natty, config.name)
    return await natty.election(SWEEP.election(config.name), lease=PATIENCE).run(work)


async def compacted(fleet, config):
    """Compact all there is as the leader does it, but for Spark."""
    wanted = msgspec.structs.replace(config, compaction=Compacting(min_files=1, max_wait=0.0))

    async def work(term):
        duty = Duty(fleet.natty, open_store(config.store), wanted, term.node)
        return await duty.compact_once(duty.lead_compaction(term), ArrowEngine(config.keys()))

    await vacated_archive(fleet.natty, config.name)
    return await fleet.natty.election(COMPACTION.election(config.name), lease=PATIENCE).run(work)
