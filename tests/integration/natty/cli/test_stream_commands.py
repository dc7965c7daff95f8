"""What `natty stream …` does and prints, in the words of the `nats` tool. The commands run in this process."""

import json

import pytest
from commands import complaint, printed


@pytest.fixture
def name(natty_name):
    return natty_name("ADMIN")


@pytest.fixture
def stream(natty_commands):
    """Run `natty stream …`."""
    return lambda *words, **typed: natty_commands("stream", *words, **typed)


@pytest.fixture
def config_of(natty_commands):
    """Return what the server has as a stream's configuration."""

    async def ask(natty, name):
        return (await natty.jetstream.request(f"STREAM.INFO.{name}"))["config"]

    return lambda name: natty_commands.served(lambda natty: ask(natty, name))


@pytest.fixture
def filled(natty_commands, name):
    """A stream of six messages: eu.0, us.1, eu.2, us.3, eu.4, us.5."""

    async def fill(natty):
        await natty.create_stream(name, subjects=[f"{name}.>"])
        for number in range(6):
            subject = f"{name}.{('eu', 'us')[number % 2]}.{number}"
            await natty.publish(subject, b"payload %d" % number, headers={"Number": str(number)})
        return name

    return natty_commands.served(fill)


@pytest.fixture
def left(natty_commands, filled):
    """Return the subjects of the messages that are left in it, without its name."""

    async def read(natty):
        info = await natty.jetstream.request(f"STREAM.INFO.{filled}")
        sequences = range(info["state"]["first_seq"], info["state"]["last_seq"] + 1)
        found = [await natty.jetstream.read(filled, sequence=one) for one in sequences]
        return [one.subject.partition(".")[2] for one in found if one]

    return lambda: natty_commands.served(read)


def test_a_stream_is_added_with_the_flags_and_units_of_the_nats_tool(stream, name, config_of):
    flags = {
        "--subjects": f"{name}.a,{name}.b.>",
        "--storage": "m",
        "--retention": "work",
        "--discard": "new",
        "--max-msgs": "1000",
        "--max-bytes": "1MiB",
        "--max-age": "1d2h",
        "--max-msg-size": "64KB",
        "--max-msgs-per-subject": "10",
        "--max-consumers": "3",
        "--dupe-window": "90s",
        "--first-sequence": "42",
        "--compression": "none",
        "--description": "what is ordered",
        "--metadata": "owner=sales",
        "--limit-consumer-inactive": "1h",
        "--republish-source": f"{name}.a",
        "--republish-destination": f"{name}_out.a",
    }
    switches = ("--deny-delete", "--deny-purge", "--allow-msg-ttl", "--discard-per-subject", "--no-allow-direct")
    out = printed(stream("add", name, *(word for pair in flags.items() for word in pair), *switches))
    assert out.startswith(f"stream {name} was made\n")
    assert "Max age: 1d2h" in out
    made = config_of(name)
    wanted = {
        "subjects": [f"{name}.a", f"{name}.b.>"],
        "storage": "memory",
        "retention": "workqueue",
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs": 1000,
        "max_bytes": 1024**2,
        "max_age": 26 * 3600 * 10**9,
        "max_msg_size": 65536,
        "max_msgs_per_subject": 10,
        "max_consumers": 3,
        "duplicate_window": 90 * 10**9,
        "first_seq": 42,
        "description": "what is ordered",
        "deny_delete": True,
        "deny_purge": True,
        "allow_msg_ttl": True,
        "allow_direct": False,
        "consumer_limits": {"inactive_threshold": 3600 * 10**9},
        "republish": {"src": f"{name}.a", "dest": f"{name}_out.a"},
    }
    assert {key: made[key] for key in wanted} == wanted
    assert made["metadata"]["owner"] == "sales"


def test_adding_the_same_again_changes_nothing_and_another_one_is_refused(stream, name, config_of):
    add = ("add", name, "--subjects", f"{name}.>", "--max-msgs", "100")
    assert json.loads(printed(stream(*add, "--json")))["config"]["allow_direct"] is True
    assert printed(stream(*add)).startswith(f"stream {name} already exists with this configuration\n")
    assert complaint(stream("add", name, "--subjects", f"{name}.>", "--max-msgs", "200")) == (
        f"natty: stream {name} exists with another configuration: max_msgs is 100, wanted 200."
        " Change it with `natty stream edit`"
    )
    assert config_of(name)["max_msgs"] == 100


