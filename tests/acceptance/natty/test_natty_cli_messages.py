import asyncio
import base64
import json
import os
import shlex
import signal
import sys
import time

import pytest
from patient import NEVER, PATIENCE

from natty.testing import NatsServer, ServerOptions


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def stream(make_stream, natty_name):
    return make_stream(natty_name("CLI"))


@pytest.fixture
def state(served):
    def ask(subject):
        async def work(natty):
            return await natty.jetstream.request(subject)

        return served(work)

    return ask


def settled(look, wanted):
    """Return what `look` says once it is what is wanted, or in the end: the server takes acks in when it likes."""
    deadline = time.monotonic() + PATIENCE
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def piped(shell, text, *arguments):
    """Run `natty …` with text on its standard input."""
    command = shlex.join([sys.executable, "-m", "natty", *arguments])
    return shell.finish(shell.execute(["sh", "-c", f"printf %s {shlex.quote(text)} | {command}"]))


def heard(process, words):
    """Wait until a command that runs says this on standard error."""
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended without saying {words!r}")


def test_a_message_is_stored_once_by_its_id(shell, stream):
    first = shell.natty("pub", f"{stream}.a", "hello", "--msg-id", "1", "-H", "Team: a", "-H", "Team: b")
    assert (first.status, first.out, first.err) == (0, f"stored in {stream} at sequence 1\n", "")
    again = shell.natty("pub", f"{stream}.a", "hello", "--msg-id", "1")
    assert again.out == f"stored in {stream} at sequence 1, a duplicate: it was already stored\n"
    told = json.loads(shell.natty("pub", f"{stream}.a", "-J", "--json").out)
    assert told == {
        "subject": f"{stream}.a",
        "messages": 1,
        "stream": stream,
        "sequence": 2,
        "duplicate": False,
    }
    line = shell.natty("sub", ">", "--stream", stream, "--count", "1", "--json").out
    assert json.loads(line)["headers"] == {"Team": ["a", "b"], "Nats-Msg-Id": ["1"]}


def test_many_messages_are_published(shell, stream, state):
    done = shell.natty("pub", f"{stream}.a", "x", "--count", "1000", "-J")
    assert (done.status, done.out, done.err) == (0, f"1,000 messages stored in {stream} on {stream}.a\n", "")
    done = shell.natty("pub", f"{stream}.a", "x", "--count", "1000")
    assert done.out == f"1,000 messages published on {stream}.a\n"
    assert state(f"STREAM.INFO.{stream}")["state"]["messages"] == 2000


def test_lines_of_standard_input_are_messages(shell, stream):
    for arguments in (("--stdin",), ("-",)):
        done = piped(shell, "one\ntwo\r\n\nlast", "pub", f"{stream}.a", *arguments, "-J")
        assert (done.status, done.out) == (0, f"4 messages stored in {stream} on {stream}.a\n")
    out = shell.natty("sub", f"{stream}.a", "--stream", stream, "--count", "8", "--raw").out
    assert out == "one\ntwo\n\nlast\n" * 2
    assert piped(shell, "", "pub", f"{stream}.a", "-").out == f"0 messages published on {stream}.a\n"


def test_a_pipe_or_a_file_is_the_message_if_none_is_given_as_with_the_nats_tool(shell, stream, tmp_path):
    given = ["{\n", '  "total": 12\n', "}\n"]
    whole = "".join(given)
    (tmp_path / "order.json").write_text(whole)
    command = [sys.executable, "-m", "natty", "pub", f"{stream}.a"]
    assert piped(shell, whole, "pub", f"{stream}.a", "-J").status == 0
    assert shell.finish(shell.execute(["sh", "-c", f"{shlex.join(command)} <{tmp_path}/order.json"])).status == 0
    assert piped(shell, whole, "pub", f"{stream}.a", "", "-J").status == 0
    for closed in ("</dev/null", "<&-"):
        assert shell.finish(shell.execute(["sh", "-c", f"{shlex.join(command)} {closed}"])).status == 0
    read = ["sub", ">", "--stream", stream, "--count", "5", "--json"]
    bodies = [json.loads(line)["data"] for line in shell.natty(*read).out.splitlines()]
    assert bodies == [whole, whole, "", "", ""]


