"""The tables of `capture` on narrow terminals and in pipes: each value is printed whole, whatever the width."""

import asyncio
import json
import re

import pytest
from capture_command import CaptureCommand
from patient import PATIENT
from secret import write_secret

from natty import Natty

LONG = "of_the_northern_and_eastern_european_countries"


@pytest.fixture
def name(nats_server, natty_name, tmp_path):
    """The long name of a stream with an archive in the store `lake`, whose newest blocks are not in its manifest."""
    name = natty_name(f"ORDERS_{LONG}")

    async def make():
        async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
            await natty.create_stream(name, subjects=[f"{name}.*"], allow_direct=True, allow_batched=True)
            await natty.publish(f"{name}.first_{LONG}", b"{}")
            await natty.publish(f"{name}.second_{LONG}", b"{}")

    asyncio.run(make())
    options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in nats_server.connect_options().items())
    pipeline = f'name = "daily_{LONG}"\nkind = "latest"\nkey = "subject"\ninputs = ["{name}"]\nschedule = "every 24h"'
    settings = (
        f'stream = "{name}"\nstore = "lake"\npartition = "subject:2"\n[[pipeline]]\n{pipeline}\n[nats]\n{options}\n'
    )
    write_secret(tmp_path / "capture.toml", settings)
    return name


@pytest.fixture
def call(name, monkeypatch, tmp_path, capfd):
    called = CaptureCommand(monkeypatch, tmp_path, capfd)
    monkeypatch.setenv("CAPTURE_CONFIG", "capture.toml")
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (("backfill",), ("sweep",)):
        status, _, err = called(*words, store="")
        assert status == 0, err
    return called


COMMANDS = [
    *("status", "ls", "sweep --dry-run", "compact --dry-run", "upgrade --dry-run", "verify"),
    *("pipeline ls", "pipeline show daily_LONG", "pipeline history daily_LONG", "pipeline plan daily_LONG"),
]
QUERY = ("sql", "SELECT stream, sequence, subject FROM messages")
HEADINGS = {"last", "node", "version", "since", "messages", "pending", "oldest", "heard"}
HEADINGS |= {"stream", "acked", "unacked", "held", "gaps", "overlaps", "removed", "missing"}
"""Of tables without rows, and of empty columns: blocks of names and values leave these out."""


def words_of(text):
    """Return the words of a text that stay the same."""
    return {word for word in text.split() if re.search("[A-Za-z]{4}", word)} - HEADINGS


def test_every_table_is_json_too_and_whole_at_any_width(call):
    problems = []
    for words in [*(command.replace("LONG", LONG).split() for command in COMMANDS), list(QUERY)]:
        status, piped, err = call(*words, store="")
        wanted = words_of(piped)
        if not wanted or "…" in piped:
            problems.append((words, status, piped, err))
        for columns in (60, 80, 100):
            narrow, shown, _ = call(*words, columns=columns, store="")
            if narrow != status or not wanted <= words_of(shown) or "…" in shown:
                problems.append((words, columns, wanted - words_of(shown), shown))
        status, out, err = call(*words, "--json", store="")
        try:
            json.loads(out)
        except ValueError:
            problems.append((words, "--json", status, out, err))
    assert not problems, "\n".join(map(str, problems))
