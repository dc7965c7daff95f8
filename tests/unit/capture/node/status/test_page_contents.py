"""What the status page shows besides the status: the last hour, what the ack floor waits for, runbook entries."""

import errno
import json
import re
from email import message_from_string
from pathlib import Path

import msgspec
import pytest

from capture.archive.iceberg_state import CompactionRun, CompactionState
from capture.cli import serve
from capture.cli.serve import runbook_url, start_command
from capture.errors import ConfigError
from capture.ingest.board import ArchiveState, BoardState, Heard, NodeState, StreamState
from capture.node import fresh_keeper, leader_tasks, pipeline_runner, user_catalog
from capture.node.pipeline_keeper import FOLLOWS, KEEPS, REQUESTS
from capture.node.status.ack_floor_holder import explain
from capture.node.status.history import KEPT, STEP, History
from capture.node.status.pipelines import PipelinesStatus, PipelineState
from capture.node.status.status import Status
from capture.node.status.status_page import metrics
from natty.metrics.http import _explain_failure

RUNBOOK = Path(__file__).parents[5] / "docs" / "runbook.md"
NODE = NodeState(node="one", version="1", since=0.0, every=10.0)
STREAM = StreamState(stream="S", first=1, last=9, acked=4, pending=2, unacked=3, waiting_from=5, lag=7.0, ack_wait=60.0)
STATE = ArchiveState(
    archive="A", leader="one", token=7, term=1, since=0.0, swept=0.0, seconds=0.1, every=10.0, manifest=3, blocks=2,
    messages=20, bytes=2000, streams=[STREAM],
)  # fmt: skip


def node(**changed):
    return msgspec.structs.replace(NODE, **changed)


def status(*nodes, ago=1.0, asked=("S",), state=STATE):
    return Status("A", BoardState(state, ago, [Heard(one, 1.0) for one in nodes]), "one", "one", frozenset(asked))


def stored(messages, **changed):
    return node(stored={"messages": messages}, **changed)


def rates(history):
    return [rate for _, rate, _ in history.as_dict()["archives"]["A"]]


# --- the last hour ---------------------------------------------------------------------------------------------------


def test_the_first_rate_is_the_average_since_the_nodes_started_and_later_ones_are_of_the_last_minute():
    history = History()
    history.add([status(stored(1000))], 100.0)
    assert rates(history) == [10.0]
    for step in range(1, 10):
        history.add([status(stored(1000 + 50 * step))], 100.0 + STEP * step)
    assert rates(history)[1:] == [5.0] * 9
    for step in range(10, 20):
        history.add([status(stored(1450))], 100.0 + STEP * step)
    assert rates(history)[-1] == 0.0


def test_all_that_a_new_node_has_stored_counts_and_a_node_that_is_seen_late_counts_from_then_on():
    history = History()
    history.add([status(stored(1000))], 100.0)
    history.add([status(stored(1000), stored(70, node="two", since=105.0), stored(900, node="old"))], 110.0)
    assert rates(history)[-1] == 7.0


def test_what_is_not_known_is_a_gap():
    history = History()
    history.add([status(stored(10))], 100.0)
    history.add([], 110.0)
    late = Status("A", BoardState(STATE, 99.0, [Heard(stored(10), 99.0)]), "", "")
    history.add([late], 120.0)
    assert history.as_dict()["archives"]["A"][1:] == [[110.0, None, None], [120.0, None, None]]
    history.add([status(stored(40))], 130.0)
    assert history.as_dict()["archives"]["A"][-1] == [130.0, 1.0, 7.0]


def test_an_hour_is_kept():
    history = History()
    for step in range(1000):
        history.add([status(stored(step))], STEP * step)
    times = [at for at, _, _ in history.as_dict()["archives"]["A"]]
    assert (len(times), times[-1] - times[0]) == (361, KEPT)
    assert History().as_dict()["archives"] == {}


