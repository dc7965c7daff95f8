from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patient import PATIENCE, until

from capture.decoders import decoder
from capture.errors import StoreError
from capture.formats.choose import writer
from capture.ingest.block import BLOCK_MEMORY, MAX_MESSAGES, RECORD_MEMORY, Limits, OpenBlocks, SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.pipeline import WRITING, WRITING_MESSAGE, InFlight, capture
from capture.ingest.record import Records
from capture.ingest.spill import Spill
from capture.partitioners import partitioner
from capture.stores.memory import MemoryStore
from natty.wire.message import Batch, RawMessage

MiB = 1 << 20


def message(number: int, key: int, size: int) -> RawMessage:
    return b"orders.%d" % key, b"$JS.ACK.ORDERS.c.1.%d.%d.1000.0" % (number, number), b"", bytes(size)


def block(count: int, size: int = 0, reason: str = "age") -> SealedBlock:
    records: Records[None] = Records.of(Batch([message(number, 0, size) for number in range(1, count + 1)]))
    return SealedBlock("ORDERS", "0", 0, records, reason, count * size)


class Commits:
    """Commits that end when the test says so, with the error that it names."""

    def __init__(self, in_flight: InFlight, tasks: asyncio.TaskGroup) -> None:
        self.in_flight, self.tasks = in_flight, tasks
        self.ends: dict[SealedBlock, asyncio.Future[None]] = {}

    async def commit(self, sealed: SealedBlock) -> None:
        await self.ends[sealed]

    async def start(self, sealed: SealedBlock) -> SealedBlock:
        """Start the commit of a block for which there is room."""
        self.ends[sealed] = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(PATIENCE):
            await self.in_flight.start(sealed, self.commit, self.tasks)
        return sealed

    async def wait_to_start(self, sealed: SealedBlock) -> asyncio.Task[SealedBlock]:
        """Return the start of a commit for which there is no room yet."""
        starting = asyncio.create_task(self.start(sealed))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not starting.done()
        return starting

    async def end(self, sealed: SealedBlock, error: Exception | None = None) -> None:
        """End a commit, and return when its room is free."""
        end = self.ends[sealed]
        end.set_exception(error) if error else end.set_result(None)
        for _ in range(10):
            await asyncio.sleep(0)
        del self.ends[sealed]


async def finished(starting: asyncio.Task[SealedBlock]) -> None:
    async with asyncio.timeout(PATIENCE):
        await starting


@asynccontextmanager
async def commits_of(in_flight: InFlight) -> AsyncIterator[Commits]:
    async with asyncio.TaskGroup() as tasks:
        commits = Commits(in_flight, tasks)
        yield commits
        for one in list(commits.ends):
            await commits.end(one)


async def test_as_many_blocks_are_stored_at_once_as_there_are_slots() -> None:
    async with commits_of(in_flight := InFlight(OpenBlocks(), 2)) as commits:
        first, _ = await commits.start(block(1)), await commits.start(block(1))
        waiting = await commits.wait_to_start(block(1))
        assert repr(in_flight) == f"InFlight(2 of 2 slots, 2 messages, {2 * (RECORD_MEMORY + WRITING_MESSAGE)} bytes)"
        await commits.end(first)
        await finished(waiting)
    assert repr(in_flight) == "InFlight(0 of 2 slots, 0 messages, 0 bytes)"


async def test_a_block_waits_until_there_is_memory_to_store_it() -> None:
    blocks = OpenBlocks(Limits(max_bytes=MiB, max_open_bytes=2 * (1 + WRITING) * 10 * MiB))
    async with commits_of(in_flight := InFlight(blocks, 4)) as commits:
        large = await commits.start(block(1, 6 * MiB))
        await commits.start(block(1, 3 * MiB))
        waiting = await commits.wait_to_start(block(1, 3 * MiB))
        await commits.end(large)
        await finished(waiting)
        await commits.start(block(1, 3 * MiB))
        assert repr(in_flight).startswith("InFlight(3 of 4 slots")


