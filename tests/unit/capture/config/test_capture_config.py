from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from capture_settings import NAMED, no_settings_of_this_machine  # noqa: F401

from capture.config.load import NEEDED, gather_settings, load, read
from capture.config.provenance import lines_of
from capture.config.settings import CaptureConfig
from capture.config.streams import each
from capture.errors import ConfigError
from capture.ingest.block import Limits
from capture.ingest.durable import delivery
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.schedule import Schedule
from capture.node.leader_rules import policy
from capture.node.node import Node
from capture.stores import MemoryStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "capture.toml"


def loaded(file: Path, text: str, flags: dict[str, Any] | None = None, **environment: str) -> CaptureConfig:
    file.write_text(text)
    return load(file, flags, environment=environment)


def refused(file: Path, text: str, flags: dict[str, Any] | None = None, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(file, text, flags, **environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_stream_and_a_store_are_enough() -> None:
    config = load(None, {"stream": "ORDERS", "store": "/data/lake"}, environment={})
    assert (config.stream, config.store, config.name) == ("ORDERS", "/data/lake", "ORDERS")
    assert config.limits.limits() == Limits()


def test_a_flag_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    text = NAMED + 'durable = "file"\ndecoder = "json"\n[limits]\nmax_age = 3\n'
    environment = {"CAPTURE_DURABLE": "environment", "CAPTURE_FORMAT": "ndjson", "CAPTURE_LIMITS__MAX_AGE": "4"}
    config = loaded(file, text, {"format": "parquet", "limits.max_age": 5.0}, **environment)
    assert (config.decoder, config.durable, config.format) == ("json", "environment", "parquet")
    assert config.limits.max_age == 5.0


def test_a_flag_that_was_not_given_changes_nothing(file: Path) -> None:
    assert loaded(file, NAMED, {"stream": None}).stream == "ORDERS"


def test_the_variable_that_names_the_file_is_no_setting_and_empty_ones_count_for_nothing(file: Path) -> None:
    assert loaded(file, NAMED, CAPTURE_CONFIG=str(file), CAPTURE_DURABLE="").durable == "capture"


def test_each_office_has_a_lease_of_its_own(file: Path) -> None:
    config = loaded(file, NAMED)
    assert (config.lease, config.compaction.lease) == (2.0, 15.0)
    config = loaded(file, NAMED + "lease = 1\n[compaction]\nlease = 30\n")
    assert (config.lease, config.compaction.lease) == (1.0, 30.0)


def test_an_archive_may_have_a_name_of_its_own(file: Path) -> None:
    assert loaded(file, NAMED + 'archive = "north"\n').name == "north"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'stream = "ORDERS\nstore = 1',
            "capture.toml is not valid TOML: Illegal character '\\n' (at line 1, column 17)",
        ),
        (
            NAMED + 'strem = "x"',
            "capture.toml: there is no setting `strem` in line 3; did you mean `stream`?",
        ),
        (
            NAMED + "[limits]\nmax_ages = 3",
            "capture.toml: there is no setting `max_ages` in [limits] in line 4; did you mean `max_age`?",
        ),
        (
            NAMED + '[limits]\nmax_age = "soon"',
            "capture.toml: `limits.max_age` must be a number, not text in line 4",
        ),
        (NAMED + "[limits]\nmax_age = -3", "capture.toml: `limits.max_age` must be a number above 0 in line 4"),
        (NAMED + "limits = 3", "capture.toml: `limits` must be a table, not a whole number in line 3"),
        (NAMED + "[sweep]\nevery = 0", "capture.toml: `sweep.every` must be a number above 0 in line 4"),
        (
            NAMED + "[sweep]\ngrace = inf",
            "capture.toml: `sweep.grace` must be a number of at most 1000000000 in line 4",
        ),
        (
            NAMED + "[compaction]\nmin_files = 0",
            "capture.toml: `compaction.min_files` must be a whole number of at least 1 in line 4",
        ),
        (
            NAMED + "limits.max_messages = 99999999999999999999",
            "capture.toml: `limits.max_messages` must be a whole number of at most 9223372036854775807 in line 3",
        ),
        (
            NAMED + 'logging.level = "loud"',
            "capture.toml: `logging.level` must be one of error, warning, info, debug in line 3",
        ),
        (NAMED + "encrypt = 3", "capture.toml: `encrypt` must be true or false, not a whole number in line 3"),
        (NAMED + "lease = 0.1", "capture.toml: `lease` must be a number of at least 0.3 in line 3"),
        (
            NAMED + "[compaction]\nlease = 0.1",
            "capture.toml: `compaction.lease` must be a number of at least 0.3 in line 4",
        ),
        (NAMED + 'workers = "x"', "capture.toml: `workers` must be a whole number or auto in line 3"),
        (NAMED + "workers = 1.5", "capture.toml: `workers` must be a whole number or auto in line 3"),
        (NAMED + "workers = 0", "capture.toml: `workers` must be a whole number of at least 1 in line 3"),
        (NAMED + "ack_wait = nan", "capture.toml: `ack_wait` must be a number above 0 in line 3"),
        (NAMED + "start_timeout = -1", "capture.toml: `start_timeout` must be a number of at least 0 in line 3"),
    ],
)
def test_a_broken_file_is_told_with_the_place_in_it(file: Path, text: str, said: str) -> None:
    assert refused(file, text) == f"{file.parent}/{said}"


