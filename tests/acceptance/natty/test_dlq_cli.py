import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from patient import PATIENCE

from natty import DeadLetterOptions, DeadLetters
from natty.consuming.dead_letters.letter import Original


@pytest.fixture
def shell(quick_shell):
    return quick_shell


class Letters:
    """Letters of a test's own, and the stream they come from."""

    def __init__(self, shell, served, name):
        self.shell, self.served, self.name = shell, served, name
        self.letters = f"L_{name}"

    def dlq(self, command, *arguments, **options):
        """Run `natty dlq …` on these letters."""
        return self.shell.natty("dlq", command, *arguments, "--letters", self.letters, **options)

    def numbers(self, *arguments):
        """Return the letters that there are, the oldest first; with arguments, those that `ls` lists."""
        if arguments:
            found = self.dlq("ls", "--json", "--oldest", *arguments)
            assert (found.status, found.err) == (0, "")
            return [facts["letter"] for facts in json.loads(found.out)]

        async def work(natty):
            return [letter.sequence async for letter in natty.dead_letters(self.letters).ls()]

        return self.served(work)

    def bury(self, *payloads, consumer="mailer", reason="why", headers=None, error=None, stream=None):
        """Publish messages and bury them."""

        async def work(natty):
            dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=self.letters))
            await dead.ensure()
            await natty.ensure_stream(self.name, subjects=[f"{self.name}.>"])
            for payload in payloads:
                ack = await natty.jetstream.publish(f"{self.name}.eu", payload, headers=headers)
                original = Original(
                    stream or self.name, ack.seq, f"{self.name}.eu", headers, payload, time_ns=10**18, deliveries=3
                )
                await dead.store(original, consumer, reason, error)

        self.served(work)

    def stored(self):
        """Return the payloads in the stream."""

        async def work(natty):
            last = (await natty.jetstream.request(f"STREAM.INFO.{self.name}"))["state"]["last_seq"]
            return [(await natty.jetstream.read(self.name, sequence=one)).data for one in range(1, last + 1)]

        return self.served(work)


@pytest.fixture
def letters(shell, served, natty_name):
    return Letters(shell, served, natty_name("DLQ"))


def broken():
    try:
        raise LookupError("no such customer")
    except LookupError as error:
        return error


def test_letters_are_listed_for_people_and_for_programs(letters):
    letters.bury(b"1", b"22", consumer="mailer", reason="terminated: bad address")
    letters.bury(b"333", consumer="biller", reason="max deliveries: 3")
    found = letters.dlq("ls")
    assert (found.status, found.err) == (0, "")
    head, newest, _, oldest = found.out.splitlines()
    assert head.split()[:2] == ["letter", "buried"]
    assert newest.split()[0] == "3"
    assert re.match(r"^ *3 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC ", newest)
    assert "biller" in newest
    assert "max deliveries: 3" in newest
    assert "terminated: bad address" in oldest

    [facts] = json.loads(letters.dlq("ls", "--consumer", "biller", "--json").out)
    assert (facts["letter"], facts["stream"], facts["sequence"]) == (3, letters.name, 3)
    assert (facts["subject"], facts["bytes"], facts["deliveries"]) == (f"{letters.name}.eu", 3, 3)
    assert facts["time"] == "2001-09-09T01:46:40.000000000Z"
    assert letters.numbers("--reason", "BAD", "--stream", letters.name) == [1, 2]
    assert letters.dlq("ls", "--stream", "OTHER").out == "no dead letters\n"
    narrow = letters.dlq("ls", COLUMNS="80").out
    assert "…" not in narrow, "what has no room goes on in the next line"

    cut = letters.dlq("ls", "--limit", "2", "--json")
    assert [one["letter"] for one in json.loads(cut.out)] == [3, 2]
    assert "more than 2" in cut.complaint


def test_a_letter_is_shown_with_its_traceback_headers_and_payload(letters):
    letters.bury(b'{"order": 1}', headers={"Colour": ["red", "blue"]}, reason="retries exhausted", error=broken())
    found = letters.dlq("show", "1")
    assert (found.status, found.err) == (0, "")
    for text in ("retries exhausted", "LookupError: no such customer", "Colour: red, blue", '{"order": 1}'):
        assert text in found.out
    shown = json.loads(letters.dlq("show", "1", "--json").out)
    assert shown["payload"] == '{"order": 1}'
    assert shown["headers"] == {"Colour": ["red", "blue"]}
    assert shown["traceback"][-1] == shown["error"] == "LookupError: no such customer"
    assert shown["digest"]


def test_no_payload_header_or_reason_can_command_the_terminal(letters):
    evil = "\x1b]0;owned\x07\x1b[2J [bold]\x9b31m\u202e"
    letters.bury(evil.encode(), b"\x1b\xff\x00", headers={"Evil": [evil]}, reason=evil)
    pages = [letters.dlq(*command, FORCE_COLOR="1").out for command in (["ls"], ["show", "1"], ["show", "2"])]
    for page in pages:
        plain = page.replace("\x1b[1m", "").replace("\x1b[0m", "")  # rich's own: the head of the table
        assert not set(plain) & {"\x1b", "\x07", "\x9b", "\u202e", "\x00"}
    assert "\\x1b]0;owned\\x07\\x1b[2J [bold]\\x9b31m\\u202e" in pages[1]
    assert "1b ff 00" in pages[2]
    assert json.loads(letters.dlq("show", "1", "--json").out)["payload"] == evil
    assert json.loads(letters.dlq("show", "2", "--json").out)["payload_hex"] == "1bff00"


