"""Each call of a commit to the store and the server, struck on either side: nothing is lost, or there twice.

The steps on the disk below them, and the power that is cut, are those of `disk_steps`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path

import pytest
from patient import PATIENCE

from capture.archive.manifest import BLOCKS
from capture.archive.picture import read_picture
from capture.decoders import decoder
from capture.errors import StoreError
from capture.formats import parquet, writer
from capture.ingest.block import Limits, OpenBlocks
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.pipeline import InFlight, capture
from capture.ingest.record import Delivered
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.partitioners import partitioner
from capture.stores.file import FileStore
from capture.testing import ArrowEngine, HeadState, MemoryHead
from capture.verification.objects import Holdings, read_archive
from natty.wire.ack import ack_tokens
from natty.wire.message import Batch, RawMessage

MESSAGES = range(1, 25)
GRACE = 900.0
LIVES = 4  # of the process, until everything must be stored

PUTS = ("put block", "put entry")
SIDES = ("before", "after")


class Crash(BaseException):
    """The process is gone."""


class Server:
    """The stream and its consumer: what is not acknowledged is delivered again."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.waiting = list(MESSAGES)
        self.deliveries = dict.fromkeys(MESSAGES, 0)

    def restarted(self) -> None:
        """Deliver to another process what this one has not acknowledged."""
        self.waiting = sorted(set(MESSAGES) - self.acked)

    async def messages(self) -> AsyncIterator[Batch]:
        """Deliver until nothing is left, messages that were handed back too."""
        while self.waiting:
            some, self.waiting = self.waiting[:5], self.waiting[5:]
            yield Batch([self._deliver(sequence) for sequence in some])
            for _ in range(3):
                await asyncio.sleep(0)

    def _deliver(self, sequence: int) -> RawMessage:
        self.deliveries[sequence] += 1
        numbers = self.deliveries[sequence], sequence, sequence
        return b"orders." + key(sequence), b"$JS.ACK.ORDERS.c.%d.%d.%d.1000.0" % numbers, b"", payload(sequence)


def key(sequence: int) -> bytes:
    return (b"eu", b"us")[sequence % 2]


def payload(sequence: int) -> bytes:
    return b"payload %d" % sequence


class Fault:
    """Strikes once, the n-th time that a step is reached, before or after it."""

    def __init__(self, step: str = "", side: str = "", kind: str = "", number: int = 1) -> None:
        self.step, self.side, self.kind = step, side, kind
        self.left = number
        self.struck = False
        self.dead = False
        self.flow: asyncio.Task[None] | None = None

    def at(self, step: str, side: str, error: Exception) -> str:
        """Strike if this is the moment; return how, where the caller has a part in it."""
        if self.dead:
            raise Crash
        if (step, side) != (self.step, self.side) or self.struck:
            return ""
        self.left -= 1
        self.struck = not self.left
        if not self.struck:
            return ""
        if self.kind == "crash":
            self.dead = True
            raise Crash
        if self.kind == "cancel":
            assert self.flow is not None
            self.flow.cancel()
        elif self.kind != "lost":
            raise error
        return self.kind


class StruckStore(FileStore):
    def __init__(self, root: Path, fault: Fault) -> None:
        super().__init__(root)
        self.fault = fault
        self.refuses = fault.step == "nak"  # once, so that something is handed back

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        step = PUTS[not path.startswith(BLOCKS)]
        await self._reach(step, "before")
        if self.refuses:
            self.refuses = False
            raise StoreError("the disk is away")
        await super().put(path, data, if_absent=if_absent)
        await self._reach(step, "after")

    async def _reach(self, step: str, side: str) -> None:
        if self.fault.at(step, side, StoreError("the disk is away")) == "cancel":
            await asyncio.Event().wait()


class Link:
    """Where messages are settled: on the server, as long as this process lives."""

    def __init__(self, server: Server, fault: Fault) -> None:
        self.server, self.fault = server, fault

    def ack(self, messages: Delivered) -> None:
        if self._reach("ack", "before") != "lost":
            self.server.acked |= set(messages.sequences)
        self._reach("ack", "after")

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        if self._reach("nak", "before") != "lost":
            self.server.waiting += sorted(messages.sequences)
        self._reach("nak", "after")

    def _reach(self, step: str, side: str) -> str:
        return self.fault.at(step, side, RuntimeError("a fault of ours"))


