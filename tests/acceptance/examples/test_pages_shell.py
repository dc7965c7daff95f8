"""The command lines of the README and of docs/ run in their order, in this process, against a real server.

What runs elsewhere, or nowhere, is listed in tests/support/pages.py: a new line is run here, or fails.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from electing import vacated, vacated_archive
from pages import PAGES, blocks_of, commands_of
from pages_world import MESSAGES, SETTINGS, archive_orders, make_orders, prepared
from patient import PATIENCE
from typer.main import get_command

from capture.cli.app import make_app as make_capture_app
from capture.errors import CaptureError
from capture.ingest.board import Board
from natty import DeadLetters, Natty, NattyError
from natty.cli.app import make_app as make_natty_app
from natty.cli.run import run
from natty.groups import PartitioningFilter
from natty.streams.listing import stream_names
from natty.testing import DevCA
from natty.testing.spawner import free_ports

PROGRAMS = {"natty": get_command(make_natty_app()), "capture": get_command(make_capture_app())}
PORT, OTHER_PORT = free_ports(2)
TOUR = next(path for path in PAGES if path.name == "tour.md")
CHANGES = {  # what the pages show: what is here
    "backups/ORDERS /var/lib/orders": "backups/ORDERS imported",
    "s3://lake/orders": "lake",
    "s3://archive/orders": "lake",
    "/var/lib/orders": "lake",
    "./archive": "lake",
    "/somewhere/else/": "",
    "2026-11-21T06:00:00Z": (datetime.now(UTC) + timedelta(days=1)).isoformat(),
    "2026-01-01T00:00:00Z": "2020-01-01T00:00:00Z",
    "--from 1000000": "--from 15",
    "4711": "7",
    "--seq 4000": "--seq 5",
    "dlq show 17": "dlq show 1",
    "--replicas 3": "--replicas 1",
    "--workers auto": "--workers 1",
    "--workers 4": "--workers 1",
    "--metrics :8190": f"--metrics 127.0.0.1:{OTHER_PORT}",
    "--host 0.0.0.0 --port 8181": f"--port {PORT}",
    "capture serve ": f"capture serve --port {PORT} ",
}


def captures():
    return "captures ORDERS" in sys.stderr.getvalue() and bool(list(Path("lake").glob("blocks/**/*.parquet")))


def is_recorded():
    return any(b"orders.>" in path.read_bytes() for path in Path("lake").glob("_recorded/*.json"))


def told(question):
    """Return the answer of `question(client)`, a coroutine."""

    async def connected():
        async with Natty() as client:
            return await question(client)

    return asyncio.run(connected())


async def is_swept(client):
    """Whether the leader has reported that the archive holds all messages."""
    state = (await Board(client, "ORDERS").read()).state
    return state is not None and [one.held for one in state.streams] == [MESSAGES]


async def has_made_a_stream(client):
    return "ORDERS_early" in await stream_names(client.jetstream)


def answers():
    return f":{PORT}" in sys.stdout.getvalue() + sys.stderr.getvalue()


FOREVER = {  # how a line begins that runs until Ctrl-C: when that is pressed
    "capture run --config capture.toml --workers": captures,
    "capture run --stream": captures,
    "capture run ": lambda: captures() and is_recorded() and told(is_swept),
    "capture serve ": answers,
    "capture catalog serve ": answers,
    "capture cat --config capture.toml --follow ": lambda: sys.stdout.getvalue().count("\n") == 6,
    "capture cat lake --follow ": lambda: sys.stdout.getvalue().count("\n") == 20,
    "natty stream template run": lambda: told(has_made_a_stream),
}
STATUS = {  # how a line begins: its exit status, if that is not 0
    "natty stream edit ORDERS --max-age 30d --dry-run": 3,
    "natty consumer edit ORDERS billing --max-pending 1000 --dry-run": 3,
    "capture cat --config capture.toml --follow": 130,
    "capture cat lake --follow": 130,
    "capture pipeline ls": 1,  # the file has no pipeline
    "capture status": 3,  # it runs when the node has ended: the sweep has no leader
}
ASKS = (  # how a line begins that asks first; without a terminal it needs --force
    "natty stream edit ",
    "natty stream purge ",
    "natty stream rm-msg ",
    "natty consumer edit ",
    "natty consumer pause ",
    "natty consumer resume ",
    "natty consumer rm ",
    "natty dlq purge ",
    "capture purge ",
)


async def with_config(client):
    Path("capture.toml").write_text(SETTINGS)


async def with_its_config(page, client):
    """The page's own `capture.toml`."""
    (text,) = [one.body for one in blocks_of(page) if one.body.startswith("# capture.toml")]
    Path("capture.toml").write_text(text.replace("file:///var/lib/orders", "lake"))