def test_bytes_that_are_no_text_are_no_toml(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"capture\.toml is not valid TOML"):
        load(file, environment={})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml can't be read: No such file or directory; check --config"):
        load(tmp_path / "nowhere.toml", environment={})


def test_a_wrong_variable_is_named_too() -> None:
    with pytest.raises(ConfigError, match=r"^variable CAPTURE_ACK_WAIT: `ack_wait` must be a number, not text$"):
        load(None, environment={"CAPTURE_ACK_WAIT": "long"})


def test_a_value_in_the_place_of_a_table_is_told(file: Path) -> None:
    assert "limits is a table" in refused(file, NAMED + "limits = 3", {"limits.max_age": 3.0})


@pytest.mark.parametrize("missing", ["stream", "store"])
def test_what_is_missing_is_said_with_the_three_ways_to_give_it(file: Path, missing: str) -> None:
    text = "\n".join(line for line in NAMED.splitlines() if not line.startswith(missing))
    expected = f"no {missing} is named: give --{missing}, CAPTURE_{missing.upper()} or {missing} in capture.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"^{expected}$"):
        load(file, environment={}, needs=NEEDED)


def test_a_program_needs_no_store_in_the_file_since_it_can_give_one_to_its_node(file: Path) -> None:
    file.write_text('stream = "ORDERS"')
    config = load(file, environment={})
    assert Node(config, store=MemoryStore("given")).store.url == "memory://given"
    with pytest.raises(ConfigError, match="no store was named; supported are file:///folder"):
        Node(config)


@pytest.mark.parametrize("text", ["", 'streams = ["ORDERS", "BILLS"]', 'stream = "ORDERS"\nstreams = ["ORDERS"]'])
def test_a_node_in_a_program_captures_one_stream(file: Path, text: str) -> None:
    file.write_text(text)
    config = load(file, environment={}, needs=())
    with pytest.raises(ConfigError, match="a Node captures one stream: name it in `stream`"):
        Node(config, store=MemoryStore())


def test_a_command_may_need_less(file: Path) -> None:
    file.write_text('store = "/data/lake"')
    assert load(file, environment={}, needs=("store",)).stream == ""


def test_a_block_that_would_outlive_ack_wait_is_refused_with_both_numbers(file: Path) -> None:
    said = refused(file, NAMED + "ack_wait = 10\n[limits]\nmax_age = 30\n")
    assert "max_age 30.0 s must be below the consumer's ack_wait 10.0 s" in said