# --- the ack floor ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "nodes", "sentence"),
    [
        ({"pending": 0, "unacked": 0}, [(NODE, 1.0)], ""),
        ({}, [], "no node is running: 5 messages wait in the stream"),
        ({}, [(node(lowest=5), 99.0)], "no node is running: 5 messages wait in the stream"),
        ({"unacked": 0}, [(NODE, 1.0)], "message 5 is not delivered to a node yet"),
        (
            {},
            [(node(node="two", lowest=8), 1.0), (node(lowest=5, oldest=12.0), 1.0)],
            "message 5 is in a block of one that is not stored yet, open for 13 s at most",
        ),
        (
            {},
            [(node(store_trouble="the disk is full"), 1.0)],
            "one could not store a block, the server delivers its messages again: the disk is full",
        ),
        ({}, [(node(lowest=3), 2.0)], "nothing: it has moved since the last report of one, 2 s ago"),
        (
            {},
            [(NODE, 1.0), (node(node="two", lowest=5), 80.0)],
            "two, which has not reported for 80 s, may have message 5: the server delivers it again within 60 s",
        ),
        (
            {},
            [(node(lowest=3, oldest=600.0), 2.0), (node(node="two", lowest=5), 80.0)],
            "two, which has not reported for 80 s, may have message 5: the server delivers it again within 60 s",
        ),
        (
            {},  # the server has delivered its messages again
            [(node(lowest=3), 2.0), (node(node="two", lowest=5), 99.0)],
            "nothing: it has moved since the last report of one, 2 s ago",
        ),
        (
            {},
            [(node(pending=3, oldest=4.0), 1.0)],
            "it is not known: one has an earlier version, which does not report what it has",
        ),
        (
            {"unacked": 0, "waiting_from": None},
            [(node(pending=3, oldest=4.0), 1.0)],
            "it is not known: the server did not return the first message that waits",
        ),
        (
            {},
            [(node(lowest=8), 1.0)],
            "message 5 is in no block of a running node: another reader of the consumer has it, or the server delivers"
            " it again within 60 s",
        ),
    ],
)
def test_what_the_ack_floor_waits_for_is_said(changed, nodes, sentence):
    stream = msgspec.structs.replace(STREAM, **changed)
    assert explain(stream, [Heard(one, ago) for one, ago in nodes]) == sentence


def test_it_is_in_the_status_unless_the_position_is_not_known():
    [found] = status(node(lowest=5)).as_dict()["state"]["streams"]
    assert found["held_back"].startswith("message 5 is in a block of one")
    [found] = status(node(lowest=5), ago=99.0, asked=()).as_dict()["state"]["streams"]
    assert (found["held_back"], found["pending"]) == (None, None)


# --- the lag ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "lag"), [({}, 7.0), ({"lag": None}, None), ({"lag": None, "pending": 0, "unacked": 0}, 0.0)]
)
def test_a_lag_that_is_not_known_is_not_zero(changed, lag):
    found = status(node(), state=msgspec.structs.replace(STATE, streams=[msgspec.structs.replace(STREAM, **changed)]))
    history = History()
    history.add([found], 100.0)
    assert [one for _, _, one in history.as_dict()["archives"]["A"]] == [lag]
    said = re.findall(r"^capture_archive_stream_lag_seconds{.*} (.*)$", metrics([found]), re.MULTILINE)
    assert [float(one) for one in said] == [one for one in [lag] if one is not None]


def test_nodes_that_are_gone_are_forgotten():
    history = History()
    for start in range(100):
        history.add([status(stored(5, since=float(start)))], 1000.0 + STEP * start)
    assert len(history._counted["A"]) == 1


# --- the runbook -----------------------------------------------------------------------------------------------------


