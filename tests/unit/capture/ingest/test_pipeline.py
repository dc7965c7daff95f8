from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from patient import PATIENCE

from capture.archive.manifest import Stored
from capture.decoders import decoder
from capture.errors import StoreError
from capture.formats import parquet
from capture.ingest.block import Limits, OpenBlocks, SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.pipeline import InFlight, capture
from capture.ingest.record import Delivered
from capture.partitioners import partitioner
from capture.stores.memory import MemoryStore
from natty.wire.message import Batch, RawMessage

EVERYTHING = range(1, 25)
LIMITS = Limits(max_messages=3, max_pending=100)


def message(sequence: int) -> RawMessage:
    key = (b"eu", b"us", b"asia")[sequence % 3]
    payload = b"no json" if sequence % 8 == 0 else b'{"n": %d}' % sequence
    return b"orders." + key, b"$JS.ACK.ORDERS.c.1.%d.%d.1000.0" % (sequence, sequence), b"", payload


def batches(sequences: range | list[int], size: int = 4) -> list[Batch]:
    raw = [message(sequence) for sequence in sequences]
    return [Batch(raw[start : start + size]) for start in range(0, len(raw), size)]


async def listed(of: list[Batch]) -> AsyncIterator[Batch]:
    for batch in of:
        await asyncio.sleep(0)
        yield batch


class Disk(MemoryStore):
    """A memory store that does something of the test's choice at the n-th put, before it or after it."""

    def __init__(self, at: int = 0, before: bool = True, fault: str = "") -> None:
        super().__init__("disk")
        self.at, self.before, self.fault = at, before, fault
        self.puts = 0
        self.parked = asyncio.Event()
        self.durable: dict[str, bytes] = {}
        self.visible: set[int] = set()
        """The sequences in blocks that are durable and whose entry is durable too."""

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        assert isinstance(data, bytes)
        self.puts += 1
        mine = self.puts == self.at
        if mine and self.before:
            await self._strike()
        await super().put(path, data, if_absent=if_absent)
        self.durable[path] = data
        if path.startswith("_entries/"):
            entry = msgspec.json.decode(data, type=Stored)
            self.visible |= set(parquet.ParquetWriter().read(self.durable[entry.path])["sequence"].to_pylist())
        if mine and not self.before:
            await self._strike()

    async def _strike(self) -> None:
        if self.fault == "raise":
            raise StoreError("the disk is away")
        self.parked.set()
        await asyncio.Event().wait()


