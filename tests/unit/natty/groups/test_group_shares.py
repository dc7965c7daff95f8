from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.groups import ElasticRecord, MemberMapping, PartitioningFilter
from natty.groups.partitions import balance
from natty.groups.shares import count_moved, plan, shares

NAMES = [f"auto-{letter}" for letter in "abcdef"]


@st.composite
def worlds(draw):
    """Return (who owns what, who is there, partitions)."""
    partitions = draw(st.integers(1, 12))
    owners = draw(st.lists(st.sampled_from([*NAMES, ""]), min_size=partitions, max_size=partitions))
    owned = {name: tuple(p for p, owner in enumerate(owners) if owner == name) for name in NAMES}
    return owned, draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)), partitions


@given(worlds())
def test_shares_are_even_and_whole(world):
    owned, there, partitions = world
    divided = shares(owned, there, partitions)
    assert sorted(p for parts in divided.values() for p in parts) == list(range(partitions))
    assert max(map(len, divided.values())) - min(map(len, divided.values())) <= 1
    assert sorted(divided) == sorted(there)


@given(worlds())
def test_no_even_division_moves_fewer_partitions(world):
    owned, there, partitions = world
    size, more = divmod(partitions, len(there))
    quotas = [size + 1] * more + [size] * (len(there) - more)
    fewest = min(
        sum(max(0, len(owned[name]) - quota) for name, quota in zip(there, deal, strict=True))
        for deal in set(permutations(quotas))
    )
    assert count_moved(owned, shares(owned, there, partitions), there) == fewest


@given(worlds())
def test_a_plan_moves_no_more_than_balancing_would_and_is_done_once(world):
    owned, there, partitions = world
    listed = tuple(MemberMapping(name, parts) for name, parts in owned.items() if parts)
    covered = sorted(p for one in listed for p in one.partitions)
    record = ElasticRecord(partitions=partitions, mappings=listed if covered == list(range(partitions)) else ())
    after = plan(record, there)
    after.check()
    before = record.assignment()
    assert count_moved(before, after.assignment(), there) <= count_moved(before, balance(there, partitions), there)
    assert set(after.member_names) <= set(there)
    assert plan(after, there) is after


def test_a_new_group_is_balanced_so_that_others_can_add_members():
    assert plan(ElasticRecord(partitions=4), NAMES[:2]).members == tuple(NAMES[:2])


def test_partitions_are_mapped_where_that_moves_fewer():
    record = ElasticRecord(partitions=10, members=tuple(NAMES[:3]))
    after = plan(record, NAMES[:4])
    assert (after.members, len(after.mappings)) == ((), 4)
    assert count_moved(record.assignment(), after.assignment(), NAMES) == 2  # and 7 if they were balanced


@pytest.mark.parametrize(("names", "mapped"), [([*NAMES[:3], "go"], False), (NAMES[:4], True)])
def test_members_in_go_are_never_mapped_in_a_group_of_several_filters(names, mapped):
    filters = (PartitioningFilter("a.*"), PartitioningFilter("b.*"))
    record = ElasticRecord(partitions=10, members=tuple(names[:3]), filters=filters)
    assert bool(plan(record, names).mappings) is mapped


def test_with_nobody_there_the_record_stays():
    record = ElasticRecord(partitions=4, members=("auto-a",))
    assert plan(record, []) is record
