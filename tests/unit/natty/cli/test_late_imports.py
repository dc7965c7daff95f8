"""What a process imports: it takes longer than most commands run."""

import subprocess
import sys

import pytest
from typer.main import get_command

from capture.cli import app as capture_app
from natty.cli import app as natty_app


def printed(code):
    """Return the words that a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_aiohttp_is_imported_when_nats_py_uses_it():
    code = """
import sys
import natty.wire.nats_py
from nats.aio import transport
print("aiohttp" in sys.modules)
print(transport.aiohttp.WSMsgType.BINARY.name, sys.modules["aiohttp"].WSMsgType is transport.aiohttp.WSMsgType)
from aiohttp import web
print(web.Application.__name__)
"""
    assert printed(code) == ["False", "BINARY", "True", "Application"]


def test_a_program_that_has_imported_aiohttp_keeps_it():
    code = "import aiohttp, natty.wire.nats_py; from nats.aio import transport; print(transport.aiohttp is aiohttp)"
    assert printed(code) == ["True"]


def test_without_aiohttp_nats_py_says_so_itself():
    code = """
import sys
sys.modules["aiohttp"] = None
import natty.wire.nats_py
from nats.aio import transport
print(transport.aiohttp)
"""
    assert printed(code) == ["None"]


@pytest.mark.parametrize(
    ("package", "arguments", "used", "others"),
    [
        ("natty", ["--log-level", "debug", "kv", "get"], "natty.cli.kv", {"natty.cli.stream", "natty.cli.group"}),
        ("capture", ["ls", "--json"], "capture.cli.archive", {"capture.cli.sql", "capture.node.node", "aiohttp"}),
    ],
)
def test_a_command_is_imported_alone(package, arguments, used, others):
    loaded = printed(f"import sys; from {package}.cli.app import prepare; prepare({arguments}); print(*sys.modules)")
    assert used in loaded
    assert not others & set(loaded)


@pytest.mark.parametrize("app", [natty_app, capture_app], ids=["natty", "capture"])
@pytest.mark.parametrize("command", ["", "nonsense"])
def test_where_no_command_is_named_all_are_there(app, command):
    assert {*get_command(app.make_app(command)).commands} == {*app.COMMANDS.functions, *app.COMMANDS.groups}