def test_a_pipe_that_nobody_closes_is_told(shell, stream, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    ours = os.open(tmp_path / "pipe", os.O_RDWR)
    command = shlex.join([sys.executable, "-m", "natty", "pub", f"{stream}.a", "-J"])
    process = shell.execute(["sh", "-c", f"{command} <{tmp_path}/pipe"])
    heard(process, "reading the message from standard input; '' is an empty one")
    os.write(ours, b"late")
    os.close(ours)
    assert shell.finish(process).status == 0
    read = ["sub", ">", "--stream", stream, "--count", "1", "--json"]
    assert json.loads(shell.natty(*read).out)["data"] == "late"


def test_a_subject_that_no_stream_takes_is_told(shell, natty_name):
    subject = natty_name("nobody")
    done = shell.natty("pub", subject, "x", "-J")
    assert done.status == 1
    assert f"no stream takes '{subject}': create one whose subjects cover it" in done.complaint


def test_a_subscriber_prints_what_comes(shell, natty_name, served):
    subject = natty_name("live")
    texts = shell.start("natty", "sub", f"{subject}.*", "--count", "1")
    lines = shell.start("natty", "sub", f"{subject}.>", "--count", "2", "--json")
    for process in (texts, lines):
        heard(process, f"subscribed to {subject}")
    assert shell.natty("pub", f"{subject}.a", "hello", "-H", "Team: a").out == f"1 message published on {subject}.a\n"

    async def publish_bytes(natty):
        natty.connection.send(f"{subject}.b", b"\xff")
        await natty.connection.flush()

    served(publish_bytes)
    text, done = shell.finish(texts), shell.finish(lines)
    assert (text.status, done.status) == (0, 0)
    assert text.out == f'[#1] Received on "{subject}.a"\nTeam: a\n\nhello\n\n'
    first, second = map(json.loads, done.out.splitlines())
    assert first == {"subject": f"{subject}.a", "headers": {"Team": ["a"]}, "data": "hello"}
    assert second == {"subject": f"{subject}.b", "data_base64": base64.b64encode(b"\xff").decode()}


def test_members_of_a_queue_group_share_messages(shell, natty_name, served):
    subject = natty_name("shared")
    members = [shell.start("natty", "sub", subject, "--queue", "q", "--count", "1", "--raw") for _ in range(2)]
    for process in members:
        heard(process, "subscribed to")

    async def publish(natty):
        for number in range(100):  # which member gets one is up to the server
            natty.connection.send(subject, b"%d" % number)
            await asyncio.sleep(0)

    served(publish)
    first, second = (shell.finish(process).out for process in members)
    assert first != second


def until_no_consumers(state, stream):
    """Return when the server has deleted the reader's consumer: the reader does not wait for that."""
    deadline = time.monotonic() + PATIENCE
    while state(f"STREAM.INFO.{stream}")["state"]["consumer_count"]:
        assert time.monotonic() < deadline


def test_a_stream_is_read_from_its_beginning_and_on(shell, make_stream, natty_name, state):
    stream = make_stream(natty_name("READ"), 4)
    reading = shell.start("natty", "sub", f"{stream}.us", "--stream", stream, "--count", "3", "--json")
    new = shell.start("natty", "sub", ">", "--stream", stream, "--new", "--count", "1", "--raw")
    for process in (reading, new):
        heard(process, f"of stream {stream}")
    shell.natty("pub", f"{stream}.us", "late", "-J")
    lines = [json.loads(line) for line in shell.finish(reading).out.splitlines()]
    assert [line["sequence"] for line in lines] == [2, 4, 5]
    assert lines[2]["stream"] == stream
    assert shell.finish(new).out == "late\n"
    until_no_consumers(state, stream)


def test_a_reader_whose_consumer_is_deleted_goes_on_where_it_was(shell, make_stream, natty_name, state):
    stream = make_stream(natty_name("READ"), 4)
    reading = shell.start("natty", "sub", ">", "--stream", stream, "--count", "5", "--json")
    heard(reading, f"of stream {stream}")
    first = [json.loads(reading.stdout.readline())["sequence"] for _ in range(4)]
    (name,) = state(f"CONSUMER.NAMES.{stream}")["consumers"]
    state(f"CONSUMER.DELETE.{stream}.{name}")
    shell.natty("pub", f"{stream}.us", "late", "-J")
    rest = json.loads(shell.finish(reading).out)
    assert [*first, rest["sequence"]] == [1, 2, 3, 4, 5]


def test_an_interrupted_reader_leaves_nothing_behind(shell, stream, state):
    reading = shell.start("natty", "sub", ">", "--stream", stream)
    heard(reading, f"of stream {stream}")
    reading.send_signal(signal.SIGINT)
    assert shell.finish(reading).status == 130
    until_no_consumers(state, stream)


def test_a_request_prints_the_answer(shell, natty_name, served):
    subject = natty_name("echo")

    async def answering(natty):
        def echo(batch):
            for _, reply, head, data in batch.raw:
                natty.connection.send(reply, data.upper(), headers=head)

        natty.connection.subscribe(subject, echo)
        await natty.connection.flush()
        bare = await asyncio.to_thread(shell.natty, "request", subject, "hello")
        full = await asyncio.to_thread(shell.natty, "request", subject, "hello", "-H", "Team: a", "--json")
        return bare, full

    bare, full = served(answering)
    assert (bare.status, bare.out, bare.err) == (0, "HELLO\n", "")
    answer = json.loads(full.out)
    assert (answer["subject"], answer["data"], answer["headers"]) == (subject, "HELLO", {"Team": ["a"]})
    assert answer["seconds"] > 0


def test_a_request_that_nobody_answers_is_told(shell, natty_name, served):
    subject = natty_name("mute")
    nobody = shell.natty("request", subject)
    assert (nobody.status, nobody.complaint) == (1, f"natty: no subscriber on {subject}")

    async def silent(natty):
        natty.connection.subscribe(subject, lambda messages: None)
        await natty.connection.flush()
        return await asyncio.to_thread(shell.natty, "request", subject, "--timeout", "0.2")

    late = served(silent)
    assert (late.status, late.complaint) == (1, f"natty: no answer on {subject} within 0.2 s")


def test_the_next_messages_of_a_consumer_are_printed_and_acknowledged(shell, make_stream, natty_name, served, state):
    stream = make_stream(natty_name("NEXT"), 6)

    async def make(natty):
        await natty.ensure_consumer(stream, "d", ack_wait=NEVER)

    served(make)
    kept = shell.natty("consumer", "next", stream, "d", "--no-ack", "--json")
    assert (kept.status, json.loads(kept.out)["sequence"]) == (0, 1)
    taken = shell.natty("consumer", "next", stream, "d", "--count", "3", "--raw")
    assert [json.loads(line)["n"] for line in taken.out.splitlines()] == [1, 2, 3]

    def position():
        told = state(f"CONSUMER.INFO.{stream}.d")
        return told["num_ack_pending"], told["delivered"]["stream_seq"], told["num_pending"]

    assert settled(position, (1, 4, 2)) == (1, 4, 2)
    text = shell.natty("consumer", "next", stream, "d")
    assert text.out.startswith(f'[#1] Received on "{stream}.eu" from {stream}, sequence 5, ')


def test_a_consumer_that_has_no_message_is_told(shell, stream, served):
    async def make(natty):
        await natty.ensure_consumer(stream, "d")

    served(make)
    none = shell.natty("consumer", "next", stream, "d", "--timeout", "0.2")
    assert (none.status, none.out) == (1, "")
    assert none.complaint == (f"natty: consumer d of stream {stream} delivered no message within 0.2 s; printed 0 of 1")
    missing = shell.natty("consumer", "next", stream, "nobody")
    assert missing.status == 1
    assert "there is no consumer nobody; there is d" in missing.complaint


def test_a_bench_measures_and_cleans_up(shell, state):
    before = state("STREAM.NAMES")["total"]
    table = shell.natty("bench", "--msgs", "2000", "--size", "64")
    assert (table.status, table.err) == (0, "")
    steps = ["publish, window", "publish, fast", "consume, acks explicit", "consume, acks all"]
    assert all(step in table.out for step in steps)
    rows = json.loads(shell.natty("bench", "--msgs", "2000", "--json", "--storage", "memory").out)
    assert [row["step"] for row in rows] == steps
    assert all(row["messages"] == 2000 and row["rate"] > 0 and row["cpu_us"] > 0 for row in rows)
    assert state("STREAM.NAMES")["total"] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_bench_that_is_interrupted_cleans_up(shell, natty_tls, tmp_path, number):
    with NatsServer(ServerOptions(tls="mutual"), tls_files=natty_tls, folder=tmp_path / "nats") as server:
        measuring = shell.start("natty", "bench", "--msgs", "50000000", "--server", server.url)
        names = ("stream", "ls", "--json", "--server", server.url)
        while "NATTY_BENCH" not in shell.natty(*names).out:
            assert measuring.poll() is None
        measuring.send_signal(number)
        assert shell.finish(measuring).status == 130
        assert json.loads(shell.natty(*names).out) == []


def test_what_is_not_permitted_is_told(shell, natty_tls, tmp_path):
    users = "authorization { users: [{user: u, password: p, permissions: {publish: {deny: secret}, subscribe: '>'}}] }"
    with NatsServer(ServerOptions(authorization=users), tls_files=natty_tls, folder=tmp_path / "nats") as server:
        for command in (("pub", "secret", "x"), ("request", "secret", "x")):
            done = shell.natty(*command, "--server", server.url, "--user", "u", NATS_PASSWORD="p")
            assert done.status == 1
            assert "not permitted" in done.err
