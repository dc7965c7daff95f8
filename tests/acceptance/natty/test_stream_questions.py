"""`natty stream` on a terminal: what is missing is asked for, as the first JetStream tool did."""

import json

import pytest
from command_line import CommandLine, Terminal
from commands import printed


@pytest.fixture
def name(natty_name):
    return natty_name("ASKED")


@pytest.fixture
def natty(nats_server, tmp_path, monkeypatch, capsys):
    return CommandLine(nats_server.connect_options(), tmp_path, monkeypatch, capsys)


@pytest.fixture
def config_of(natty):
    return lambda name: json.loads(printed(natty("stream", "info", name, "--json")))["config"]


def test_a_stream_is_made_by_answering_on_a_terminal(natty, name, config_of):
    with Terminal(natty.environment, natty.folder, "stream", "add", "--max-msgs", "7", "--json") as terminal:
        terminal.asks("Stream: ")
        terminal.types("A B")
        terminal.asks("stream name 'A B': ' ' at character 2 is not allowed")
        terminal.types(name)
        terminal.asks("Subjects, separated by commas; wildcards are allowed: ")
        terminal.types(f"{name}.a, {name}.b.>")
        terminal.asks("Storage, file or memory [file]: ")
        terminal.types("disk")
        terminal.asks("'disk' is not one of file, memory")
        terminal.types("m")
        terminal.asks("Replicas [1]: ")
        terminal.types("")
        terminal.asks("Retention, limits, interest or work [limits]: ")
        terminal.types("work")
        terminal.asks("Discard at a limit, old messages or new ones [old]: ")
        terminal.types("")
        terminal.asks("Messages to keep per subject [-1]: ")  # --max-msgs was given: it is not asked
        terminal.types("5")
        terminal.asks("Bytes to keep, such as 1GiB [-1]: ")
        terminal.types("1MiB")
        terminal.asks("Time to keep messages, such as 7d [-1]: ")
        terminal.types("1d2h")
        terminal.asks("Largest message, such as 64KB [-1]: ")
        terminal.types("")
        status, out = terminal.ends()
    assert status == 0
    assert json.loads(out)["config"]["name"] == name  # questions are not in the way of JSON
    made = config_of(name)
    assert (made["subjects"], made["storage"], made["retention"]) == (
        [f"{name}.a", f"{name}.b.>"],
        "memory",
        "workqueue",
    )
    assert (made["max_msgs"], made["max_msgs_per_subject"], made["max_bytes"]) == (7, 5, 1024**2)
    assert made["max_age"] == 26 * 3600 * 10**9


def test_with_everything_that_is_needed_nothing_is_asked(natty, name):
    added = natty("stream", "add", name, "--subjects", f"{name}.>", typed=[])
    assert (added.status, added.err) == (0, "")


def test_defaults_are_not_asked_for(natty, name, config_of):
    added = natty("stream", "add", name, "--defaults", typed=[f"{name}.x"])
    assert (added.status, added.err) == (0, "Subjects, separated by commas; wildcards are allowed: ")
    assert config_of(name)["subjects"] == [f"{name}.x"]


def test_a_stream_that_was_not_named_is_chosen_from_a_list(natty, name):
    printed(natty("stream", "add", name, "--subjects", f"{name}.>"))
    names = printed(natty("stream", "ls", "--names")).split()
    number = names.index(name) + 1
    chosen = natty("stream", "info", "--json", typed=["0", "nowhere", str(number)])
    assert json.loads(chosen.out)["config"]["name"] == name
    assert f"{number:3}  {name}\n" in chosen.err
    assert f"'0' is not one of them; type a number from 1 to {len(names)}, or a name" in chosen.err
    by_name = natty("stream", "info", "--json", typed=[name])
    assert json.loads(by_name.out)["config"]["name"] == name


def test_a_message_and_the_subjects_of_a_copy_are_asked_for(natty, name, config_of):
    printed(natty("stream", "add", name, "--subjects", f"{name}.>"))
    natty.served(lambda client: client.publish(f"{name}.x", b"one"))
    got = natty("stream", "get", name, "--raw", typed=["first", "0", "1"])
    assert (got.status, got.out) == (0, "one\n")
    assert "'first' is not a whole number above 0\n" in got.err
    assert "'0' is not a whole number above 0\n" in got.err
    copied = natty("stream", "copy", name, f"{name}_B", typed=[f"{name}_B.>"])
    assert copied.status == 0
    assert copied.err == f"Subjects of {name}_B, different from {name}.>: "
    assert config_of(f"{name}_B")["subjects"] == [f"{name}_B.>"]


def test_the_end_of_input_ends_the_questions(natty):
    ended = natty("stream", "add", typed=[])
    assert (ended.status, ended.out, ended.err) == (1, "", "Stream: natty: aborted\n")