def test_a_consumer_that_would_stall_before_a_block_is_sealed_is_refused(file: Path) -> None:
    assert "max_pending 200000 exceeds" in refused(file, NAMED + "max_ack_pending = 1000\n")


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        ({"limits.max_age": 0.0}, {}, "flag --max-age: `limits.max_age` must be a number above 0"),
        ({"node": 3}, {}, "flag --node-name: `node` must be text, not a whole number"),
        ({}, {"CAPTURE_LEASE": "0.1"}, "variable CAPTURE_LEASE: `lease` must be a number of at least 0.3"),
        (
            {},
            {"CAPTURE_STREM": "S"},
            "variable CAPTURE_STREM: there is no setting `strem`; did you mean CAPTURE_STREAM?",
        ),
        (
            {},
            {"CAPTURE_LIMITS_MAX_AGE": "3"},
            "variable CAPTURE_LIMITS_MAX_AGE: there is no setting `limits_max_age`;"
            " did you mean CAPTURE_LIMITS__MAX_AGE?",
        ),
        ({}, {"CAPTURE_QWERTY": "3"}, "variable CAPTURE_QWERTY: there is no setting `qwerty`"),
        (
            {},
            {"CAPTURE_STREAM__X": "3"},
            "variable CAPTURE_STREAM__X: stream is a table here, and a value in file capture.toml, line 1",
        ),
    ],
)
def test_an_error_names_the_flag_or_the_variable(
    file: Path, flags: dict[str, Any], environment: dict[str, str], said: str
) -> None:
    assert refused(file, NAMED, flags, **environment).replace(f"{file.parent}/", "") == said


def test_a_contradiction_names_where_both_numbers_are_from(file: Path) -> None:
    said = refused(file, NAMED + "ack_wait = 10\n[limits]\nmax_messages = 9\n", {"limits.max_age": 30.0})
    assert said.endswith(f"still open (limits.max_age: flag --max-age; ack_wait: file {file}, line 3)")


def test_a_wrong_setting_of_the_store_is_told_with_its_line(file: Path) -> None:
    text = 'stream = "S"\n[store]\nurl = "s3://b"\nregion = "r"\nendpont = "x"\n'
    assert refused(file, text).endswith("there is no setting `endpont` in line 5; did you mean `endpoint`?")
    assert "line 4" in refused(file, text.replace('"r"', "3"))
    assert refused(file, 'stream = "S"\n[store]\n').startswith(f"{file}: [store] has no url")


def test_a_setting_of_another_table_is_suggested_with_its_table(file: Path) -> None:
    assert refused(file, NAMED + "max_age = 3\n").endswith("in line 3; did you mean `limits.max_age`?")


def test_the_last_one_to_give_a_value_is_its_source(file: Path) -> None:
    file.write_text(NAMED + "[limits]\nmax_age = 3\nmax_bytes = 9\nmax_messages = 9\n")
    environment = {"CAPTURE_LIMITS__MAX_AGE": "4", "CAPTURE_LIMITS__MAX_BYTES": "5", "CAPTURE_KEYS": "k:v"}
    given = gather_settings(file, {"limits.max_age": 5.0, "stream": None}, environment=environment)
    names = ("max_age", "max_bytes", "max_messages", "interval")
    sources = [given.source(("limits", name)) for name in names]
    assert sources == ["flag --max-age", "variable CAPTURE_LIMITS__MAX_BYTES", f"file {file}, line 6", "default"]
    assert given.source(("stream",)) == f"file {file}, line 1"
    assert "k:v" not in repr(given)
    assert "sesame" not in repr(gather_settings(None, environment={"CAPTURE_NATS__PASSWORD": "sesame"}))


def test_a_store_section_has_the_sources_of_all_its_settings(file: Path) -> None:
    file.write_text('stream = "S"\n[store]\nurl = "s3://b"\nregion = "r"\n')
    given = gather_settings(file, environment={"CAPTURE_STORE__TIMEOUT": "9"})
    assert given.source(("store",)) == f"file {file}, line 3, variable CAPTURE_STORE__TIMEOUT"
    assert read(given)[0].store == "s3://b?region=r&timeout=9"
    given = gather_settings(file, {"store": "/data"}, environment={"CAPTURE_STORE__TIMEOUT": "9"})
    assert (given.source(("store",)), read(given)[0].store) == ("flag --store", "/data")


