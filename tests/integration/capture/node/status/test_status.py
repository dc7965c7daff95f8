"""What `capture status` finds and shows, and `capture sweep --dry-run`."""

import asyncio
import io
import json

import msgspec
import pytest
from archive_states import NODE, STATE
from patient import PATIENCE
from rich.console import Console
from troubles import texts

from capture.archive.heads import COMPACTION, PIPELINES, SWEEP
from capture.cli.status import look, page
from capture.cli.sweep_preview import show_removable
from capture.config.load import load
from capture.config.settings import CaptureConfig, Compacting
from capture.errors import CaptureError
from capture.ingest import board as capture_state
from capture.ingest.board import BUCKET, Board, StreamState
from capture.node.status import status as capture_status
from capture.node.status.pipelines import NO_LEADER, PipelinesLook
from capture.node.status.status_page import metrics
from capture.pipelines.definition import Pipeline
from natty.elections import BUCKET as ELECTIONS
from natty.elections import Lease


@pytest.fixture
def published(natty, natty_name):
    """Return a function that publishes a state by hand, a leader in office or not, and returns what is found."""

    async def publish(*, led=True, **found):
        archive = natty_name("lake")
        stream = StreamState(stream=archive, first=1, last=1000, acked=900, pending=60, unacked=40, lag=2.0, **found)
        board = Board(natty, archive)
        await board.publish(msgspec.structs.replace(STATE, archive=archive, streams=[stream]))
        await board.announce(NODE)
        if led:
            await natty.election("any").prepare()
            lease = Lease(id="node-1", inc="one", state="held", L=5 * PATIENCE, nonce="one")
            await natty.bucket(ELECTIONS).put(SWEEP.election(archive), msgspec.json.encode(lease))
        (status,) = await look(natty, [CaptureConfig(stream=archive)])
        return status

    return publish


def shown(status):
    file = io.StringIO()
    Console(file=file, width=200, markup=False).print(page(status))
    return file.getvalue()


async def test_the_status_is_a_page_for_people(published):
    status = await published(held=880, gaps=20, missing=0, overlaps=5, removed=30)
    assert status.troubles == []
    page = shown(status)
    for text in (
        f"archive {status.archive}",
        "node-1, since 2026-09-21",
        "token 7",
        "manifest 41",
        "3 blocks, 1,234 messages, 56.8 kB not compacted yet",
        "6 files, 70,000 messages, 8.9 MB; compacted",
        " ago, last commit by node-2",
        "lake.orders: current, shows table 12, since 2026-09-21 ",
        "removed 9 objects, 1.0 MB",
        "Iceberg ORDERS",
        "15 snapshots, the current one is 6129484611666145821 of 2026-09-21 14:14:10 UTC; the next ",
        "120 blocks with 1,100 messages shown beside the files, ",
        "last commit at 2026-09-21 14:14:59 UTC; ",
        "4 blocks only after the merge: 3 encrypted, 1 not Parquet",
        "4,321",
        "all is well",
    ):
        assert text in page
    (row,) = [line for line in page.splitlines() if line.startswith(f" {status.archive}")]
    assert row.split() == [status.archive, *["1,000", "900", "60", "40", "2.0", "s", "880", "5", "30", "20", "0"]]


async def test_what_a_dead_leader_of_the_compaction_said_is_not_shown_beside_its_successor(natty, published):
    status = await published()
    entry = msgspec.structs.replace(NODE.catalogs[0], number=15)
    fresh = msgspec.structs.replace(NODE.fresh, shown=7)
    await Board(natty, status.archive).announce(
        msgspec.structs.replace(NODE, node="node-2", catalogs=[entry], fresh=fresh)
    )
    lease = Lease(id="node-2", inc="two", state="held", L=5 * PATIENCE, nonce="two")
    await natty.bucket(ELECTIONS).put(COMPACTION.election(status.archive), msgspec.json.encode(lease))
    (status,) = await look(natty, [CaptureConfig(stream=status.archive)])
    assert (status.catalogs, status.fresh) == ([entry], fresh)