@pytest.mark.parametrize("format", ["ndjson", "parquet", "raw"])
async def test_by_default_two_full_blocks_of_small_messages_are_stored_at_once(format: str) -> None:
    store, opened, waiting = MemoryStore(), asyncio.Event(), []
    put = store.put

    async def wait_to_put(path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        waiting.append(path)
        await opened.wait()
        await put(path, data, if_absent=if_absent)

    store.put = wait_to_put  # type: ignore[method-assign]
    source = SimpleNamespace(ack=lambda _: None)
    committer = Committer(store, writer(format), source)  # type: ignore[arg-type]
    in_flight = InFlight(OpenBlocks())
    async with asyncio.TaskGroup() as tasks:
        for start in (0, MAX_MESSAGES):
            raw = [message(start + at, at % 40, 0) for at in range(1, MAX_MESSAGES + 1)]
            batch = Batch([(*one[:3], b"%0128d" % at) for at, one in enumerate(raw)])
            records: Records[Any] = Records.of(batch)
            size = sum(map(len, records.payloads)) + sum(map(len, records.subjects))
            full = SealedBlock(records.stream, "k", 0, records, "messages", size)
            async with asyncio.timeout(PATIENCE):
                await in_flight.start(full, committer.commit, tasks)
        await until(lambda: len(waiting) == 2)
        opened.set()


async def test_a_block_that_is_too_large_is_stored_alone() -> None:
    async with commits_of(InFlight(OpenBlocks(Limits(max_bytes=MiB, max_open_bytes=2 * MiB)), 4)) as commits:
        small, large = await commits.start(block(1)), block(1, 5 * MiB)
        waiting = await commits.wait_to_start(large)
        await commits.end(small)
        await finished(waiting)
        waiting = await commits.wait_to_start(block(1))
        await commits.end(large)
        await finished(waiting)


async def test_a_block_waits_while_too_much_of_the_buffers_disk_is_kept(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 8 * MiB)
    kept = [spill.append(bytes(MiB)) for _ in range(5)]
    spill.write()
    async with commits_of(InFlight(OpenBlocks(spill=spill), 4)) as commits:
        first = await commits.start(block(1))  # no other commit runs that could free disk
        waiting = await commits.wait_to_start(block(1))
        del kept[:2]
        await commits.end(first)
        await finished(waiting)


async def test_the_messages_in_flight_are_known_and_for_how_long_the_first_commit_has_run() -> None:
    now = [10.0]
    in_flight = InFlight(OpenBlocks(), stop_on_failure=False, clock=lambda: now[0])
    assert (in_flight.messages, in_flight.longest) == (0, None)
    async with commits_of(in_flight) as commits:
        first = await commits.start(block(3))
        now[0] += 5.0
        second = await commits.start(block(1))
        now[0] += 5.0
        assert (in_flight.messages, in_flight.longest) == (4, 10.0)
        await commits.end(first, StoreError("the store is away"))
        assert (in_flight.messages, in_flight.longest) == (1, 5.0)
        await commits.end(second)
        assert (in_flight.messages, in_flight.longest) == (0, None)


async def test_a_warning_tells_once_an_episode_that_acks_are_far_behind(caplog: pytest.LogCaptureFixture) -> None:
    async with commits_of(InFlight(OpenBlocks(Limits(max_pending=10)), 100)) as commits:
        with caplog.at_level(logging.WARNING, "capture"):
            started = [await commits.start(block(4)), await commits.start(block(4))]
            assert caplog.records == []
            started += [await commits.start(block(4)), await commits.start(block(4))]
            assert caplog.messages == [
                "12 messages are not acknowledged yet, and max_pending is 10: blocks are sealed early, and "
                "the server stops delivering at the consumer's max_ack_pending. Raise both, lower max_age or "
                "max_messages, or use a faster store or more nodes"
            ]
            for one in started:
                await commits.end(one)
            await commits.start(block(1))
            await commits.start(block(6, reason="pending"))
    assert [record.messages for record in caplog.records] == [12, 7]  # type: ignore[attr-defined]


async def test_a_store_failure_is_logged_and_the_other_commits_continue_if_they_are_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with commits_of(InFlight(OpenBlocks(), stop_on_failure=False)) as commits:
        first, second = await commits.start(block(2)), await commits.start(block(1))
        await commits.end(first, StoreError("2 messages could not be stored"))
        await commits.end(second)
    assert [(one.levelname, one.message) for one in caplog.records] == [("ERROR", "2 messages could not be stored")]
    assert [one.count for one in caplog.records] == [2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("stop_on_failure", [True, False])
async def test_any_other_error_than_the_stores_ends_all_commits(stop_on_failure: bool) -> None:
    in_flight = InFlight(OpenBlocks(), stop_on_failure=stop_on_failure)
    others: list[asyncio.Future[None]] = []

    async def fail() -> None:
        async with commits_of(in_flight) as commits:
            first, second = await commits.start(block(1)), await commits.start(block(1))
            others.append(commits.ends[second])
            await commits.end(first, ValueError("a fault of ours"))

    with pytest.raises(ExceptionGroup) as ended:
        await fail()
    assert [str(error) for error in ended.value.exceptions] == ["a fault of ours"]
    assert [one.cancelled() for one in others] == [True]
    assert in_flight.messages == 0


async def test_a_store_failure_ends_all_commits_by_default() -> None:
    async def fail() -> None:
        async with commits_of(InFlight(OpenBlocks())) as commits:
            await commits.end(await commits.start(block(1)), StoreError("the store is away"))

    with pytest.raises(ExceptionGroup) as ended:
        await fail()
    assert [str(error) for error in ended.value.exceptions] == ["the store is away"]


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
        memory = sealed.memory + WRITING * sealed.content_bytes + WRITING_MESSAGE * sealed.count
        self.memory += memory
        self.look()
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        self.memory += sealed.memory + sealed.content_bytes - memory
        memory = sealed.memory + sealed.content_bytes
        sealed.note_written(sealed.content_bytes)
        for _ in range(self.chance.randrange(20)):
            await asyncio.sleep(0)
        self.stored += sealed.records.sequences
        self.memory -= memory

    def look(self) -> None:
        self.most_memory = max(self.most_memory, self.blocks.memory + self.memory)
        self.most_disk = max(self.most_disk, self.blocks.spill.disk_bytes if self.blocks.spill else 0)

    async def run(self) -> None:
        partition = partitioner("subject:1")
        in_flight = InFlight(self.blocks, 8)
        await capture(self.source(), decoder("raw"), partition, self.blocks, self.commit, in_flight=in_flight)


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
