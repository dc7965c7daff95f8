"""`capture pipeline …` on committed tables, without a server: on a terminal of 80 columns, in a pipe, and as JSON."""

import asyncio
import json
import re

import pyarrow as pa
import pytest
from archived import KEYS, Archived
from capture_command import CaptureCommand
from pipeline_tables import PipelineTables, file, table

from capture.archive.iceberg_state import Iceberg
from capture.archive.sequences import Sequences
from capture.cli.pipeline_pages import Plan, print_runs
from capture.config.load import load
from capture.config.pipelines import read_pipelines
from capture.maintenance.merge.schema_evolution import write_columns
from capture.pipelines.definition import Pipeline
from capture.pipelines.document import PipelineTable, Run
from capture.pipelines.run import choose_method
from capture.reading.pipeline_view import InputFacts, PipelineFacts

CONFIG = """
stream = "ORDERS"
[[pipeline]]
name = "top"
sql = "SELECT country, revenue FROM revenue ORDER BY revenue"
mode = "replace"
[[pipeline]]
name = "revenue"
sql = "SELECT country, date(time) AS day, sum(total) AS revenue FROM ORDERS GROUP BY 1, 2"
mode = "upsert"
key = ["country", "day"]
partition = ["day"]
[[pipeline]]
name = "customers"
kind = "latest"
key = "subject:2"
inputs = ["ORDERS"]
[[pipeline]]
name = "rows"
sql = "SELECT country FROM ORDERS"
mode = "append"
[[pipeline]]
name = "later"
sql = "SELECT country FROM rows"
mode = "append"
"""
COLUMNS = write_columns(pa.schema([("country", pa.string()), ("day", pa.date32()), ("revenue", pa.float64())]))
PLAN = "== Physical Plan ==\n* HashAggregate"
FAILED = "pipeline rows: there is no column `country`; the columns are a, b"
CHANGED = (
    "the table of pipeline customers was made with other settings (inputs, key, kind, mode, partition, sql): it stays"
    " until a rerun"
)
TABLES = ("ls", "show", "plan", "history")


@pytest.fixture
def command(monkeypatch, tmp_path, capfd):
    (tmp_path / "capture.toml").write_text(CONFIG)
    called = CaptureCommand(monkeypatch, tmp_path, capfd)
    monkeypatch.setenv("CAPTURE_CONFIG", "capture.toml")

    def call(*words, columns=0):
        words = (*words, "--offline") if words[0] in TABLES else words
        return called("pipeline", *words, columns=columns)

    return call


@pytest.fixture
def world(tmp_path, command):
    """An archive with sequences 1–4 in its table and 6–7 in blocks, and the tables of pipelines beside it."""
    config = load(tmp_path / "capture.toml", {"store": str(tmp_path / "lake")}, environment={})
    pipelines = {one.name: one for one in read_pipelines(config)}

    async def make():
        await Archived(folder=tmp_path / "lake").make()
        tables = PipelineTables(tmp_path / "lake")
        runs = [
            Run(number=number, began=1000.0 * number, ended=1000.0 * number + 12.34, rows_in=2) for number in (1, 2)
        ]
        runs.append(Run(number=3, began=3000.0, ended=3001.5, rows_in=4, rows_out=3, bytes_in=2048, files=2, plan=PLAN))
        await tables.commit(
            {
                "revenue": table(pipelines["revenue"], number=3, columns=COLUMNS, partition=["day"], runs=runs),
                "top": table(pipelines["top"], inputs={"revenue": 2}),
                "customers": PipelineTable(definition=pipelines["revenue"].definition, number=2),
                "rows": PipelineTable(
                    definition="", runs=[Run(number=0, began=1.0, ended=2.0, error=FAILED, plan="a plan")]
                ),
                "gone": PipelineTable(definition="{}", number=1),
            },
            [
                file("revenue", 5, run=2, bucket=1),
                file("revenue", 3, run=3, bucket=2),
                file("revenue", 9, run=3, bucket=2, tombstones=True),
                file("top", 2),
                file("gone", 1),
            ],
            {("revenue", "ORDERS"): [(1, 3)], ("customers", "ORDERS"): [(1, 4), (6, 7)]},
            {
                "revenue": Iceberg(
                    location="file:///lake/_pipelines/iceberg/revenue",
                    number=1,
                    metadata="iceberg/revenue/metadata/v1.json",
                    sha256="",
                    snapshots=[],
                )
            },
        )

    asyncio.run(make())
    return tmp_path