@dataclass(frozen=True)
class Given:
    """What the commands of a page print, and what its reader has in the beginning and before some lines."""

    says: str
    first: Callable = with_config
    before: dict[str, Callable | str] = field(default_factory=dict)


async def with_orders(client):
    await make_orders(client)
    await with_config(client)


async def with_archive(client):
    await archive_orders(client, allow_direct=True)


async def with_archive_and_certificate(client):
    await with_archive(client)
    files = DevCA.create("the table's").write(Path("tls"))
    shutil.copy(files.server_cert, "server.pem")
    shutil.copy(files.server_key, "server-key.pem")


async def with_stream_again(client):
    await client.ensure_stream("AGAIN", subjects=["again.>"])


async def with_early_order(client):
    await vacated(client, "stream-templates")
    await client.publish("orders.early", b"{}")


async def with_orders_to_capture(client):
    await make_orders(client)
    await vacated_archive(client, "ORDERS")


async def with_mailer(client):
    await with_orders_to_capture(client)
    await client.ensure_consumer("ORDERS", "mailer")


async def with_letters(client):
    await make_orders(client)
    dead = DeadLetters(client.jetstream)
    await dead.ensure()
    async for message in client.consume("ORDERS", "mailer"):
        await dead.bury(message, consumer="mailer", reason="terminated: no such customer")
        break


async def with_group(client):
    await make_orders(client)
    await client.group("ORDERS", "billing").create(10, [PartitioningFilter("orders.*.>", (1,))])
    while (await client.stream_info("ORDERS-billing"))["state"]["messages"] < MESSAGES * 3 // 4:
        await asyncio.sleep(0.01)


async def with_signing_key(client):
    Path("capture.toml").write_text(f'{SETTINGS}signing_key_file = "signing.key"\n')


async def with_partitioned_orders(client):
    for number in range(8):
        await client.publish(f"orders.{number}", b"{}")


async def with_archive_of_a_lost_stream(client):
    await with_archive(client)
    await client.delete_stream("ORDERS")


GIVEN = {
    "README.md": Given(
        r"^20 stored, .*; nothing is missing$",
        partial(with_its_config, PAGES[0]),
        {"capture run": with_orders_to_capture},
    ),
    "administration.md": Given(
        r"^purged 9 messages of stream ORDERS$",
        before={"natty stream get": make_orders, "natty consumer add": make_orders},
    ),
    "archive.md": Given(r"^ours:\S{44}$", with_archive, {"(umask 077; capture keys new": with_signing_key}),
    "capture-node.md": Given(r"; 20 were stored before$", with_archive),
    "dead-letters.md": Given(r"no such customer(.|\n)*c1", with_letters),
    "groups.md": Given(r'"first_seq": 1,', with_group),
    "index.md": Given(r"^ok +version: "),
    "moving.md": Given(r"^20 stored; nothing is missing(.|\n)*^deleted capture of stream ORDERS$", with_archive),
    "permissions.md": Given(r'^ +"\$JS\.ACK\.ORDERS\.billing\.>"$'),
    "publish-later.md": Given(r"^changed ORDERS$", with_orders),
    "reading.md": Given(r"^ *orders\.new +5$", with_archive, {"capture import": "capture export lake backups/ORDERS"}),
    "restore.md": Given(
        r"^20 messages restored in ",
        with_archive_of_a_lost_stream,
        {"capture restore ./archive --replay": with_stream_again},
    ),
    "sources.md": Given(r" stopped: 8 messages in ", before={"capture run": with_partitioned_orders}),
    "table.md": Given(f"^ORDERS served on https://127.0.0.1:{PORT}$", with_archive_and_certificate),
    "templates.md": Given(
        r"^stored in TEMPLATE_orders(.|\n)*^ +Made: 1 of 500$", before={"natty stream template run": with_early_order}
    ),
    "tour.md": Given(
        r"^20 stored, .*; nothing is missing$", partial(with_its_config, TOUR), {"natty consumer next": with_mailer}
    ),
}