def test_a_long_payload_is_cut_for_people_only(letters):
    letters.bury(b"a" * 5000, b"\xff" * 5000)
    assert "… 904 more characters: see --json" in letters.dlq("show", "1").out
    assert "… 2,952 more bytes: see --json" in letters.dlq("show", "2").out
    assert json.loads(letters.dlq("show", "1", "--json").out)["payload"] == "a" * 5000


def test_colours_are_off_where_they_are_not_wanted(letters):
    letters.bury(b"1")
    assert "\x1b[" in letters.dlq("ls", FORCE_COLOR="1").out
    assert "\x1b[3" not in letters.dlq("ls", FORCE_COLOR="1", NO_COLOR="1").out
    assert "\x1b[" not in letters.dlq("ls").out


def test_retry_publishes_again_and_removes_the_letters(letters):
    letters.bury(b"1", b"2", consumer="mailer")
    letters.bury(b"3", consumer="biller")
    dry = letters.dlq("retry", "--consumer", "mailer", "--dry-run", "--json")
    assert [facts["letter"] for facts in json.loads(dry.out)] == [1, 2]
    assert letters.stored() == [b"1", b"2", b"3"]

    assert letters.dlq("retry", "--consumer", "mailer", "--limit", "1").out == "published again: 1 dead letter\n"
    assert json.loads(letters.dlq("retry", "--rate", "50", "--json").out) == {"published": 2, "refused": {}}
    assert letters.stored() == [b"1", b"2", b"3", b"1", b"2", b"3"]
    assert letters.numbers() == []


def test_what_can_not_be_published_again_is_said_and_kept(letters):
    letters.bury(b"1", stream="GONE_FOR_GOOD")
    letters.bury(b"2")

    async def delete(natty):
        await natty.jetstream.request(f"STREAM.DELETE.{letters.name}")

    letters.served(delete)
    found = letters.dlq("retry")
    assert (found.status, found.out) == (1, "published again: 0 dead letters\n")
    assert found.complaint.startswith("natty: 2 dead letters could not be published and are kept: 1: ")
    assert letters.numbers() == [1, 2]


def test_a_retry_that_is_killed_and_run_again_stores_each_message_once(letters):
    payloads = [b"%d" % i for i in range(20)]
    letters.bury(*payloads)
    process = letters.shell.start("natty", "dlq", "retry", "--rate", "20", "--letters", letters.letters)
    deadline = time.monotonic() + PATIENCE
    while len(letters.stored()) < 25:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert letters.dlq("retry").status == 0
    assert letters.stored() == payloads + payloads
    assert letters.numbers() == []


def test_purge_without_anybody_to_ask_needs_force(letters):
    letters.bury(b"1", b"2", consumer="mailer")
    letters.bury(b"3", consumer="biller")
    refused = letters.dlq("purge")
    assert refused.status == 1
    assert "--force" in refused.complaint
    dry = letters.dlq("purge", "--consumer", "mailer", "--dry-run", "--json")
    assert [facts["letter"] for facts in json.loads(dry.out)] == [1, 2]
    assert letters.numbers() == [1, 2, 3]

    assert letters.dlq("purge", "--consumer", "mailer", "--limit", "1", "--force").out == "removed: 1 dead letter\n"
    assert letters.numbers() == [2, 3]
    assert json.loads(letters.dlq("purge", "--force", "--json").out) == {"purged": 2}
    assert letters.numbers() == []
    assert letters.stored() == [b"1", b"2", b"3"]


@pytest.mark.parametrize(("answer", "left"), [("n", [1, 2, 3]), ("y", [2, 3])])
def test_purge_asks_and_takes_only_what_was_there_when_it_asked(letters, answer, left):
    letters.bury(b"1", consumer="mailer")
    letters.bury(b"2", consumer="biller")
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "natty", "dlq", "purge", "--consumer", "mailer", "--letters", letters.letters],
        cwd=letters.shell.folder,
        env=letters.shell.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    letters.shell.started.append(process)
    os.close(theirs)
    assert process.stderr.read(len("Remove 1 dead letter permanently?")) == "Remove 1 dead letter permanently?"
    letters.bury(b"3", consumer="mailer")
    os.write(terminal, f"{answer}\n".encode())
    done = letters.shell.finish(process)
    os.close(terminal)
    assert done.status == (0 if answer == "y" else 1)
    assert letters.numbers() == left


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "99"], "no dead letter 99"),
        (["ls", "--stream", "A.*"], "'.' at character 2"),
        (["retry", "--consumer", ">"], "'>' at character 1"),
        (["purge", "--force", "--stream", "a b"], "' ' at character 2"),
    ],
)
def test_bad_input_is_one_sentence(letters, arguments, says):
    letters.bury(b"1")
    done = letters.dlq(*arguments)
    assert (done.status, done.out) == (1, "")
    assert says in done.complaint
    assert letters.numbers() == [1]


@pytest.mark.parametrize("command", [["ls"], ["show", "1"], ["retry"], ["purge", "--force"]])
def test_a_missing_stream_of_letters_is_one_sentence(letters, command):
    done = letters.dlq(*command)
    assert (done.status, done.out) == (1, "")
    assert f"no stream {letters.letters}" in done.complaint


def test_a_rate_that_makes_no_sense_is_usage(letters):
    assert letters.dlq("retry", "--rate", "0").status == 2