def read(done):
    status, out, err = done
    assert (status, err) == (0, "")
    return json.loads(out)


def lines(done):
    status, out, err = done
    assert (status, err) == (0, "")
    return [line.rstrip() for line in out.splitlines()]


def test_ls_has_a_row_for_each_pipeline_after_those_that_it_reads(command, world):
    printed = lines(command("ls"))
    rows = [re.sub(r"\S+ ago", "AGO", line).split() for line in printed]
    assert rows[0] == ["pipeline", "mode", "reads", "last", "run", "rows", "behind", "state"]
    assert {row[0]: row[1:] for row in rows[1:] if row[0] != "•"} == {
        "revenue": ["upsert", "ORDERS", "AGO", "8", "3", "behind"],
        "top": ["replace", "revenue", "2", "3", "behind"],
        "customers": ["latest", "ORDERS", "0", "0", "needs", "rerun"],
        "rows": ["append", "ORDERS", "AGO", "0", "6", "failed"],
        "later": ["append", "rows", "0", "0", "never", "ran"],
        "gone": ["1", "0", "not", "configured"],
    }
    names = [row[0] for row in rows[1:] if row[0] != "•"]
    assert names.index("revenue") < names.index("top")
    assert f"• {FAILED}" in printed
    assert f"• {CHANGED}" in printed


def test_ls_fits_on_a_terminal_of_80_columns(command, world):
    status, out, err = command("ls", columns=80)
    assert (status, err) == (0, "")
    table_lines = [line for line in out.splitlines() if line[:1] != "•"]
    assert max(map(len, table_lines)) <= 80
    assert [line.split()[0] for line in table_lines[:3]] == ["pipeline", "revenue", "customers"]


def test_ls_as_json_has_the_facts_of_each_pipeline(command, world):
    found = {one["name"]: one for one in read(command("ls", "--json"))}
    assert found["revenue"] == {
        "name": "revenue",
        "mode": "upsert",
        "upkeep": "merge",
        "reads": ["ORDERS"],
        "state": "behind",
        "rows": 8,
        "files": 2,
        "bytes": 800,
        "behind": 3,
        "last_run": {"began": 3000.0, "ended": 3001.5, "number": 3},
        "error": "",
        "changed": [],
    }
    assert found["rows"]["error"] == FAILED
    assert found["customers"]["changed"] == ["inputs", "key", "kind", "mode", "partition", "sql"]


def test_show_names_exactly_what_the_table_has_of_its_inputs(command, world):
    text = "\n".join(lines(command("show", "revenue")))
    assert "upkeep: merge: a run merges the aggregates of new messages with those in the table" in text
    assert "rows: 8" in text
    assert "Iceberg table: file:///lake/_pipelines/iceberg/revenue" in text
    assert "ORDERS  1–3 (3 messages)       3  4, 6–7" in text
    assert "day      date32[day]  key, partition" in text
    found = read(command("show", "revenue", "--json"))
    assert found["inputs"] == [{"name": "ORDERS", "has": [[1, 3]], "behind": 3, "new": [[4, 4], [6, 7]]}]
    assert found["settings"]["key"] == ["country", "day"]
    assert [one["name"] for one in found["columns"]] == ["country", "day", "revenue"]
    assert found["iceberg"]["metadata"] == ("file:///lake/_pipelines/iceberg/revenue/metadata/v1.json")


@pytest.mark.parametrize("name", ["top", "customers", "rows", "later", "gone"])
@pytest.mark.parametrize("columns", [0, 80])
def test_every_kind_of_pipeline_is_shown(command, world, name, columns):
    status, out, err = command("show", name, columns=columns)
    assert (status, err) == (0, "")
    assert f"pipeline {name}" in out


def test_show_says_which_runs_of_another_pipeline_a_table_has(command, world):
    assert "revenue  runs up to 2 of 3       3" in "\n".join(lines(command("show", "top")))
    assert read(command("show", "top", "--json"))["inputs"] == [
        {"name": "revenue", "run": 2, "last_run": 3, "behind": 3}
    ]


