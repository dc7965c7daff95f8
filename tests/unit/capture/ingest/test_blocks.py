from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import ConfigError
from capture.ingest.block import BLOCK_MEMORY, RECORD_MEMORY, Groups, Limits, OpenBlocks, SealedBlock
from capture.ingest.record import Records


def group(key: str, *sequences: int, interval: int = 0, size: int = 10) -> tuple[str, int, Records]:
    count = len(sequences)
    return (
        key,
        interval,
        Records(
            "S",
            list(sequences),
            [interval * 10**9 + sequence for sequence in sequences],
            [b""] * count,
            [b""] * count,
            [bytes(size) for _ in sequences],
            [1] * count,
            [b"reply.%d" % sequence for sequence in sequences],
            ["value"] * count,
        ),
    )


def shown(sealed: list[SealedBlock]) -> list[tuple[str, list[int], str]]:
    return [(block.key, block.records.sequences, block.reason) for block in sealed]


def test_a_block_of_max_messages_is_sealed() -> None:
    blocks = OpenBlocks(Limits(max_messages=3))
    assert blocks.add([group("a", 1, 2)], now=0.0) == []
    assert shown(blocks.add([group("a", 3)], now=0.0)) == [("a", [1, 2, 3], "messages")]
    assert blocks.pending == 0


def test_a_group_larger_than_a_block_is_cut() -> None:
    blocks = OpenBlocks(Limits(max_messages=2))
    assert shown(blocks.add([group("a", 1, 2, 3, 4, 5)], now=0.0)) == [
        ("a", [1, 2], "messages"),
        ("a", [3, 4], "messages"),
    ]
    assert blocks.pending == 1


def test_a_block_never_holds_more_than_max_bytes() -> None:
    blocks = OpenBlocks(Limits(max_bytes=25))
    assert shown(blocks.add([group("a", 1, 2, 3)], now=0.0)) == [("a", [1, 2], "bytes")]


def test_a_message_larger_than_a_block_has_one_to_itself() -> None:
    blocks = OpenBlocks(Limits(max_bytes=25))
    blocks.add([group("a", 1)], now=0.0)
    assert shown(blocks.add([group("a", 2, size=100)], now=0.0)) == [("a", [1], "bytes"), ("a", [2], "bytes")]


def test_a_quiet_block_is_sealed_when_it_is_old() -> None:
    blocks = OpenBlocks(Limits(max_age=30.0))
    blocks.add([group("a", 1)], now=100.0)
    blocks.add([group("b", 2)], now=110.0)
    blocks.add([group("a", 3)], now=125.0)
    assert blocks.due(129.9) == []
    assert shown(blocks.due(130.0)) == [("a", [1, 3], "age")]
    assert shown(blocks.due(140.0)) == [("b", [2], "age")]


def test_a_block_opened_again_is_young() -> None:
    blocks = OpenBlocks(Limits(max_age=30.0))
    blocks.add([group("a", 1)], now=0.0)
    blocks.due(30.0)
    blocks.add([group("b", 2)], now=31.0)
    blocks.add([group("a", 3)], now=32.0)
    assert shown(blocks.due(61.5)) == [("b", [2], "age")]


def test_next_due_says_how_long_to_wait() -> None:
    blocks = OpenBlocks(Limits(max_age=30.0))
    assert blocks.next_due(0.0) is None
    blocks.add([group("a", 1)], now=10.0)
    assert blocks.next_due(15.0) == 25.0
    assert blocks.next_due(50.0) == 0.0


def test_the_largest_blocks_are_sealed_when_pending_is_nearly_full() -> None:
    blocks = OpenBlocks(Limits(max_pending=8))
    sealed = blocks.add([group("a", 1), group("b", 2, 3, 4), group("c", 5, 6), group("d", 7)], now=0.0)
    assert shown(sealed) == [("b", [2, 3, 4], "pending")]
    assert blocks.pending == 4


def test_the_largest_blocks_are_sealed_when_memory_is_nearly_full() -> None:
    half = 3 * BLOCK_MEMORY + 6 * RECORD_MEMORY + 1000
    blocks = OpenBlocks(Limits(max_bytes=2000, max_open_bytes=2 * half))
    sealed = blocks.add([group("a", 1, 2, size=100), group("b", 3, 4, 5, size=10)], now=0.0)
    assert shown(sealed) == []
    sealed = blocks.add([group("c", 6, size=1500)], now=0.0)
    assert shown(sealed) == [("c", [6], "memory")]
    assert blocks.memory == 2 * BLOCK_MEMORY + 5 * RECORD_MEMORY + 230


