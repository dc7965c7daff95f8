"""`capture pipeline` as processes: with the head that NATS has, without a server, in a pipe."""

import asyncio
import json

import pytest
from archived import Archived
from commands import complaint, printed
from pipeline_tables import PipelineTables, file, table

from capture.archive.heads import PIPELINES, TermHead
from capture.config.load import load

CONFIG = """
stream = "ORDERS"
store = "lake"
archive = "{}"
[[pipeline]]
name = "rows"
sql = "SELECT sequence FROM ORDERS"
mode = "append"
"""


@pytest.fixture
def archive(tmp_path, natty_name, served):
    """An archive with a pipeline's table; NATS has committed its first document, and the store has a second one."""
    name = natty_name("pipelines")
    (tmp_path / "capture.toml").write_text(CONFIG.format(name))
    [pipeline] = load(tmp_path / "capture.toml", environment={}).pipeline

    async def make():
        await Archived(folder=tmp_path / "lake").make()
        tables = PipelineTables(tmp_path / "lake")
        await tables.commit({"rows": table(pipeline)}, [file("rows", 3)], {("rows", "ORDERS"): [(1, 3)]})
        head = tables.head
        await tables.commit({"rows": table(pipeline, number=2)}, [file("rows", 6)], {("rows", "ORDERS"): [(1, 6)]})
        return head

    head = asyncio.run(make())

    async def commit(natty):
        async def lead(term):
            await TermHead(term, PIPELINES).commit(head)

        await natty.election(PIPELINES.election(name), lease=2.0).run(lead)

    served(commit)
    return name


def test_commands_show_what_nats_has_committed(shell, archive):
    environment = {"CAPTURE_CONFIG": "capture.toml"}
    [committed] = json.loads(printed(shell.capture("pipeline", "ls", "--json", **environment)))
    assert (committed["rows"], committed["behind"], committed["state"]) == (3, 3, "behind")
    shown = printed(shell.capture("pipeline", "show", "rows", **environment))
    assert "1–3 (3 messages)" in shown
    assert "read 3 new messages of ORDERS (4, 6–7)" in printed(shell.capture("pipeline", "plan", "rows", **environment))
    [newest] = json.loads(printed(shell.capture("pipeline", "ls", "--json", "--offline", **environment)))
    assert (newest["rows"], newest["behind"]) == (6, 1)


def test_without_a_server_the_newest_documents_are_shown_and_that_is_said(shell, archive):
    done = shell.capture("pipeline", "ls", "--json", CAPTURE_CONFIG="capture.toml", NATS_URL="tls://127.0.0.1:1")
    assert done.status == 0
    assert json.loads(done.out)[0]["rows"] == 6
    assert "NATS can't be asked for the committed tables, so these are the newest in the store: " in done.err
    assert "Traceback" not in done.err


def test_check_and_lineage_need_no_server(shell, archive):
    environment = {"CAPTURE_CONFIG": "capture.toml", "NATS_URL": "tls://127.0.0.1:1"}
    [checked] = json.loads(printed(shell.capture("pipeline", "check", "--json", **environment)))
    assert (checked["upkeep"], checked["table"]) == ("rows", "same")
    assert printed(shell.capture("pipeline", "lineage", **environment)) == "ORDERS\n└─ rows (append)\n"


def test_a_missing_store_and_a_wrong_configuration_are_sentences(shell, archive, tmp_path):
    environment = {"CAPTURE_CONFIG": "capture.toml"}
    said = complaint(shell.capture("pipeline", "ls", "--store", "nowhere", **environment))
    assert said.startswith("capture: there is no archive in ")
    assert not (tmp_path / "nowhere").exists()
    assert "there is no pipeline 'x'; there are: rows" in complaint(
        shell.capture("pipeline", "show", "x", **environment)
    )
    (tmp_path / "capture.toml").write_text(CONFIG.format(archive).replace("FROM ORDERS", "FROM nowhere"))
    for words in (("ls",), ("check",), ("lineage",)):
        said = complaint(shell.capture("pipeline", *words, **environment))
        assert said.startswith(
            "capture: pipeline rows reads nowhere, which is neither a captured stream nor a pipeline"
        )
        assert said.endswith("(file capture.toml, line 5)")