async def test_what_is_missing_is_said(published):
    status = await published(gaps=2, missing=2, missing_are="5, 7", remedy="the disk is full")
    assert texts(status.troubles) == [
        f"2 acknowledged messages of {status.archive} are MISSING (5, 7); the stream has them, and the next sweep tries"
        " again to store them: the disk is full"
    ]
    assert "something is wrong" in shown(status)
    data = json.loads(json.dumps(status.as_dict()))
    assert (data["ok"], data["leaders"]) == (False, {"sweep": "node-1", "compaction": None})
    assert data["state"]["streams"][0]["missing"] == 2
    assert data["state"]["tables"][0]["current"] == "6129484611666145821"
    assert data["nodes"][0]["fresh"] == {
        "shown": 120,
        "messages": 1100,
        "committed": 1_790_000_099.0,
        "waiting": {"encrypted": 3, "not Parquet": 1},
    }
    assert (data["nodes"][0]["node"], data["nodes"][0]["late"]) == ("node-1", False)


async def test_an_archive_that_nobody_leads_is_not_well(published):
    status = await published(led=False)
    assert texts(status.troubles) == ["the sweep has no leader: stored blocks are not adopted"]
    assert "none; node-1 led the last sweep" in shown(status)


async def test_that_nobody_can_compact_is_shown_and_is_a_trouble_if_the_compaction_is_configured(natty, published):
    status = await published()
    sentence = "no running node is a candidate, a node with Spark is needed"
    assert f"none: {sentence}" in shown(status)
    wanted = CaptureConfig(stream=status.archive, compaction=Compacting(min_files=2))
    (status,) = await look(natty, [wanted])
    assert texts(status.troubles) == [f"nobody compacts: {sentence}"]
    await Board(natty, status.archive).announce(msgspec.structs.replace(NODE, location="s3://lake"))
    (status,) = await look(natty, [wanted])
    assert status.troubles == []
    assert sentence not in shown(status)


async def test_an_archive_of_which_nothing_is_published_is_told_in_one_sentence(natty):
    with pytest.raises(CaptureError, match="bucket capture_state has no status of archive NOWHERE"):
        await look(natty, [CaptureConfig(stream="NOWHERE")])


async def test_keys_that_can_not_be_read_are_named_and_all_else_is_shown(natty, published):
    archive = (await published()).archive
    await natty.put(BUCKET, f"node.{archive}.x", b'{"node":"\xff"}')
    (status,) = await look(natty, [CaptureConfig(stream=archive)])
    assert [heard.node.node for heard in status.board.nodes] == ["node-1"]
    assert status.board.state.manifest == 41
    assert [trouble.split(":")[0] for trouble in texts(status.troubles)] == [
        f"key node.{archive}.x of bucket capture_state can't be read"
    ]
    await natty.put(BUCKET, f"archive.{archive}", b"[" * 100_000)
    (status,) = await look(natty, [CaptureConfig(stream=archive)])
    page = shown(status)
    for key in (f"node.{archive}.x", f"archive.{archive}"):
        assert f"key {key} of bucket" in page
    assert json.loads(json.dumps(status.as_dict()))["ok"] is False


async def test_an_archive_of_which_only_what_can_not_be_read_is_published_is_told_by_its_key(natty, natty_name):
    archive = natty_name("lake")
    await natty.create_bucket(BUCKET)
    await natty.put(BUCKET, f"archive.{archive}", b'{"archive": 5}')
    (status,) = await look(natty, [CaptureConfig(stream=archive)])
    assert f"key archive.{archive} of bucket capture_state can't be read" in status.troubles[1].text


def test_what_would_go_is_shown_with_its_sum(capsys):
    going = [
        {"path": "blocks/a", "why": "rule 1, older_than", "messages": 1200, "bytes": 34_000},
        {"path": "blocks/[/b]", "why": "a leftover of a writer that died"},
    ]
    show_removable(going, as_json=False)
    out = capsys.readouterr().out
    assert "blocks/[/b]" in out
    assert "retention would remove 1 object with 1,200 messages, 34,000 bytes" in out
    assert "the sweep would delete 1 object that nothing needs any more" in out
    show_removable(going, as_json=True)
    assert json.loads(capsys.readouterr().out) == going


# --- after the nodes died --------------------------------------------------------------------------------------------


async def until_status(natty, config, enough):
    """Look until the status is as it should be, and return it."""
    async with asyncio.timeout(2 * PATIENCE):
        while not enough(found := (await look(natty, [config]))[0]):
            await asyncio.sleep(0.1)
    return found


