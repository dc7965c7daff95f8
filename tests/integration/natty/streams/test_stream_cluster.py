"""`natty stream …` on a cluster of three: replicas, leaders, placement."""

import json

import pytest
from command_line import CommandLine
from commands import complaint, printed

pytestmark = pytest.mark.long


@pytest.fixture
def stream(nats_cluster, tmp_path, monkeypatch, capsys):
    natty = CommandLine(nats_cluster.connect_options(), tmp_path, monkeypatch, capsys)
    return lambda *words, **typed: natty("stream", *words, **typed)


@pytest.fixture
def name(natty_name):
    return natty_name("CLUSTERED")


def test_replicas_and_leaders_are_told(stream, name):
    printed(stream("add", name, "--subjects", f"{name}.>", "--replicas", "3"))
    told = json.loads(printed(stream("info", name, "--json")))["cluster"]
    servers = {told["leader"], *(one["name"] for one in told["replicas"])}
    assert len(servers) == 3
    report = json.loads(printed(stream("report", "--json", "--subject", f"{name}.>")))
    (row,) = report["streams"]
    assert {one.rstrip("*!") for one in row["replicas"].split(", ")} == servers
    assert f"{told['leader']}*" in row["replicas"]
    assert sum(report["leaders"].values()) == 1
    in_another = json.loads(printed(stream("report", "--json", "--cluster", "elsewhere")))
    assert in_another["streams"] == []
    lines = printed(stream("report", "--leaders")).splitlines()
    assert any(line.split()[0] in servers and line.split()[-1].isdecimal() for line in lines if line.split())
    assert f"Leader: {told['leader']}" in printed(stream("info", name))


def test_replicas_are_changed(stream, name):
    printed(stream("add", name, "--subjects", f"{name}.>", "--replicas", "1"))
    more = stream("edit", name, "--replicas", "3", "--dry-run")
    assert (more.status, more.out) == (3, f"~ stream {name}: num_replicas is 1, wanted 3\n")
    printed(stream("edit", name, "--replicas", "3", "--force"))
    assert json.loads(printed(stream("info", name, "--json")))["config"]["num_replicas"] == 3


def test_a_placement_that_no_server_has_is_told(stream, name):
    add = ("add", name, "--subjects", f"{name}.>")
    assert complaint(stream(*add, "--tag", "ssd", "--replicas", "3")) == (
        f"natty: stream {name}: there are not 3 servers with tag ssd that could take it"
    )
    said = complaint(stream(*add, "--replicas", "5"))
    assert said == f"natty: stream {name}: there are not 5 servers that could take it"