def test_a_configuration_goes_through_a_file(stream, natty_commands, name, config_of):
    printed(stream("add", name, "--subjects", f"{name}.>", "--max-age", "1h", "--output", "made.json"))
    assert "no stream" in complaint(stream("info", name))  # it was written, not made
    assert printed(stream("add", "--config", "made.json", "--validate")) == "the configuration is valid\n"
    assert "no stream" in complaint(stream("info", name))
    printed(stream("add", "--config", "made.json", "--max-age", "2h"))  # options win
    assert config_of(name)["max_age"] == 7200 * 10**9
    (natty_commands.folder / "info.json").write_text(printed(stream("info", name, "--json")))
    assert printed(stream("edit", "--config", "info.json", "--dry-run")) == f"= stream {name}\n"
    printed(stream("edit", "--config", "info.json", "--max-age", "3h", "--force"))
    assert config_of(name)["max_age"] == 3 * 3600 * 10**9
    marked = {"name": f"{name}_B", "subjects": [f"{name}_B"], "metadata": {"_nats.level": "1"}}  # an older server's
    (natty_commands.folder / "older.json").write_text(json.dumps(marked))
    printed(stream("add", "--config", "older.json"))
    assert complaint(stream("add", name, "--subjects", "x", "--output", "no/where.json")) == (
        "natty: no/where.json can't be written: No such file or directory; check --output"
    )
    (natty_commands.folder / "bad.json").write_text(json.dumps({"name": name, "max_msgs": -9, "num_replicas": 9}))
    assert "max_msgs is -9: write a limit, or -1 for none; num_replicas is 9" in complaint(
        stream("add", "--config", "bad.json", "--subjects", "x", "--validate")
    )


def test_an_edit_shows_the_difference_and_asks(stream, name, config_of):
    printed(stream("add", name, "--subjects", f"{name}.>", "--max-msgs", "100"))
    edit = ("edit", name, "--max-msgs", "10", "--description", "new")
    difference = (
        f"~ stream {name}: description is None, wanted 'new'\n"
        f"! stream {name}: max_msgs is 100, wanted 10 (destructive: messages beyond it are deleted)\n"
    )
    tried = stream(*edit, "--dry-run")
    assert (tried.status, tried.out, tried.err) == (3, difference, "")
    nobody = stream(*edit)
    assert (nobody.status, nobody.out) == (1, difference)
    assert nobody.err == f"natty: Change stream {name}? There is no terminal to ask on: give --force\n"
    assert stream(*edit, typed=["n"]).status == 1
    assert config_of(name)["max_msgs"] == 100
    told = stream(*edit, "--json", typed=["y"])  # the question is not in the way of JSON
    assert json.loads(told.out)["config"]["max_msgs"] == 10
    assert told.err.startswith(difference)
    assert (config_of(name)["max_msgs"], config_of(name)["description"]) == (10, "new")
    assert printed(stream(*edit, "--force")) == f"= stream {name}\n"
    assert printed(stream("edit", name, "--max-msgs", "11", "--force")) == f"changed {name}\n"
    assert json.loads(printed(stream("edit", name, "--max-msgs", "-1", "-f", "--json")))["config"]["max_msgs"] == -1


def test_an_edit_ends_renaming_and_publishing_again(stream, name, config_of):
    transform = ("--transform-source", f"{name}.*", "--transform-destination", f"{name}.{{{{wildcard(1)}}}}.x")
    republish = ("--republish-source", f"{name}.>", "--republish-destination", f"{name}_out.>")
    printed(stream("add", name, "--subjects", f"{name}.>", *transform, *republish))
    assert {"subject_transform", "republish"} <= config_of(name).keys()
    printed(stream("edit", name, "--no-transform", "--no-republish", "--force"))
    assert not {"subject_transform", "republish"} & config_of(name).keys()


def test_an_edit_that_is_impossible_changes_nothing(stream, name, config_of):
    printed(stream("add", name, "--subjects", f"{name}.>", "--deny-purge"))
    assert complaint(stream("edit", name, "--no-deny-purge", "--max-msgs", "5", "--force")) == (
        f"natty: nothing was changed. stream {name}: deny_purge is True, wanted False"
        " (fixed: the server never changes it)"
    )
    assert "discard_new_per_subject needs discard new" in complaint(stream("edit", name, "--discard-per-subject", "-f"))
    assert config_of(name)["max_msgs"] == -1
    usage = stream("edit", name)
    assert usage.status == 2
    assert "no change was given: give a setting" in usage.err


