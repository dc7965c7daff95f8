"""TAB in the shell: bash's protocol, in processes of their own, against a real server."""

import os
import shlex
import socket
import subprocess
import sys
import time

import pytest

from natty.cli import connect

PATIENCE = 60.0  # seconds, for a machine on which an answer takes longer than a user waits


def press_tab(words, environment=None, program="natty", python=()):
    """Return what bash gets for the last of these words, which may be empty."""
    variables = {
        f"_{program.upper()}_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join([program, *words[:-1]]) + f" {words[-1]}",
        "COMP_CWORD": str(len(words)),
    }
    return subprocess.run(
        [sys.executable, *python, "-m", program],
        env=os.environ | variables | (environment or {}),
        capture_output=True,
        text=True,
        check=True,
    )


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


def test_the_server_names_what_there_is(natty_commands, nats_server, name):
    at = connect.flags_of(nats_server.connect_options())
    cases = {
        ("stream", "info", *at, name): [name, f"{name}_parts"],
        ("consumer", "info", *at, name, ""): ["billing", "shipping"],
        ("consumer", "info", *at, name, "ship"): ["shipping"],
        ("dlq", "ls", *at, "--stream", name, "--consumer", "b"): ["billing"],
        ("kv", "get", *at, "ORDERS_"): [name],
        ("kv", "get", *at, name, "customer."): ["customer.1", "customer.2"],
        ("group", "elastic", "info", *at, f"{name}_parts", ""): ["workers"],
        ("leader", "show", *at, f"E{name}"): [f"E{name}"],
        ("schedule", "show", *at, name, "n"): ["nightly"],
        ("stream", "template", "info", *at, f"T{name}"): [f"T{name}"],
    }
    for words, wanted in cases.items():
        deadline = time.monotonic() + PATIENCE
        while not (done := press_tab(words)).stdout.strip() and time.monotonic() < deadline:
            pass
        found = done.stdout.split()
        assert set(wanted) <= set(found), words
        assert done.stderr == ""
        if words[-1] != "ORDERS_":
            assert found == wanted, words


def test_without_a_server_there_is_silence(tmp_path):
    (tmp_path / "ca.pem").write_text("not a certificate")
    nobody = {"NATS_URL": "tls://localhost:1"}
    for environment in (nobody, nobody | {"NATS_CA": str(tmp_path / "ca.pem")}, {"NATS_CONTEXT": "missing"}):
        done = press_tab(["consumer", "info", "ORDERS", ""], environment)
        assert (done.stdout.strip(), done.stderr) == ("", ""), environment


def test_a_server_that_never_answers_is_given_up():
    with socket.create_server(("localhost", 0)) as silent:
        done = press_tab(["stream", "info", ""], {"NATS_URL": f"tls://localhost:{silent.getsockname()[1]}"})
    assert (done.stdout.strip(), done.stderr) == ("", "")
