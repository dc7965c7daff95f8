"""What a group may be: the rules of pcgroups 0.2 with the cases of its own tests, and ours for what is made here."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.errors import BadGroupError
from natty.groups import ElasticRecord, MemberMapping, PartitioningFilter, StaticRecord, rules
from natty.groups.partitions import balance


def mapped(partitions, *mappings, **others):
    given = tuple(MemberMapping(name, tuple(numbers)) for name, numbers in mappings)
    return ElasticRecord(partitions=partitions, filters=(PartitioningFilter("foo.*", (1,)),), mappings=given, **others)


def test_members_alone_are_valid():
    mapped(2, members=("m1", "m2")).check()


@pytest.mark.parametrize("members", [("a", "a"), ("",), ("a", "b", "c", "d")])
def test_a_list_of_members_has_no_rule_once_it_is_written(members):
    mapped(2, members=members).check()


@pytest.mark.parametrize(
    ("partitions", "mappings"),
    [
        (2, [("m1", [0, 1])]),
        (2, [("m1", [0]), ("m2", [1])]),
        (3, [("m1", [0, 2]), ("m2", [1])]),
        (2, [("m1", []), ("m2", [1, 0])]),
    ],
)
def test_mappings_that_give_every_partition_once_are_valid(partitions, mappings):
    mapped(partitions, *mappings).check()


@pytest.mark.parametrize(
    ("partitions", "mappings", "why"),
    [
        (2, [("m1", [1, 1])], "partition 1 is given twice"),
        (2, [("m1", [1])], "no member has partition 0"),
        (2, [("m1", [0, 1, 2])], "no partition 2: they count from 0 to 1"),
        (2, [("m1", [0, 2])], "no partition 2"),
        (2, [("m1", [0, -1])], "no partition -1"),
        (2, [("m1", [0]), ("m1", [1])], "'m1' is mapped twice"),
        (2, [("m1", [0, 1]), ("m2", [0, 1])], "partition 0 is given twice"),
        (2, [("m1", [0, 1]), ("m2", [2, 3])], "no partition 2"),
        (3, [("m1", [0]), ("m2", [1])], "no member has partition 2"),
        (3, [("m1", [0, 2]), ("m2", [1, 2])], "partition 2 is given twice"),
        (1, [("m1", [0]), ("m2", [])], "2 members are mapped, more than there are partitions, 1"),
        (0, [], "0 partitions is not possible"),
    ],
)
def test_other_mappings_are_not(partitions, mappings, why):
    with pytest.raises(BadGroupError, match=why):
        mapped(partitions, *mappings).check()


def test_members_and_mappings_together_are_not_valid():
    both = mapped(2, ("m1", [0, 1]), members=("m1", "m2"))
    with pytest.raises(BadGroupError, match="either members or mappings"):
        both.check()
    replace(both, members=()).check()


@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=8, unique=True), st.integers(1, 12))
def test_a_balanced_assignment_is_a_valid_mapping(members, partitions):
    mapped(partitions, *balance(members, partitions).items()).check()


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(-1, 3), max_size=4), min_size=1))
def test_mappings_are_valid_exactly_if_every_partition_has_one_owner(mappings):
    record = mapped(3, *mappings.items())
    if sorted(one for numbers in mappings.values() for one in numbers) == [0, 1, 2]:
        record.check()
    else:
        with pytest.raises(BadGroupError):
            record.check()


@pytest.mark.parametrize(
    ("subject", "wildcards", "why"),
    [
        ("", None, "a filter is empty"),
        ("foo", None, "has no wildcard"),
        ("foo.bar", (1,), "has no wildcard"),
        ("foo.>", (1,), "0 `\\*`, too few"),
        ("foo.*", (1, 2), "1 `\\*`, too few"),
        ("*.*", (2, 2), "named twice"),
        ("foo.*", (2,), "no wildcard 2: they count from 1 to 1"),
        ("foo.*", (0,), "no wildcard 0"),
    ],
)
def test_a_filter_needs_a_wildcard_and_a_key_of_wildcards_that_it_has(subject, wildcards, why):
    with pytest.raises(BadGroupError, match=why):
        ElasticRecord(partitions=1, filters=(PartitioningFilter(subject, wildcards),)).check()


def test_a_static_groups_filters_have_no_rule_once_they_are_written():
    StaticRecord(partitions=1, filters=("foo", "")).check()


@pytest.mark.parametrize("bad", ["", "a..b", ".a", "a.", ">.a", "a b", "a.\t"])
def test_a_filter_that_no_server_takes_is_refused_before_anything_is_made(bad):
    with pytest.raises(BadGroupError, match="is not a subject"):
        rules.check_subjects([bad])


@pytest.mark.parametrize(
    ("one", "other", "taken_by_both"),
    [
        ("foo.*", "foo.>", True),
        ("foo.*.b", "foo.a.*", True),
        ("foo.*", "foo.*", True),
        (">", "a", True),
        ("foo.*", "bar.*", False),
        ("foo.*", "foo.*.*", False),
        ("foo.a.*", "foo.b.>", False),
        ("foo.>", "foo", False),
    ],
)
def test_two_filters_may_not_take_the_same_subject(one, other, taken_by_both):
    if not taken_by_both:
        rules.check_subjects([one, other])
        rules.check_subjects([other, one])
        return
    for pair in ([one, other], [other, one], ["x.y", one, "y.z", other]):
        with pytest.raises(BadGroupError, match="take the same subjects"):
            rules.check_subjects(pair)


def test_a_static_group_takes_no_member_that_would_stay_without_a_partition():
    rules.check_listing(2, ["a", "b"])
    with pytest.raises(BadGroupError, match="3 members can't share 2 partitions"):
        rules.check_listing(2, ["a", "b", "c"])
    with pytest.raises(BadGroupError, match="'a' is named twice"):
        rules.check_listing(3, ["a", "b", "a"])


def transformed(destination, *subjects):
    return {"subjects": list(subjects), "subject_transform": {"src": "*.*", "dest": destination}}


@pytest.mark.parametrize(
    "config",
    [
        transformed("{{partition(2,2)}}.{{wildcard(1)}}.{{wildcard(2)}}", "foo.*"),
        transformed("{{ Partition( 2 ,1) }}.>", "foo.*"),
        transformed("{{wildcard(1)}}.$2", "foo.*"),
        {"subjects": ["*.orders.>"]},
        {"subjects": ["0.a", "1.b"]},
        {"sources": [{"name": "A"}]},
        {"mirror": {"name": "A"}},
    ],
)
def test_a_stream_whose_subjects_can_begin_with_every_partition_will_do_for_a_static_group(config):
    rules.check_partitioned("ORDERS", config, 2)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"subjects": ["orders.>"]}, "holds no subject of partition 0"),
        ({"subjects": ["0.>"]}, "holds no subject of partition 1"),
        ({}, "holds no subject of partition 0"),
        (transformed("{{partition(10,2)}}.x", "foo.*"), "has 10 partitions and the group would have 2"),
        (transformed("x.{{wildcard(1)}}", "foo.*"), "holds no subject of partition 0"),
    ],
)
def test_a_stream_without_them_will_not(config, why):
    with pytest.raises(BadGroupError, match=why):
        rules.check_partitioned("ORDERS", config, 2)


def test_a_new_group_has_no_more_partitions_than_a_request_can_name():
    rules.check_new_partitions(rules.MOST_PARTITIONS)
    with pytest.raises(BadGroupError, match="a group of 10,001 partitions is not possible: the most is 10,000"):
        rules.check_new_partitions(rules.MOST_PARTITIONS + 1)
    mapped(100_000, members=("m1",)).check()  # made by another tool: it is read all the same