def test_a_copy_has_the_configuration_and_other_subjects(stream, filled, config_of):
    copy = f"{filled}_COPY"
    printed(stream("edit", filled, "--max-age", "1h", "--metadata", "owner=us", "--force"))
    missing = stream("copy", filled, copy)
    assert missing.status == 2
    assert "--subjects is missing, and there is no terminal to ask on: give it" in missing.err
    shown = json.loads(printed(stream("copy", filled, copy, "--subjects", f"{copy}.>", "--max-msgs", "7", "--json")))
    assert (shown["config"]["name"], shown["state"]["messages"]) == (copy, 0)
    made, source = config_of(copy), config_of(filled)
    changed = {"name": copy, "subjects": [f"{copy}.>"], "max_msgs": 7}
    assert made == source | changed | {"metadata": made["metadata"]}
    assert made["metadata"]["owner"] == "us"


def test_one_message_is_shown(stream, filled):
    subject = f"{filled}.us.1"
    got = json.loads(printed(stream("get", filled, "2", "--json")))
    assert (got.pop("stream"), got.pop("time")[-1]) == (filled, "Z")
    assert got == {"sequence": 2, "subject": subject, "headers": {"Number": ["1"]}, "data": "payload 1"}
    head, header, empty, payload = printed(stream("get", filled, "2")).splitlines()
    assert head.startswith(f"{filled}#2 on {subject}, 20")
    assert (header, empty, payload) == ("Number: 1", "", "payload 1")
    assert printed(stream("get", filled, "2", "--raw")) == "payload 1\n"
    assert json.loads(printed(stream("get", filled, "-S", f"{filled}.eu.*", "--json")))["sequence"] == 5
    assert complaint(stream("get", filled, "7")) == (
        f"natty: stream {filled} has no message at sequence 7; it holds 1 to 6"
    )
    nothing = f"natty: stream {filled} has no message on {filled}.asia; it holds 1 to 6"
    assert complaint(stream("get", filled, "--last-for", f"{filled}.asia")) == nothing


def test_a_payload_that_is_no_text_is_shown_in_base64(stream, natty_commands, filled):
    natty_commands.served(lambda natty: natty.publish(f"{filled}.raw", b"\xff\x00"))
    assert json.loads(printed(stream("get", filled, "7", "--json")))["data_base64"] == "/wA="


def test_one_message_is_deleted_after_a_yes(stream, filled, left):
    question = f"Erase message 2 of stream {filled}, 9 bytes on {filled}.us.1?"
    assert question in complaint(stream("rm-msg", filled, "2"))
    assert stream("rm-msg", filled, "2", typed=["n"]).status == 1
    assert left() == ["eu.0", "us.1", "eu.2", "us.3", "eu.4", "us.5"]
    assert stream("rm-msg", filled, "2", typed=["y"]).status == 0
    assert printed(stream("rm-msg", filled, "3", "--no-erase", "--force")).startswith("deleted message 3 of")
    assert json.loads(printed(stream("rmm", filled, "4", "--force", "--json"))) == {
        **{"stream": filled, "sequence": 4, "deleted": True}
    }
    assert left() == ["eu.0", "eu.4", "us.5"]
    assert complaint(stream("rm-msg", filled, "2", "--force")) == (
        f"natty: stream {filled} has no message at sequence 2; it holds 1 to 6"
    )


def test_a_purge_truncates_by_subject_to_a_sequence_or_keeps_some(stream, filled, left):
    purge = ("purge", filled, "--force")
    assert (
        printed(stream(*purge, "--subject", f"{filled}.us.*", "--seq", "4")) == f"purged 1 message of stream {filled}\n"
    )
    assert left() == ["eu.0", "eu.2", "us.3", "eu.4", "us.5"]
    assert json.loads(printed(stream(*purge, "--seq", "4", "--json"))) == {"stream": filled, "purged": 2}
    assert left() == ["us.3", "eu.4", "us.5"]
    printed(stream(*purge, "--subject", f"{filled}.us.*", "--keep", "1"))
    assert left() == ["eu.4", "us.5"]
    printed(stream(*purge, "--keep", "1"))
    assert left() == ["us.5"]
    assert printed(stream(*purge)) == f"purged 1 message of stream {filled}\n"
    assert left() == []


