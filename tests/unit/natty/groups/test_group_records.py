"""Records as Go's library writes them, byte by byte, and what must survive a change."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.errors import BadGroupError
from natty.groups import ElasticRecord, MemberMapping, PartitioningFilter, StaticRecord

ELASTIC = (
    b'{"max_members":10,"partitioning_filters":[{"filter":"foo.*","partitioning_wildcards":[1]}],"members":["m1","m2"]}'
)
OF_CG = b'{"max_members":4,"partitioning_filters":null}'
STATIC = b'{"max_members":2,"filters":["foo.*","bar.*"],"members":["m1","m2"]}'


def test_the_examples_of_the_protocol_are_read_and_written_byte_by_byte():
    elastic = ElasticRecord(partitions=10, filters=(PartitioningFilter("foo.*", (1,)),), members=("m1", "m2"))
    static = StaticRecord(partitions=2, filters=("foo.*", "bar.*"), members=("m1", "m2"))
    for record, value in ((elastic, ELASTIC), (ElasticRecord(partitions=4), OF_CG), (static, STATIC)):
        assert record.encode() == value
        assert type(record).decode(value) == record
        assert type(record).decode(value).encode() == value


FIRST = (
    b'{"max_members":10,"filter":"foo.*.\\u003e","partitioning_wildcards":[1],'
    b'"max_buffered_msg":7,"members":["m1","m2"]}'
)


def test_an_elastic_record_of_the_first_version_is_read_and_written_as_one_of_the_later_version():
    read = ElasticRecord.decode(FIRST)
    assert read.outdated
    assert (read.filters, read.max_messages, read.partitions_of("m2")) == (
        (PartitioningFilter("foo.*.>", (1,)),),
        7,
        (5, 6, 7, 8, 9),
    )
    assert read.encode() == (
        b'{"max_members":10,"partitioning_filters":[{"filter":"foo.*.\\u003e","partitioning_wildcards":[1]}],'
        b'"max_buffered_msg":7,"members":["m1","m2"]}'
    )
    assert not ElasticRecord.decode(read.encode()).outdated


def test_converting_a_record_keeps_mappings_and_the_fields_that_others_have_added():
    mapped = b'"member_mappings":[{"member":"a","partitions":[1]},{"member":"b","partitions":[0]}]'
    value = b'{"x":{"y": 1.0},"Max_Members":2,"Filter":"foo.*","PARTITIONING_WILDCARDS":[1],' + mapped + b"}"
    assert ElasticRecord.decode(value).encode() == (
        b'{"max_members":2,"partitioning_filters":[{"filter":"foo.*","partitioning_wildcards":[1]}],'
        + mapped
        + b',"x":{"y": 1.0}}'
    )


def test_converting_a_record_keeps_the_fields_that_others_have_added_to_its_mappings():
    mapped = b'"member_mappings":[{"member":"a","partitions":[0],"zone":"x"}]'
    value = b'{"max_members":1,"filter":"foo.*","partitioning_wildcards":[1],' + mapped + b"}"
    read = ElasticRecord.decode(value)
    assert mapped in read.encode()
    assert b"zone" not in replace(read, mappings=(MemberMapping("b", (0,)),)).encode()


def test_a_static_record_with_the_spelling_before_the_first_version_is_refused():
    value = b'{"max_members":1,"filter":"","member-mappings":[{"member":"a","partitions":[0]}]}'
    with pytest.raises(BadGroupError, match="has member-mappings, as it was spelled before"):
        StaticRecord.decode(value)


def test_a_record_with_the_fields_of_both_versions_is_one_of_the_later_version():
    value = b'{"max_members":2,"partitioning_filters":null,"filter":"foo.*"}'
    read = ElasticRecord.decode(value)
    assert (read.outdated, read.filters, read.encode()) == (False, None, value)


def test_a_static_record_of_the_first_version_means_the_same_without_its_filter_and_keeps_it():
    value = b'{"max_members":2,"members":["m1","m2"],"filter":"foo.*"}'
    read = StaticRecord.decode(value)
    assert (read.outdated, read.filters_of("m2"), read.unused_filter) == (False, ["1.>"], "foo.*")
    assert read.encode() == value
    assert read.differences(StaticRecord(partitions=2, members=("m1", "m2"))) == []
    for filter_, unused in (
        (b'"\\u003e"', ""),
        (b'""', ""),
        (b"7", ""),
        (b'"\xff"', ""),
        (b"[" * 900 + b"]" * 900, ""),
    ):
        assert StaticRecord.decode(value.replace(b'"foo.*"', filter_)).unused_filter == unused


def test_the_filter_for_everything_is_no_filter():
    everything = StaticRecord(partitions=2, filters=(">",), members=("a",))
    assert everything.differences(StaticRecord(partitions=2, members=("a",))) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (b'"filter":"","partitioning_wildcards":[1]', "a filter is empty|too few for a key"),
        (b'"filter":"foo","partitioning_wildcards":[1]', "filter 'foo' has no wildcard"),
        (b'"filter":"foo.*","partitioning_wildcards":[2]', "has no wildcard 2"),
        (b'"filter":7,"partitioning_wildcards":[1]', "filter of the group's record can't be read"),
        (
            b'"filter":"foo.*","partitioning_wildcards":"1"',
            "partitioning_wildcards of the group's record can't be read",
        ),
        (b'"filter":"foo.*"', "has a filter and no partitioning_wildcards"),
        (b'"filter":"foo.*","partitioning_wildcards":[]', "has a filter and no partitioning_wildcards"),
        (b'"filter":"foo.*","partitioning_wildcards":null', "has a filter and no partitioning_wildcards"),
        (
            b'"filter":"foo.*","partitioning-wildcards":[1],"member-mappings":[]',
            "has partitioning-wildcards, member-mappings, as it was spelled before",
        ),
        (b'"filter":"foo.*","partitioning_wildcards":[1],"Max-Buffered-Msg":7', "has Max-Buffered-Msg, as it was"),
    ],
)
def test_a_broken_record_of_the_first_version_is_told_in_a_sentence(fields, why):
    with pytest.raises(BadGroupError, match=why):
        ElasticRecord.decode(b'{"max_members":2,' + fields + b"}")


def test_fields_stand_in_gos_order_and_are_left_out_where_go_leaves_them_out():
    full = ElasticRecord(
        partitions=2,
        filters=(),
        max_messages=-1,
        max_bytes=1000,
        mappings=(MemberMapping("a", (0,)), MemberMapping("b", (1,))),
    )
    assert full.encode() == (
        b'{"max_members":2,"partitioning_filters":[],"max_buffered_msg":-1,"max_buffered_bytes":1000,'
        b'"member_mappings":[{"member":"a","partitions":[0]},{"member":"b","partitions":[1]}]}'
    )
    assert StaticRecord(partitions=1).encode() == b'{"max_members":1}'


def test_what_could_be_html_is_escaped_as_go_does():
    record = ElasticRecord(
        partitions=1, filters=(PartitioningFilter("a.>"),), members=('<&é\u2028\u2029\x7f\x1f\n\\"',)
    )
    assert record.encode() == (
        b'{"max_members":1,"partitioning_filters":[{"filter":"a.\\u003e","partitioning_wildcards":null}],'
        b'"members":["\\u003c\\u0026\xc3\xa9\\u2028\\u2029\x7f\\u001f\\n\\\\\\""]}'
    )
    assert ElasticRecord.decode(record.encode()) == record


FILTERS = [
    b"null",
    b"[]",
    b'[{"filter":"foo.*","partitioning_wildcards":null}]',
    b'[{"filter":"foo.*","partitioning_wildcards":[]}]',
    b'[{"filter":"bar.\\u003e","partitioning_wildcards":[ ]},{"filter":"foo.*", "partitioning_wildcards":[1],"x":1.0}]',
    b'[{"partitioning_wildcards":[1],"filter":"foo.*"}]',
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("changes", [{"members": ("a", "b")}, {"mappings": (MemberMapping("a", (0, 1)),)}, {}])
def test_a_change_of_members_carries_the_filters_through_untouched(filters, changes):
    read = ElasticRecord.decode(b'{"max_members":2,"partitioning_filters":' + filters + b"}")
    written = replace(read, **changes).encode()
    assert b'"partitioning_filters":' + filters in written
    assert list(json.loads(written)) == [
        "max_members",
        "partitioning_filters",
        *({"members": "members", "mappings": "member_mappings"}[name] for name in changes),
    ]


def test_a_change_keeps_the_fields_that_others_have_added():
    value = (
        b'{"zones": {"a": 1.0},"max_members":1,"partitioning_filters":null,"members":["a"],"big":123456789012345678901}'
    )
    read = ElasticRecord.decode(value)
    assert replace(read, members=()).encode() == (
        b'{"max_members":1,"partitioning_filters":null,"zones":{"a": 1.0},"big":123456789012345678901}'
    )


def test_names_of_fields_are_read_in_any_case_and_written_in_gos():
    value = (
        b'{"Max_Members":2,"PARTITIONING_FILTERS":[{"Filter":"a.*","Partitioning_Wildcards":[1]}],'
        b'"members":["x"],"MEMBERS":["y"]}'
    )
    read = ElasticRecord.decode(value)
    assert read == ElasticRecord(partitions=2, filters=(PartitioningFilter("a.*", (1,)),), members=("y",))
    assert list(json.loads(read.encode())) == ["max_members", "partitioning_filters", "members"]


def test_null_stands_for_nothing_everywhere():
    value = (
        b'{"max_members":1,"filters":null,"members":null,'
        b'"member_mappings":[{"member":"a","partitions":null},{"member":"b","partitions":[0]}]}'
    )
    with pytest.raises(BadGroupError, match="2 members are mapped"):
        StaticRecord.decode(value)
    read = StaticRecord.decode(value.replace(b'"max_members":1', b'"max_members":2').replace(b"[0]", b"[0,1]"))
    assert (read.filters, read.members, read.partitions_of("a"), read.partitions_of("b")) == ((), (), (), (0, 1))


@pytest.mark.parametrize("kind", [StaticRecord, ElasticRecord])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"max_members":', "not a JSON object"),
        (b"\xff", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (b'{"max_members":1,"members":["\xff"]}', "members of the group's record can't be read|not a JSON object"),
        (
            b'{"max_members":1,"members":' + b"[" * 900 + b"]" * 900 + b"}",
            "members of the group's record can't be read",
        ),
        (b'{"max_members":1,"members":' + b"[" * 100_000, "not a JSON object"),
        (b'{"max_members":1' + b"0" * 30 + b"}", "max_members of the group's record can't be read"),
        (b'{"max_members":1' + b"0" * 5000 + b"}", "max_members of the group's record can't be read|not a JSON object"),
        (b'{"max_members":1000000000000}', "1000000000000 partitions is not possible: write 1 to 1,000,000"),
        (b" " * 2_000_000 + b"{}", "not a JSON object"),
        (b'{"max_members":"2"}', "max_members of the group's record can't be read"),
        (b'{"max_members":1,"members":"m1"}', "members of the group's record can't be read"),
        (b'{"max_members":1,"member_mappings":[{"member":1}]}', "member_mappings of the group's record can't be read"),
        (b"{}", "0 partitions is not possible"),
        (b'{"max_members":1,"members":["a"],"member_mappings":[{"member":"a","partitions":[0]}]}', "either members or"),
    ],
)
def test_what_is_no_record_is_told_in_a_sentence(kind, value, why):
    with pytest.raises(BadGroupError, match=why):
        kind.decode(value)


def test_what_means_the_same_is_no_difference():
    null, empty = ElasticRecord(partitions=2, max_messages=-1), ElasticRecord(partitions=2, filters=())
    assert null.differences(empty) == []
    inner = [ElasticRecord(partitions=2, filters=(PartitioningFilter("a.*", one),)) for one in (None, ())]
    assert inner[0].differences(replace(inner[1], members=("m",))) == []
    listed = StaticRecord(partitions=2, members=("a", "b"))
    assert listed.differences(replace(listed, members=("b", "a"))) == []


def test_what_differs_is_named_with_both_values():
    record = ElasticRecord(partitions=2, filters=(PartitioningFilter("a.*", (1,)),))
    assert record.differences(replace(record, partitions=3, max_bytes=5)) == [
        "partitions is 3, wanted 2",
        "max_bytes is 5, wanted 0",
    ]
    assert record.differences(ElasticRecord(partitions=2)) == ["filters is [], wanted [('a.*', [1])]"]
    static = StaticRecord(partitions=2, members=("a", "b"))
    assert static.differences(StaticRecord(partitions=2, filters=("x",), members=("a",))) == [
        "filters is ['x'], wanted []",
        "members is ['a'], wanted ['a', 'b']",
    ]


def test_who_is_listed_and_who_has_nothing_to_read():
    crowded = ElasticRecord(partitions=2, members=("c", "a", "b", "a"))
    assert crowded.member_names == ("c", "a", "b")
    assert crowded.without_partition == ("c",)
    assert crowded.lists("c")
    assert not crowded.lists("d")
    idle = ElasticRecord(partitions=1, mappings=(MemberMapping("a", (0,)), MemberMapping("b", None)))
    assert (idle.member_names, idle.without_partition, idle.lists("b")) == (("a", "b"), ("b",), True)


@given(
    st.lists(st.text(max_size=5), max_size=5),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.lists(st.integers(), max_size=3)), max_size=3),
    st.integers(1, 50),
)
def test_every_record_is_read_as_it_was_written(members, filters, partitions):
    static = StaticRecord(partitions=partitions, members=tuple(members), filters=tuple(one for one, _ in filters))
    assert StaticRecord.decode(static.encode()) == static
    assert json.loads(static.encode()).get("members", []) == members
    starred = tuple(PartitioningFilter(f"a{number}.*", None) for number, _ in enumerate(filters))
    elastic = ElasticRecord(partitions=partitions, members=tuple(members), filters=starred)
    assert ElasticRecord.decode(elastic.encode()) == elastic