def test_plan_names_what_the_next_run_reads_and_how_it_keeps_the_table(command, world):
    assert lines(command("plan", "revenue")) == [
        "The next run of pipeline revenue would",
        lines(command("plan", "revenue"))[1],
        "- keep its table by merge: a run merges the aggregates of new messages with those in the table",
        "- replace the files of the buckets that its keys are in (16 buckets): at most 3 files",
    ]
    assert "- read 3 new messages of ORDERS (4, 6–7): 3 objects, " in "\n".join(lines(command("plan", "revenue")))
    whole = "\n".join(lines(command("plan", "top")))
    assert "- read 3 new rows of revenue: 1 object, 300 B; and all of 2 objects, 800 B" in whole
    assert 'keep its table by whole: a run computes everything again, because its mode is "replace"' in whole
    assert "replace all of the table: 1 file, 200 B" in whole
    assert "add files, and replace none of the 0 that the table has" in "\n".join(lines(command("plan", "rows")))
    assert "waits for the first run of rows" in "\n".join(lines(command("plan", "later")))
    assert lines(command("plan", "customers")) == [f"{CHANGED}. The pipeline does not run until then."]


def test_plan_as_json_has_sequences_objects_and_bytes(command, world):
    found = read(command("plan", "revenue", "--json"))
    assert (found["runs"], found["upkeep"], found["files"], found["buckets"]) == (True, "merge", 3, 16)
    (read_of,) = found["inputs"]
    assert read_of["new"] == [[4, 4], [6, 7]]
    assert read_of["objects"] == 3
    assert read_of["bytes"] > 0
    assert read(command("plan", "customers", "--json"))["runs"] is False


def test_a_table_that_has_everything_has_nothing_to_do(command, world):
    config = load(world / "capture.toml", {"store": "lake"}, environment={})
    customers = next(one for one in config.pipeline if one.name == "customers")
    tables = PipelineTables(world / "lake", token=2)
    asyncio.run(tables.commit({"customers": table(customers)}, [], {("customers", "ORDERS"): [(1, 4), (6, 9)]}))
    found = {each["name"]: each for each in read(command("ls", "--json"))}
    assert (found["customers"]["state"], found["customers"]["behind"]) == ("current", 0)
    assert lines(command("plan", "customers")) == [
        "pipeline customers has nothing to do: its table has everything that its inputs have."
    ]
    assert read(command("plan", "customers", "--json"))["runs"] is False


def test_history_has_a_row_for_each_run_and_keeps_plans(command, world):
    printed = lines(command("history", "revenue"))
    assert [line.split()[0] for line in printed] == ["run", "1", "2", "3"]
    assert printed[3].split()[1:6] == ["1970-01-01T00:50:00Z", "1.5s", "4", "3", "2"]
    assert lines(command("history", "revenue", "--plan", "3")) == PLAN.splitlines()
    assert f"failed: {FAILED}" in "\n".join(lines(command("history", "rows")))
    assert lines(command("history", "later")) == ["pipeline later has not run yet"]
    assert read(command("history", "revenue", "--json"))[2]["rows_in"] == 4
    status, _, err = command("history", "revenue", "--plan", "1")
    assert (status, err) == (1, "capture: no plan of run 1 of pipeline revenue is kept; kept are those of runs: 3\n")


def test_check_compares_with_the_committed_definition(command, world):
    found = {one["name"]: one for one in read(command("check", "--json"))}
    assert {name: one["table"] for name, one in found.items()} == {
        "revenue": "same",
        "top": "same",
        "customers": "needs rerun",
        "rows": "new",
        "later": "new",
    }
    assert found["top"]["why"] == 'its mode is "replace"'
    printed = "\n".join(lines(command("check")))
    assert '• top: a run computes everything again, because its mode is "replace"' in printed
    assert [line.split()[0] for line in lines(command("check", "revenue"))] == ["pipeline", "revenue"]