def sequences(replies: list[bytes]) -> set[int]:
    return {int(ack_tokens(reply)[5]) for reply in replies}


async def live(server: Server, root: Path, fault: Fault) -> None:
    """Run a process until it has nothing left to do, or to its end by the fault."""
    attempts = 2 if fault.kind == "raise once" else 1
    store, link = StruckStore(root, fault), Link(server, fault)
    committer = Committer(store, writer("parquet"), link, CommitOptions(attempts=attempts, backoff=0.0))
    blocks = OpenBlocks(Limits(max_messages=3))
    in_flight = InFlight(blocks, stop_on_failure=fault.kind == "raise")
    partition = partitioner("subject:1")
    fault.flow = asyncio.create_task(
        capture(server.messages(), decoder("raw"), partition, blocks, committer.commit, in_flight=in_flight)
    )
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([fault.flow])
    if (error := None if fault.flow.cancelled() else fault.flow.exception()) is not None:
        assert fault.struck, error
        assert isinstance(error, StoreError | RuntimeError | Crash | BaseExceptionGroup)


async def swept(root: Path, manifest: HeadState, token: int) -> None:
    """Sweep so late that every leftover is removed."""
    late = time.time() + 2 * GRACE
    await sweep(Leading(FileStore(root), MemoryHead(token, manifest), HeadState().read, grace=GRACE), now=late)


async def assert_each_is_there_once(root: Path, manifest: HeadState) -> None:
    store, table = FileStore(root), HeadState()
    await sweep(Leading(store, MemoryHead(9, manifest), table.read, grace=GRACE), now=time.time())
    held = (await read_archive(store, await read_picture(store, manifest.read, table.read), deep=True)).get(
        "ORDERS", Holdings()
    )
    assert (list(held.stored), held.problems) == (list(MESSAGES), ())
    policy = Policy(min_files=1, max_wait=0.0, max_groups=100)
    await compact(TableLeading(store, MemoryHead(1, table), manifest.read, grace=1e9), ArrowEngine(), policy, now=0.0)
    picture = await read_picture(store, manifest.read, table.read)
    assert not picture.blocks
    files = [parquet.ParquetWriter().read(await store.get(one.path)) for one in picture.files]
    rows = [row for one in files for row in one.select(["sequence", "payload"]).to_pylist()]
    assert sorted((row["sequence"], row["payload"]) for row in rows) == [(n, payload(n)) for n in MESSAGES]


def strokes() -> Iterator[tuple[str, str, str]]:
    """Yield every step, side and fault; a nak is reached only where the store has failed."""
    yield from product(PUTS, SIDES, ("raise", "raise once", "go on", "cancel", "crash"))
    yield from product(("ack", "nak"), SIDES, ("raise", "cancel", "crash"))
    yield from product(("ack", "nak"), ("before",), ("lost",))


@pytest.mark.parametrize(("step", "side", "kind"), list(strokes()))
async def test_whatever_strikes_a_step_of_a_commit_every_message_is_stored_and_dedup_leaves_each_once(
    step: str, side: str, kind: str, tmp_path: Path
) -> None:
    server, manifest = Server(), HeadState()
    fault = Fault(step, side, kind, number=1 if step == "nak" else 3)
    await live(server, tmp_path, fault)
    assert fault.struck
    if kind == "crash":
        await swept(tmp_path, manifest, 1)
    for life in range(LIVES):
        if server.acked == set(MESSAGES):
            break
        server.restarted()
        await live(server, tmp_path, Fault())
        await swept(tmp_path, manifest, 2 + life)
    assert server.acked == set(MESSAGES)
    await assert_each_is_there_once(tmp_path, manifest)


async def test_without_a_fault_each_message_is_stored_by_its_first_delivery(tmp_path: Path) -> None:
    server = Server()
    await live(server, tmp_path, Fault())
    assert server.acked == set(MESSAGES)
    assert set(server.deliveries.values()) == {1}
    await assert_each_is_there_once(tmp_path, HeadState())
