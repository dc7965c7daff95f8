import inspect
import json
import re
import socket
from pathlib import Path

import msgspec
import pytest
from secret import write_secret

from capture.cli.config import check, show
from capture.cli.node import run
from capture.config.settings import CaptureConfig
from capture.pipelines.definition import Pipeline
from natty.cli import connect

CLI = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
SECTION = CLI[CLI.index("## Where a setting comes from") :]
TRANSCRIPT = "".join(re.findall(r"^```text\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL))
FILE, EXPORTED, *COMMANDS = re.split(r"^\$ (?:cat|export|capture) ", TRANSCRIPT, flags=re.MULTILINE)[1:]
AS_DOCUMENTED = dict([EXPORTED.strip().split("=")])


@pytest.fixture
def documented(tmp_path):
    """Write the documents' `capture.toml` into the folder that commands run in."""
    name, _, text = FILE.partition("\n")
    write_secret(tmp_path / name, text)


def every_setting(config=CaptureConfig, table=""):
    """Return the dotted name of each field; tables of free names end there."""
    names = []
    for field in msgspec.structs.fields(config):
        if isinstance(field.default, msgspec.Struct):
            names += every_setting(type(field.default), f"{table}{field.name}.")
        else:
            names.append(f"{table}{field.name}")
    return names


def test_the_documents_show_what_the_commands_print(shell, documented):
    assert len(COMMANDS) == 3
    begun = [shell.start("capture", *text.partition("\n")[0].split(), **AS_DOCUMENTED) for text in COMMANDS]
    for text, process in zip(COMMANDS, begun, strict=True):
        done, said = shell.finish(process), text.splitlines()[1:]
        printed = (done.out + done.err).splitlines()
        assert done.status == (1 if done.err else 0)
        assert said == [line for line in printed if line in said]
        assert said == printed or text.startswith("config show")


def test_show_is_complete_stable_and_tells_no_secret(shell, documented):
    environment = AS_DOCUMENTED | {
        "COLUMNS": "20",
        "CAPTURE_KEYS": "k1:c2VjcmV0",
        "CAPTURE_NATS__TOKEN": "open",
        "CAPTURE_STREAM": "Ø\x1b[31m" + "x" * 200,
    }
    printing = shell.start("capture", "config", "show", "--config", "capture.toml", **environment)
    as_json = shell.capture("config", "show", "--json", CAPTURE_CONFIG="capture.toml", **environment)
    table = shell.finish(printing)
    assert (table.status, table.err, as_json.status, as_json.err) == (0, "", 0, "")
    for done in (table, as_json):
        assert not re.search("sesame|c2VjcmV0|open|KEYS\\b", done.out.replace("max_open", ""))
    rows = [line.split(maxsplit=1) for line in table.out.splitlines()]
    settings = json.loads(as_json.out)
    expanded = [name for name in settings if name.startswith("nats.")]
    assert set(expanded) == {"nats.servers", "nats.password", "nats.token"}
    assert [name for name in settings if name not in expanded] == [name for name in every_setting() if name != "nats"]
    assert [name for name, _ in rows] == list(settings)
    for (_, rest), one in zip(rows, settings.values(), strict=True):
        assert rest.endswith(f"  {one['source']}")
        assert json.loads(rest.removesuffix(one["source"])) == one["value"]
    assert settings["limits.max_age"] == {"value": 20.0, "source": "file capture.toml, line 9"}
    assert settings["nats.token"] == {"value": "***", "source": "variable CAPTURE_NATS__TOKEN"}
    assert settings["stream"]["value"] == environment["CAPTURE_STREAM"]


def test_show_needs_no_setting(shell):
    done = shell.capture("config", "show")
    assert (done.status, done.err) == (0, "")
    assert {line.split()[-1] for line in done.out.splitlines()} == {"default"}


def test_check_connects_nowhere(shell, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        store = f"s3://lake?endpoint=http://{address}&plain_http=true"
        flags = ["--stream", "S", "--store", store, "--server", f"tls://{address}", "--durable", "d"]
        settings = {"CAPTURE_ARCHIVE": "a", "CAPTURE_ENCRYPT": "true", "CAPTURE_KEYS": f"k:{'A' * 43}="}
        done = shell.capture("config", "check", *flags, **settings)
        assert (done.status, done.out, done.err) == (0, "the configuration: fine\n", "")
        nobody.settimeout(0)
        with pytest.raises(BlockingIOError):
            nobody.accept()
    assert list(tmp_path.iterdir()) == []


def test_show_tells_what_it_can_not_read(shell, tmp_path):
    (tmp_path / "capture.toml").write_text("lease = 0.1")
    done = shell.capture("config", "show", "--config", "capture.toml")
    assert (done.status, done.out) == (1, "")
    assert done.complaint == "capture: capture.toml: `lease` must be a number of at least 0.3 in line 1"


@pytest.mark.parametrize("command", [show, check])
def test_the_flags_of_a_node_are_taken_too(command):
    node, ours = (set(inspect.signature(one).parameters) for one in (run, command))
    served = {"metrics", "metrics_cert", "metrics_key", "metrics_token_file", "metrics_allow_host"}
    assert node - ours == {*served, "invoked"}
    assert set(inspect.signature(connect.options(lambda *, nats: None)).parameters) <= ours


def test_show_has_a_row_for_each_setting_of_a_pipeline_and_where_it_comes_from(shell, tmp_path):
    text = 'stream = "S"\nstore = "lake"\n\n[[pipeline]]\nname = "a"\nsql = "SELECT x FROM S"\nmode = "append"\n'
    (tmp_path / "capture.toml").write_text(text)
    rows = json.loads(shell.capture("config", "show", "--json", CAPTURE_CONFIG="capture.toml").out)
    own = {name.removeprefix("pipeline.a."): row for name, row in rows.items() if name.startswith("pipeline.")}
    assert own.keys() == {field.name for field in msgspec.structs.fields(Pipeline)} - {"name"}
    assert own["mode"] == {"value": "append", "source": "file capture.toml, line 7"}
    assert own["buckets"] == {"value": 16, "source": "default"}
    assert "pipeline" not in rows
