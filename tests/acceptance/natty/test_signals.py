"""SIGTERM, SIGINT and SIGHUP at any moment of a command: the status names the signal, and nothing is left behind."""

import json
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request

import pytest
from browsing import browsing
from patient import PATIENCE

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP

AS_IT_IMPORTS = """
import os, sys
from importlib import import_module

number, module, program = sys.argv[1:4]
del sys.argv[1:4]

class Signalling:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Signalling())
import_module(program + ".cli").main()
"""


@pytest.fixture(autouse=True)
def signals_as_a_terminal_gives_them():
    """Under `nohup`, as CI may run, commands would inherit that SIGHUP is ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (HUP, TERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("module", ["natty.errors", "typer"])
@pytest.mark.parametrize(
    ("command", "ends_with"),
    [
        (("capture", "verify", "--stream", "run"), {TERM: 143, INT: 130, HUP: 129}),
        (("capture", "--log-level", "info", "run"), {TERM: 0, INT: 0}),
        (("natty", "--log-format", "json", "doctor"), {TERM: 143, INT: 130}),
    ],
    ids=["verify", "run", "natty"],
)
def test_a_signal_while_a_command_is_imported_ends_it_without_a_word(shell, command, ends_with, module):
    for number, status in ends_with.items():
        done = shell.finish(shell.execute([sys.executable, "-c", AS_IT_IMPORTS, int(number), module, *command]))
        assert (done.status, done.out, done.err) == (status, "", ""), number


@pytest.fixture
def silent():
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


@pytest.mark.parametrize(
    ("number", "said"), [(TERM, "ended by SIGTERM"), (INT, "interrupted"), (HUP, "ended by SIGHUP")]
)
@pytest.mark.parametrize("program", ["capture", "natty"])
def test_a_signal_while_a_command_works_ends_it_with_its_status(shell, silent, program, number, said):
    words = ("verify", "--stream", "run", "--store", "run") if program == "capture" else ("stream", "info", "run")
    process = shell.start(program, *words, "--server", f"tls://127.0.0.1:{silent.getsockname()[1]}")
    connection, _ = silent.accept()
    with connection:
        process.send_signal(number)
        done = shell.finish(process)
    assert (done.status, done.out, done.err) == (128 + number, "", f"{program}: {said}\n")


def test_a_node_that_connects_outlives_a_reload_and_ends_well_when_it_is_told_to_stop(shell, silent):
    url = f"tls://127.0.0.1:{silent.getsockname()[1]}"
    process = shell.start("capture", "run", "--stream", "verify", "--store", "lake", "--server", url)
    connection, _ = silent.accept()
    with connection:
        process.send_signal(HUP)  # the kernel delivers it first
        process.send_signal(TERM)
        assert shell.finish(process).status == 0


def until_there_is(pattern, shell, process):
    deadline = time.monotonic() + PATIENCE
    while not list(shell.folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        pytest.param("capture-demo-*", HUP, id="its folder is new", marks=pytest.mark.long),
        pytest.param("capture-demo-*/tls/*", TERM, id="it makes keys"),
        pytest.param("capture-demo-*/nats/*/server.log", HUP, id="its servers start", marks=pytest.mark.long),
        pytest.param("capture-demo-*/logs/node-1.log", TERM, id="its nodes start, SIGTERM"),
        pytest.param("capture-demo-*/logs/node-1.log", INT, id="its nodes start, SIGINT", marks=pytest.mark.long),
    ],
)
@pytest.mark.long
def test_a_demo_that_is_ended_leaves_no_files_and_no_processes(shell, processes_of, pattern, number):
    process = shell.start("capture", "demo", "--rows", "1000", TMPDIR=str(shell.folder))
    until_there_is(pattern, shell, process)
    process.send_signal(number)
    assert shell.finish(process).status == 128 + number
    assert list(shell.folder.glob("capture-demo-*")) == []
    assert processes_of(str(shell.folder / "capture-demo-")) == {}


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        pytest.param("natty-server-*", HUP, id="its folder is new"),
        pytest.param("natty-server-*/tls/*", TERM, id="it makes keys"),
        pytest.param("natty-server-*/server.log", INT, id="nats-server starts"),
        pytest.param("natty-server-*/jetstream", HUP, id="nats-server runs"),
    ],
)
def test_a_server_that_is_ended_stops_and_leaves_no_files_and_no_processes(shell, processes_of, pattern, number):
    process = shell.start("natty", "server", "--port", "0", TMPDIR=str(shell.folder))
    until_there_is(pattern, shell, process)
    process.send_signal(number)
    done = shell.finish(process)
    assert (done.status, done.out.splitlines()[-1:], done.err) == (0, ["stopped"], "")
    assert list(shell.folder.glob("natty-server-*")) == []
    assert processes_of(str(shell.folder / "natty-server-")) == {}


@pytest.mark.long
def test_a_watched_demo_prints_an_address_that_shows_the_status_page_in_a_browser(shell, processes_of, tmp_path):
    process = shell.start("capture", "demo", "--rows", "1000", "--watch", "--json", TMPDIR=str(shell.folder))
    line = next(line for line in process.stderr if "status page" in line)
    assert "the output is not a terminal: open it yourself" in line
    address, origin = re.fullmatch(r".* ((http://127\.0\.0\.1:\d+)/[\w-]{32}/)\n", line).groups()
    for path in ("", "status.json", "guess/status.json"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{origin}/{path}", timeout=PATIENCE)
    with browsing(tmp_path) as browser:
        seen = browser(open=address, until="FLIGHTS")
    assert [one for one in seen["complaints"] if "503" not in one] == []  # 503: no node has reported yet
    process.send_signal(TERM)
    assert shell.finish(process).status == 128 + TERM
    assert list(shell.folder.glob("capture-demo-*")) == []
    assert processes_of(str(shell.folder / "capture-demo-")) == {}


@pytest.mark.parametrize("words", [("ls", "--store", "typo"), ("ls", "--nonsense")])
def test_what_ends_a_command_is_json_where_the_log_is(shell, words):
    done = shell.capture("--log-format", "json", *words)
    assert done.status in (1, 2)
    line = json.loads(done.err)
    assert (line["level"], line["logger"]) == ("error", "capture")
    assert "there is no archive in" in line["message"] or "No such option" in line["message"]