def is_dead(found):
    late = found.board.is_late and all(one.is_late for one in found.board.nodes)
    return late and not (found.sweeper or found.compactor)


def figures(found):
    """Return the metrics of a status by name; those of one stream."""
    return dict(line.rsplit(" ", 1) for line in metrics([found]).splitlines() if line[0] != "#")


@pytest.mark.long
async def test_what_is_not_captured_any_more_is_counted_now_and_never_frozen_when_all_nodes_were_killed(
    fleet, monkeypatch
):
    monkeypatch.setattr(capture_state, "ALLOWANCE", 0.5)
    monkeypatch.setattr(capture_status, "ALLOWANCE", 0.5)
    path = fleet.configure(decoder="raw", limits__max_age=0.2, lease=1.0, compaction__lease=1.0)
    config = load(path)
    nodes = [fleet.start(f"node-{number}", path) for number in (1, 2)]
    await fleet.publish([b"1", b"2", b"3"])
    await fleet.until_all_acked(3)
    well = await until_status(
        fleet.natty, config, lambda one: one.board.state and one.sweeper and one.compactor and not one.troubles
    )
    labels = f'{{archive="{fleet.stream}",stream="{fleet.stream}"}}'
    pending, lag = (f"capture_archive_stream_{name}{labels}" for name in ("pending", "lag_seconds"))
    assert (figures(well)[pending], figures(well)[lag]) == ("0", "0")
    for node in nodes:
        node.kill()
        await fleet.ended(node)
    await fleet.publish([b"4", b"5"])
    dead = await until_status(fleet.natty, config, is_dead)
    assert float(figures(dead)[lag]) > 0
    assert figures(dead)[pending] == "2"
    assert figures(dead)[f'capture_archive_led{{archive="{fleet.stream}",office="compaction"}}'] == "0"
    assert "no node is running: start one with `capture run`, it adopts the stored blocks" in texts(dead.troubles)
    assert dead.as_dict()["state"]["streams"][0]["pending"] == 2
    assert not [name for name in figures(dead) if "stream_missing" in name or "node_pending" in name]
    await fleet.natty.jetstream.request(f"CONSUMER.DELETE.{fleet.stream}.capture")
    unknown = (await look(fleet.natty, [config]))[0]
    assert not [name for name in figures(unknown) if "lag" in name or "stream_pending" in name]
    assert unknown.as_dict()["state"]["streams"][0]["lag"] is None
    assert unknown.as_dict()["state"]["streams"][0]["pending"] is None
    assert f"{fleet.stream} ? ? ? ? ?" in " ".join(shown(unknown).split())


PIPELINE = Pipeline(name="rows", sql="SELECT sequence FROM S", mode="append")


async def test_pipelines_are_shown_with_their_leader_also_if_their_store_can_not_be_read(natty, natty_name, tmp_path):
    archive = natty_name("lake")
    config = CaptureConfig(stream=archive, pipeline=[PIPELINE], store=str(tmp_path / "nothing"))
    found = await PipelinesLook(config).read(natty)
    assert (found.leader, [one.state for one in found.pipelines]) == ("", ["not known"])
    said = f"the tables of the pipelines can't be read: {found.unreadable}"
    assert texts(found.troubles) == [NO_LEADER, said]
    await natty.election("any").prepare()
    lease = Lease(id="node-3", inc="one", state="held", L=5 * PATIENCE, nonce="one")
    await natty.bucket(ELECTIONS).put(PIPELINES.election(archive), msgspec.json.encode(lease))
    found = await PipelinesLook(config).read(natty)
    assert (found.leader, texts(found.troubles)) == ("node-3", [said])
    without = msgspec.structs.replace(config, store="")
    assert (await PipelinesLook(without).read(natty)).unreadable == "no store is configured"
    assert await PipelinesLook(msgspec.structs.replace(config, pipeline=[])).read(natty) is None


async def test_pipelines_of_several_streams_have_a_leader_of_their_own(natty, tmp_path):
    config = CaptureConfig(stream="A", streams=["A", "B"], pipeline=[PIPELINE], store=str(tmp_path))
    assert (await PipelinesLook(config).read(natty)).name == "streams"