def test_the_line_is_the_one_in_which_a_statement_begins() -> None:
    text = '''# a = 1

a.b = 1
text = """
c = 3
[d]
"""
list = [
  # e
  1, [
    2],
]
table = { x = 1, y = { z = 2 } }\r
[ "f.g" . h ] # a comment
  'i j' = 1

[f.k]
i = """x\\
"""
[[m]]
n = 1
'''
    assert lines_of(text) == {
        ("a",): 3,
        ("a", "b"): 3,
        ("text",): 4,
        ("list",): 8,
        ("table",): 13,
        ("table", "x"): 13,
        ("table", "y"): 13,
        ("table", "y", "z"): 13,
        ("f.g",): 14,
        ("f.g", "h"): 14,
        ("f.g", "h", "i j"): 15,
        ("f",): 17,
        ("f", "k"): 17,
        ("f", "k", "i"): 18,
        ("m",): 20,
        ("m", "0"): 20,
        ("m", "0", "n"): 21,
    }


def test_what_can_be_used_is_read_beside_what_can_not(file: Path) -> None:
    file.write_text(NAMED + 'lease = 0\nformat = 3\ndecoder = "json"\n[limits]\nmax_age = 7\nmax_ages = 7\n')
    config, faults = read(gather_settings(file, environment={}))
    assert (config.lease, config.format, config.decoder, config.limits.max_age) == (2.0, "parquet", "json", 7.0)
    assert list(faults) == [("lease",), ("format",), ("limits", "max_ages")]


def test_the_compactions_settings_reach_its_policy_and_its_schedule(file):
    text = (
        '[compaction]\nevery = 7\ncron = "1 2 * * *"\nwaiting_files = 3\nwaiting_bytes = 4\nmin_files = 5\n'
        'max_wait = 6\ntarget_bytes = 8\nmax_groups = 9\nmax_bytes = 10\ndistinct = "message_id"\ndecrypt = true\n'
    )
    config = loaded(file, NAMED + text)
    assert config.compaction.schedule() == Schedule(every=7.0, cron="1 2 * * *", waiting_files=3, waiting_bytes=4)
    assert policy(config) == Policy(
        target_bytes=8, min_files=5, max_wait=6.0, max_groups=9, max_bytes=10,
        encrypted=False, decrypt=True, distinct="message_id",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"'soon' is not a cron expression.*compaction"):
        loaded(file, NAMED + '[compaction]\ncron = "soon"')


@pytest.mark.parametrize("other", [{"group": "g"}, {"filter_subjects": ["a.b"]}, {"ack": "all"}])
def test_settings_of_consumers_are_refused_without_a_consumer(other):
    named = {"stream": "S", "store": "/lake", "source": "direct"}
    (name,) = other
    with pytest.raises(ConfigError, match=rf"{name} is for consumers: remove {name}, or write source = \"consumer\""):
        load(None, named | other, environment={})


def test_each_stream_has_its_own_source(tmp_path):
    path = tmp_path / "capture.toml"
    path.write_text('store = "/lake"\n[streams.A]\nsource = "direct"\n[streams.B]\nfilter_subjects = ["b"]\n')
    assert [one.is_direct for one in each(load(path, {}, environment={}))] == [True, False]


def test_without_a_consumer_blocks_may_be_open_for_longer_than_its_ack_wait():
    named = {"stream": "S", "store": "/lake", "limits.max_age": 600.0, "ack_wait": 60.0}
    assert load(None, named | {"source": "direct"}, environment={}).limits.max_age == 600
    with pytest.raises(ConfigError, match="must be below the consumer's ack_wait"):
        load(None, named, environment={})


def test_two_streams_with_one_archive_are_refused(file: Path) -> None:
    text = 'store = "s"\n[streams.A]\narchive = "x"\n[streams.B]\narchive = "x"\n'
    assert "streams A and B have the same archive, x: each needs one of its own" in refused(file, text)


@pytest.mark.parametrize("start", ["9" * 19, "9" * 5000, "0", "-1"])
def test_a_start_that_no_stream_can_have_is_refused(start: str) -> None:
    with pytest.raises(ConfigError, match="not "):
        delivery(start)
