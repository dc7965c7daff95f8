from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import msgspec
import pytest

from capture.archive.signing import SIGNING_VARIABLE, SigningKeys
from capture.cli.config import limits, problems
from capture.config.load import gather_settings, load
from capture.config.pipelines import pipelines_signer, pipelines_trust, read_pipelines
from capture.config.provenance import lines_of
from capture.config.reload import plan_reload
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError

PLAIN = 'stream = "S"\nstore = "lake"\n'
REVENUE = """
[[pipeline]]
name = "revenue"
sql = "SELECT country, sum(total) AS total FROM S GROUP BY country"
mode = "upsert"
key = "country"
"""
LATEST = """
[[pipeline]]
name = "customers"
kind = "latest"
key = "subject:2"
inputs = ["S"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "capture.toml"


def refuse(file: Path, text: str, **environment: str) -> str:
    """Return what is said about a file, by the check and when a node loads it."""
    file.write_text(PLAIN + text)
    found = problems(gather_settings(file, {}, environment=environment))
    with pytest.raises(ConfigError) as said:
        load(file, environment=environment, pipelines=True)
    assert str(said.value) == found[0]
    assert all("\n" not in one for one in found)
    return " | ".join(found).replace(f"{file.parent}/", "")


def read(text: str, file: Path) -> CaptureConfig:
    file.write_text(PLAIN + text)
    return load(file, environment={}, pipelines=True)


def test_pipelines_of_a_file_are_in_the_order_of_their_inputs(file: Path) -> None:
    after = '[[pipeline]]\nname = "a"\nsql = "SELECT * FROM revenue"\nmode = "replace"\n'
    assert [one.name for one in read_pipelines(read(after + REVENUE, file))] == ["revenue", "a"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('mode = "upsert"', "", "pipeline revenue: mode is missing: "),
        (
            'mode = "upsert"',
            "mode = 3",
            "capture.toml: pipeline revenue: `mode` must be text, not a whole number in line 7",
        ),
        ('"upsert"', '"up"', "capture.toml: pipeline revenue: `mode` must be one of append, upsert, replace in line 7"),
        ("key =", "keys =", "pipeline revenue: there is no setting `keys` in line 8; did you mean `key`?"),
        ('name = "revenue"', "", "capture.toml: pipeline 1: `name` is missing in line 4"),
        ('"revenue"', '"re venue"', "pipeline re venue: a name begins with a letter"),
        ('"revenue"', '"s"', "pipeline s: another pipeline or a stream has this name (file capture.toml, line 4)"),
        ("FROM S", "FROM T", "pipeline revenue reads T, which is neither a captured stream nor a pipeline"),
        (
            "FROM S",
            "FROM revenue",
            "pipelines read each other in a circle: revenue ← revenue (file capture.toml, line 4)",
        ),
        ("FROM S", "FROM range(3)", "pipeline revenue: RANGE(3) is not a table that a pipeline can read"),
        ("SELECT", "SELEC", "pipeline revenue: its SQL can't be parsed, line 1, column 14: "),
        ("sum(total)", "'sum", "pipeline revenue: its SQL can't be parsed: "),
        ("sum(total)", "(" * 3000 + "1" + ")" * 3000, "its SQL can't be parsed: it is nested too deeply (file"),
        (
            "AS total",
            "AS Country",
            "pipeline revenue: two of its columns are named Country (file capture.toml, line 4)",
        ),
        ("AS total", "", "pipeline revenue: SUM(total) has no name: write SUM(total) AS a_name (file"),
        ('"upsert"', '"append"', 'pipeline revenue: mode = "append" replaces no rows'),
        ("key =", 'schedule = "every 5x"\nkey =', "pipeline revenue: schedule: '5x' is not a duration"),
        ("key =", "buckets = 0\nkey =", "pipeline revenue: `buckets` must be a whole number of at least 1 in line 8"),
        ("key =", 'expect = ["total >"]\nkey =', "pipeline revenue: its expect 'total >' is not a condition"),
        ("key =", 'expect = ["1) OR (1"]\nkey =', "pipeline revenue: its expect '1) OR (1' is not one condition"),
        (
            "key =",
            'expect = ["sum(total) > 0"]\nkey =',
            "pipeline revenue: its expect 'sum(total) > 0' must be about one",
        ),
        (
            "key =",
            'expect = ["total IN (SELECT 1)"]\nkey =',
            "must be about one row: it can't aggregate, nor read a table",
        ),
        (
            "key =",
            'schema = "decoder:my"\nkey =',
            'pipeline revenue: schema is "decoder:module:Type", Spark\'s DDL, or',
        ),
        ('"country"', '""', "pipeline revenue: its key names a column without a name (file capture.toml, line 4)"),
        (
            '"country"',
            '["country", "country"]',
            "pipeline revenue: its key names country twice (file capture.toml, line 4)",
        ),
    ],
)
def test_a_mistake_is_a_sentence_with_the_pipeline_the_setting_and_the_file(
    file: Path, old: str, new: str, said: str
) -> None:
    assert old in REVENUE
    found = refuse(file, REVENUE.replace(old, new))
    assert said in found
    assert "capture.toml" in found


@pytest.mark.parametrize("key", ["subject:0", "subject:x", "subject:", "subject:-1"])
def test_a_key_of_a_subject_is_the_number_of_a_token(file: Path, key: str) -> None:
    assert f"its key is subject:N with the number of a token from 1, not {key!r}" in refuse(
        file, LATEST.replace("subject:2", key)
    )


def test_all_mistakes_of_all_pipelines_are_found_at_once(file: Path) -> None:
    said = refuse(file, REVENUE.replace('"upsert"', '"up"').replace("key", "keys") + LATEST.replace("subject:2", ""))
    assert "pipeline revenue: `mode` must be one of" in said
    assert "pipeline revenue: there is no setting `keys`" in said
    assert "pipeline customers: its key names a column without a name (file capture.toml, line 10)" in said


def test_an_input_that_is_missing_because_it_is_wrong_is_not_complained_about(file: Path) -> None:
    reader = '[[pipeline]]\nname = "a"\nsql = "SELECT * FROM revenue"\nmode = "replace"\n'
    assert "reads revenue" not in refuse(file, REVENUE.replace('"upsert"', '"up"') + reader)


def test_a_table_to_which_rows_are_only_added_reads_none_whose_rows_are_replaced(file: Path) -> None:
    reader = '[[pipeline]]\nname = "a"\nsql = "SELECT country FROM revenue"\nmode = "append"\n'
    said = refuse(file, REVENUE + reader)
    assert 'pipeline a: mode = "append" adds the rows of new messages, and it reads revenue' in said
    assert said.endswith("(file capture.toml, line 9)")


def test_the_check_loads_the_users_code_and_a_node_that_starts_does_not(file: Path) -> None:
    file.write_text(PLAIN + '[[pipeline]]\nname = "f"\npython = "no_jobs:f"\nmode = "append"\ninputs = ["S"]\n')
    (said,) = problems(gather_settings(file, {}, environment={}))
    assert said.startswith("the function of pipeline f 'no_jobs:f' can't be loaded: ModuleNotFoundError: ")
    assert said.endswith(f"(file {file}, line 3)")
    assert load(file, environment={}, pipelines=True).pipeline


def test_the_name_of_the_election_must_be_one(file: Path) -> None:
    assert "can't name an election" in refuse(file, 'pipelines_name = "a b"\n' + REVENUE)


@pytest.mark.parametrize("name", ["PIPELINE", "PIPELINE__NAME", "RETENTION", "RETENTION__KEY"])
@pytest.mark.parametrize("text", ["", REVENUE + "[[retention]]\nkeep_bytes = 1\n"])
def test_a_list_of_tables_does_not_come_from_a_variable(file: Path, name: str, text: str) -> None:
    setting = name.partition("__")[0].lower()
    assert refuse(file, text, **{f"CAPTURE_{name}": "a"}) == (
        f"variable CAPTURE_{name}: `{setting}` is a list of tables, which a variable can't give: write [[{setting}]]"
        " in a file"
    )


@pytest.mark.parametrize("wrong", ['[pipeline]\nname = "a"\n', 'pipeline = "a"\n', "pipeline = [1]\n"])
def test_two_brackets_make_a_pipeline(file: Path, wrong: str) -> None:
    assert "`pipeline` is a list of tables: write [[pipeline]] in line" in refuse(file, wrong)


def test_a_wrong_rule_of_retention_is_named_with_its_line(file: Path) -> None:
    rules = '[[retention]]\nkey = "a"\n[[retention]]\nkey = 1\nolder = 2\n'
    assert refuse(file, rules) == (
        "capture.toml: retention 2: `key` must be text, not a whole number in line 6"
        " | capture.toml: retention 2: there is no setting `older` in line 7; did you mean `older_than`?"
    )


def test_lines_of_tables_in_a_list_are_numbered() -> None:
    found = lines_of('a = 1\n[[b]]\nc = [\n1]\n\n[[b]]\n[[b]]\nc = """\n"""\nd = 1\n')
    assert {place: line for place, line in found.items() if len(place) > 1} == {
        **{("b", "0"): 2, ("b", "0", "c"): 3, ("b", "1"): 6, ("b", "2"): 7, ("b", "2", "c"): 8, ("b", "2", "d"): 10},
    }


def test_the_check_notes_that_tables_of_an_encrypted_archive_are_plain(file: Path) -> None:
    config = msgspec.structs.replace(read(REVENUE, file), encrypt=True)
    assert any("the tables of pipelines are not" in one for one in limits(config))
    assert not any("the tables of pipelines" in one for one in limits(read(REVENUE, file)))


def test_pipelines_change_in_a_running_node(file: Path) -> None:
    before, after = read(REVENUE, file), read(REVENUE.replace("SELECT", "SELECT ") + LATEST, file)
    change = plan_reload(before, after)
    assert change.config == after
    assert (change.changed, change.kept) == (["pipeline: customers added, revenue changed"], [])
    assert plan_reload(after, read("", file)).changed == ["pipeline: revenue removed, customers removed"]


def test_a_reload_refuses_pipelines_that_are_wrong(file: Path) -> None:
    before = read(REVENUE, file)
    file.write_text(PLAIN + REVENUE.replace("FROM S", "FROM T"))
    with pytest.raises(ConfigError, match="pipeline revenue reads T"):
        plan_reload(before, load(file, environment={}))


def test_a_command_that_runs_no_pipeline_does_not_parse_their_sql(file: Path) -> None:
    file.write_text(PLAIN + REVENUE + LATEST)
    code = (
        "import sys; from pathlib import Path; from capture.config.load import load;"
        "assert len(load(Path(sys.argv[1]), environment={}).pipeline) == 2; assert 'sqlglot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ({"stream": "S"}, "S"),
        ({"stream": "S", "archive": "lake"}, "lake"),
        ({"stream": "S", "pipelines_name": "derived"}, "S"),
        ({"streams": ["S", "T"]}, "streams"),
        ({"streams": ["S", "T"], "stream": "S"}, "streams"),  # a command's --stream
        ({"streams": ["S", "T"], "archive": "lake"}, "lake"),
    ],
)
def test_documents_of_pipelines_are_signed_for_the_name_by_which_they_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, object], name: str
) -> None:
    keys = SigningKeys({"mine": bytes(range(32))})
    (tmp_path / "public").write_text("".join(f"{one}:{key}\n" for one, key in keys.public.lines().items()))
    monkeypatch.setenv(SIGNING_VARIABLE, f"mine:{b64encode(bytes(range(32))).decode()}")
    config = msgspec.convert({**named, "public_key_file": str(tmp_path / "public")}, CaptureConfig)
    signer = pipelines_signer(config)
    assert signer is not None
    assert signer.archive == name
    pipelines_trust(config).check_document("_pipeline/1-1.json", signer.sign("_pipeline/1-1.json", b'{"number":1}'))


FOLLOWING = """
[[pipeline]]
name = "now"
sql = "SELECT a FROM revenue"
mode = "append"
trigger = "stream"
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            REVENUE + FOLLOWING,
            'pipeline now: trigger = "stream" reads a stream, and revenue is a pipeline. Use trigger = "schedule"',
        ),
        (
            'filter_subjects = ["a", "b"]\n' + FOLLOWING.replace("revenue", "S"),
            "reads one subject, or all: filter_subjects of S has several",
        ),
        (
            "encrypt = true\n" + FOLLOWING.replace("revenue", "S"),
            "writes a table that is not encrypted, and its archive is (encrypt = true)",
        ),
    ],
)
def test_what_a_pipeline_follows_must_be_what_its_archive_has(file: Path, text: str, said: str) -> None:
    file.write_text(PLAIN + text)
    assert any(said in one for one in problems(gather_settings(file, {}, environment={})))


def test_a_trigger_may_change_in_a_running_node(file: Path) -> None:
    text = FOLLOWING.replace("revenue", "S")
    change = plan_reload(read(text.replace("stream", "schedule"), file), read(text, file))
    assert change.changed == ["pipeline: now changed"]
