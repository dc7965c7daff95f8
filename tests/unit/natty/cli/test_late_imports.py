"""What a process imports: it takes longer than most commands run."""

import os
import subprocess
import sys

import pytest
from typer import Context
from typer.main import get_command
from typer.testing import CliRunner

from capture.cli import app as capture_app
from natty.cli import app as natty_app
from natty.cli.help import SummaryGroup


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
        ("capture", ["ls", "--json"], "capture.cli.ls", {"capture.cli.sql", "capture.node.node", "aiohttp"}),
    ],
)
def test_a_command_is_imported_alone(package, arguments, used, others):
    loaded = printed(f"import sys; from {package}.cli.app import prepare; prepare({arguments}); print(*sys.modules)")
    assert used in loaded
    assert not others & set(loaded)


HEAVY = {
    *["nats", "asyncio", "ssl", "aiohttp", "cryptography", "rich", "uvloop", "opentelemetry", "prometheus_client"],
    *["pyarrow", "pyspark", "py4j", "pyiceberg", "duckdb", "obstore", "pyroaring", "cramjam", "numpy", "pytest"],
}
STARTS = {
    f"{program} {' '.join(arguments)}": (program, arguments, environment)
    for program in ("natty", "capture")
    for arguments, environment in (
        (["--version"], {}),
        (["--help"], {}),
        (["--show-completion"], {}),
        ([], {f"_{program.upper()}_COMPLETE": "complete_bash", "COMP_WORDS": f"{program} s", "COMP_CWORD": "1"}),
    )
}


@pytest.mark.parametrize("start", STARTS)
def test_what_needs_no_command_imports_no_command_and_nothing_heavy(start):
    program, arguments, environment = STARTS[start]
    code = f"""
import sys
from {program}.cli import main
sys.argv = ["{program}", *{arguments}]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""
    command = ["bash", "-c", '"$@"; exit "$?"', "bash", sys.executable, "-c", code]  # --show-completion needs a shell
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    assert ran.stdout
    loaded = set(ran.stderr.split())
    assert loaded & HEAVY == set()
    ours = {name for name in loaded if name.startswith(("natty.", "capture."))}
    assert f"{program}.cli.app" in ours
    assert not ours & {
        place.at.partition(":")[0] for app in (natty_app, capture_app) for place in app.Commands.places.values()
    }


@pytest.mark.parametrize("package", ["natty", "capture"])
def test_a_package_imports_nothing_heavy(package):
    assert not {*printed(f"import sys, {package}; print(*sys.modules)")} & HEAVY


@pytest.mark.parametrize("app", [natty_app, capture_app], ids=["natty", "capture"])
def test_each_summary_in_a_list_of_commands_is_the_first_sentence_of_the_commands_help(app):
    commands = get_command(app.make_app()).commands
    assert {name: place.summary for name, place in app.Commands.places.items()} == {
        name: command.get_short_help_str(10**6) for name, command in commands.items()
    }


@pytest.mark.parametrize("app", [natty_app, capture_app], ids=["natty", "capture"])
def test_a_list_of_commands_reads_as_if_all_were_imported(app):
    late = get_command(app.make_app())
    whole = SummaryGroup(
        commands=dict(late.commands), params=late.params, help=late.help, no_args_is_help=True, rich_markup_mode=None
    )
    shown = [group.get_help(Context(group, info_name="it", terminal_width=80)) for group in (late, whole)]
    assert shown[0] == shown[1]
    assert "Commands:" in shown[0]


@pytest.mark.parametrize(("app", "word", "meant"), [(natty_app, "stram", "stream"), (capture_app, "statu", "status")])
def test_a_command_that_is_not_there_is_a_usage_error_that_names_a_close_one(app, word, meant):
    ended = CliRunner().invoke(app.make_app(), [word])
    assert ended.exit_code == 2
    assert f"No such command '{word}'. Did you mean '{meant}'?" in ended.stderr
