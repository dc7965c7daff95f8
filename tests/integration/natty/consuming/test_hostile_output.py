"""What `natty` prints of hostile messages: nothing that a terminal acts on, and to a pipe the bytes as they are."""

import json
import os
import pty
import sys
from contextlib import suppress

import pytest
from hostile import HEADERS, TAILS, publish_raw
from patient import NEVER

from natty import DeadLetterOptions, DeadLetters
from natty.consuming.dead_letters.letter import Original
from natty.names import decode

PAYLOAD = b"\x1b[2J\x1b]0;pwned\x07\xc2\x9b31m\xff[red]x\ty\n"
ACTED_ON = {*range(0x20), 0x7F, *range(0x80, 0xA0)} - {ord("\n"), ord("\r"), ord("\t")}  # pty: a line ends with \r\n
KEY = "[red]k"


@pytest.fixture
def stream(natty_commands, natty_name):
    """A stream with a message on each hostile subject, a consumer `c`, letters and a bucket of the same name."""
    name = natty_name("SHOWN")

    async def make(natty):
        await natty.create_stream(name, subjects=[f"{name}.>"])
        await natty.create_consumer(name, "c", ack_wait=NEVER)
        for number, tail in enumerate(TAILS):
            await publish_raw(natty, b"%b.%b" % (name.encode(), tail), PAYLOAD, HEADERS % number)
        dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=f"L_{name}"))
        await dead.ensure()
        for number, tail in enumerate(TAILS, start=1):
            original = Original(name, number, f"{name}.{decode(tail)}", {"X": [decode(PAYLOAD)]}, PAYLOAD, number)
            await dead.store(original, "c", "no \x1b[2J", RuntimeError(decode(PAYLOAD)))
        bucket = await natty.create_bucket(name, history=2)
        await bucket.put("k", PAYLOAD)

    natty_commands.served(make)
    return name


def on_terminal(natty_commands, monkeypatch, *words):
    """Return what a command writes to a terminal that it does not know how to colour."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        patch.setenv("TERM", "dumb")
        patch.setattr(sys, "stdout", terminal)
        done = natty_commands(*words)
        terminal.flush()
        said = b""
        with suppress(BlockingIOError):
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    assert done.status == 0, done.err
    return said


COMMANDS = [
    ("stream", "get", "{}", "1"),
    ("stream", "get", "{}", "3", "--raw"),
    ("stream", "get", "{}", "4", "--json"),
    ("sub", "{}.>", "--stream", "{}", "--count", str(len(TAILS))),
    ("sub", "{}.>", "--stream", "{}", "--count", str(len(TAILS)), "--json"),
    ("consumer", "next", "{}", "c", "--count", str(len(TAILS)), "--no-ack"),
    ("dlq", "ls", "--letters", "L_{}"),
    ("dlq", "ls", "--letters", "L_{}", "--json"),
    ("dlq", "show", "1", "--letters", "L_{}"),
    ("dlq", "show", "3", "--letters", "L_{}", "--json"),
    ("kv", "get", "{}", "k"),
    ("kv", "history", "{}", "k"),
    ("kv", "watch", "{}", "--count", "1"),
    ("kv", "watch", "{}", "--count", "1", "--json"),
]


def test_no_command_prints_what_a_terminal_acts_on(natty_commands, stream, monkeypatch):
    for words in COMMANDS:
        said = on_terminal(natty_commands, monkeypatch, *(word.format(stream) for word in words))
        assert said, words
        assert not {ord(one) for one in said.decode()} & ACTED_ON, (words, said)


def test_json_is_json_and_names_every_byte(natty_commands, stream):
    lines = natty_commands("sub", f"{stream}.>", "--stream", stream, "--count", len(TAILS), "--json").out.splitlines()
    subjects = [json.loads(line)["subject"] for line in lines]
    assert subjects == [f"{stream}.{decode(tail)}" for tail in TAILS]
    letters = json.loads(natty_commands("dlq", "ls", "--letters", f"L_{stream}", "--json").out)
    assert {one["subject"] for one in letters} == set(subjects)


def test_a_pipe_gets_payloads_and_subjects_as_they_are(natty_commands, stream, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with out.open("w", encoding="utf-8") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        assert natty_commands("stream", "get", stream, "1", "--raw").status == 0
        assert natty_commands("sub", f"{stream}.>", "--stream", stream, "--count", "1").status == 0
        assert natty_commands("kv", "get", stream, "k", "--raw").status == 0
    raw, _, rest = out.read_bytes().partition(b"\n\n")
    assert raw + b"\n" == PAYLOAD
    assert b'Received on "%b.%b"' % (stream.encode(), TAILS[0]) in rest
    assert rest.count(PAYLOAD) == 2


def test_letters_are_retried_by_the_command(natty_commands, stream):
    assert (
        natty_commands("dlq", "retry", "--letters", f"L_{stream}").out
        == f"published again: {len(TAILS)} dead letters\n"
    )

    async def stored(natty):
        return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["messages"]

    assert natty_commands.served(stored) == 2 * len(TAILS)
