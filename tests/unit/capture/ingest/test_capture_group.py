"""Reading through a group: how far all is, and what a reader says when it is, or is not, the one that is pinned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from patient import until

from capture.config.consumers import Position
from capture.ingest import pinned_consumer
from capture.ingest.group_source import by_consumer, roster_key
from capture.ingest.pinned_consumer import PinnedReader
from capture.ingest.record import Part
from natty.elections import clock
from natty.errors import NattyError, RequestTimeoutError
from natty.groups.stint import Kept
from natty.pulling.pin import Pin, is_cut
from natty.wire.message import Batch, RawMessage

PIN = "mFhCRrmSCFbMXMkDYWtnVn"


def state(floor: int, delivered: int, pending: int = 0, unacked: int = 0) -> dict[str, Any]:
    return {
        "ack_floor": {"stream_seq": floor},
        "delivered": {"stream_seq": delivered},
        "num_pending": pending,
        "num_ack_pending": unacked,
    }


@pytest.mark.parametrize(
    ("states", "position"),
    [
        ([state(7, 9, 0, 2)], Position(7, 9, 0, 2)),
        ([state(7, 9, 3, 2), state(20, 20)], Position(7, 9, 3, 2)),  # who lacks nothing holds up nobody
        ([state(7, 9, 0, 2), state(4, 30, 1, 0)], Position(4, 30, 1, 2)),
        ([state(7, 7), state(20, 20)], Position(20, 20, 0, 0)),
        ([state(0, 0), state(0, 0, 5)], Position(0, 0, 5, 0)),
        ([state(0, 20)], Position(20, 20, 0, 0)),  # what a server says after a purge by subject
    ],
)
def test_of_several_consumers_the_one_furthest_behind_tells_how_far_all_is(
    states: list[dict[str, Any]], position: Position
) -> None:
    assert Position.of(states) == position


def batch_of(*replies: bytes) -> Batch:
    return Batch([(b"s", reply, b"", b"") for reply in replies])


def test_acknowledgements_go_to_the_consumer_that_they_are_of() -> None:
    ours, theirs = delivered(1, 1), delivered(2, 1, "g-p1")
    assert by_consumer(batch_of(ours, theirs, ours)) == {
        "g-p0": Part([1, 1], [ours, ours]),
        "g-p1": Part([2], [theirs]),
    }
    assert by_consumer(batch_of()) == {}


def test_nodes_register_apart_from_the_members_of_an_elastic_group_of_that_name() -> None:
    assert roster_key("ORDERS", "g") == "capture.ORDERS.g"


# --- the mark of who reads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "stored"),
    [
        (b"", b""),
        (b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"),
        (b"NATS/1.0\r\nNats-Pin-Id: x\r\n\r\n", b"NATS/1.0\r\nNats-Pin-Id: x\r\n\r\n"),
        (b"NATS/1.0\r\n\r\n", b""),
        (b"NATS/1.0\r\nNats-Pin-Id: x\r\nA: bcd", b"NATS/1.0\r\nNats-Pin-Id: x\r\nA: b"),  # it has no end
    ],
)
def test_only_the_servers_mark_is_taken_off(published: bytes, stored: bytes) -> None:
    pin = Pin("PCG", lambda: None, lambda: None, lambda: None)
    message = (b"s", b"r", marked(published), b"payload")
    pin.note_delivery(message[2])
    assert pin.id == PIN
    assert pin.strip_marks([message]) == [(b"s", b"r", stored, b"payload")]
    assert is_cut((b"s", b"r", stored, b"payload")) == published.endswith(b"bcd")


def test_messages_under_another_pin_are_not_ours() -> None:
    pin = Pin("PCG", lambda: None, lambda: None, lambda: None)
    ours, theirs = (b"s", b"r", marked(b""), b""), (b"s", b"r", marked(b"", "another"), b"")
    assert pin.strip_marks([ours]) is None  # nobody is pinned
    pin.note_delivery(ours[2])
    assert pin.strip_marks([ours, theirs]) is None


def marked(block: bytes, pin: str = PIN) -> bytes:
    return (block[:-2] or b"NATS/1.0\r\n") + f"Nats-Pin-Id: {pin}\r\n\r\n".encode()


def delivered(sequence: int, number: int, consumer: str = "g-p0") -> bytes:
    return b"$JS.ACK.S.%s.1.%d.%d.1795000000123456789.0" % (consumer.encode(), sequence, number)


# --- a reader --------------------------------------------------------------------------------------------------------


def message(sequence: int, number: int, pin: str = PIN, block: bytes = b"") -> RawMessage:
    return b"0.S.x", delivered(sequence, number), marked(block, pin), b""


class Server:
    """A consumer as its readers see it; `pieces` are what one pull after the other brings."""

    def __init__(self, *pieces: list[RawMessage]) -> None:
        self.pieces = list(pieces)
        self.asked: list[str] = []
        self.acked: list[int] = []
        self.ours, self.lease = True, 3600.0
        self.info: dict[str, Any] = {"num_ack_pending": 0, "config": {}}
        self.blocks: list[Any] = []
        self.jetstream = self
        self.connection = SimpleNamespace(connected=True, flush=self.flush, request=self.confirm)

    async def flush(self, timeout: float) -> None:
        pass

    async def confirm(self, reply: str, ack: bytes, timeout: float) -> None:
        self.acked += batch_of(reply.encode()).sequences

    async def request(self, subject: str, body: object = None) -> dict[str, Any]:
        self.asked.append(subject.split(".")[1])
        return self.info

    async def read(self, stream: str, *, sequence: int) -> SimpleNamespace | None:
        self.asked.append(f"{sequence}")
        answer = self.blocks.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer and SimpleNamespace(header_block=answer)

    async def keep(self, *_: object) -> Kept:
        return Kept(self.ours, clock() + self.lease, {})


class Piece:
    """A pull that brings what the server has for it, and then nothing until it is stopped."""

    def __init__(self, server: Server, stream: str, consumer: str, options: object, *, pin: Pin) -> None:
        self.server, self.pin = server, pin
        self.stopped = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        messages = self.server.pieces.pop(0) if self.server.pieces else []
        if messages:
            self.pin.note_delivery(messages[0][2])
            yield Batch(messages)
        await self.stopped.wait()

    def respect(self, config: dict[str, int]) -> None:
        pass

    def stop(self) -> None:
        self.stopped.set()

    def finish(self, count: int) -> None:
        pass

    def ack(self, replies: list[bytes]) -> None:
        self.server.acked += batch_of(*replies).sequences


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KEEP_EVERY", 0.01), ("TICK", 0.001), ("Pull", Piece)):
        monkeypatch.setattr(pinned_consumer, name, value)
    monkeypatch.setattr(pinned_consumer, "keep_pin", lambda server, *_: server.keep())
    monkeypatch.setattr(pinned_consumer, "parse_info", lambda info: SimpleNamespace(pinned=info.get("pinned", "")))


def reader_of(server: Server) -> PinnedReader:
    natty: Any = server
    return PinnedReader(natty, "S", "g-p0", ack_wait=3600.0, read_ahead=10, wake=lambda: None)


async def read(reader: PinnedReader, count: int) -> list[bytes]:
    """Take so many messages, as the pipeline does, and return their ack subjects."""
    taken: list[RawMessage] = []
    while len(taken) < count:
        await until(lambda: bool(reader.arrived))
        taken += reader.take()[0]
    return [raw[1] for raw in taken]


async def test_who_is_pinned_begins_at_the_last_acknowledgement_and_says_up_to_where_all_is_stored(quick: None) -> None:
    server = Server([message(5, 3)], [message(1, 1), message(3, 2), message(5, 3)])
    reader = reader_of(server)
    first, second, third = await read(reader, 3)
    assert server.asked[0] == "RESET"
    reader.ack(batch_of(second, third))
    assert server.acked == []
    reader.ack(batch_of(first))
    assert server.acked == [5]
    await reader.close()
    assert server.asked[-1] == "UNPIN"


async def test_nothing_is_acknowledged_after_the_pin_is_lost(quick: None) -> None:
    server = Server([message(1, 1)], [message(1, 1), message(2, 2)])
    reader = reader_of(server)
    replies = await read(reader, 2)
    server.ours = False
    await until(lambda: not reader.pinned)
    reader.ack(batch_of(*replies))
    assert server.acked == []
    await reader.close()
    assert "UNPIN" not in server.asked


async def test_an_acknowledgement_after_the_time_of_the_pin_waits_until_the_server_says_that_it_is_ours(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server([message(1, 1)], [message(1, 1), message(2, 2)])
    server.lease = -1.0
    reader = reader_of(server)
    replies = await read(reader, 2)
    reader.ack(batch_of(*replies))
    assert server.acked == []
    server.lease = 3600.0
    await until(lambda: server.acked == [2])
    await reader.close()


@pytest.mark.parametrize("wrong", [message(4, 4), message(3, 3, "another")], ids=["a gap", "another's message"])
async def test_what_did_not_come_here_is_asked_for_again_before_anything_behind_it_is_acknowledged(
    quick: None, wrong: RawMessage
) -> None:
    whole = [message(one, one) for one in range(1, 5)]
    server = Server([message(1, 1)], [*whole[:2], wrong], whole)
    reader = reader_of(server)
    replies = await read(reader, 4)
    assert server.asked[:2] == ["RESET", "RESET"]
    reader.ack(batch_of(*replies))
    assert server.acked == [4]
    await reader.close()


@pytest.mark.parametrize(
    ("answers", "stored"),
    [
        ([b"NATS/1.0\r\nA: bcd"], b"NATS/1.0\r\nA: bcd"),
        ([RequestTimeoutError(), b"NATS/1.0\r\nA: bcd"], b"NATS/1.0\r\nA: bcd"),
        ([None], b"NATS/1.0\r\nA: b"),  # the message has left the stream
        ([NattyError("not permitted")], b"NATS/1.0\r\nA: b"),
    ],
    ids=["known", "later", "gone", "refused"],
)
async def test_headers_without_an_end_are_read_from_the_stream_and_stop_nobody(
    quick: None, answers: list[Any], stored: bytes
) -> None:
    odd = message(2, 2, block=b"NATS/1.0\r\nA: bcd")
    server = Server([odd], *[[message(1, 1), odd, message(3, 3)] for _ in answers])
    server.blocks = answers
    reader = reader_of(server)
    await until(lambda: len(reader.arrived) == 3)
    assert [raw[2] for raw in reader.arrived] == [b"", stored, b""]
    reader.ack(Batch(reader.take()[0]))
    assert server.acked == [3]
    await reader.close()


@pytest.mark.parametrize(
    ("info", "roused"),
    [
        ({"num_ack_pending": 3}, True),
        ({"num_ack_pending": 3, "pinned": "another"}, False),
        ({"num_ack_pending": 0}, False),
    ],
)
async def test_a_standby_has_what_a_dead_one_left_delivered_and_leaves_a_living_one_alone(
    quick: None, info: dict[str, Any], roused: bool
) -> None:
    server = Server()
    server.info |= info
    reader = reader_of(server)
    await until(lambda: len(server.asked) > 3)
    assert ("RESET" in server.asked) == roused
    await reader.close()


async def test_a_hand_over_waits_for_what_was_read_and_seals_it(quick: None) -> None:
    server = Server([message(1, 1)], [message(1, 1), message(2, 2)])
    reader = reader_of(server)
    replies = await read(reader, 2)
    sealed = asyncio.Event()
    leaving = asyncio.create_task(reader.release(3600.0, sealed.set))
    await until(sealed.is_set)
    assert "UNPIN" not in server.asked
    reader.ack(batch_of(*replies))
    await leaving
    assert (server.acked[-1], server.asked[-1]) == (2, "UNPIN")
