import json
import os
import pty
import shlex
import subprocess
import sys

import pytest
from patient import PATIENCE

from natty.testing import NatsServer, free_ports

COMMANDS = {
    "doctor": (),
    "pub": ("s", "x"),
    "sub": ("s",),
    "request": ("s",),
    "stream plan": ("-f", "streams.toml"),
    "stream apply": ("-f", "streams.toml"),
    "stream ls": (),
    "stream info": ("S",),
    "stream report": (),
    "stream add": ("S", "--subjects", "s"),
    "stream edit": ("S", "--max-msgs", "5", "--force"),
    "stream copy": ("S", "T", "--subjects", "t"),
    "stream rm": ("S", "--force"),
    "stream purge": ("S", "--force"),
    "stream rm-msg": ("S", "1", "--force"),
    "stream get": ("S", "1"),
    "consumer next": ("S", "d"),
    "consumer ls": ("S",),
    "consumer info": ("S", "d"),
    "consumer add": ("S", "d"),
    "consumer edit": ("S", "d", "--wait", "9s"),
    "consumer rm": ("S", "d", "--force"),
    "consumer pause": ("S", "d", "1h", "--force"),
    "consumer resume": ("S", "d", "--force"),
    "consumer report": ("S",),
    "account info": (),
    "bench": (),
}


