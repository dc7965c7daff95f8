from __future__ import annotations

from typing import Any

import pytest

from capture.config.load import load, settings
from capture.config.reload import LIVE, plan_reload
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError


def config(**flags: Any) -> CaptureConfig:
    named = {"stream": "S", "store": "/lake", **{name.replace("__", "."): value for name, value in flags.items()}}
    return load(None, named, environment={})


def test_an_equal_configuration_changes_nothing() -> None:
    change = plan_reload(config(), config())
    assert (change.config, change.changed, change.kept) == (config(), [], [])


def test_what_is_live_changes_and_the_rest_is_named_and_kept() -> None:
    running = config(decoder="json", limits__max_age=5.0)
    wanted = config(decoder="raw", durable="other", limits__max_age=7.5, limits__interval=60.0, sweep__every=3.0)
    change = plan_reload(running, wanted)
    assert change.config == config(decoder="json", limits__max_age=7.5, sweep__every=3.0)
    assert change.changed == ["limits.max_age = 7.5", "sweep.every = 3.0"]
    assert change.kept == ["durable", "decoder", "limits.interval"]


def test_every_live_setting_is_one() -> None:
    assert {place for place, _ in settings(config())} >= LIVE


def test_levels_of_loggers_change_as_a_whole() -> None:
    change = plan_reload(config(), config(logging__loggers={"natty": "debug", "capture.sweep": "info"}))
    assert change.config.logging.loggers == {"natty": "debug", "capture.sweep": "info"}


def test_a_longer_grace_is_taken_up_and_a_shorter_one_is_not() -> None:
    change = plan_reload(config(sweep__grace=900.0), config(sweep__grace=1800.0))
    assert (change.config.sweep.grace, change.kept) == (1800.0, [])
    change = plan_reload(config(sweep__grace=900.0), config(sweep__grace=60.0, sweep__every=1.0))
    assert (change.config.sweep.grace, change.config.sweep.every, change.kept) == (900.0, 1.0, ["sweep.grace"])


def test_limits_that_contradict_the_running_consumer_are_refused_though_the_file_agrees_with_itself() -> None:
    with pytest.raises(ConfigError, match=r"max_age 200.0 s must be below the consumer's ack_wait 120.0 s"):
        plan_reload(config(ack_wait=120.0), config(ack_wait=300.0, limits__max_age=200.0))


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("redeliver_after", [1.0, -1.0], "must be a number of at least 0"),
        ("on_store_failure", "panic", "must be one of go_on, stop"),
        ("store_attempts", 0, "must be a whole number of at least 1"),
        ("drain", 0.0, "must be a number above 0"),
        ("logging.level", "loud", "must be one of error, warning, info, debug"),
        ("logging.loggers", {"natty": "loud"}, "must be one of error, warning, info, debug"),
        ("logging.summary_every", -1.0, "must be a number of at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_they_are_read(setting: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**{setting.replace(".", "__"): value})
