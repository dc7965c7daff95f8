"""Tables on narrow terminals and in pipes: each value is printed whole, whatever the width."""

import json
import re
import sys
from io import StringIO
from pathlib import Path

import pytest

from natty import DeadLetterOptions, DeadLetters
from natty.consuming.dead_letters.letter import Original

LONG = "of_the_northern_and_eastern_european_countries"
REASON = "no such customer, and no country that this customer could be in: see the handler's log"


class Screen(StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.fixture
def name(natty_commands, natty_name):
    """The long name of a stream. Its consumer, bucket, groups, letter, mirror and schedule have long names, too."""
    name = natty_name(f"ORDERS_{LONG}")

    async def make(natty):
        subjects = [f"{name}.*.*", f"schedules.{name}.>"]
        await natty.create_stream(name, subjects=subjects, allow_msg_ttl=True, allow_msg_schedules=True)
        moved = {"src": f"static.{name}.*", "dest": f"{{{{partition(30,1)}}}}.{name}.{{{{wildcard(1)}}}}"}
        await natty.create_stream(f"{name}_static", subjects=[f"static.{name}.*"], subject_transform=moved)
        await natty.create_stream(f"{name}_elastic", subjects=[f"elastic.{name}.*"])
        await natty.create_stream(f"{name}_MIRROR", mirror={"name": name})
        await natty.create_consumer(name, f"consumer_{LONG}")
        dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=f"L_{name}"))
        await dead.ensure()
        original = Original(name, 1, f"{name}.a.{LONG}", {"Header": [LONG]}, LONG.encode(), 1)
        await dead.store(original, f"consumer_{LONG}", REASON, RuntimeError(LONG))
        bucket = await natty.create_bucket(name, history=2)
        await bucket.put(f"key.{LONG}", f"{REASON} {LONG}".encode())

    natty_commands.served(make)
    members = [f"member_{number}_{LONG}" for number in range(3)]
    at = "--every", "24h"
    for words in (
        ("group", "static", "create", "balanced", f"{name}_static", f"static_{LONG}", 30, *members),
        ("group", "elastic", "create", f"{name}_elastic", f"elastic_{LONG}", 30, "--filter", f"elastic.{name}.*:1"),
        ("group", "elastic", "add", f"{name}_elastic", f"elastic_{LONG}", *members),
        ("schedule", "add", f"nightly_{LONG}", f"{name}.a.{LONG}", LONG, *at),
        ("stream", "template", "add", f"template_{LONG}", "--subject", f"t.{name}.*", "--stream", f"T_{LONG}_{{1}}"),
    ):
        done = natty_commands(*words)
        assert done.status == 0, done.err
    yield name
    natty_commands("stream", "template", "rm", f"template_{LONG}", "--force")


COMMANDS = [
    *("stream ls", "stream report --raw", "stream report --consumers --raw", "stream info NAME"),
    *("stream mirror ls", "stream mirror info NAME_MIRROR", "stream template ls", "stream template info template_LONG"),
    *("consumer ls NAME", "consumer report NAME --raw", "consumer info NAME consumer_LONG", "account info"),
    *("kv status NAME", "kv history NAME key.LONG", "dlq ls --letters L_NAME", "dlq show 1 --letters L_NAME"),
    *("schedule ls NAME", "schedule show NAME nightly_LONG", "leader ls"),
    *(f"group {kind} ls NAME_{kind}" for kind in ("static", "elastic")),
    *(f"group {kind} {what} NAME_{kind} {kind}_LONG" for kind in ("static", "elastic") for what in ("info", "lag")),
    *(f"group {kind} watch NAME_{kind} {kind}_LONG --count 1" for kind in ("static", "elastic")),
]
HEADINGS = {"placement", "replicas", "error", "domain", "description", "cluster", "since", "token"}
"""Of columns that are empty here: blocks of names and values leave empty values out."""


def words_of(text):
    """Return the words of a text that stay the same: without styles, headings of empty columns, ages and counts."""
    words = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).split()
    return {word for word in words if re.search("[A-Za-z]{4}", word)} - HEADINGS


def test_every_table_is_json_too_and_whole_at_any_width(natty_commands, name, monkeypatch):
    def show(words, output, columns):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            for variable, value in {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}.items():
                patch.setenv(variable, value)
            done = natty_commands(*words)
        assert done.status == 0, done.err

    for command in COMMANDS:
        words = command.replace("NAME", name).replace("LONG", LONG).split()
        with Path("piped").open("w+", encoding="utf-8") as pipe:
            show(words, pipe, 80)
            pipe.seek(0)
            piped = pipe.read()
        wanted = words_of(piped)
        assert wanted, command
        assert "…" not in piped, command
        for columns in (60, 80, 100):
            screen = Screen()
            show(words, screen, columns)
            shown = words_of(screen.getvalue())
            if "watch" in words:  # rich's `Live` cuts a line that is longer than the screen: it is folded before
                joined = "".join(screen.getvalue().split())
                shown |= {word for word in wanted if word in joined}
            assert wanted <= shown, (command, columns, wanted - shown)
        done = natty_commands(*words, "--json")
        assert (done.status, json.loads(done.out) is None) == (0, False), command
