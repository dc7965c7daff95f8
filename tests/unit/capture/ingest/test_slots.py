from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from patient import PATIENCE

from capture.decoders import decoder
from capture.ingest.block import BLOCK_MEMORY, RECORD_MEMORY, Limits, OpenBlocks, SealedBlock
from capture.ingest.pipeline import capture
from capture.ingest.record import Records
from capture.ingest.slots import WRITING, Slots
from capture.ingest.spill import Spill
from capture.partitioners import grouped, partitioner
from natty.wire.message import Batch, RawMessage

MiB = 1 << 20


def message(number: int, key: int, size: int) -> RawMessage:
    return b"orders.%d" % key, b"$JS.ACK.ORDERS.c.1.%d.%d.1000.0" % (number, number), b"", bytes(size)


def block(count: int, size: int = 0, reason: str = "age") -> SealedBlock:
    records: Records[None] = Records.of(Batch([message(number, 0, size) for number in range(1, count + 1)]))
    return SealedBlock("ORDERS", "0", 0, records, reason, count * size)


async def waits(slots: Slots, sealed: SealedBlock) -> asyncio.Task[None]:
    """Return the acquisition, which does not come to its end now."""
    waiting = asyncio.create_task(slots.acquire(sealed))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def ends(waiting: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_as_many_blocks_are_stored_at_once_as_there_are_slots() -> None:
    slots, one = Slots(OpenBlocks(), 2), block(1)
    await slots.acquire(one)
    await slots.acquire(one)
    waiting = await waits(slots, one)
    assert repr(slots) == f"Slots(2 of 2 taken, 2 messages, {2 * RECORD_MEMORY} bytes of memory)"
    slots.release(one)
    await ends(waiting)


async def test_a_block_waits_until_there_is_memory_to_store_it() -> None:
    slots = Slots(OpenBlocks(Limits(max_bytes=MiB, max_open_bytes=2 * (1 + WRITING) * 10 * MiB)), 4)
    large, small = block(1, 6 * MiB), block(1, 3 * MiB)
    await slots.acquire(large)
    await slots.acquire(small)
    waiting = await waits(slots, small)
    slots.release(large)
    await ends(waiting)
    await slots.acquire(small)
    assert repr(slots).startswith("Slots(3 of 4 taken")


async def test_a_block_that_is_too_large_is_stored_alone() -> None:
    slots = Slots(OpenBlocks(Limits(max_bytes=MiB, max_open_bytes=2 * MiB)), 4)
    large, small = block(1, 5 * MiB), block(1)
    await slots.acquire(small)
    waiting = await waits(slots, large)
    slots.release(small)
    await ends(waiting)
    waiting = await waits(slots, small)
    slots.release(large)
    await ends(waiting)


async def test_a_block_waits_while_too_much_of_the_buffers_disk_is_kept(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 8 * MiB)
    slots, one = Slots(OpenBlocks(spill=spill), 4), block(1)
    kept = [spill.append(bytes(MiB)) for _ in range(5)]
    spill.write()
    await slots.acquire(one)  # nothing else is stored that could make room
    waiting = await waits(slots, one)
    del kept[:2]
    slots.release(one)
    await ends(waiting)


async def test_a_warning_tells_once_an_episode_that_acks_are_far_behind(caplog: pytest.LogCaptureFixture) -> None:
    slots = Slots(OpenBlocks(Limits(max_pending=10)), 100)
    sealed = [block(4) for _ in range(4)]
    with caplog.at_level(logging.WARNING, "capture"):
        for one in sealed[:2]:
            await slots.acquire(one)
        assert caplog.records == []
        for one in sealed[2:]:
            await slots.acquire(one)
        assert caplog.messages == [
            "12 messages are not acknowledged yet, and max_pending is 10: blocks are sealed before their time, and the "
            "server stops delivering at the consumer's max_ack_pending. Raise both, lower max_age or max_messages, or "
            "use a faster store or more nodes"
        ]
        for one in sealed:
            slots.release(one)
        await slots.acquire(block(1))
        await slots.acquire(block(6, reason="pending"))
    assert [record.messages for record in caplog.records] == [12, 7]  # type: ignore[attr-defined]


# --- through the pipeline --------------------------------------------------------------------------------------------


class Flow:
    """A pipeline whose store takes its time, and what blocks take meanwhile, as often as something changes."""

    def __init__(self, blocks: OpenBlocks, seed: int) -> None:
        self.blocks = blocks
        self.chance = random.Random(seed)
        self.stored: list[int] = []
        self.memory = 0
        self.most_memory = self.most_disk = self.largest_batch = 0

    async def source(self) -> AsyncIterator[Batch]:
        number = 0
        while number < 3000:
            count = self.chance.randrange(1, 60)
            sizes = [self.chance.choice([0, 10, 100, 1000, 20_000]) for _ in range(count)]
            batch = [message(number + at, self.chance.randrange(200), size) for at, size in enumerate(sizes, 1)]
            number += count
            self.largest_batch = max(self.largest_batch, sum(sizes) + count * (RECORD_MEMORY + BLOCK_MEMORY + 10))
            yield Batch(batch)
            self.look()

    async def commit(self, sealed: SealedBlock) -> None:
        memory = sealed.memory + WRITING * sealed.content_bytes
        self.memory += memory
        self.look()
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        self.stored += sealed.records.sequences
        self.memory -= memory

    def look(self) -> None:
        self.most_memory = max(self.most_memory, self.blocks.memory + self.memory)
        self.most_disk = max(self.most_disk, self.blocks.spill.disk_bytes if self.blocks.spill else 0)

    async def run(self) -> None:
        partition = grouped(partitioner("subject:1"))
        await capture(self.source(), decoder("raw"), partition, self.blocks, self.commit, clock=lambda: 0.0, slots=8)


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("seed", range(3))
async def test_all_blocks_together_stay_within_max_open_bytes_and_the_disk_within_its_own(
    tmp_path: Path, kind: str, seed: int
) -> None:
    limits = Limits(max_messages=100, max_bytes=100_000, max_open_bytes=4 * MiB)
    spill = Spill(tmp_path, MiB) if kind == "disk" else None
    flow = Flow(OpenBlocks(limits, spill), seed)
    async with asyncio.timeout(PATIENCE):
        await flow.run()
    assert sorted(flow.stored) == list(range(1, len(flow.stored) + 1))
    assert len(flow.stored) >= 3000
    assert flow.most_memory <= limits.max_open_bytes + flow.largest_batch
    if spill:
        assert MiB / 2 < flow.most_disk <= MiB + MiB // 8 + flow.largest_batch
    else:
        assert flow.most_memory > limits.max_open_bytes / 2
