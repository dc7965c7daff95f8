from dataclasses import replace

import msgspec
import pytest

from capture.cli.status import _age, _size
from capture.ingest.board import ArchiveState, BoardState, Heard, NodeState, StreamState
from capture.ingest.board_trouble import MOST_SAID
from natty.errors import BadRecordError
from natty.kv.json_records import decode

STATE = ArchiveState(
    archive="A",
    leader="one",
    token=7,
    term=1000,
    since=0.0,
    swept=0.0,
    seconds=0.1,
    every=10.0,
    manifest=3,
    blocks=2,
    messages=20,
    bytes=2000,
)
NODE = NodeState(node="one", version="1", since=0.0, every=10.0)
FAILING = msgspec.structs.replace(NODE, troubles=["the sweep failed: the store is away"])


def view(ago=1.0, nodes=(), **state):
    return BoardState(msgspec.structs.replace(STATE, **state), ago, [Heard(NODE, heard) for heard in nodes])


def at(name, location):
    return msgspec.structs.replace(NODE, node=name, location=location)


def stream(**found):
    return StreamState(stream="S", first=1, last=9, acked=9, pending=0, unacked=0, **found)


def test_all_is_well_while_somebody_leads_sweeps_in_time_and_nothing_is_missing():
    fine = view(ago=30.0, nodes=[0.0, 35.0], streams=[stream(gaps=3, gaps_are="1–3", overlaps=2, missing=0)])
    assert fine.troubles(leader="one") == []
    assert view(streams=[stream(gaps=3, missing=None)]).troubles(leader="one") == []


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (view(ago=36.0), "the last sweep was 36 s ago (expected every 10 s)"),
        (view(nodes=[36.0]), "one has not reported for 36 s (expected every 10 s)"),
        (
            view(streams=[stream(missing=2, missing_are="4, 7", remedy="the store is away")]),
            "2 acknowledged messages of S are MISSING (4, 7); the stream has them, and the next sweep tries again to"
            " store them: the store is away",
        ),
        (view(dangling=["blocks/x"]), "blocks/x is named by an entry and missing"),
        (view(unreadable=["_entries/x is damaged"]), "an entry can't be read: _entries/x is damaged"),
        (BoardState(None, 0.0, [Heard(NODE, 1.0)]), "the archive was never swept"),
        (BoardState(STATE, 1.0, [Heard(FAILING, 1.0)]), "one: the sweep failed: the store is away"),
        (
            BoardState(STATE, 1.0, [Heard(at("a", "s3://lake"), 1.0), Heard(at("b", "file:///lake"), 1.0)]),
            "nodes use different URLs for the archive, file:///lake (b), s3://lake (a): "
            "set [table] location to the URL of engines on all nodes",
        ),
    ],
)
def test_each_thing_that_is_wrong_has_its_sentence(found, sentence):
    assert found.troubles(leader="one") == [sentence]


def test_of_thousands_of_things_that_are_wrong_a_few_are_named_and_the_others_counted():
    paths = [f"blocks/{number}" for number in range(3000)]
    found = view(ago=1.0, nodes=[99.0] * 900, dangling=paths, unreadable=paths)
    found = replace(found, unreadable=[f"key {path} can't be read" for path in paths])
    said = found.troubles(leader="one")
    assert len(said) == 4 * (MOST_SAID + 1)
    assert [one for one in said if one.startswith("and ")] == [
        *["and 2,980 more like these"] * 3,
        "and 880 more like these",
    ]


def test_nodes_that_do_not_run_any_more_or_can_not_compact_disagree_with_nobody():
    a, late, no_spark = (Heard(at(*one), ago) for *one, ago in (("a", "x", 1.0), ("b", "y", 99.0), ("c", "", 1.0)))
    assert BoardState(STATE, 1.0, [a, late, no_spark]).locations == {"a": "x"}


def test_that_nobody_leads_comes_first():
    said = view(ago=99.0, nodes=[1.0]).troubles(leader="")
    assert said[0] == "the sweep has no leader: stored blocks are not adopted"


@pytest.mark.parametrize("nodes", [[], [99.0]])
def test_that_no_node_runs_is_said_with_what_to_do(nodes):
    said = view(nodes=nodes).troubles(leader="")[0]
    assert said == "no node is running: start one with `capture run`, it adopts the stored blocks"


def test_gaps_and_overlaps_are_told_in_one_sentence():
    assert stream(gaps=3, gaps_are="1–3", overlaps=2).describe_gaps() == (
        "S: 3 sequences that the archive does not hold left the stream (expired, deleted, or acknowledged by another"
        " client), or have subjects that are not captured (1–3), 2 messages are stored more than once until the"
        " compaction"
    )
    assert stream().describe_gaps() == stream().describe_missing() == ""


def test_ages_and_sizes_are_for_people():
    assert [_age(seconds) for seconds in (-1.0, 0.44, 12.3, 180.0, 8_000.0, 200_000.0)] == [
        "0.0 s",
        "0.4 s",
        "12 s",
        "3 min",
        "2 h",
        "2 d",
    ]
    assert [_size(count) for count in (0, 999, 1500, 2_500_000, 3 * 10**13)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "30.0 TB",
    ]


@pytest.mark.parametrize("setting", ["node", "version", "location", "troubles"])
def test_what_a_node_says_of_itself_is_as_long_as_people_can_read(setting):
    said = msgspec.to_builtins(FAILING)
    assert decode(msgspec.json.encode(said), NodeState) == FAILING
    long = "x" * 5000
    with pytest.raises(BadRecordError, match=f"length <= 4096.*{setting}"):
        decode(msgspec.json.encode(said | {setting: [long] if setting == "troubles" else long}), NodeState)