def test_blocks_of_one_message_count_for_what_a_block_takes_itself() -> None:
    blocks = OpenBlocks(Limits(max_bytes=1000, max_open_bytes=20 * (BLOCK_MEMORY + RECORD_MEMORY)))
    sealed = [blocks.add([group(f"key{number}", number, size=0)], now=0.0) for number in range(11)]
    assert [len(one) for one in sealed] == [0] * 10 + [1]


def test_beyond_max_open_the_least_recently_used_blocks_are_sealed() -> None:
    blocks = OpenBlocks(Limits(max_open=3))
    blocks.add([group("a", 1), group("b", 2), group("c", 3)], now=0.0)
    assert shown(blocks.add([group("a", 4)], now=1.0)) == []
    assert shown(blocks.add([group("d", 5), group("e", 6)], now=2.0)) == [("b", [2], "keys"), ("c", [3], "keys")]
    assert shown(blocks.add([group("f", 7)], now=3.0)) == [("a", [1, 4], "keys")]
    assert shown(blocks.due(32.0)) == [("d", [5], "age"), ("e", [6], "age")]


def test_a_block_that_was_sealed_is_not_sealed_again_for_having_been_used() -> None:
    blocks = OpenBlocks(Limits(max_open=2, max_messages=2))
    blocks.add([group("a", 1, 2), group("b", 3)], now=0.0)
    assert shown(blocks.add([group("a", 4), group("c", 5)], now=0.0)) == [("b", [3], "keys")]
    assert len(blocks) == 2


def test_a_block_is_sealed_when_more_messages_came_since_its_first_one_than_may_be_behind() -> None:
    blocks = OpenBlocks(Limits(max_behind=3))
    assert shown(blocks.add([group("a", 1), group("b", 2, 3)], now=0.0)) == []
    assert shown(blocks.add([group("b", 4)], now=0.0)) == [("a", [1], "pending")]
    assert shown(blocks.add([group("c", 5)], now=0.0)) == [("b", [2, 3, 4], "pending")]
    assert shown(blocks.add([group("c", 6, 7)], now=0.0)) == []


def test_seal_all_leaves_nothing_open() -> None:
    blocks = OpenBlocks()
    blocks.add([group("a", 1), group("b", 2)], now=0.0)
    assert shown(blocks.seal_all()) == [("a", [1], "stop"), ("b", [2], "stop")]
    assert (blocks.pending, blocks.memory, blocks.seal_all()) == (0, 0, [])


def test_blocks_that_are_open_when_limits_change_are_sealed_and_later_ones_have_the_new_limits() -> None:
    blocks = OpenBlocks(Limits(max_messages=10, max_age=30.0))
    assert blocks.add([group("k", 1, 2, 3)], now=0.0) == []
    blocks.change(Limits(max_messages=2, max_age=5.0))
    assert shown(blocks.due(now=0.0)) == [("k", [1, 2, 3], "stop")]
    assert shown(blocks.add([group("k", 4, 5)], now=1.0)) == [("k", [4, 5], "messages")]
    assert shown(blocks.add([group("k", 6)], now=2.0)) == []
    assert shown(blocks.due(now=7.0)) == [("k", [6], "age")]


def test_equal_limits_seal_nothing() -> None:
    blocks = OpenBlocks(Limits())
    blocks.add([group("k", 1)], now=0.0)
    blocks.change(Limits())
    assert blocks.due(now=0.0) == []


@pytest.mark.parametrize("by", ["add", "due", "seal_all"])
def test_each_way_to_get_blocks_returns_once_what_was_sealed_before(by: str) -> None:
    blocks = OpenBlocks()
    blocks.add([group("k", 1)], now=0.0)
    blocks.seal()
    blocks.seal()
    assert blocks.pending == 0
    ways = {"add": lambda: blocks.add([], now=0.0), "due": lambda: blocks.due(0.0), "seal_all": blocks.seal_all}
    assert shown(ways[by]()) == [("k", [1], "stop")]
    assert [way() for way in ways.values()] == [[], [], []]


def test_blocks_that_were_sealed_before_are_returned_before_those_that_are_full_now() -> None:
    blocks = OpenBlocks(Limits(max_messages=2))
    blocks.add([group("k", 1)], now=0.0)
    blocks.seal()
    assert shown(blocks.add([group("k", 2, 3)], now=0.0)) == [("k", [1], "stop"), ("k", [2, 3], "messages")]


