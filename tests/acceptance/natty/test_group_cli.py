"""`natty group` as a process; what its commands print is in tests/integration/natty/cli/test_group_commands.py."""

import json

import pytest
from commands import complaint, printed


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def stream(served, natty_name):
    name = natty_name("ORDERS")
    served(lambda natty: natty.create_stream(name, subjects=[f"{name}.*"]))
    return name


def test_a_group_is_made_filled_shown_and_deleted(shell, stream):
    def elastic(*words):
        return shell.natty("group", "elastic", *words)

    printed(elastic("create", stream, "cg", "4", "--filter", f"{stream}.*:1"))
    assert printed(elastic("add", stream, "cg", "m2", "m1")) == "added m2, m1\nmembers: m2, m1\n"
    members = json.loads(printed(elastic("info", stream, "cg", "--json")))["members"]
    assert [(one["name"], one["partitions"], one["active"]) for one in members] == [
        ("m2", [2, 3], False),
        ("m1", [0, 1], False),
    ]
    question = f"Delete elastic group cg of stream {stream} with 2 members?"
    assert complaint(elastic("rm", stream, "cg")) == f"natty: {question} There is no terminal to ask on: give --force"
    assert printed(elastic("rm", stream, "cg", "--force")) == f"deleted cg of {stream}\n"
    assert complaint(elastic("info", stream, "cg")) == f"natty: there is no elastic group cg of stream {stream}"


def test_a_static_group_on_a_stream_without_partitions_is_refused(shell, stream):
    refused = shell.natty("group", "static", "create", "balanced", stream, "cg", "2", "m1")
    assert f"stream {stream} holds no subject of partition 0 (0.>)" in complaint(refused)
    assert printed(shell.natty("group", "static", "ls", stream)) == ""
