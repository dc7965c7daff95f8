from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from capture_settings import no_settings_of_this_machine  # noqa: F401

from capture.config.load import gather_settings, load
from capture.config.settings import CaptureConfig
from capture.config.workers import as_worker, count_workers, name_worker
from capture.errors import ConfigError


def config(**flags: Any) -> CaptureConfig:
    named = {"stream": "S", "store": "/lake", **{name.replace("__", "."): value for name, value in flags.items()}}
    return load(None, named, environment={})


def test_by_default_there_is_one_worker_and_it_stands_for_election() -> None:
    assert (config().workers, config().candidates, count_workers(config())) == (1, "one", 1)


@pytest.mark.parametrize(("given", "read"), [("3", 3), (3, 3), ("auto", "auto")])
def test_the_number_of_workers_comes_from_flag_variable_or_file(tmp_path: Any, given: Any, read: Any) -> None:
    assert config(workers=given).workers == read
    named = {"stream": "S", "store": "/lake"}
    assert load(None, named, environment={"CAPTURE_WORKERS": str(given)}).workers == read
    path = tmp_path / "capture.toml"
    path.write_text(f"workers = {given!r}\n")
    assert load(path, named, environment={}).workers == (given if given != "3" else 3)
    assert gather_settings(None, {"workers": "2"}, environment={}).source(("workers",)) == "flag --workers"


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5"])
def test_another_number_of_workers_is_refused_by_the_flags_name(given: str) -> None:
    with pytest.raises(ConfigError, match=r"^flag --workers: .*workers"):
        config(workers=given)


def test_auto_is_the_number_of_cores_that_this_process_may_use() -> None:
    cores = os.sched_getaffinity(0)
    assert count_workers(config(workers="auto")) == len(cores)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert count_workers(config(workers="auto")) == 1
    finally:
        os.sched_setaffinity(0, cores)


def test_workers_have_the_nodes_name_or_the_hosts_with_their_number() -> None:
    assert name_worker(config(node="east"), 2) == "east-2"
    assert name_worker(config(), 1) == f"{socket.gethostname().partition('.')[0]}-1"


@pytest.mark.parametrize(
    ("candidates", "stand"), [("one", ["all", "none", "none"]), ("all", ["all"] * 3), ("none", ["none"] * 3)]
)
def test_so_many_workers_stand_for_election_as_the_configuration_says(candidates: str, stand: list[str]) -> None:
    wanted = config(workers=3, candidates=candidates)
    assert [as_worker(wanted, number, 3).candidates for number in (1, 2, 3)] == stand


def test_workers_of_a_durable_divide_max_pending_and_those_of_a_group_do_not() -> None:
    wanted = config(workers=4, limits__max_pending=200_000)
    assert as_worker(wanted, 1, 4).limits.max_pending == 50_000
    assert as_worker(wanted, 1, 4).limits.max_open_bytes == wanted.limits.max_open_bytes
    assert as_worker(config(workers=4, group="g"), 1, 4).limits.max_pending == 200_000


@pytest.mark.parametrize("workers", [2, "auto"])
def test_what_workers_can_not_share_is_refused_with_what_to_do(workers: Any) -> None:
    with pytest.raises(
        ConfigError, match=r'ack = "all" is for a durable that one node reads alone.*name a static group'
    ):
        config(workers=workers, ack="all")
    with pytest.raises(ConfigError, match=r"member p0 is read by one worker at a time.*remove member.*member: flag"):
        config(workers=workers, group="g", member="p0")


def test_one_stream_among_several_that_can_not_be_shared_is_named(tmp_path: Any) -> None:
    path = tmp_path / "capture.toml"
    path.write_text('store = "/lake"\nworkers = 2\n[streams.A]\n[streams.B]\nack = "all"\ndurable = "d"\n')
    with pytest.raises(ConfigError, match="durable d: name a static group of stream B"):
        load(path, environment={})


def test_one_worker_and_the_members_of_a_group_are_shared_with_any_acknowledgement() -> None:
    assert config(workers=1, ack="all").ack == "all"
    assert config(workers=2, ack="all", group="g").group == "g"
    assert config(workers=1, group="g", member="p0").member == "p0"