ALL_IN_ONE = """
import contextlib, io, json, sys
from natty.cli.app import make_app
from natty.cli.run import run
from natty.errors import NattyError

for command in json.loads(sys.argv[1]):
    sys.argv = ["natty", *command]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(make_app(), "natty", (NattyError,))
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def all_in_one(shell, commands, **environment):
    """Run many commands in one process, as each would run in its own, and return (status, out, err) of each."""
    process = shell.execute([sys.executable, "-c", ALL_IN_ONE, json.dumps(commands)], **environment)
    done = shell.finish(process, within=2 * PATIENCE)
    assert done.status == 0, done.err
    return dict(zip(map(tuple, commands), map(json.loads, done.out.splitlines()), strict=True))


def test_every_command_says_in_one_sentence_that_no_server_can_be_reached(shell):
    url = f"tls://127.0.0.1:{free_ports(1)[0]}"
    said = (
        f"natty: no server could be reached. {url}: nothing listens there; check the port, and that the server runs\n"
    )
    (shell.folder / "streams.toml").write_text("[streams.S]")
    commands = [(*name.split(), *arguments, "--server", url) for name, arguments in COMMANDS.items()]
    for name, ended in all_in_one(shell, commands).items():
        assert ended == [1, "", said], name


def test_every_command_says_in_one_sentence_that_a_setting_is_wrong(shell):
    (shell.folder / "streams.toml").write_text("[streams.S]")
    commands = [(*name.split(), *arguments) for name, arguments in COMMANDS.items()]
    for name, (status, out, err) in all_in_one(shell, commands, NATS_CA="nowhere.pem").items():
        assert (status, out, err.count("\n")) == (1, "", 1), name
        assert "The CA file nowhere.pem does not exist; check the path" in err, name


BAD_INPUT = {
    ("pub",): (2, "Missing argument 'subject'."),
    ("pub", "s", "x", "--count", "0"): (2, "Invalid value for '--count'"),
    ("pub", "s", "x", "-H", "nocolon"): (2, "'nocolon' is not a header; write it as 'Name: value'"),
    ("pub", "s", "x", "-H", "a: b\nc"): (2, "contains a line break"),
    ("pub", "s", "x", "-H", "a b: c"): (2, "header name 'a b' is empty, or has a blank"),
    ("str", "ls"): (2, "No such command 'str'. Did you mean 'stream'?"),
    ("con", "ls"): (2, "No such command 'con'. Did you mean 'consumer'?"),
    ("req", "s"): (2, "No such command 'req'. Did you mean 'request'?"),
    ("steam", "ls"): (2, "No such command 'steam'. Did you mean 'stream'?"),
    ("pub", "s", "x", "--msg-id", "1", "--count", "2"): (2, "--msg-id: it is for a single message"),
    ("pub", "s", "--stdin", "--count", "2"): (2, "each line of standard input is published once"),
    ("pub", "s.*", "x"): (1, "subject 's.*' has the wildcard *: name one subject to publish on"),
    ("pub", "a b", "x"): (1, "subject 'a b' has a blank"),
    ("request", "s.>", "x"): (1, "subject 's.>' has the wildcard >"),
    ("request", "s", "--timeout", "0"): (2, "Invalid value for '--timeout'"),
    ("sub", "a b"): (1, "subject 'a b' is empty, or contains a blank"),
    ("sub", "s", "--stream", "S", "--queue", "q"): (2, "--stream excludes --queue; share work with a durable consumer"),
    ("sub", "s", "--stream", "a.b"): (1, "stream name 'a.b': '.' at character 2 is not allowed"),
    ("sub", "s", "--stream", "nothing_here"): (
        1,
        "there is no stream nothing_here: check the name, or create",
    ),
    ("consumer", "next", "S"): (2, "Missing argument 'consumer'."),
    ("consumer", "next", "S", "a b"): (1, "consumer name 'a b': ' ' at character 2 is not allowed"),
    ("consumer", "next", "nothing_here", "d"): (1, "there is no stream nothing_here"),
    ("consumer", "next", "S", "d", "--ack", "--nak"): (2, "--ack and --nak contradict each other"),
    ("consumer", "add", "S"): (2, "CONSUMER is missing, and there is no terminal to ask on: give it"),
    ("consumer", "add", "S", "d", "--ephemeral"): (2, "natty makes durable pull consumers"),
    ("consumer", "pause", "S", "d", "soon"): (2, "'soon' is not a duration"),
    ("stream", "plan"): (2, "Missing option '--file' / '-f'."),
    ("stream", "info", "a b"): (1, "stream name 'a b': ' ' at character 2 is not allowed"),
    ("bench", "--storage", "tape"): (2, "Invalid value for --storage: choose file or memory"),
    ("server", "--port", "70000"): (2, "Invalid value for '--port'"),
    ("doctor", "--context", "nowhere"): (1, "nats context 'nowhere' can't be read"),
}


def test_bad_input_is_told_in_one_sentence(shell):
    for command, (status, out, err) in all_in_one(shell, list(BAD_INPUT)).items():
        wanted, said = BAD_INPUT[command]
        assert (status, out) == (wanted, ""), command
        assert said in err, command
        assert "Traceback" not in err, command
        assert status == 2 or err.count("\n") == 1, command


def test_the_selected_context_of_the_nats_tool_is_used(shell, natty_name):
    environment = shell.environment
    folder = shell.folder / ".config" / "nats"
    (folder / "context").mkdir(parents=True)
    names = {"url": "NATS_URL", "ca": "NATS_CA", "cert": "NATS_CERT", "key": "NATS_KEY"}
    (folder / "context" / "dev.json").write_text(json.dumps({key: environment[name] for key, name in names.items()}))
    (folder / "context.txt").write_text("dev")
    nothing, server = dict.fromkeys(names.values(), ""), ("--server", environment["NATS_URL"])
    done = shell.natty("pub", natty_name("x"), "x", **nothing)
    assert (done.status, done.err) == (0, "")
    done = shell.natty("pub", natty_name("x"), "x", *server, **nothing)  # without the context's CA and certificate
    assert (done.status, done.err.count("not signed by any CA in the system's trust store")) == (1, 1)
    done = shell.natty("pub", natty_name("x"), "x", *server, "--context", "dev", **nothing)
    assert (done.status, done.err) == (0, "")


def test_completion_is_offered_and_completes(shell):
    shown = shell.finish(
        shell.execute(["bash", "-c", f"{shlex.quote(sys.executable)} -m natty --show-completion; true"])
    )
    assert "complete -o" in shown.out
    assert "_NATTY_COMPLETE=complete_bash" in shown.out
    words = shell.run("natty", _NATTY_COMPLETE="complete_bash", COMP_WORDS="natty stream p", COMP_CWORD="2")
    assert words.out.split() == ["purge", "plan"]
    options = shell.run("natty", _NATTY_COMPLETE="complete_bash", COMP_WORDS="natty pub --msg", COMP_CWORD="2")
    assert options.out.split() == ["--msg-id"]


def on_a_screen(shell, *arguments, **environment):
    """Run `natty …` with a terminal for both outputs and return what it shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "natty", *arguments],
        cwd=shell.folder,
        env=shell.environment | {"TERM": "xterm-256color"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how the end of the other side shows on Linux
        pass
    finally:
        os.close(ours)
    assert process.wait(PATIENCE) == 0
    return shown


def test_colours_are_for_terminals_and_off_with_no_color(shell):
    assert b"\x1b[32mok" in on_a_screen(shell, "doctor")
    assert b"\x1b[3" not in on_a_screen(shell, "doctor", NO_COLOR="1")
    assert "\x1b" not in shell.natty("doctor").out


def test_progress_is_for_terminals(shell, make_stream, natty_name):
    stream = make_stream(natty_name("PROGRESS"))
    assert b"published" in on_a_screen(shell, "pub", f"{stream}.a", "x", "--count", "1000", "-J").split(b"stored")[0]
    assert shell.natty("pub", f"{stream}.a", "x", "--count", "1000", "-J").err == ""


def test_logs_are_json_objects_if_asked_for(shell, natty_tls, tmp_path):
    with NatsServer(tls_files=natty_tls, folder=tmp_path / "nats") as server:
        listening = shell.start(
            "natty", "--log-level", "warning", "--log-format", "json", "sub", "s", "--server", server.url
        )
        assert listening.stderr.readline() == "subscribed to s\n"
        server.kill()
        logged = json.loads(listening.stderr.readline())
        listening.terminate()
    assert (logged["level"], logged["logger"], logged["action"]) == ("warning", "natty.connection", "disconnected")
    shell.finish(listening)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_with_closed_standard_streams(shell, closed):
    """uvloop ends a process in which a socket gets the number of one."""
    command = shlex.join([sys.executable, "-m", "natty", "doctor"])
    done = shell.finish(shell.execute(["sh", "-c", f"{command} {closed}"]))
    assert (done.status, "Traceback" in done.err) == (0, False), done.err


def test_a_question_without_standard_input_says_to_force_it(shell):
    command = shlex.join([sys.executable, "-m", "natty", "schedule", "rm", "ORDERS", "a"])
    done = shell.finish(shell.execute(["sh", "-c", f"{command} <&-"]))
    assert (done.status, "There is no terminal to ask on: give --force" in done.err) == (1, True), done.err
