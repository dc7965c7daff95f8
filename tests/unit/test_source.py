from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

from patient import jump

from capture.source import Source, Unsettled
from natty.message import Batch


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
        yield Batch([(b"s", b"the reply", b"", b"")])
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
            while pull.told != [b"the reply"]:
                await asyncio.sleep(0.01)
