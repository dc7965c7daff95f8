"""Which sequences a node without a consumer reads, and by which requests."""

from __future__ import annotations

import asyncio
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import AsyncMock, MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patient import PATIENCE, until

from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import CaptureError
from capture.node.direct_source import CHUNK, NEAR, DirectSource, Reach, Share, join_runs, select_wanted
from capture.reading.remaining import Remaining
from natty import Batch
from natty.wire.ack import ack_subjects

SPANS = st.tuples(st.integers(1, 40 * CHUNK), st.integers(0, 20 * CHUNK)).map(lambda one: (one[0], one[0] + one[1]))


@given(st.integers(1, 7), SPANS)
def test_the_shares_of_all_nodes_are_the_range_and_each_sequence_is_in_one(count: int, span: tuple[int, int]) -> None:
    shares = [[*Share(place, count).pieces(*span)] for place in range(count)]
    assert all(pieces == sorted(pieces) for pieces in shares)
    sets = [Sequences.from_range(*piece) for pieces in shares for piece in pieces]
    assert Sequences.union_of(sets) == Sequences.from_range(*span)
    assert sum(map(len, sets)) == span[1] - span[0] + 1


def test_a_share_without_an_end_is_given_piece_by_piece() -> None:
    found = [*islice(Share(1, 3).pieces(CHUNK + 5, MAXIMUM), 2)]
    assert found == [(CHUNK + 5, 2 * CHUNK - 1), (4 * CHUNK, 5 * CHUNK - 1)]
    assert next(Share(0, 1).pieces(17, MAXIMUM)) == (17, MAXIMUM)


@given(st.sets(st.integers(1, 5000), max_size=40))
def test_near_runs_are_read_by_one_request_and_distant_ones_by_their_own(wanted: set[int]) -> None:
    runs = [*join_runs(Sequences.from_iterable(wanted))]
    assert [one for one in sorted(wanted) if not any(first <= one <= last for first, last in runs)] == []
    assert all(first in wanted and last in wanted for first, last in runs)
    assert all(later[0] - earlier[1] > NEAR for earlier, later in pairwise(runs))


def test_of_an_answer_only_the_wanted_messages_are_taken() -> None:
    replies = ack_subjects("S", "direct", [3, 4, 9], [0, 0, 0])
    batch = Batch([(b"s", reply, b"", b"") for reply in replies])
    assert select_wanted(batch, Sequences.from_range(1, 9)) is batch
    assert select_wanted(batch, Sequences.from_iterable([4, 5, 9])).sequences == [4, 9]
    assert len(select_wanted(batch, Sequences.from_iterable([5]))) == 0


class Position:
    """Can't be read at first; then the archive holds all that the stream has."""

    def __init__(self) -> None:
        self.failing = True

    async def read(self, first: int, last: int) -> Remaining:
        if self.failing:
            raise CaptureError("the archive can't be read")
        return Remaining(Sequences(), Sequences(), 0)


@pytest.mark.parametrize("share", [Share(0, 1), None])
async def test_a_trouble_ends_when_nothing_is_left_to_read_or_this_node_has_no_share(share, monkeypatch):
    monkeypatch.setattr("capture.node.direct_source.RETRY", 0.01)
    monkeypatch.setattr("capture.node.direct_source.TICK", 0.01)
    position = Position()
    source = DirectSource(
        MagicMock(), SimpleNamespace(name="S"), position, Reach(ends=True), roster="r", seal=lambda: None
    )
    source._wanted = Share(0, 1)
    reading = asyncio.create_task(source._read_ahead())
    await until(lambda: source.trouble)
    assert "the archive can't be read" in source.trouble
    source._wanted, position.failing = share, False
    await until(lambda: not source.trouble)
    source.stop()
    await reading


class Behind:
    """Answers of a server that at first has less than the stream's leader."""

    asked: ClassVar[list[int]] = []

    def __init__(self, natty, stream: str, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.complete = False

    async def __aiter__(self):
        self.asked.append(self.first)
        has = min(self.last, 4 if len(self.asked) == 1 else 10)
        sequences = range(self.first, has + 1)
        self.complete = has == self.last
        if sequences:
            yield Batch(
                [(b"s", one, b"", b"") for one in ack_subjects("S", "direct", [*sequences], [0] * len(sequences))]
            )


async def test_what_a_server_behind_the_leader_does_not_have_is_read_again_soon(monkeypatch):
    monkeypatch.setattr("capture.node.direct_source.DirectBatches", Behind)
    monkeypatch.setattr("capture.node.direct_source.RETRY", 0.01)
    monkeypatch.setattr("capture.node.direct_source.LOOK", 1e9)
    ten = Sequences.from_range(1, 10)

    class Unread:
        async def read(self, first: int, last: int) -> Remaining:
            return Remaining(ten, Sequences(), 10)

    source = DirectSource(MagicMock(), SimpleNamespace(name="S"), Unread(), Reach(), roster="r", seal=lambda: None)
    monkeypatch.setattr(source, "_check", AsyncMock())
    source._wanted = Share(0, 1)
    reading = asyncio.create_task(source._read_ahead())

    async def next_batch():
        async with asyncio.timeout(PATIENCE):
            return await source._arrived.get()

    found = [sequence for _ in range(2) for sequence in (await next_batch()).sequences]
    assert found == [*range(1, 11)]
    source.stop()
    await reading
