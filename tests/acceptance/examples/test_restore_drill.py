"""examples/restore_drill.sh restores an archive into a server of its own, and compares them."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from archived import STREAM, Archived
from patient import PATIENCE

ROOT = Path(__file__).parents[3]
DRILL = ROOT / "examples" / "restore_drill.sh"


@pytest.fixture
def archive(tmp_path):
    """An archive in a folder, and what was recorded of its stream."""

    async def make():
        archived = await Archived(folder=tmp_path / "archive").make()
        archived.now += 10.0
        state = {"messages": 8, "bytes": 1000, "first_seq": 1, "last_seq": 9}
        await archived.record(state=state, deleted=[5], config={"name": STREAM, "subjects": ["orders.>"]})

    asyncio.run(make())
    return tmp_path / "archive"


@pytest.fixture
def drill(shell, tmp_path):
    def run(*arguments):
        (tmp_path / "temporary").mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        process = shell.execute(
            ["sh", DRILL, *arguments],
            PATH=path,
            PYTHONPATH=str(ROOT),
            TMPDIR=str(tmp_path / "temporary"),
            NATS_URL="tls://another.example:4222",
        )
        done = shell.finish(process, within=4 * PATIENCE)
        assert list((tmp_path / "temporary").iterdir()) == []
        return done

    return run


def test_a_drill_restores_every_message_that_still_lives_and_leaves_nothing_behind(drill, archive):
    done = drill(archive)
    assert done.status == 0, done.out + done.err
    assert done.out.startswith(f"{STREAM}: 4 messages, 2 to 9, restored in ")
    assert "4 messages were left out by the server" in done.out  # their Nats-TTL is over
    assert "DIFFERS" not in done.out


def test_options_of_restore_are_passed_on(drill, archive):
    done = drill(archive, "--as", "DRILL", "--detached", "--to-sequence", "4")
    assert done.status == 0, done.out + done.err
    assert done.out.startswith("DRILL: 2 messages, 2 to 4, restored in ")


def test_a_drill_of_no_archive_fails_with_the_reason(drill, tmp_path):
    done = drill(tmp_path / "typo")
    assert done.status == 1
    assert "there is no archive in" in done.err