def test_a_purge_says_what_would_be_lost_and_asks(stream, filled, left):
    asked = "There is no terminal to ask on: give --force"
    name = f"natty: Purge stream {filled}:"
    assert complaint(stream("purge", filled)) == f"{name} 6 messages, all there are? {asked}"
    assert complaint(stream("purge", filled, "--keep", "2")) == f"{name} 4 messages, all but the newest 2? {asked}"
    assert complaint(stream("purge", filled, "--seq", "3")) == f"{name} the messages before sequence 3? {asked}"
    assert complaint(stream("purge", filled, "--subject", f"{filled}.eu.*")) == (
        f"{name} 3 messages on {filled}.eu.*, all there are? {asked}"
    )
    assert stream("purge", filled, typed=["n"]).status == 1
    assert len(left()) == 6


def test_a_purge_never_skips_sequences(stream, filled):
    assert complaint(stream("purge", filled, "--seq", "8", "--force")) == (
        f"natty: stream {filled} ends at sequence 6: --seq 8 would skip sequences"
    )
    printed(stream("purge", filled, "--seq", "7", "--force"))
    state = json.loads(printed(stream("info", filled, "--state", "--json")))
    assert (state["messages"], state["last_seq"]) == (0, 6)
    both = stream("purge", filled, "--seq", "3", "--keep", "3")
    assert both.status == 2
    assert "choose one of --seq and --keep" in both.err


def test_streams_are_listed_and_reported(stream, natty_commands, filled):
    other = f"{filled}_B"
    printed(stream("add", other, "--subjects", f"{other}.x", "--storage", "memory", "--source", filled))
    found = printed(stream("ls", "--names")).split()
    assert found == sorted(found)
    assert {filled, other} <= set(found)
    assert json.loads(printed(stream("ls", "--names", "--subject", f"{other}.*", "--json"))) == [other]
    assert [
        one["config"]["name"] for one in json.loads(printed(stream("ls", "--json", "--subject", f"{filled}.>")))
    ] == [filled]
    (line,) = [line.split() for line in printed(stream("ls")).splitlines() if line.split()[0] == filled]
    assert line[1:3] == [f"{filled}.>", "6"]
    by_size = [one["state"]["bytes"] for one in json.loads(printed(stream("ls", "--size-sort", "--json")))]
    assert by_size == sorted(by_size, reverse=True)
    named_by_size = printed(stream("ls", "--size-sort", "-n")).split()
    assert sorted(named_by_size) == found

    told = json.loads(printed(stream("report", "--json", "--messages")))
    rows = {row["stream"]: row for row in told["streams"]}
    assert [row["messages"] for row in told["streams"]] == sorted(row["messages"] for row in told["streams"])
    assert rows[filled]["messages"] == 6
    assert told["total"]["messages"] == sum(row["messages"] for row in told["streams"])
    assert [(one["stream"], one["kind"], one["source"]) for one in told["replication"] if one["stream"] == other] == [
        (other, "source", filled)
    ]
    lines = [line.split() for line in printed(stream("report", "--name", "--raw")).splitlines()]
    assert [line[:2] for line in lines if line and line[0] == filled] == [[filled, "file"]]
    order = [line[0] for line in lines if line]
    assert order.index(filled) < order.index(other) < order.index("total")


def test_info_is_for_people_and_with_json_the_servers_own(stream, filled, natty_commands):
    async def ask(natty):
        return await natty.jetstream.request(f"STREAM.INFO.{filled}")

    told = json.loads(printed(stream("info", filled, "--json")))
    asked = natty_commands.served(ask)
    assert told == asked | {"ts": told["ts"]}
    lines = [line.strip() for line in printed(stream("info", filled)).splitlines()]
    assert lines[0] == f"Stream {filled}"
    assert {f"Subjects: {filled}.>", "Max age: no limit", "Messages: 6", "Deleted messages: 0"} <= set(lines)
    assert "Storage: file" not in printed(stream("info", filled, "--state"))


def test_a_stream_is_deleted_after_a_yes(stream, filled):
    assert stream("rm", filled, typed=["n"]).status == 1
    assert stream("rm", filled, typed=["y"]).out.endswith(f"deleted {filled}\n")
    assert complaint(stream("info", filled)).startswith(f"natty: there is no stream {filled}")
