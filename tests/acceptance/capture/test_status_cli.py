"""`capture status` and what retention would remove, as processes. The page itself: node/status."""

import asyncio
import json
import signal
import time

import msgspec
import pytest
from archive_states import STATE
from archived import Archived
from patient import PATIENCE

from capture.ingest.board import Board

MESSAGES = 100


@pytest.fixture
def shell(quick_shell):
    return quick_shell


def test_without_a_server_it_is_an_error_in_one_sentence(shell):
    done = shell.capture("status", "--stream", "S", NATS_URL="tls://127.0.0.1:9", NATS_CONNECT_TIMEOUT="1s")
    assert done.status == 1
    assert "127.0.0.1:9" in done.complaint


def test_watching_shows_each_change_until_interrupted(shell, served, natty_name):
    archive = natty_name("lake")

    def publish(manifest):
        async def work(natty):
            await Board(natty, archive).publish(msgspec.structs.replace(STATE, archive=archive, manifest=manifest))

        served(work)

    publish(41)
    watching = shell.start("capture", "status", "--stream", archive, "--watch", "--json")
    assert json.loads(watching.stdout.readline())["state"]["manifest"] == 41
    publish(42)
    assert json.loads(watching.stdout.readline())["state"]["manifest"] == 42
    watching.send_signal(signal.SIGINT)
    done = shell.finish(watching)
    assert (done.status, done.out, done.err) == (130, "", "capture: interrupted\n")


def test_after_the_last_node_has_stopped_it_says_so_and_counts_what_no_sweep_has_adopted(shell, served, natty_name):
    archive = natty_name("lake")
    (shell.folder / "capture.toml").write_text(f'stream = "{archive}"\nstore = "lake"\n')

    async def stop(natty):
        await Archived(folder=shell.folder / "lake").make()  # with a block that is not adopted
        await Board(natty, archive).publish(msgspec.structs.replace(STATE, archive=archive, unadopted=0))

    served(stop)
    done = shell.capture("status", "--config", "capture.toml")
    assert done.status == 3
    assert "1 block that the next sweep of a node adopts" in done.out
    assert "• no node is running: start one with `capture run`, it adopts the stored blocks" in done.out
    data = json.loads(shell.capture("status", "--config", "capture.toml", "--json").out)
    assert (data["new"], data["state"]["unadopted"]) == ({"blocks": 1, "problem": ""}, 0)


@pytest.fixture
def configured(shell, make_stream, natty_name):
    """Return a function that writes a configuration for a stream of some messages, and returns the stream's name."""
    stream = make_stream(natty_name("status"), MESSAGES)

    def configure(more=""):
        (shell.folder / "capture.toml").write_text(
            f'stream = "{stream}"\nstore = "lake"\npartition = "subject:1"\nlease = 15.0\n'
            f"[limits]\nmax_age = 0.3\n[sweep]\nevery = 0.2\ngrace = 900.0\n{more}"
        )
        return stream

    configure()
    return configure


def test_a_node_is_seen_while_it_runs_and_told_of_when_it_was_killed(shell, served, configured):
    archive = configured()
    node = shell.start("capture", "run", "--config", "capture.toml", "--node-name", "node-1")

    def until(condition):
        async def wait(natty):
            deadline = time.monotonic() + PATIENCE
            while not condition(view := await Board(natty, archive).read()):
                assert time.monotonic() < deadline, view
                await asyncio.sleep(0.1)

        served(wait)

    until(
        lambda view: (
            view.state
            and view.state.streams
            and view.state.streams[0].held == MESSAGES
            and [heard.node.stored.get("messages") for heard in view.nodes] == [MESSAGES]
        )
    )
    data = json.loads(shell.capture("status", "--config", "capture.toml", "--json").out)
    assert (data["state"]["leader"], data["leaders"]["sweep"]) == ("node-1", "node-1")
    (stream,) = data["state"]["streams"]
    assert (stream["acked"], stream["pending"], stream["gaps"], stream["missing"]) == (MESSAGES, 0, 0, 0)
    (seen,) = data["nodes"]
    assert (seen["stored"]["messages"], seen["pending"], seen["oldest"]) == (MESSAGES, 0, None)
    node.kill()
    node.communicate()
    until(lambda view: view.nodes[0].is_late and view.is_late)
    done = shell.capture("status", "--config", "capture.toml")
    assert done.status == 3
    assert "node-1 has not reported for" in done.out
    assert "the last sweep was" in done.out

    configured('[[retention]]\nkey = "us"\n[[retention]]\nolder_than = 0.001\n')
    done = shell.capture("sweep", "--config", "capture.toml", "--dry-run", "--json")
    assert (done.status, done.err) == (0, "")  # nobody has to be elected for it
    going = json.loads(done.out)
    assert sum(one["messages"] for one in going) == MESSAGES // 2
    assert all("key=eu" in one["path"] and one["why"] == "rule 2, older_than" for one in going)