def test_check_loads_the_users_code(command, world, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = "from dataclasses import dataclass\n@dataclass\nclass Order:\n    country: str\nclass Empty: ...\n"
    (tmp_path / "their_jobs.py").write_text(f"{code}def features(spark, inputs, run): ...\n")
    more = '[[pipeline]]\nname = "f"\npython = "their_jobs:{}"\nmode = "append"\ninputs = ["ORDERS"]\n'
    more += 'schema = "decoder:their_jobs:{}"\n'
    (tmp_path / "capture.toml").write_text(CONFIG + more.format("features", "Order"))
    assert lines(command("check", "f"))
    for function, kind in (("nowhere", "Order"), ("features", "Nothing")):
        (tmp_path / "capture.toml").write_text(CONFIG + more.format(function, kind))
        status, _, err = command("check", "f")
        assert status == 1
        assert err.startswith("capture: the ")
        assert "of pipeline f 'their_jobs:" in err
        assert err.count("\n") == 1
    (tmp_path / "capture.toml").write_text(CONFIG + more.format("features", "Empty"))
    assert command("check", "f")[2].startswith("capture: the schema of pipeline f has no fields")


def test_lineage_is_a_tree_below_each_stream(command, world):
    assert lines(command("lineage")) == [
        "ORDERS",
        "├─ revenue (upsert)",
        "│  └─ top (replace)",
        "├─ customers (latest)",
        "└─ rows (append)",
        "   └─ later (append)",
    ]
    found = read(command("lineage", "--json"))
    assert found["streams"] == ["ORDERS"]
    assert {one["name"]: one["reads"] for one in found["pipelines"]}["top"] == ["revenue"]


@pytest.mark.parametrize("words", [("show",), ("plan",), ("history",), ("check",)])
def test_an_unknown_pipeline_is_refused_with_those_that_there_are(command, world, words):
    status, out, err = command(*words, "nowhere")
    assert (status, out) == (1, "")
    assert err.startswith("capture: there is no pipeline 'nowhere'; there are: ")
    assert "revenue" in err


def test_a_plan_of_a_pipeline_that_is_not_configured_is_refused(command, world):
    assert command("plan", "gone")[2] == (
        "capture: pipeline gone is not configured any more: it has a table, and no further runs\n"
    )


@pytest.mark.parametrize("words", [("ls",), ("show", "revenue"), ("check",), ("lineage",)])
def test_a_configuration_without_pipelines_or_with_wrong_ones_is_refused(command, world, tmp_path, words):
    (tmp_path / "capture.toml").write_text('stream = "ORDERS"\n')
    status, out, err = command(*words)
    assert (status, out) == (1, "")
    assert "the configuration has no pipelines: write [[pipeline]]" in err
    (tmp_path / "capture.toml").write_text(CONFIG.replace("FROM rows", "FROM nowhere"))
    status, out, err = command(*words)
    assert (status, out) == (1, "")
    assert "pipeline later reads nowhere, which is neither a captured stream nor a pipeline" in err
    assert "(file capture.toml, line" in err


def test_without_an_archive_only_the_configuration_is_shown(command, tmp_path):
    for words in (("ls",), ("show", "rows"), ("plan", "rows"), ("history", "rows")):
        status, out, err = command(*words)
        assert (status, out) == (1, "")
        assert "there is no archive in" in err
    assert {one["table"] for one in read(command("check", "--json"))} == {"new"}
    assert lines(command("lineage"))[0] == "ORDERS"


def test_what_others_wrote_can_not_act_on_a_terminal(command, world, tmp_path):
    tables = PipelineTables(tmp_path / "lake", token=2)
    run = Run(number=1, began=1.0, ended=2.0, error="bad \x1b[2J", plan="\x1b]0;x\x07")
    asyncio.run(tables.commit({"revenue": PipelineTable(definition="", runs=[run])}))
    for words in (("ls",), ("show", "revenue"), ("history", "revenue"), ("history", "revenue", "--plan", "1")):
        for columns in (0, 80):
            assert "\x1b[2J" not in command(*words, columns=columns)[1]
            assert "\x07" not in command(*words, columns=columns)[1]


def test_a_damaged_document_is_a_sentence(command, world, tmp_path):
    (newest,) = (tmp_path / "lake" / "_pipelines" / "_pipeline").iterdir()
    newest.write_bytes(b"{")
    for words in (("ls",), ("show", "revenue"), ("plan", "revenue"), ("history", "revenue"), ("check",)):
        status, out, err = command(*words)
        assert (status, out) == (1, "")
        assert "is damaged" in err


def test_the_pipelines_of_several_streams_are_beside_their_archives(command, tmp_path):
    text = CONFIG.replace('stream = "ORDERS"', 'streams = ["ORDERS", "OTHER"]')
    text += '[[pipeline]]\nname = "both"\nsql = "SELECT * FROM ORDERS JOIN OTHER USING (subject)"\nmode = "replace"\n'
    (tmp_path / "capture.toml").write_text(text)

    async def make():
        await Archived(folder=tmp_path / "lake" / "ORDERS").make()
        await PipelineTables(tmp_path / "lake").commit({}, [], {("both", "ORDERS"): [(1, 2)]})

    asyncio.run(make())
    found = {one["name"]: one for one in read(command("ls", "--json"))}
    assert (found["both"]["reads"], found["both"]["behind"]) == (["ORDERS", "OTHER"], 4)  # OTHER has no archive yet
    assert "read 0 new messages of OTHER: 0 objects" in "\n".join(lines(command("plan", "both")))
    assert lines(command("lineage"))[-2:] == ["OTHER", "└─ both (replace)"]


def test_documents_must_be_signed_if_a_public_key_is_given(command, world, tmp_path, monkeypatch):
    keys = "\n".join(f"{name}:{key}" for name, key in KEYS.public.lines().items())
    (tmp_path / "public.keys").write_text(keys)
    monkeypatch.setenv("CAPTURE_PUBLIC_KEY_FILE", "public.keys")
    for words in (("ls",), ("history", "revenue"), ("check",)):
        status, out, err = command(*words)
        assert (status, out) == (1, "")
        assert "is not signed" in err


def test_a_paused_pipeline_says_so_and_from_when_on_it_has_messages(command, world):
    config = load(world / "capture.toml", {"store": "lake"}, environment={})
    rows = next(one for one in config.pipeline if one.name == "rows")
    tables = PipelineTables(world / "lake", token=2)
    asyncio.run(tables.commit({"rows": table(rows, paused=True, since_ns=1_000_000_000)}))
    assert {one["name"]: one["state"] for one in read(command("ls", "--json"))}["rows"] == "paused"
    assert lines(command("plan", "rows"))[0] == "pipeline rows is paused: it runs only on request."
    assert read(command("plan", "rows", "--json"))["runs"] is False
    assert "of messages since: 1970-01-01T00:00:01Z" in "\n".join(lines(command("show", "rows")))
    assert read(command("show", "rows", "--json"))["since"] == "1970-01-01T00:00:01Z"


def test_rows_in_quarantine_belong_to_their_pipeline(command, world):
    config = load(world / "capture.toml", {"store": "lake"}, environment={})
    rows = next(one for one in config.pipeline if one.name == "rows")
    run = Run(number=1, began=1.0, ended=2.0, rows_in=5, rows_out=3, violations={"country IS NOT NULL": 2})
    tables = PipelineTables(world / "lake", token=2)
    both = {"rows": table(rows, runs=[run]), "rows__quarantine": PipelineTable(definition="", number=1)}
    asyncio.run(tables.commit(both, [file("rows", 3), file("rows__quarantine", 2)]))
    found = {one["name"]: one for one in read(command("ls", "--json"))}
    assert "rows__quarantine" not in found
    assert found["rows"]["rows"] == 3
    assert "quarantined rows: 2" in "\n".join(lines(command("show", "rows")))
    assert read(command("show", "rows", "--json"))["quarantined"] == 2
    assert "new; 2 rows do not meet country IS NOT NULL" in lines(command("history", "rows"))[1]


@pytest.mark.parametrize("columns", [80, 200])
def test_history_has_no_line_that_a_terminal_would_cut(command, world, columns):
    for name in ("revenue", "rows"):
        status, out, err = command("history", name, columns=columns)
        assert (status, err) == (0, "")
        assert all(len(line) <= columns or line.startswith(" result ") for line in out.splitlines())
        assert "1970-01-01T00:" in out


def test_the_plan_of_a_pipeline_that_follows_a_stream_says_what_comes_from_there():
    pipeline = Pipeline(name="now", sql="SELECT a FROM ORDERS", mode="append", trigger="stream", schedule="every 2s")
    held, after = Sequences.from_range(1, 3), Sequences.from_range(4, 9)
    read = InputFacts(name="ORDERS", held=held, after=after, count=6)
    facts = PipelineFacts(name="now", pipeline=pipeline, method=choose_method(pipeline, {}), inputs=[read])
    said = list(Plan(facts, [], []).sentences())
    assert said == [
        "pipeline now follows ORDERS: at most every 2s a batch of new messages; 6 messages of it are still to come.",
        "A run over the archive would find nothing new for pipeline now.",
    ]
    assert Plan(facts, [], []).as_dict()["follows"] is True


def test_batches_of_a_stream_are_a_row_of_the_history(capsys):
    print_runs("now", [Run(number=7, began=1.0, ended=61.0, rows_in=60, why="stream", batches=12)])
    assert capsys.readouterr().out.splitlines()[-1].rstrip().endswith("stream, 12 batches")
