"""A disk that fills up in the middle of a restore, the server's or ours: one sentence, and nothing half done."""

import asyncio
import json
import os
from shlex import quote

import pytest
from full_disk import can_mount, mounted
from patient import PATIENT
from piled import STREAM, chunks, pile

from natty import Natty
from natty.testing import NatsServer, ServerOptions

NOISE = os.urandom(1 << 20)
COUNT = 24_000
MOUNTABLE = pytest.mark.skipif(not can_mount(), reason="no namespace to mount a small file system in")


@pytest.fixture
def archive(tmp_path):
    """Three blocks of 8 MB that overlap: two of them are laid out, and have not enough room in memory."""
    blocks = chunks(COUNT, COUNT // 3, 3)
    store, _ = asyncio.run(pile(tmp_path / "archive", blocks, lambda one: NOISE[one : one + 1000]))
    return store


@pytest.fixture
def full_server(natty_tls, nats_server_binary, tmp_path):
    """A server whose streams lie on a disk of 4 MB, and who does not know that."""
    disk, program = tmp_path / "disk", tmp_path / "server"
    mount = f'mount -t tmpfs -o size=4m none {quote(str(disk))} && exec {quote(str(nats_server_binary))} "$@"'
    program.write_text(f'#!/bin/sh\nexec unshare -Urm sh -c {quote(mount)} "$0" "$@"\n')
    program.chmod(0o755)
    disk.mkdir()
    room = f"jetstream {{ store_dir: {json.dumps(str(disk))}, max_file: 1GB }}"
    options = ServerOptions(name="full", jetstream=False, config=room)
    with NatsServer(options, folder=tmp_path / "full", tls_files=natty_tls, binary=program) as server:
        yield server


def streams_of(server):
    async def names():
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            return (await natty.jetstream.request("STREAM.NAMES"))["streams"] or []

    return asyncio.run(names())


@MOUNTABLE
def test_the_server_s_disk_fills_up(shell, full_server, archive):
    done = shell.capture("restore", archive, NATS_URL=full_server.url)
    assert done.status == 1
    assert done.complaint.startswith("capture: the server gave up: restore failed")
    assert "no space left on device" in done.complaint
    assert streams_of(full_server) == []


@MOUNTABLE
def test_our_own_disk_fills_up(shell, nats_server, archive, tmp_path):
    small = tmp_path / "small"
    command = mounted(small, "4m", "from capture.cli import main; main()", "restore", archive)
    done = shell.finish(shell.execute(command, TMPDIR=str(small)))
    assert done.status == 1
    said = f"capture: a temporary file could not be written in {small}: No space left on device; free space there, or"
    assert done.complaint.startswith(said)
    assert STREAM not in streams_of(nats_server)