def anchors():
    headings = re.findall(r"^#+ (.+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def all_troubles():
    """Return the problems of an archive and of pipelines that have each kind of problem."""
    bad = msgspec.structs.replace(STREAM, missing=2, missing_are="1, 2", remedy="none")
    state = msgspec.structs.replace(STATE, streams=[bad], dangling=["x"], unreadable=["y"])
    nodes = [
        Heard(node(troubles=["full", "the sweep failed: full"], store_trouble="full", location="s3://a"), 1.0),
        Heard(node(node="two", location="s3://b"), 1.0),
        Heard(node(node="three"), 99.0),
    ]
    found = Status(
        "A",
        BoardState(state, 99.0, nodes, ["key z of bucket capture_state can't be read: no JSON"]),
        "",
        "",
        frozenset({"S"}),
    )
    never = Status("A", BoardState(None, 0.0, []), "one", "", is_to_compact=True)
    failed = PipelineState(name="p", state="failed", schedule="every 5m", error="no")
    return [*found.troubles, *never.troubles, *PipelinesStatus("A", "", [failed], "away").troubles]


def test_every_problem_has_an_entry_in_the_runbook():
    troubles = all_troubles()
    assert len(troubles) == 15
    assert {one.entry for one in troubles} <= anchors()
    by_text = {str(one).partition(" ")[0]: one.entry for one in troubles}
    assert by_text["three"] == "capturenodesilent"
    entries = {str(one): one.entry for one in troubles}
    assert (entries["one: full"], entries["one: the sweep failed: full"]) == ("capturestorefailing", "sentences")


def list_sentences():
    """Return the sentences of the runbook's table, as patterns: "…" and words like NODE stand for any text."""
    table = RUNBOOK.read_text(encoding="utf-8").partition("## Sentences")[2]
    found = [one for row in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) for one in re.findall(r"\*(.+?)\*", row)]
    parts = [re.split(r"…|\b(?:N|NODE|NAME|KEY)\b", one) for one in found]
    return [".+".join(map(re.escape, one)) for one in parts]


def list_failures():
    """Return what the leaders' tasks of a node say when they fail. A new place that says something is added here."""
    sources = [Path(one.__file__).read_text() for one in (fresh_keeper, leader_tasks, user_catalog, pipeline_runner)]
    said = sorted(re.findall(r"failing\[(\w+)\] = ", "".join(sources)))
    assert said == ["FRESH", "REGISTERS", "what", "what"], "another place says what failed: add its sentence here"
    works = {getattr(leader_tasks, name) for one in sources for name in re.findall(r"self\._attempt\((\w+),", one)}
    assert len(works) == 4
    pipelines = ["pipeline p: its SQL failed", *(f"{one}: KeyError: 1" for one in (KEEPS, FOLLOWS, REQUESTS))]
    return [*(f"the {one} failed: full" for one in works), "the catalog does not show the table: denied", *pipelines]


def test_every_sentence_about_a_problem_stands_in_the_table_of_the_runbook():
    refused = "the server refused: Permissions Violation: give the node's user that permission"
    found = [*all_troubles(), *Heard(node(troubles=[*list_failures(), refused]), 1.0).node.list_troubles()]
    patterns = list_sentences()
    found = [one for one in found if one.entry != "capturestorefailing"]  # the words of the store itself
    assert [one for one in found if not any(re.search(pattern, one) for pattern in patterns)] == []
    assert any(
        re.search(pattern, _explain_failure("127.0.0.1:8190", OSError(errno.EADDRINUSE, ""))) for pattern in patterns
    )


def test_the_entries_stand_beside_the_problems_in_the_status():
    found = status(node(troubles=["full"], store_trouble="full")).as_dict()
    assert (found["troubles"], found["entries"]) == (["one: full"], ["capturestorefailing"])
    json.dumps(found)
    msgspec.json.encode(found)


def test_the_runbook_is_where_the_option_or_the_package_says(monkeypatch):
    assert runbook_url("https://docs/runbook/") == "https://docs/runbook/"
    with pytest.raises(ConfigError, match="begins with https:// or http://"):
        runbook_url("javascript:alert(1)")
    headers = message_from_string("Project-URL: Documentation, https://forge/tree/HEAD/docs\n")
    monkeypatch.setattr(serve, "metadata", lambda name: headers)
    assert runbook_url("") == "https://forge/tree/HEAD/docs/runbook.md"
    assert start_command(Path("c.toml"), "S") == "capture run --config c.toml"
    assert start_command(None, "S") == "capture run --stream S --store STORE"


def test_the_runs_of_the_compaction_are_in_the_status():
    run = CompactionRun(began=1.0, seconds=2.0, inputs=3, outputs=1, rows=40)
    [found] = status(node(compaction=CompactionState(runs=[run], next=9.0))).as_dict()["nodes"]
    assert found["compaction"]["runs"][0]["inputs"] == 3
    assert found["compaction"]["next"] == 9.0
