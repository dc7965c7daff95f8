from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from patient import NEVER, jump

from capture.errors import NotAloneError
from capture.ingest import source as source_module
from capture.ingest.ack_floor import DeliveryGap, Floor
from capture.ingest.record import Part
from capture.ingest.source import Source, Unsettled
from natty.wire.message import Batch


def test_a_message_is_told_of_from_its_second_beat_on_until_it_is_settled() -> None:
    unsettled = Unsettled()
    unsettled.add([b"a", b"b"])
    assert unsettled.beat() == []
    unsettled.add([b"c"])
    assert sorted(unsettled.beat()) == [b"a", b"b"]
    unsettled.remove([b"a"])
    assert sorted(unsettled.beat()) == [b"b", b"c"]
    unsettled.remove([b"b", b"c"])
    assert unsettled.beat() == []


def test_messages_that_are_settled_between_two_beats_cost_the_server_nothing() -> None:
    unsettled = Unsettled()
    for turn in range(10):
        replies = [b"%d.%d" % (turn, number) for number in range(5)]
        unsettled.add(replies)
        assert unsettled.beat() == []
        unsettled.remove(replies)
    assert len(unsettled) == 0


def test_a_message_delivered_again_is_kept_alive_on_its_own() -> None:
    unsettled = Unsettled()
    unsettled.add([b"first delivery"])
    unsettled.beat()
    unsettled.add([b"second delivery"])
    unsettled.remove([b"first delivery"])
    assert unsettled.beat() == []
    assert unsettled.beat() == [b"second delivery"]


def test_what_is_left_in_the_end_is_taken_once() -> None:
    unsettled = Unsettled()
    unsettled.add([b"a"])
    unsettled.beat()
    unsettled.add([b"b"])
    assert repr(unsettled) == "Unsettled(1 new, 1 old)"
    assert sorted(unsettled.take()) == [b"a", b"b"]
    assert unsettled.take() == []