def test_a_sealed_block_is_in_order_of_its_sequences() -> None:
    blocks = OpenBlocks()
    blocks.add([group("a", 9, 4)], now=0.0)
    blocks.add([group("a", 7)], now=0.0)
    (block,) = blocks.seal_all()
    assert (block.first, block.last, block.count) == (4, 9, 3)
    assert block.records.replies == [b"reply.4", b"reply.7", b"reply.9"]
    assert repr(block) == "SealedBlock('S', key='a', interval=0, 3 messages 4–9, sealed by stop)"


def test_decoded_values_are_not_kept_in_memory() -> None:
    blocks = OpenBlocks()
    one = group("a", 1)
    blocks.add([one], now=0.0)
    assert blocks.seal_all()[0].records.values == [None]
    assert one[2].values == ["value"]


def test_an_undecodable_record_keeps_its_reason_across_a_cut_and_a_sort() -> None:
    blocks = OpenBlocks(Limits(max_messages=3))
    key, interval, records = group("a", 5, 1, 9, 3)
    records.errors = {1: "one", 3: "three"}
    sealed = blocks.add([(key, interval, records)], now=0.0) + blocks.seal_all()
    reasons = {b.records.sequences[index]: why for b in sealed for index, why in b.records.errors.items()}
    assert reasons == {1: "one", 3: "three"}


adds = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0, 3600]), st.integers(0, 8), st.integers(0, 60)),
        max_size=4,
    ),
    max_size=12,
)


def _groups(drawn: list[tuple[str, int, int, int]], next_sequence: int) -> Groups:
    groups = []
    for key, interval, count, size in drawn:
        sequences = range(next_sequence, next_sequence + count)
        groups.append(group(key, *reversed(sequences), interval=interval, size=size))
        next_sequence += count
    return groups


@given(adds, st.integers(1, 9), st.integers(1, 100), st.integers(1, 30), st.integers(1, 6))
def test_between_add_and_seal_nothing_is_lost_or_invented(
    drawn: list[list[tuple[str, int, int, int]]], max_messages: int, max_bytes: int, max_pending: int, max_open: int
) -> None:
    limits = Limits(
        max_messages=max_messages, max_bytes=max_bytes, max_pending=max_pending, max_open=max_open, max_age=3.0
    )
    blocks = OpenBlocks(limits)
    given_: dict[int, tuple[str, int, bytes]] = {}
    sealed: list[SealedBlock] = []
    for now, one in enumerate(drawn):
        groups = _groups(one, len(given_) + 1)
        for key, interval, records in groups:
            given_ |= {sequence: (key, interval, b"reply.%d" % sequence) for sequence in records.sequences}
        sealed += blocks.add(groups, now=float(now))
        assert blocks.pending <= max_pending
        assert len(blocks) <= max_open
        sealed += blocks.due(float(now))
        assert blocks.pending == len(given_) - sum(block.count for block in sealed)
        assert blocks.next_due(float(now)) is None or blocks.next_due(float(now)) > 0.0
    sealed += blocks.seal_all()
    assert (blocks.pending, blocks.memory) == (0, 0)
    found: dict[int, tuple[str, int, bytes]] = {}
    for block in sealed:
        assert 0 < block.count <= max_messages
        assert block.count == 1 or sum(map(len, block.records.payloads)) <= max_bytes
        assert block.records.sequences == sorted(set(block.records.sequences))
        for sequence, reply in zip(block.records.sequences, block.records.replies, strict=True):
            assert sequence not in found
            found[sequence] = (block.key, block.interval, reply)
    assert found == given_


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_messages": 0},
        {"max_age": -1.0},
        {"max_open": 0},
        {"max_bytes": 2 << 30, "max_open_bytes": 4 << 30},
        {"max_bytes": 100, "max_open_bytes": 50},
        {"interval": 90.0},
        {"interval": 7 * 3600.0},
    ],
)
def test_limits_that_contradict_one_another_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Limits(**wrong)  # type: ignore[arg-type]


def test_a_consumer_that_redelivers_sooner_than_blocks_seal_is_refused() -> None:
    limits = Limits(max_age=30.0, max_pending=1000)
    limits.check_consumer(ack_wait=60.0, max_ack_pending=1000)
    limits.check_consumer(ack_wait=60.0, max_ack_pending=-1)
    with pytest.raises(ConfigError, match=r"max_age 30.0 s must be below the consumer's ack_wait 30.0 s"):
        limits.check_consumer(ack_wait=30.0, max_ack_pending=1000)
    with pytest.raises(ConfigError, match="max_pending 1000 exceeds the consumer's max_ack_pending 999"):
        limits.check_consumer(ack_wait=60.0, max_ack_pending=999)