class Ledger:
    """Keeps what was settled; an acknowledgement of something that is not durable and visible fails the test."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.acked: set[int] = set()
        self.handed_back: set[int] = set()
        self.any_acked = asyncio.Event()

    def ack(self, messages: Delivered) -> None:
        sequences = set(messages.sequences)
        assert sequences <= self.disk.visible, "acknowledged before it was durable and visible"
        assert not sequences & self.acked, "acknowledged twice"
        self.acked |= sequences
        self.any_acked.set()

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        self.handed_back |= set(messages.sequences)


async def no_pause(_: float) -> None:
    await asyncio.sleep(0)


class Flow:
    """The whole pipeline over a disk, with every real part."""

    def __init__(self, disk: Disk, *, attempts: int = 1, slots: int = 2, writer: parquet.ParquetWriter | None = None):
        self.disk = disk
        self.ledger = Ledger(disk)
        self.slots = slots
        self.now = 0.0
        self.committer = Committer(
            disk, writer or parquet.ParquetWriter(), self.ledger, CommitOptions(attempts=attempts), sleep=no_pause
        )

    async def run(self, source: AsyncIterator[Batch], limits: Limits = LIMITS) -> None:
        blocks = OpenBlocks(limits)
        await capture(
            source,
            decoder("json"),
            partitioner("subject:1"),
            blocks,
            self.committer.commit,
            in_flight=InFlight(blocks, self.slots),
            clock=lambda: self.now,
        )


async def redelivered(flow: Flow) -> Disk:
    """Deliver again what was not acknowledged, to a node whose disk is well; return that disk."""
    again = Disk()
    for path in sorted(flow.disk.durable, reverse=True):  # the blocks go before their entries
        await again.put(path, flow.disk.durable[path])
    rest = sorted(set(EVERYTHING) - flow.ledger.acked)
    await Flow(again).run(listed(batches(rest, size=5)))
    return again


async def test_every_message_is_stored_and_acknowledged() -> None:
    flow = Flow(Disk())
    await flow.run(listed(batches(EVERYTHING)))
    assert flow.ledger.acked == flow.disk.visible == set(EVERYTHING)
    assert not flow.ledger.handed_back


async def test_a_message_that_can_not_be_decoded_is_stored_under_its_own_key_and_acknowledged() -> None:
    flow = Flow(Disk())
    await flow.run(listed(batches(EVERYTHING)))
    blocks = {path: data for path, data in flow.disk.durable.items() if "_undecodable" in path and path[0] != "_"}
    table = pa.concat_tables(map(parquet.ParquetWriter().read, blocks.values()))
    assert table["sequence"].to_pylist() == [8, 16, 24]
    assert table["payload"].to_pylist() == [b"no json"] * 3
    assert all("JSON" in reason or "invalid" in reason for reason in table["error"].to_pylist())


async def test_messages_that_can_not_be_decoded_are_logged_once_with_the_first_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await Flow(Disk()).run(listed(batches(EVERYTHING)))
    [line] = [one for one in caplog.records if one.name == "capture.decoding"]
    assert (line.levelname, line.__dict__["action"]) == ("WARNING", "undecodable")
    assert "could not be decoded; they are stored whole, with the reason, under the key _undecodable" in line.message
    assert "the first is sequence 8, " in line.message


async def test_an_empty_source_stores_nothing() -> None:
    flow = Flow(Disk())
    await flow.run(listed([Batch([])]))
    assert flow.disk.durable == {}


async def test_a_quiet_stream_is_sealed_by_age() -> None:
    flow = Flow(Disk())

    async def one_then_quiet() -> AsyncIterator[Batch]:
        yield Batch([message(1)])
        flow.now = LIMITS.max_age
        yield Batch([])
        await flow.ledger.any_acked.wait()

    async with asyncio.timeout(PATIENCE):
        await flow.run(one_then_quiet())
    assert flow.ledger.acked == {1}


async def test_a_slow_store_holds_back_reading() -> None:
    flow = Flow(Disk(at=1, fault="park"), slots=1)
    read = 0

    async def counted() -> AsyncIterator[Batch]:
        nonlocal read
        for batch in batches(EVERYTHING, size=1):
            read += 1
            yield batch

    run = asyncio.create_task(flow.run(counted(), Limits(max_messages=1)))
    await flow.disk.parked.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert read == 2  # one is being stored, one waits for its turn
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


PUTS = range(1, 21)  # the flow above makes twenty: ten blocks, ten entries


async def test_the_faults_below_strike_at_every_put() -> None:
    flow = Flow(Disk())
    await flow.run(listed(batches(EVERYTHING)))
    assert flow.disk.puts == len(PUTS)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", PUTS)
async def test_a_store_that_fails_for_good_ends_the_flow_with_its_error(at: int, before: bool) -> None:
    flow = Flow(Disk(at, before, "raise"))
    with pytest.raises(StoreError, match="could not be stored"):
        await flow.run(listed(batches(EVERYTHING)))
    assert flow.ledger.acked <= flow.disk.visible
    assert flow.ledger.handed_back
    assert not flow.ledger.handed_back & flow.ledger.acked
    assert (await redelivered(flow)).visible == set(EVERYTHING)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", PUTS)
async def test_a_store_that_fails_once_is_tried_again_and_nothing_is_lost(at: int, before: bool) -> None:
    flow = Flow(Disk(at, before, "raise"), attempts=2)
    await flow.run(listed(batches(EVERYTHING)))
    assert flow.ledger.acked == flow.disk.visible == set(EVERYTHING)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", PUTS)
async def test_a_flow_cancelled_while_it_stores_has_acknowledged_only_what_is_stored(at: int, before: bool) -> None:
    flow = Flow(Disk(at, before, "park"))
    await _cancelled(flow, flow.disk.parked.wait)
    assert flow.ledger.acked != set(EVERYTHING)
    assert (await redelivered(flow)).visible == set(EVERYTHING)


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_a_flow_cancelled_at_any_turn_has_acknowledged_only_what_is_stored(turns: int) -> None:
    async def after_turns() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    flow = Flow(Disk(at=PUTS[-1], fault="park"))
    await _cancelled(flow, after_turns)
    assert (await redelivered(flow)).visible == set(EVERYTHING)


async def test_a_flow_cancelled_while_it_serialises_acknowledges_nothing() -> None:
    writing, go_on = threading.Event(), threading.Event()

    class Slow(parquet.ParquetWriter):
        def write(self, block: SealedBlock) -> bytes:
            writing.set()
            go_on.wait()
            return super().write(block)

    flow = Flow(Disk(), writer=Slow())
    try:
        await _cancelled(flow, lambda: asyncio.to_thread(writing.wait, PATIENCE))
    finally:
        go_on.set()
    assert not flow.ledger.acked
    assert flow.disk.puts == 0


@pytest.mark.parametrize("given", range(7))
async def test_a_flow_cancelled_while_it_reads_has_acknowledged_only_what_is_stored(given: int) -> None:
    waiting = asyncio.Event()

    async def then_silent() -> AsyncIterator[Batch]:
        for batch in batches(EVERYTHING)[:given]:
            yield batch
        waiting.set()
        await asyncio.Event().wait()

    flow = Flow(Disk())
    await _cancelled(flow, waiting.wait, then_silent())
    assert (await redelivered(flow)).visible == set(EVERYTHING)


async def test_a_source_that_fails_ends_the_flow_with_its_error() -> None:
    async def failing() -> AsyncIterator[Batch]:
        yield batches(EVERYTHING)[0]
        raise ConnectionError("the consumer is gone")

    flow = Flow(Disk())
    with pytest.raises(ConnectionError, match="the consumer is gone"):
        await flow.run(failing())
    assert not flow.ledger.acked


async def _cancelled(flow: Flow, moment: Callable[[], object], source: AsyncIterator[Batch] | None = None) -> None:
    """Run the flow, cancel it at this moment, and wait until it has ended."""
    run = asyncio.create_task(flow.run(source or listed(batches(EVERYTHING))))
    async with asyncio.timeout(PATIENCE):
        await moment()  # type: ignore[misc]
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
