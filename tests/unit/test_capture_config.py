from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capture.block import Limits
from capture.config import CaptureConfig, load
from capture.errors import ConfigError

NAMED = 'stream = "ORDERS"\nstore = "/data/lake"\n'


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


def test_an_archive_may_have_a_name_of_its_own(file: Path) -> None:
    assert loaded(file, NAMED + 'archive = "north"\n').name == "north"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'stream = "ORDERS\nstore = 1',
            "capture.toml is no valid TOML: Illegal character '\\n' (at line 1, column 17)",
        ),
        (NAMED + 'strem = "x"', "capture.toml: Object contains unknown field `strem`"),
        (NAMED + "[limits]\nmax_ages = 3", "capture.toml: Object contains unknown field `max_ages` - at `$.limits`"),
        (NAMED + '[limits]\nmax_age = "soon"', "capture.toml: Expected `float`, got `str` - at `$.limits.max_age`"),
        (NAMED + "[limits]\nmax_age = -3", "capture.toml: Expected `float` > 0.0 - at `$.limits.max_age`"),
        (NAMED + "limits = 3", "capture.toml: Expected `object`, got `int` - at `$.limits`"),
        (NAMED + "[sweep]\nevery = 0", "capture.toml: Expected `float` > 0.0 - at `$.sweep.every`"),
        (NAMED + "[sweep]\ngrace = inf", "capture.toml: Expected `float` <= 1000000000.0 - at `$.sweep.grace`"),
        (NAMED + "[compaction]\nmin_files = 0", "capture.toml: Expected `int` >= 1 - at `$.compaction.min_files`"),
        (NAMED + "lease = 0.1", "capture.toml: Expected `float` >= 0.3 - at `$.lease`"),
        (NAMED + "ack_wait = nan", "capture.toml: Expected `float` > 0.0 - at `$.ack_wait`"),
    ],
)
def test_a_broken_file_is_told_with_the_place_in_it(file: Path, text: str, said: str) -> None:
    assert refused(file, text) == f"{file.parent}/{said}"


def test_bytes_that_are_no_text_are_no_toml(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"capture\.toml is no valid TOML"):
        load(file, environment={})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml can't be read: No such file or directory; check --config"):
        load(tmp_path / "nowhere.toml", environment={})


def test_a_wrong_variable_is_named_too() -> None:
    with pytest.raises(ConfigError, match=r"CAPTURE_… variables: Expected `float`, got `str` - at `\$\.ack_wait`"):
        load(None, environment={"CAPTURE_ACK_WAIT": "long"})


def test_a_value_in_the_place_of_a_table_is_told(file: Path) -> None:
    assert "limits is a table" in refused(file, NAMED + "limits = 3", {"limits.max_age": 3.0})


@pytest.mark.parametrize("missing", ["stream", "store"])
def test_what_is_missing_is_said_with_the_three_ways_to_give_it(file: Path, missing: str) -> None:
    text = "\n".join(line for line in NAMED.splitlines() if not line.startswith(missing))
    expected = f"no {missing} is named: give --{missing}, CAPTURE_{missing.upper()} or {missing} in capture.toml"
    assert refused(file, text) == expected


def test_a_command_may_need_less(file: Path) -> None:
    file.write_text('store = "/data/lake"')
    assert load(file, environment={}, needs=("store",)).stream == ""


def test_a_block_that_would_outlive_ack_wait_is_refused_with_both_numbers(file: Path) -> None:
    said = refused(file, NAMED + "ack_wait = 10\n[limits]\nmax_age = 30\n")
    assert "max_age 30.0 s must be below the consumer's ack_wait 10.0 s" in said


def test_a_consumer_that_would_stall_before_a_block_is_sealed_is_refused(file: Path) -> None:
    assert "max_pending 200000 exceeds" in refused(file, NAMED + "max_ack_pending = 1000\n")
