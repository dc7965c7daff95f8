"""The worked examples of pcgroups 0.2, its own tests' figures among them, and what must hold for every group."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.groups import MemberMapping, PartitioningFilter, StaticRecord
from natty.groups.partitions import (
    EVERYTHING,
    assign,
    balance,
    destination,
    fnv1a,
    key_of,
    partition_filters,
    partition_of,
)

NAMES = st.lists(st.text(min_size=1, max_size=4), max_size=12)


def numbers(text):
    return tuple(map(int, text.split()))


@pytest.mark.parametrize(
    ("partitions", "members", "expected"),
    [
        (10, "m3 m1 m2", {"m1": "0 1 2 9", "m2": "3 4 5", "m3": "6 7 8"}),
        (3, "m10 m9 m2 m1", {"m1": "0", "m10": "1", "m2": "2"}),
        (10, "m1 m2 m3 m4", {"m1": "0 1 8", "m2": "2 3 9", "m3": "4 5", "m4": "6 7"}),
        (7, "a b c", {"a": "0 1 6", "b": "2 3", "c": "4 5"}),
        (8, "a b c", {"a": "0 1 6", "b": "2 3 7", "c": "4 5"}),
        (5, "b a a", {"a": "0 1 4", "b": "2 3"}),
        (4, "a", {"a": "0 1 2 3"}),
        (6, "m1 m2 m3", {"m1": "0 1", "m2": "2 3", "m3": "4 5"}),
        (4, "", {}),
    ],
)
def test_members_are_balanced_as_in_go(partitions, members, expected):
    assert balance(members.split(), partitions) == {name: numbers(text) for name, text in expected.items()}


def test_names_are_sorted_by_their_bytes():
    assert list(balance(["ä", "z", "é", "a", "Z", "日", "\U0001f600"], 7)) == [
        "Z",
        "a",
        "z",
        "ä",
        "é",
        "日",
        "\U0001f600",
    ]


@given(NAMES, st.integers(1, 40))
def test_every_partition_has_exactly_one_member_and_shares_differ_by_one(members, partitions):
    shares = balance(members, partitions)
    assert sorted(one for share in shares.values() for one in share) == list(range(partitions) if members else [])
    assert len(shares) == min(len(set(members)), partitions)
    sizes = {len(share) for share in shares.values()}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert all(share == tuple(sorted(share)) for share in shares.values())


@given(NAMES, st.integers(1, 40))
def test_the_assignment_is_the_one_of_gos_steps_one_by_one(members, partitions):
    names = sorted(set(members))[:partitions]
    owned = {name: [] for name in names}
    size = partitions // len(names) if names else 0
    for partition in range(size * len(names)):
        owned[names[partition // size]].append(partition)
    for place, partition in enumerate(range(size * len(names), partitions if names else 0)):
        owned[names[place]].append(partition)
    assert balance(members, partitions) == {name: tuple(share) for name, share in owned.items()}


@given(NAMES, st.integers(1, 40), st.randoms())
def test_the_order_in_which_members_are_listed_means_nothing(members, partitions, chance):
    shuffled = [*members, *members]
    chance.shuffle(shuffled)
    assert balance(shuffled, partitions) == balance(members, partitions)


def test_from_three_members_to_four_seven_of_ten_partitions_move_as_in_go():
    before, after = balance("abc", 10), balance("abcd", 10)
    assert sum(one not in before.get(name, ()) for name, share in after.items() for one in share) == 7


def test_a_member_reads_each_of_the_groups_filters_in_each_of_its_partitions_filter_by_filter():
    assert partition_filters((0, 2), ("foo.*", "bar.*"), mapped=False) == ["0.foo.*", "2.foo.*", "0.bar.*", "2.bar.*"]
    assert partition_filters((0, 2), (), mapped=False) == ["0.>", "2.>"]
    assert partition_filters((), ("foo.*",), mapped=False) == []


def test_members_of_three_and_seven_and_eight_partitions_have_the_filters_that_gos_tests_expect():
    def filters(partitions, member):
        given = assign(("m1", "m2", "m3"), (), partitions, member)
        return partition_filters(given, ("foo.*.*.>",), mapped=False)

    assert filters(6, "m1") == ["0.foo.*.*.>", "1.foo.*.*.>"]
    assert filters(6, "m2") == ["2.foo.*.*.>", "3.foo.*.*.>"]
    assert filters(6, "m3") == ["4.foo.*.*.>", "5.foo.*.*.>"]
    assert filters(7, "m1") == ["0.foo.*.*.>", "1.foo.*.*.>", "6.foo.*.*.>"]
    assert filters(8, "m2") == ["2.foo.*.*.>", "3.foo.*.*.>", "7.foo.*.*.>"]
    assert filters(8, "m3") == ["4.foo.*.*.>", "5.foo.*.*.>"]


@pytest.mark.parametrize("filters", [(), ("foo.*",), ("foo.*", "bar.*")])
def test_mapped_partitions_are_read_whole_once_and_in_the_order_that_is_listed(filters):
    record = StaticRecord(
        partitions=3, filters=filters, mappings=(MemberMapping("a", (2, 0)), MemberMapping("b", (1,)))
    )
    assert record.filters_of("a") == ["2.>", "0.>"]
    assert record.filters_of("b") == ["1.>"]
    assert record.filters_of("c") == []


def test_a_mapping_without_partitions_is_an_idle_member():
    mappings = (MemberMapping("a", None), MemberMapping("b", (0,)))
    assert assign((), mappings, 1, "a") == ()
    assert assign((), mappings, 1, "b") == (0,)


@pytest.mark.parametrize(
    ("subject", "wildcards", "partitions", "expected"),
    [
        ("foo.*", (1,), 10, "{{Partition(10,1)}}.foo.{{Wildcard(1)}}"),
        ("foo.*.*.>", (1, 2), 4, "{{Partition(4,1,2)}}.foo.{{Wildcard(1)}}.{{Wildcard(2)}}.>"),
        ("bar.*.*", (2, 1), 4, "{{Partition(4,2,1)}}.bar.{{Wildcard(1)}}.{{Wildcard(2)}}"),
        ("*.a.*", (), 3, "{{Partition(3)}}.{{Wildcard(1)}}.a.{{Wildcard(2)}}"),
        ("foo.>", None, 4, "{{Partition(4)}}.foo.>"),
    ],
)
def test_the_work_queues_source_puts_the_partition_before_the_subject(subject, wildcards, partitions, expected):
    assert destination(PartitioningFilter(subject, wildcards), partitions) == expected


def test_a_group_without_a_filter_partitions_whole_subjects():
    assert destination(EVERYTHING, 4) == "{{Partition(4)}}.>"


def test_the_hash_is_the_servers():
    assert fnv1a(b"foo.bar") == 3415486196
    assert fnv1a(b"") == 2166136261
    assert [partition_of(str(digit), 2) for digit in range(10)] == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    whole = PartitioningFilter("foo.>")
    assert [partition_of(key_of(one, whole), 4) for one in ("foo.a", "foo.a.b", "foo.x.y.z")] == [2, 2, 0]
    swapped = PartitioningFilter("bar.*.*", (2, 1))
    assert [partition_of(key_of(one, swapped), 4) for one in ("bar.aa.b", "bar.a.ab", "bar.k1.k2")] == [3, 1, 0]


@given(st.text(), st.integers(1, 1000))
def test_a_key_always_falls_into_the_same_partition(key, partitions):
    assert partition_of(key, partitions) == fnv1a(key.encode()) % partitions < partitions


def test_keys_spread_over_the_partitions():
    counts = [0] * 10
    for number in range(10_000):
        counts[partition_of(f"customer{number}", 10)] += 1
    assert all(math.isclose(count, 1000, rel_tol=0.2) for count in counts)


def published(prefix):
    return [f"{prefix}.{number}" for number in range(10)]


def test_gos_static_integration_test_gives_each_of_two_members_ten_messages():
    """Ten messages on each of foo.*, bar.* and bad.*; the group of two partitions reads foo.* and bar.*."""
    record = StaticRecord(partitions=2, filters=("foo.*", "bar.*"), members=("m1", "m2"))
    got = {"m1": 0, "m2": 0}
    for subject in published("foo") + published("bar"):
        partition = partition_of(subject.split(".")[1], 2)
        (owner,) = [name for name in got if partition in record.partitions_of(name)]
        got[owner] += 1
    assert got == {"m1": 10, "m2": 10}


def test_gos_elastic_integration_test_has_the_same_counts_as_members_come_and_go():
    got = {"m1": 0, "m2": 0}

    def deliver(members, filters, rounds=1):
        for _ in range(rounds):
            for one in filters:
                for subject in published(one.filter.split(".")[0]):
                    partition = partition_of(key_of(subject, one), 2)
                    (owner,) = [name for name in members if partition in assign(members, (), 2, name)]
                    got[owner] += 1
        return tuple(got.values())

    filters = [PartitioningFilter("foo.*", (1,)), PartitioningFilter("bar.*", (1,))]
    assert deliver(["m1"], filters) == (20, 0)
    assert deliver(["m1", "m2"], filters) == (30, 10)
    assert deliver(["m2"], filters) == (30, 30)
    got.update(m1=0, m2=0)
    whole = [PartitioningFilter(f"{one}.>") for one in ("foo", "bar", "bad")]
    assert deliver(["m1", "m2"], whole, rounds=3) == (45, 45)
