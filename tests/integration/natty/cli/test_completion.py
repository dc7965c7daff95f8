"""TAB in the shell: bash's protocol, in processes of their own and in bash itself, against a real server."""

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bash_line import BashLine

import capture.cli.app
import natty.cli.app
from natty.cli import bash_words, completion, connect

PATIENCE = 60.0  # seconds, for a machine on which an answer takes longer than a user waits


def press_tab(words, environment=None, program="natty", python=()):
    """Return what bash gets for the last of these words, which may be empty."""
    variables = {
        f"_{program.upper()}_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join([program, *map(shlex.quote, words[:-1]), words[-1]]),
        "COMP_CWORD": str(len(words)),
    }
    return subprocess.run(
        [sys.executable, *python, "-m", program],
        env=os.environ | variables | (environment or {}),
        capture_output=True,
        text=True,
        check=True,
    )


def press_until_answered(words, program="natty"):
    """Press TAB again and again, as long as a server does not answer in time."""
    deadline = time.monotonic() + PATIENCE
    while not (done := press_tab(words, program=program)).stdout.strip() and time.monotonic() < deadline:
        pass
    return done


@pytest.fixture
def name(natty_commands, natty_name):
    """A stream with consumers, a group, a schedule; a bucket with keys; an election; a template."""
    name = natty_name("ORDERS")

    async def make(natty):
        subjects = [f"{name}.*", f"schedules.{name}.>"]
        await natty.create_stream(name, subjects=subjects, allow_msg_ttl=True, allow_msg_schedules=True)
        await natty.create_stream(f"{name}_parts", subjects=[f"parts.{name}.*"])
        await natty.create_consumer(name, "billing")
        await natty.create_consumer(name, "shipping")
        for hostile in ("$(touch${IFS}pwned)", "`id`", ";reboot;", "b'x"):
            await natty.create_consumer(name, hostile)
        bucket = await natty.create_bucket(name)
        await bucket.put("customer.1", b"")
        await bucket.put("customer.2", b"")
        async with natty.leader(f"E{name}"):
            pass

    natty_commands.served(make)
    for words in (
        ("group", "elastic", "create", f"{name}_parts", "workers", 3, "--filter", f"parts.{name}.*:1"),
        ("schedule", "add", "nightly", f"{name}.a", "x", "--every", "24h"),
        ("stream", "template", "add", f"T{name}", "--subject", f"t.{name}.*", "--stream", f"T_{name}_{{1}}"),
    ):
        done = natty_commands(*words)
        assert done.status == 0, done.err
    yield name
    natty_commands("stream", "template", "rm", f"T{name}", "--force")


AT = "the options of the connection"
NAMED = [
    (("consumer", "info", AT, "{name}", "ship"), ["shipping"]),
    (("kv", "get", AT, "{name}", "customer."), ["customer.1", "customer.2"]),
]
MORE_NAMED = [
    (("stream", "info", AT, "{name}_p"), ["{name}_parts", "{name}_parts-workers"]),
    (("consumer", "info", AT, "{name}", ""), ["billing", "shipping"]),
    (("dlq", "ls", AT, "--stream", "{name}", "--consumer", "b"), ["billing"]),
    (("group", "elastic", "info", AT, "{name}_parts", ""), ["workers"]),
    (("leader", "show", AT, "E{name}"), ["E{name}"]),
    (("schedule", "show", AT, "{name}", "n"), ["nightly"]),
    (("stream", "template", "info", AT, "T{name}"), ["T{name}"]),
]


@pytest.mark.parametrize("cases", [NAMED, pytest.param(MORE_NAMED, marks=pytest.mark.long)], ids=["some", "more"])
def test_the_server_names_what_there_is(natty_commands, nats_server, name, cases):
    options = nats_server.connect_options()
    at = connect.flags_of(options | {"servers": ",".join(options["servers"])})
    for words, wanted in cases:
        line = [part.format(name=name) for word in words for part in (at if word == AT else [word])]
        done = press_until_answered(line)
        assert (done.stdout.split(), done.stderr) == ([one.format(name=name) for one in wanted], ""), words


@pytest.mark.long
def test_the_server_names_buckets_of_other_tests_too(natty_commands, nats_server, name):
    options = nats_server.connect_options()
    at = connect.flags_of(options | {"servers": ",".join(options["servers"])})
    done = press_until_answered(["kv", "get", *at, "ORDERS_"])
    assert name in done.stdout.split()
    assert done.stderr == ""


@pytest.mark.long
def test_without_a_server_there_is_silence(tmp_path):
    (tmp_path / "ca.pem").write_text("not a certificate")
    nobody = {"NATS_URL": "tls://localhost:1"}
    for environment in (nobody, nobody | {"NATS_CA": str(tmp_path / "ca.pem")}, {"NATS_CONTEXT": "missing"}):
        done = press_tab(["consumer", "info", "ORDERS", ""], environment)
        assert (done.stdout.strip(), done.stderr) == ("", ""), environment


@pytest.mark.long
def test_a_server_that_never_answers_is_given_up():
    with socket.create_server(("localhost", 0)) as silent:
        done = press_tab(["stream", "info", ""], {"NATS_URL": f"tls://localhost:{silent.getsockname()[1]}"})
    assert (done.stdout, done.stderr) == ("", "")  # an answer, also an empty one, would have a line


