"""What others wrote comes to a terminal as text that it can't act on, and to a pipe as it is: `capture …`."""

import asyncio
import json
import os
import pty
import re
import sys
import threading
from contextlib import suppress

import pytest
from archived import ARCHIVE, CREATED, STREAM, Archived, Settled
from patient import PATIENCE
from typer.main import get_command

from capture.archive.identity import claim
from capture.archive.scope import Asked, write_record
from capture.cli.app import make_app
from capture.errors import CaptureError
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.record import Records
from natty.cli.run import run

ESCAPES = ("\x1b]0;OWNED\x07", "\x1b[2J", "\x9b2J", "\r", "\x08", "\u202e")
SUBJECTS = ["orders.[/red]", "orders.[link=file:///etc/passwd]here", *(f"orders.{one}" for one in ESCAPES)]


@pytest.fixture
def lake(tmp_path):
    """An archive of messages whose subjects and payloads are meant for terminals, some under a key of that kind."""

    async def make():
        archived = Archived(folder=tmp_path / "lake")
        await claim(archived.store, ARCHIVE, STREAM, CREATED)
        await write_record(archived.store, Asked(stream=STREAM, durable="capture", created=CREATED))
        count = len(SUBJECTS)
        records = Records(
            STREAM,
            list(range(1, count + 1)),
            [1_795_230_000_000_000_000] * count,
            [one.encode() for one in SUBJECTS],
            [b"NATS/1.0\r\nX: \x1b[2J\r\n\r\n"] * count,
            [f"payload of {one}".encode() for one in SUBJECTS],
            [1] * count,
            [b"reply"] * count,
            [None] * count,
        )
        block = SealedBlock(STREAM, "[/red]\x1b[2J", 1_795_230_000, records, "age")
        await Committer(archived.store, writer("parquet"), Settled()).commit(block)
        await archived.sweep()
        await archived.record()

    asyncio.run(make())
    return tmp_path / "lake"


STYLES = re.compile(r"\x1b\[[\d;]*m")  # rich's own: bold, colours
LINES = get_command(make_app())


@pytest.fixture
def command(monkeypatch, lake):
    """Run `capture …` here, with one end of a terminal or of a pipe as its standard output; return what comes out."""
    for name in [name for name in os.environ if name.startswith(("CAPTURE_", "NATS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setenv("TERM", "xterm")

    def command(ends, *words):
        ours, theirs = ends
        got = []

        def read():
            with suppress(OSError):  # a terminal whose other end is closed
                while some := os.read(ours, 1 << 16):
                    got.append(some)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as output:
                patch.setattr(sys, "stdout", output)
                patch.setattr(sys, "argv", ["capture", *words, "--store", str(lake), "--stream", STREAM])
                status = run(LINES, "capture", (CaptureError,))
                output.flush()
        finally:
            reader.join(PATIENCE)
            os.close(ours)
        return status, b"".join(got)

    return command


COMMANDS = {
    "sql": ("sql", "SELECT subject, payload, headers FROM messages ORDER BY sequence"),
    "sql --json": ("sql", "SELECT subject, payload FROM messages", "--json"),
    "sql, names": ("sql", 'SELECT 1 AS "[/red]\x1b[2J" FROM messages LIMIT 1'),
    "cat": ("cat",),
    "cat payloads": ("cat", "--format", "payload"),
    "cat raw": ("cat", "--format", "raw"),
    "ls": ("ls",),
    "verify": ("verify", "--offline"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_terminal_gets_nothing_that_it_could_act_on(command, words):
    status, got = command(pty.openpty(), *words)
    text = STYLES.sub("", got.decode().replace("\r\n", "\n"))
    assert text
    assert [one for one in text if not (one.isprintable() or one in "\n\t")] == []
    assert status in (0, 3)
    if words[0] in ("sql", "cat") and "[/red]" not in words[1:]:
        assert "[/red]" in text


def test_a_pipe_gets_every_byte_as_it_is(command):
    def piped(*words):
        status, got = command(os.pipe(), *words)
        assert status == 0
        return got

    bare = piped("cat", "--format", "payload")
    assert bare == b"".join(f"payload of {one}\n".encode() for one in SUBJECTS)
    lines = piped("cat").splitlines()
    assert [json.loads(line)["subject"] for line in lines] == SUBJECTS
    rows = json.loads(piped(*COMMANDS["sql --json"]))
    assert sorted(row["subject"] for row in rows) == sorted(SUBJECTS)
    table = piped(*COMMANDS["sql"]).decode()
    assert "orders.[/red]" in table
    assert "\x1b" not in table  # a table is for people
