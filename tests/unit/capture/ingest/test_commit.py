from __future__ import annotations

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from capture.archive.manifest import Partition, Stored, entry_path
from capture.archive.sequences import Sequences
from capture.errors import AlreadyStoredError, ConfigError, StoreError, StoreFullError, WriterError
from capture.formats import parquet, writer
from capture.formats.own_format import OwnFormat
from capture.ingest.block import SealedBlock
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.hooks import Completion
from capture.ingest.layout import Layout, dated
from capture.ingest.record import Delivered, Records
from capture.stores.memory import MemoryStore


def block(*sequences: int, deliveries: int = 1) -> SealedBlock:
    count = len(sequences)
    records = Records(
        "FLIGHTS",
        list(sequences),
        [1_792_540_800 * 10**9] * count,
        [b"flights.EWR"] * count,
        [b""] * count,
        [b"x"] * count,
        [deliveries] * count,
        [b"reply.%d" % sequence for sequence in sequences],
        [None] * count,
    )
    return SealedBlock("FLIGHTS", "EWR", 1_792_540_800, records, "age")


class Ledger:
    """An acknowledger that keeps what was settled, and in which order with the store's puts."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.acked: list[bytes] = []
        self.handed_back: list[bytes] = []
        self.delays: dict[bytes, float] = {}

    def ack(self, messages: Delivered) -> None:
        self.events.append("ack")
        self.acked += messages.replies

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        self.events.append("nak")
        self.handed_back += messages.replies
        self.delays |= dict.fromkeys(messages.replies, delay)


class Unreliable(MemoryStore):
    """A memory store whose first puts fail."""

    def __init__(self, events: list[str], failures: int = 0, error: StoreError | None = None) -> None:
        super().__init__("unreliable")
        self.events = events
        self.failures = failures
        self.error = error or StoreError("the disk is away")

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        if self.failures:
            self.failures -= 1
            self.events.append("failed")
            raise self.error
        await super().put(path, data, if_absent=if_absent)
        self.events.append(f"put {path.split('/')[0]}")


class Setting:
    def __init__(
        self, failures: int = 0, error: StoreError | None = None, layout: Layout = Partition.hive, **options: object
    ) -> None:
        self.events: list[str] = []
        self.slept: list[float] = []
        self.told: list[Completion] = []
        self.store = Unreliable(self.events, failures, error)
        self.ledger = Ledger(self.events)
        self.committer = Committer(
            self.store,
            writer("parquet"),
            self.ledger,
            CommitOptions(node="node-1", **options),  # type: ignore[arg-type]
            layout=layout,
            on_complete=self.completed,
            clock=lambda: 5.0,
            sleep=self.sleep,
        )

    def completed(self, completion: Completion) -> None:
        self.events.append("told")
        self.told.append(completion)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_a_block_is_durable_then_visible_then_acknowledged() -> None:
    setting = Setting()
    await setting.committer.commit(block(1, 2))
    assert setting.events == ["put blocks", "put _entries", "ack", "told"]
    assert setting.ledger.acked == [b"reply.1", b"reply.2"]


async def test_the_entry_says_exactly_what_the_block_holds() -> None:
    setting = Setting()
    stored = await setting.committer.commit(block(3, 5, 9))
    data = await setting.store.get(stored.path)
    assert msgspec.json.decode(await setting.store.get(entry_path(stored.path)), type=Stored) == stored
    assert parquet.ParquetWriter().read(data)["sequence"].to_pylist() == [3, 5, 9]
    assert (stored.bytes, stored.sha256) == (len(data), sha256(data).hexdigest())
    assert list(Sequences.from_bytes(stored.sequences)) == [3, 5, 9]
    assert (stored.stream, stored.key, stored.interval) == ("FLIGHTS", "EWR", 1_792_540_800)
    assert (stored.first, stored.last, stored.count, stored.format) == (3, 9, 3, "parquet")
    assert (stored.node, stored.stored_ns) == ("node-1", 5 * 10**9)
    assert f"FLIGHTS-3-9-3-{stored.sha256[:8]}-" in stored.path


async def test_who_wants_to_know_is_told_of_a_stored_block_after_the_ack() -> None:
    setting = Setting()
    stored = await setting.committer.commit(block(3, 5, 9))
    [told] = setting.told
    assert (told.stream, told.key, told.path, told.bytes) == ("FLIGHTS", "EWR", stored.path, stored.bytes)
    assert (told.first, told.last, told.count, told.error) == (3, 9, 3, None)
    assert told.duration > 0


@pytest.mark.parametrize("lost", ["blocks/", "_entries/"])
async def test_what_is_stored_although_the_store_said_no_is_acknowledged(lost: str) -> None:
    setting = Setting()
    put = setting.store.put

    async def put_and_lose_the_answer(path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        await put(path, data, if_absent=if_absent)
        if path.startswith(lost):
            raise StoreError("the connection was closed")

    setting.store.put = put_and_lose_the_answer  # type: ignore[method-assign]
    await setting.committer.commit(block(1))
    assert setting.ledger.acked == [b"reply.1"]
    assert setting.told[0].error is None
    assert len(await setting.store.list()) == 2


async def test_a_store_that_comes_back_is_waited_for_with_growing_pauses() -> None:
    setting = Setting(failures=3, backoff=1.0, max_backoff=2.0)
    await setting.committer.commit(block(1))
    assert setting.events == ["failed"] * 3 + ["put blocks", "put _entries", "ack", "told"]
    for pause, longest in zip(setting.slept, [1.0, 2.0, 2.0], strict=True):
        assert longest / 2 <= pause <= longest


async def test_after_the_last_attempt_the_messages_are_handed_back() -> None:
    setting = Setting(failures=99, attempts=3)
    with pytest.raises(StoreError, match=r"2 messages of FLIGHTS \(1–2, key 'EWR'\) could not .*tried 3 times"):
        await setting.committer.commit(block(1, 2))
    assert setting.events == ["failed"] * 3 + ["nak", "told"]
    assert setting.ledger.handed_back == [b"reply.1", b"reply.2"]


async def test_who_wants_to_know_is_told_of_a_failure_with_its_error_and_the_path_that_was_tried() -> None:
    setting = Setting(failures=99, attempts=1)
    with pytest.raises(StoreError) as failure:
        await setting.committer.commit(block(1, 2))
    [told] = setting.told
    assert (told.error, told.key, told.count) == (failure.value, "EWR", 2)
    assert told.path.startswith("blocks/stream=FLIGHTS/key=EWR/")
    assert told.bytes > 0


@pytest.mark.parametrize(
    ("ladder", "delays"),
    [([], [0, 0, 0, 0]), ([2.5], [2.5] * 4), ([1.0, 5.0, 60.0], [1.0, 5.0, 60.0, 60.0])],
    ids=["at once", "with a delay", "growing"],
)
async def test_what_was_handed_back_comes_again_the_later_the_more_often_it_came(
    ladder: list[float], delays: list[float]
) -> None:
    setting = Setting(failures=99, attempts=1, redeliver_after=ladder)
    for deliveries, delay in enumerate(delays, 1):
        with pytest.raises(StoreError):
            await setting.committer.commit(block(deliveries, deliveries=deliveries))
        assert setting.ledger.delays[b"reply.%d" % deliveries] == delay


async def test_the_messages_of_one_block_are_handed_back_each_by_its_own_deliveries() -> None:
    setting = Setting(failures=99, attempts=1, redeliver_after=[1.0, 5.0])
    mixed = block(1, 2, 3)
    mixed.records.deliveries[:] = [1, 2, 1]
    with pytest.raises(StoreError):
        await setting.committer.commit(mixed)
    assert setting.ledger.delays == {b"reply.1": 1.0, b"reply.2": 5.0, b"reply.3": 1.0}


async def test_a_layout_decides_where_a_block_lies_and_the_name_still_tells_what_is_in_it() -> None:
    setting = Setting(layout=dated)
    stored = await setting.committer.commit(block(3, 5, 9))
    folder, _, name = stored.path.rpartition("/")
    assert folder == "blocks/EWR/2026/10/21/00/00"
    assert name.startswith(f"FLIGHTS-3-9-3-{stored.sha256[:8]}")
    assert stored.key == "EWR"
    assert entry_path(stored.path) in [one.path for one in await setting.store.list()]


async def test_the_kind_of_a_store_error_is_kept() -> None:
    setting = Setting(failures=99, error=StoreFullError("no space left"), attempts=1)
    with pytest.raises(StoreFullError, match="no space left"):
        await setting.committer.commit(block(1))


async def test_what_is_no_store_error_acknowledges_and_hands_back_nothing() -> None:
    class Broken(parquet.ParquetWriter):
        def write(self, block: SealedBlock) -> bytes:
            raise ValueError("a fault of ours")

    events: list[str] = []
    told: list[Completion] = []
    committer = Committer(Unreliable(events), Broken(), Ledger(events), on_complete=told.append)
    with pytest.raises(ValueError, match="a fault of ours") as fault:
        await committer.commit(block(1))
    assert events == []
    assert [(one.path, one.bytes, one.count, one.error) for one in told] == [("", 0, 1, fault.value)]


async def test_the_traceback_of_a_users_writer_is_logged_once_for_each_fault(caplog: pytest.LogCaptureFixture) -> None:
    class Mine:
        format = "mine"

        def write(self, block: SealedBlock) -> bytes:
            if block.first < 3:
                raise KeyError(block.first)
            raise ValueError(block.first)

    events: list[str] = []
    committer = Committer(Unreliable(events), OwnFormat.of(Mine()), Ledger(events))
    for sequence in range(1, 5):
        with pytest.raises(
            WriterError, match=r"could not be stored: the writer Mine failed on 1 message: \w+: \d\. None"
        ):
            await committer.commit(block(sequence))
    texts = [logging.Formatter().format(one) for one in caplog.records]
    assert [(text.splitlines()[0], text.splitlines()[-1]) for text in texts] == [
        ("the writer Mine failed on 1 message: KeyError: 1", "KeyError: 1"),
        ("the writer Mine failed on 1 message: ValueError: 3", "ValueError: 3"),
    ]
    assert all(f'File "{__file__}", line' in text for text in texts)
    assert events == ["nak"] * 4


async def test_a_commit_cancelled_while_it_waits_for_the_store_acknowledges_nothing() -> None:
    setting = Setting(failures=99)
    waiting = asyncio.Event()

    async def forever(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    setting.committer._sleep = forever
    committer = setting.committer
    commit = asyncio.create_task(committer.commit(block(1)))
    await waiting.wait()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert setting.events == ["failed", "told"]
    assert isinstance(setting.told[0].error, asyncio.CancelledError)


async def test_a_block_whose_entry_comes_too_late_is_given_up_because_the_sweep_may_have_removed_it() -> None:
    setting = Setting(give_up=10.0)
    times = iter([0.0, 0.0, 1.0, 10.5])  # recorded, before the block, after it, after the entry
    setting.committer._clock = lambda: next(times)
    with pytest.raises(StoreError, match=r"a durable entry, more than 10 s, half of the sweep's grace"):
        await setting.committer.commit(block(1))
    assert setting.events == ["put blocks", "put _entries", "nak", "told"]
    assert setting.ledger.acked == []


async def test_a_block_that_took_too_long_gets_no_entry() -> None:
    setting = Setting(give_up=10.0)
    times = iter([0.0, 0.0, 11.0])
    setting.committer._clock = lambda: next(times)
    with pytest.raises(StoreError, match="the store is too slow"):
        await setting.committer.commit(block(1))
    assert setting.events == ["put blocks", "nak", "told"]


async def test_an_equal_block_that_vanishes_meanwhile_is_given_up() -> None:
    setting = Setting()

    async def refuse(path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        raise AlreadyStoredError(path)

    setting.store.put = refuse  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="removed it before its entry was written"):
        await setting.committer.commit(block(1))
    assert setting.events == ["nak", "told"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"backoff": -1.0},
        {"backoff": 9.0, "max_backoff": 3.0},
        {"give_up": 0.0},
        {"redeliver_after": [1.0, -1.0]},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        CommitOptions(**wrong)  # type: ignore[arg-type]


def test_its_repr_says_where_it_stores() -> None:
    assert repr(Setting().committer) == "Committer(memory://unreliable, parquet, node='node-1')"