@contextmanager
def interrupted_when(condition):
    """Press Ctrl-C in this process as soon as the condition holds, if the command within the block still runs."""
    over, late = threading.Event(), []

    def press():
        deadline = time.monotonic() + PATIENCE
        while not over.wait(0.02):
            try:
                ready = condition()
            except Exception as error:
                late.append(error)
            if time.monotonic() > deadline:
                late.append(sys.stdout.getvalue() + sys.stderr.getvalue())
            if late or ready:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        assert late == [], "it has not done what it is stopped after"


def split_at_operator(words):
    """Return the words of a command, and an operator of the shell with the words behind it."""
    at = next((at for at, word in enumerate(words) if word in ("|", ">", ">>")), len(words))
    return words[:at], words[at:] or [""]


class Terminal:
    """A terminal in a folder: runs a line with `natty` or `capture` in this process, any other in a shell."""

    def __init__(self, monkeypatch, capsys):
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.said = ""

    def __call__(self, line):
        for shown, ours in CHANGES.items():
            line = line.replace(shown, ours)
        words = shlex.split(line, comments=True)
        status, out = self._run(line, words) if words[0] in PROGRAMS else self._shell(line)
        self.said += f"$ {line}\n{out}"
        wanted = next((status for begin, status in STATUS.items() if line.startswith(begin)), 0)
        assert status == wanted, self.said

    def _shell(self, line):
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-euc", line], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def _run(self, line, words):
        words, (how, *target) = split_at_operator(words)
        program = words[0]
        if line.startswith(ASKS) and not {"--dry-run", "--force"} & {*words}:
            words.append("--force")
        self._monkeypatch.setattr(sys, "argv", words)
        self._capsys.readouterr()
        pressing = next(
            (interrupted_when(when) for begin, when in FOREVER.items() if line.startswith(begin)), nullcontext()
        )
        with Path(os.devnull).open() as nothing, pressing, self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", nothing)
            status = run(PROGRAMS[program], program, (CaptureError, NattyError))
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a node leaves the default of processes
        out, err = self._capsys.readouterr()
        if how in (">", ">>"):
            with Path(target[0]).open("a" if how == ">>" else "w") as file:
                file.write(out)
        elif how == "|":  # into jq
            assert [json.loads(one)["sequence"] for one in out.splitlines()]
        return status, out + err


@pytest.fixture
def terminal(page_server, tmp_path, monkeypatch, capsys):
    """A terminal of a reader, and a function that runs `work(client)` with a client of the server."""

    def served(work, empty=False):
        async def connected():
            async with prepared(page_server, tmp_path, monkeypatch, empty=empty) as client:
                await work(client)

        asyncio.run(connected())

    monkeypatch.setenv("CAPTURE_LIMITS__MAX_AGE", "0.2")
    monkeypatch.setenv("CAPTURE_SWEEP__EVERY", "0.2")
    return Terminal(monkeypatch, capsys), served


def test_each_page_with_commands_has_a_test_here():
    assert set(GIVEN) == {path.name for path in PAGES if commands_of(path)}


@pytest.mark.parametrize("name", GIVEN)
def test_the_commands_of_a_page_run_in_their_order(name, terminal):
    given, (type_line, served) = GIVEN[name], terminal
    served(given.first, empty=True)
    for line in commands_of(next(path for path in PAGES if path.name == name)):
        for begin, prepare in given.before.items():
            if line.startswith(begin):
                type_line(prepare) if isinstance(prepare, str) else served(prepare)
        type_line(line)
    assert re.search(given.says, type_line.said, re.MULTILINE), type_line.said