class Quiet:
    """A pull that brings one message and then nothing; it keeps which ones it was told are in progress."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.stopped = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        yield Batch([(b"s", delivered(1, 1), b"", b"")])
        await self.stopped.wait()

    def in_progress(self, replies: list[bytes]) -> None:
        self.told += replies

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        pass

    def stop(self) -> None:
        self.stopped.set()


async def test_the_server_is_told_of_a_message_by_two_thirds_of_ack_wait() -> None:
    pull, ack_wait = Quiet(), 3000.0
    natty = SimpleNamespace(pull=lambda *_, **__: pull)
    async with Source(natty, "S", "d", ack_wait=ack_wait):  # type: ignore[arg-type]
        for _ in range(2):
            await asyncio.sleep(0.01)
            assert pull.told == []
            jump(ack_wait / 3)
        async with asyncio.timeout(60):
            while pull.told != [delivered(1, 1)]:
                await asyncio.sleep(0.01)


# --- acknowledgements that count for all before them -----------------------------------------------------------------


def delivered(sequence: int, number: int, times: int = 1) -> bytes:
    return b"$JS.ACK.S.d.%d.%d.%d.1795000000123456789.0" % (times, sequence, number)


def batch_of(*replies: bytes) -> Batch:
    return Batch([(b"s", reply, b"", b"") for reply in replies])


def acked(replies: list[bytes]) -> list[int]:
    return batch_of(*replies).sequences


def last_acked(settled: list[bytes]) -> list[int]:
    return acked(settled[-1:])


def come(floor: Floor, batch: Batch) -> list[int]:
    floor.note_delivery(batch.replies)
    return floor.note_batch(batch).sequences


def test_of_blocks_that_are_stored_out_of_order_only_the_prefix_without_a_gap_is_acked() -> None:
    floor = Floor()
    first, second, third = ([delivered(n, n) for n in range(start, start + 3)] for start in (1, 4, 7))
    for some in (first, second, third):
        come(floor, batch_of(*some))
    assert floor.note_stored(batch_of(*second)) == []
    assert floor.note_stored(batch_of(*first[1:])) == []
    settled = floor.note_stored(batch_of(*first[:1]))
    assert (set(settled), last_acked(settled)) == ({*first, *second}, [6])
    assert acked(floor.note_stored(batch_of(*third[:2]))) == [6]
    settled = floor.note_stored(batch_of(*third[2:]))
    assert (set(settled), last_acked(settled)) == ({second[-1], *third}, [9])


def test_an_ack_that_got_lost_is_repeated_and_its_messages_are_not_stored_again() -> None:
    floor = Floor()
    come(floor, batch_of(delivered(1, 1)))
    come(floor, batch_of(delivered(2, 2)))
    assert last_acked(floor.note_stored(batch_of(delivered(1, 1)))) == [1]
    assert come(floor, batch_of(delivered(1, 3, times=2))) == []
    assert acked(floor.note_stored(Part([], []))) == [1]
    settled = floor.note_stored(batch_of(delivered(2, 2)))
    assert (delivered(1, 3, times=2) in settled, last_acked(settled)) == (True, [2])
    assert come(floor, batch_of(delivered(2, 4, times=2))) == []
    settled = floor.note_stored(Part([], []))
    assert (delivered(2, 4, times=2) in settled, last_acked(settled)) == (True, [2])


def test_a_message_that_is_delivered_again_is_stored_again_only_if_it_was_handed_back() -> None:
    floor = Floor()
    come(floor, batch_of(*[delivered(one, one) for one in (1, 2, 3, 4)]))
    floor.note_stored(batch_of(delivered(2, 2)))
    floor.note_handed_back(batch_of(delivered(3, 3)))
    again = [delivered(one, 4 + one, times=2) for one in (1, 2, 3, 4)]
    assert come(floor, batch_of(*again, delivered(5, 9), delivered(6, 10), delivered(5, 11, times=2))) == [3, 5, 6]
    assert come(floor, batch_of(delivered(3, 12, times=3))) == []
    assert last_acked(floor.note_stored(batch_of(*[delivered(one, one) for one in (1, 4, 5, 6)]))) == []
    assert floor.is_waiting
    assert last_acked(floor.note_stored(batch_of(again[2]))) == [6]
    assert not floor.is_waiting


def test_what_was_handed_back_holds_the_acks_until_it_is_stored_after_all() -> None:
    floor = Floor()
    come(floor, batch_of(delivered(1, 1), delivered(2, 2)))
    come(floor, batch_of(delivered(3, 3)))
    assert floor.note_stored(batch_of(delivered(2, 2), delivered(3, 3))) == []
    assert floor.is_waiting
    floor.note_handed_back(batch_of(delivered(1, 1)))
    assert not floor.is_waiting
    assert come(floor, batch_of(delivered(1, 4, times=2))) == [1]
    assert floor.is_waiting
    assert last_acked(floor.note_stored(batch_of(delivered(1, 4, times=2)))) == [3]


@pytest.mark.parametrize("numbers", [(4,), (3, 5), (2, 3), (1, 2), (3, 4, 6)])
def test_a_delivery_that_did_not_come_here_ends_all_acks_before_it(numbers: tuple[int, ...]) -> None:
    floor = Floor()
    before = [delivered(10 + n, n) for n in (1, 2)]
    come(floor, batch_of(*before))
    came = [delivered(10 + n, n) for n in numbers]
    with pytest.raises(DeliveryGap, match=r"^delivery 2 was followed by \d, numbered \d to \d$"):
        come(floor, batch_of(*came))
    floor.note_stored(batch_of(*came))
    assert last_acked(floor.note_stored(batch_of(*before))) == [12]


class AckAll:
    """A consumer as the server keeps it: an ack takes away every pending message up to its sequence, whoever has it."""

    def __init__(self) -> None:
        self.pending: set[int] = set()
        self.floor = self.number = 0

    def deliver(self, sequences: list[int], times: int = 1) -> Batch:
        self.pending |= set(sequences)
        first, self.number = self.number + 1, self.number + len(sequences)
        return batch_of(*(delivered(one, first + index, times) for index, one in enumerate(sequences)))

    def ack(self, replies: list[bytes]) -> set[int]:
        gone = {one for one in self.pending if one <= max(acked(replies), default=0)}
        self.pending -= gone
        return gone


@pytest.mark.parametrize("seed", range(50))
def test_whatever_comes_is_stored_fails_and_comes_again_nothing_is_acked_that_is_not_stored(seed: int) -> None:
    chance, floor, server = random.Random(seed), Floor(), AckAll()
    stored: set[int] = set()
    open_blocks: dict[str, list[bytes]] = {key: [] for key in "abcd"}
    again: list[int] = []

    def take(batch: Batch) -> None:
        floor.note_delivery(batch.replies)
        for reply in floor.note_batch(batch).replies:
            open_blocks[chance.choice("aaabbcd")].append(reply)

    def commit(key: str) -> None:
        replies, open_blocks[key] = open_blocks[key], []
        stored.update(acked(replies))
        settled = floor.note_stored(batch_of(*replies))
        assert max(acked(settled), default=0) == max(last_acked(settled), default=0)
        assert server.ack(settled[-1:]) <= stored

    last = 0
    for _ in range(200):
        turn = chance.random()
        if turn < 0.5:
            wanted = sorted(chance.sample(range(last + 1, last + 30), chance.randint(1, 12)))  # some were deleted
            last = wanted[-1]
            take(server.deliver(wanted))
        elif turn < 0.6 and again:
            take(server.deliver(again, times=2))
            again = []
        elif turn < 0.7:
            key = chance.choice("abcd")  # its store fails
            again += [one for one in acked(open_blocks[key]) if one in server.pending and one not in again]
            floor.note_handed_back(batch_of(*open_blocks[key]))
            open_blocks[key] = []
        else:
            commit(chance.choice("abcd"))
    take(server.deliver(sorted(again) or [last + 1], times=2))
    for key in "abcd":
        commit(key)
    assert server.pending == set()


class Piece:
    """A pull that brings some batches, each when the one before is taken, and then nothing until it is stopped."""

    def __init__(self, batches: list[Batch], renewals: int = 0) -> None:
        self.batches = batches
        self.counts = SimpleNamespace(renewals=renewals)
        self.acks: list[bytes] = []
        self.taken, self.stopped = asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        for batch in self.batches:
            yield batch
            await self.taken.wait()
            self.taken.clear()
        await self.stopped.wait()

    def ack(self, replies: list[bytes]) -> None:
        self.acks += replies

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        pass

    def finish(self, messages: int) -> None:
        if messages:
            self.taken.set()

    def stop(self) -> None:
        self.stopped.set()


class Server:
    """Answers what a source asks of its consumer: who waits, and to begin anew; keeps what it was asked."""

    def __init__(self, pieces: list[Piece], waiting: list[int]) -> None:
        self.pieces, self.waiting = iter(pieces), waiting
        self.asked: list[str] = []
        self.jetstream = self

    def pull(self, *_: object, **__: object) -> Piece:
        return next(self.pieces, Piece([]))

    async def request(self, subject: str) -> dict[str, Any]:
        self.asked.append(subject.split(".")[1])
        return {"num_waiting": self.waiting.pop(0) if self.waiting else 0}


def alone(server: Server) -> Source:
    return Source(server, "S", "d", ack_wait=NEVER, together=True)  # type: ignore[arg-type]


async def test_what_was_lost_with_a_connection_is_asked_for_again_from_the_last_ack_on() -> None:
    lost = Piece([batch_of(delivered(1, 1)), batch_of(delivered(4, 4))], renewals=1)
    anew = Piece([batch_of(delivered(1, 1)), batch_of(delivered(2, 2), delivered(3, 3))])
    server = Server([lost, anew], waiting=[])
    come: list[int] = []
    async with asyncio.timeout(60), alone(server) as source:
        async for batch in source:
            come += batch.sequences
            source.ack(batch)
            if come[-3:] == [1, 2, 3]:
                source.stop()
    assert server.asked == ["INFO", "RESET"] * 2
    assert acked(anew.acks)[-1] == 3
    assert 4 not in come


async def acknowledge_all(source: Source) -> None:
    async with asyncio.timeout(60), source:
        async for batch in source:
            source.ack(batch)


async def test_a_delivery_to_somebody_else_ends_the_source_before_it_is_acked() -> None:
    piece = Piece([batch_of(delivered(1, 1)), batch_of(delivered(9, 3))])
    with pytest.raises(
        NotAloneError,
        match=r"consumer d of stream S has another reader, .* delivery 1 was followed by 1, numbered 3 to 3",
    ):
        await acknowledge_all(alone(Server([piece], waiting=[])))
    assert set(acked(piece.acks)) == {1}


async def test_a_reader_that_leaves_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "TICK", 0.001)
    leaves = Server([], waiting=[1, 1, 0])
    async with asyncio.timeout(60), alone(leaves) as source:
        async for _ in source:
            if "RESET" in leaves.asked:
                source.stop()
    assert leaves.asked == ["INFO", "INFO", "INFO", "RESET"]


async def test_a_reader_that_stays_is_told_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "ALONE_WITHIN", 0.0)
    stays = Server([], waiting=[2] * 1000)
    with pytest.raises(NotAloneError, match="it requests messages right now, 2 times"):
        await acknowledge_all(alone(stays))
    assert "RESET" not in stays.asked