def test_what_is_written_to_standard_error_meanwhile_is_not_shown(capsys):
    def names():
        print("the session is lost", file=sys.stderr)  # as logging does without a handler
        return ["billing"]

    assert completion.find(names) == ["billing"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.long
def test_capture_completes_streams_and_pipelines_from_its_configuration(tmp_path):
    file = tmp_path / "capture.toml"
    file.write_text('streams = ["ORDERS", "PAYMENTS"]\n[[pipeline]]\nname = "daily"\n[[pipeline]]\nname = "monthly"\n')
    for words, wanted in {
        ("ls", "--config", str(file), "--stream", "P"): ["PAYMENTS"],
        ("pipeline", "show", "--config", str(file), ""): ["daily", "monthly"],
        ("pipeline", "show", "--config", str(tmp_path / "missing.toml"), ""): [],
    }.items():
        done = press_tab(words, program="capture")
        assert (done.stdout.split(), done.stderr) == (wanted, "")


@pytest.mark.long
def test_capture_asks_the_server_if_it_knows_no_stream(nats_server, name):
    options = nats_server.connect_options()
    at = connect.flags_of(options | {"servers": ",".join(options["servers"])})
    done = press_until_answered(["run", *at, "--stream", f"{name}_parts"], "capture")
    assert (done.stdout.split(), done.stderr) == ([f"{name}_parts", f"{name}_parts-workers"], "")


@pytest.mark.parametrize("app", [natty.cli.app, capture.cli.app])
def test_completing_an_option_imports_nothing_heavy(app):
    """One process imports all commands: completing an option of one imports this one alone."""
    code = (
        f"import {app.__name__} as app, sys; [place.load() for place in app.Commands.places.values()];"
        " print(*{'pyarrow', 'nats', 'aiohttp', 'pyspark', 'duckdb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    program = app.__name__.partition(".")[0]
    shown = press_tab(["doctor", "--js"], program=program, python=["-X", "importtime"])
    assert "--js" in shown.stdout
    assert not {"pyarrow", "nats", "aiohttp"} & {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}


def test_bash_completes_after_the_installation(tmp_path):
    scripts = Path(sys.executable).parent
    environment = os.environ | {"HOME": str(tmp_path), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    installed = 'natty --install-completion bash && . "$HOME/.bashrc" && COMP_WORDS=(natty stream in) && COMP_CWORD=2'
    pressed = '_natty_completion natty && echo "completed ${COMPREPLY[*]}"'
    command = ["bash", "--norc", "-c", f"{installed} && {pressed}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "completed info" in done.stdout.splitlines()


LINE_OF_BASH = {
    "natty --server tls://h:42 OR": ("natty --server tls : //h : 42 OR", ["natty", "--server", "tls://h:42", "OR"], ""),
    "natty --server=tls://h:4": ("natty --server = tls : //h : 4", ["natty", "--server=tls://h:4"], "tls://h:"),
    "natty --stream=OR": ("natty --stream = OR", ["natty", "--stream=OR"], ""),
    "natty --stream=": ("natty --stream =", ["natty", "--stream="], ""),
    "natty get B a=b=c": ("natty get B a = b = c", ["natty", "get", "B", "a=b=c"], "a=b="),
    "natty get B u@h": ("natty get B u @ h", ["natty", "get", "B", "u@h"], "u"),
    "natty get B a:=": ("natty get B a :=", ["natty", "get", "B", "a:="], "a:="),
    "natty pub a: ": ("natty pub a : _", ["natty", "pub", "a:", ""], ""),
    "natty get B 'a:b": ("natty get B 'a:b", ["natty", "get", "B", "'a:b"], ""),
}


@pytest.mark.parametrize(("parts", "words", "kept"), LINE_OF_BASH.values(), ids=LINE_OF_BASH)
def test_the_parts_of_words_are_joined_again(parts, words, kept):
    parts = parts.replace("_", "").split(" ")
    assert bash_words.join(parts, len(parts) - 1) == (words, len(words) - 1)
    assert bash_words.keep(parts, words, len(words) - 1) == kept


def test_the_cursor_may_be_before_the_last_word():
    parts = ["natty", "stream", "in", "--server", "tls", ":", "//h"]
    assert bash_words.join(parts, 2) == (["natty", "stream", "in", "--server", "tls://h"], 2)


@pytest.mark.long
def test_bash_completes_a_line_with_words_that_it_splits(tmp_path):
    file = tmp_path / "a:b=c@d.toml"
    file.write_text('streams = ["PAYMENTS", "k=v1", "k=v2", "mail@home"]\n')
    lines = {
        f"capture ls --config {file} --stream P": "PAYMENTS",
        f"capture ls --config={file} --stream=P": "--stream=PAYMENTS",
        f"capture ls --config {file} --stream k=": "k=v",
        f"capture ls --config {file} --stream mail@": "mail@home",
    }
    with BashLine(tmp_path, "capture") as bash:
        for line, wanted in lines.items():
            assert bash.complete(line, wanted) == [*line.split(" ")[:-1], wanted]


@pytest.mark.long
def test_bash_completes_a_line_with_the_url_of_a_server(nats_server, name, tmp_path):
    options = nats_server.connect_options()
    at = shlex.join(connect.flags_of(options | {"servers": ",".join(options["servers"])}))
    assert "tls://" in at
    with BashLine(tmp_path, "natty") as bash:
        assert bash.complete(f"natty dlq ls {at} --stream {name} --consumer b", "billing")[-1] == "billing"
