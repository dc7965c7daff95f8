"""The `nats` tool itself is on no package registry; `fisk_host` stands for it, and natty is the real one here."""

import json
import subprocess
import sys

import fisk_host
from commands import complaint, printed


def introspected(*before):
    """Return what the tool reads when it registers natty: standard output and standard error together."""
    command = [sys.executable, "-m", "natty", *before, "--fisk-introspect"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    return json.loads(done.stdout)


def test_natty_registers_and_its_commands_run_as_the_nats_tool_calls_them(natty_commands, natty_name, monkeypatch):
    model = introspected()
    fisk_host.check(model)
    stream = natty_name("PLUGIN")

    async def make(natty):
        await natty.create_stream(stream, subjects=[f"{stream}.*"])
        for number in range(4):
            await natty.publish(f"{stream}.a", b"%d" % number)

    natty_commands.served(make)
    url = natty_commands.environment["NATS_URL"]
    monkeypatch.setenv("NATS_URL", "tls://127.0.0.1:1")  # the option is what counts

    def nats(*words):
        (handed,) = fisk_host.call(model, f"--server={url}", *words)
        return natty_commands(*handed)

    printed(nats("consumer", "add", stream, "billing", "--max-pending", "9", "--defaults", "--timeout=5s"))
    taken = nats("consumer", "next", stream, "billing", "--count", "2", "-r", "--no-ack", "--timeout=1m0s")
    assert printed(taken) == "0\n1\n"
    assert printed(nats("consumer", "ls", stream, "-n")) == "billing\n"
    assert printed(nats("consumer", "pause", stream, "billing", "1h", "--force")).startswith("paused billing of stream")
    assert json.loads(printed(nats("consumer", "info", stream, "billing", "-j")))["paused"] is True
    assert "did you mean billing" in complaint(nats("consumer", "rm", stream, "biling", "-f"))
    assert "Server: natty" in printed(nats("account", "info"))


def test_the_model_is_printed_whatever_is_configured(monkeypatch):
    monkeypatch.setenv("NATS_CONTEXT", "nowhere")
    monkeypatch.setenv("NATS_CA", "nowhere.pem")
    assert introspected("--log-level", "debug")["name"] == "natty"
