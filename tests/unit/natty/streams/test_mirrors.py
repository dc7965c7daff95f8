"""Copies of streams as their configuration has them, and what a server tells of how far they are."""

import pytest

from natty import NattyError
from natty.streams.mirror import Copying, Origin, PromotionRefusedError, list_copying, refuse_promotion


def told(**mirror):
    return {"config": {"name": "M", "mirror": {"name": "O"}}, "mirror": {"name": "O", **mirror}}


@pytest.mark.parametrize(
    ("mirror", "state", "heard"),
    [
        ({"lag": 0, "active": 500_000_000}, "caught up", 0.5),
        ({"lag": 7, "active": 500_000_000}, "copying", 0.5),
        ({"lag": 0, "active": 6_000_000_000}, "silent", 6.0),
        ({"lag": 7, "active": 6_000_000_000}, "silent", 6.0),
        ({"lag": 0, "active": -1}, "never heard", None),
        ({}, "never heard", None),
    ],
)
def test_a_mirror_is_caught_up_only_while_its_origin_is_heard(mirror, state, heard):
    (one,) = list_copying(told(**mirror))
    assert (one.state, one.heard, one.lag) == (state, heard, mirror.get("lag", 0))


def test_a_gathering_stream_is_told_for_each_origin_and_a_plain_one_not_at_all():
    config = {"name": "S", "sources": [{"name": "A"}, {"name": "B"}]}
    info = {
        "config": config,
        "sources": [
            {"name": "A", "lag": 1, "active": 1},
            {"name": "B", "lag": 0, "active": 2, "external": {"api": "$JS.hub.API"}, "error": {"description": "no"}},
        ],
    }
    assert [(one.origin, one.state, one.external, one.error) for one in list_copying(info)] == [
        ("A", "copying", "", ""),
        ("B", "caught up", "$JS.hub.API", "no"),
    ]
    assert [one.state for one in list_copying({"config": config})] == ["never heard", "never heard"]
    assert list_copying({"config": {"name": "P"}}) == []


def test_an_origin_is_written_as_the_server_reads_it():
    there = Origin(stream="O", domain="hub", start_sequence=7, transforms=(("a.*", "b.{{wildcard(1)}}"),))
    assert there.wire() == {
        "name": "O",
        "external": {"api": "$JS.hub.API", "deliver": ""},
        "opt_start_seq": 7,
        "subject_transforms": [{"src": "a.*", "dest": "b.{{wildcard(1)}}"}],
    }
    late = Origin(stream="O", start_time="2026-01-31T13:00:00.123456789+01:00")
    assert late.wire() == {"name": "O", "opt_start_time": "2026-01-31T12:00:00.123456789Z"}
    assert Origin(stream="O", filter_subject="a.>").wire() == {"name": "O", "filter_subject": "a.>"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"stream": "a.b"}, "'.' at character 2"),
        ({"domain": "hub", "api": "$JS.hub.API"}, "give one of them"),
        ({"deliver": "d"}, "needs the prefix"),
        ({"start_sequence": 1, "start_time": "2026-01-01T00:00:00Z"}, "contradict each other"),
        ({"filter_subject": "a", "transforms": (("a", "b"),)}, "exclude each other"),
        ({"filter_subject": "a..b"}, "empty token"),
        ({"start_time": "yesterday"}, "RFC 3339"),
    ],
)
def test_an_origin_that_contradicts_itself_is_told(options, complaint):
    with pytest.raises(NattyError, match=complaint):
        Origin(**{"stream": "O"} | options)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"lag": 3, "state": "copying"}, r"has not copied 3 messages of O \(copying\)"),
        ({"lag": 3, "state": "silent", "heard": 60.0}, r"has not copied 3 messages of O \(silent\)"),
        ({"heard": None, "state": "never heard"}, "has not copied the messages of O"),
        ({"external": "$JS.hub.API"}, "the origin of M is alive, heard 0.5 s ago"),
    ],
)
def test_a_promotion_that_would_lose_or_double_messages_is_refused(changed, complaint):
    good = {"stream": "M", "kind": "mirror", "origin": "O", "state": "caught up", "lag": 0, "heard": 0.5}
    refuse_promotion(Copying(**good))
    refuse_promotion(Copying(**good | {"external": "$JS.hub.API", "heard": 5.1, "state": "silent"}))
    with pytest.raises(PromotionRefusedError, match=complaint):
        refuse_promotion(Copying(**good | changed))
