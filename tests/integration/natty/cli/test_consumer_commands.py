import json

import pytest
from command_line import Terminal
from commands import complaint, printed

from natty.testing import NatsServer, ServerOptions

SECOND = 1_000_000_000


@pytest.fixture
def consumer(natty_commands):
    return lambda *words, **how: natty_commands("consumer", *words, **how)


@pytest.fixture
def stream(natty_commands, natty_name):
    name = natty_name("ORDERS")

    async def make(natty):
        await natty.create_stream(name, subjects=[f"{name}.*"])
        for number in range(5):
            await natty.publish(f"{name}.new", b"%d" % number)

    natty_commands.served(make)
    return name


@pytest.fixture
def told(natty_commands, stream):
    """Return a function that asks the server for a consumer's facts."""
    return lambda name: natty_commands.served(lambda natty: natty.jetstream.request(f"CONSUMER.INFO.{stream}.{name}"))


@pytest.fixture
def of_others(natty_commands, stream):
    """Make a push consumer `push` and an ephemeral one `fleeting`, as other clients do."""

    async def make(natty):
        for name, config in {"push": {"durable_name": "push", "deliver_subject": "x.y"}, "fleeting": {}}.items():
            config |= {"name": name, "ack_policy": "explicit", "inactive_threshold": 600 * SECOND}
            body = {"stream_name": stream, "config": config}
            await natty.jetstream.request(f"CONSUMER.CREATE.{stream}.{name}", body)

    natty_commands.served(make)


FLAGS = {
    "--description=bills": {"description": "bills"},
    "--wait=90s": {"ack_wait": 90 * SECOND},
    "--max-deliver=7": {"max_deliver": 7},
    "--max-pending=50": {"max_ack_pending": 50},
    "--max-waiting=9": {"max_waiting": 9},
    "--max-pull-batch=10": {"max_batch": 10},
    "--max-pull-expire=1m": {"max_expires": 60 * SECOND},
    "--max-pull-bytes=64KB": {"max_bytes": 65536},
    "--inactive-threshold=1h": {"inactive_threshold": 3600 * SECOND},
    "--replicas=1": {"num_replicas": 1},
    "--headers-only": {"headers_only": True},
    "--memory": {"mem_storage": True},
    "--sample=25": {"sample_freq": "25"},
    "--replay=original": {"replay_policy": "original"},
    "--deliver=3": {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
    "--ack=all": {"ack_policy": "all"},
}


def test_a_consumer_is_made_with_every_flag_of_the_nats_tool(consumer, stream, told):
    filters = f"--filter={stream}.new,{stream}.old"
    made = json.loads(
        printed(consumer("add", stream, "billing", *FLAGS, filters, "--metadata=team=a", "--pull", "--json"))
    )
    config = told("billing")["config"]
    assert made["config"] == config
    for wanted in FLAGS.values():
        assert config | wanted == config, wanted
    assert config["filter_subjects"] == [f"{stream}.new", f"{stream}.old"]
    assert config["metadata"]["team"] == "a"
    assert config["durable_name"] == "billing"


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), {"deliver_policy": "all", "ack_policy": "explicit", "ack_wait": 30 * SECOND, "max_ack_pending": 1000}),
        (("--backoff=1s,1m",), {"backoff": [SECOND, 60 * SECOND]}),
        (
            ("--backoff=linear", "--backoff-steps=2", "--backoff-min=1s", "--backoff-max=3s", "--max-deliver=3"),
            {"backoff": [SECOND, 2 * SECOND], "max_deliver": 3},
        ),
        (("--deliver=subject",), {"deliver_policy": "last_per_subject", "filter_subject": ">"}),
        (("--pause=2030-01-01 12:00:00",), {"pause_until": "2030-01-01T12:00:00Z"}),
        (
            ("--pinned-groups=a", "--pinned-ttl=1m"),
            {"priority_policy": "pinned_client", "priority_groups": ["a"], "priority_timeout": 60 * SECOND},
        ),
        (("--overflow-groups=a",), {"priority_policy": "overflow", "priority_groups": ["a"]}),
        (("--prioritized-groups=a",), {"priority_policy": "prioritized", "priority_groups": ["a"]}),
    ],
)
def test_a_consumer_is_made_with(consumer, stream, told, flags, wanted):
    shown = printed(consumer("add", stream, "c", *flags))
    assert shown.startswith(f"Consumer c of stream {stream}\n")
    config = told("c")["config"]
    assert config | wanted == config


def test_a_consumer_is_copied_by_its_configuration(consumer, stream, told, tmp_path):
    printed(consumer("add", stream, "c", "--backoff=1s,1m", f"--filter={stream}.new", "--sample=5", "--pause=1h"))
    (tmp_path / "c.json").write_text(printed(consumer("info", stream, "c", "--json")))
    printed(consumer("add", stream, "d", "--config=c.json", "--description=the copy"))
    first, copy = told("c")["config"], told("d")["config"]
    assert copy == {name: first[name] for name in first if name != "pause_until"} | {
        "name": "d",
        "durable_name": "d",
        "description": "the copy",
        "metadata": copy["metadata"],
    }
    assert "nothing to change" in printed(consumer("edit", stream, "c", "--config=c.json", "--force"))


def test_a_configuration_that_can_not_be_used_is_told(consumer, stream, tmp_path):
    bad = {
        "push.json": ('{"name": "x", "deliver_subject": "y"}', "push.json is the configuration of a push consumer"),
        "typo.json": (
            '{"name": "x", "ack_wiat": 5}',
            "typo.json: there is no setting ack_wiat; did you mean",
        ),
        "none.json": ("[]", "none.json is not the configuration of a consumer"),
        "text.json": ("x", "text.json is not valid JSON"),
    }
    for name, (text, said) in bad.items():
        (tmp_path / name).write_text(text)
        assert said in complaint(consumer("add", stream, "c", f"--config={name}"))
    assert "absent.json can't be read" in complaint(consumer("edit", stream, "c", "--config=absent.json"))


def test_adding_what_is_there_changes_nothing(consumer, stream, told):
    printed(consumer("add", stream, "c", "--wait=10s"))
    printed(consumer("add", stream, "c", "--wait=10s"))
    said = complaint(consumer("add", stream, "c", "--wait=99s"))
    assert "exists with another configuration: ack_wait is 10 s, wanted 99 s. Nothing was changed." in said
    assert told("c")["config"]["ack_wait"] == 10 * SECOND


def test_consumers_of_every_kind_are_listed_shown_reported_and_removed(consumer, stream, of_others, natty_commands):
    printed(consumer("add", stream, "billing", "--description=the bills", "--defaults"))
    rows = [line.split() for line in printed(consumer("ls", stream)).splitlines()]
    assert [row[:3] for row in rows[1:]] == [
        ["billing", "durable", "pull"],
        ["fleeting", "ephemeral", "pull"],
        ["push", "durable", "push"],
    ]
    assert printed(consumer("ls", stream, "--names")) == "billing\nfleeting\npush\n"
    assert [one["name"] for one in json.loads(printed(consumer("ls", stream, "-j")))] == ["billing", "fleeting", "push"]
    shown = printed(consumer("info", stream, "push"))
    assert "Delivers to: x.y" in shown
    assert json.loads(printed(consumer("info", stream, "push", "--json")))["num_pending"] == 5

    printed(natty_commands("consumer", "next", stream, "billing", "--count", "2", "--no-ack"))
    report = {line.split()[0]: line for line in printed(consumer("report", stream)).splitlines()}
    assert report["billing"].split()[1:] == ["durable", "pull", "explicit", "30s", "2", "0", "3", "/", "60%", "0"]
    assert "5 / 100%" in report["push"]
    raw = json.loads(printed(consumer("report", stream, "--json")))
    assert (raw["messages"], [one["num_pending"] for one in raw["consumers"]]) == (5, [3, 5, 5])

    for name in ("fleeting", "push"):
        assert printed(consumer("rm", stream, name, "--force")) == f"deleted {name} of stream {stream}\n"
    assert printed(consumer("ls", stream, "-n")) == "billing\n"


def test_only_durable_pull_consumers_are_made_and_changed(consumer, stream, of_others, told):
    wanted = "natty makes durable pull consumers; it lists, shows and removes ephemeral and push consumers"
    ways = {("--ephemeral",): "add --inactive-threshold 5m", ("--target", "x.y"): "`natty sub SUBJECT` prints"}
    for flag, way in ways.items():
        done = consumer("add", stream, "c", *flag)
        assert (done.status, done.out) == (2, "")
        assert wanted in done.err
        assert way in done.err
    for name in ("push", "fleeting"):
        assert wanted in complaint(consumer("edit", stream, name, "--description=x", "--force"))
        assert "description" not in told(name)["config"]


def test_an_edit_shows_what_changes_and_changes_that_alone(consumer, stream, told):
    printed(consumer("add", stream, "c", "--max-pending=50", "--wait=10s"))
    before = told("c")["config"]
    pending = consumer("edit", stream, "c", "--description=new", "--max-pending=10", "--dry-run")
    assert (pending.status, pending.out) == (
        3,
        "~ description is None, wanted 'new'\n! max_ack_pending is 50, wanted 10 (destructive: fast readers stall)\n",
    )
    assert told("c")["config"] == before
    assert "give --force" in consumer("edit", stream, "c", "--description=new").err
    assert told("c")["config"] == before
    done = printed(consumer("edit", stream, "c", "--description=new", "--max-pending=10", "--sample=5", "--force"))
    assert done.endswith(f"changed consumer c of stream {stream}\n")
    assert told("c")["config"] == before | {"description": "new", "max_ack_pending": 10, "sample_freq": "5"}
    assert printed(consumer("edit", stream, "c", "--description=new", "--force")) == (
        f"nothing to change in consumer c of stream {stream}\n"
    )


def test_an_edit_is_judged_with_what_the_consumer_has(consumer, stream, told):
    printed(consumer("add", stream, "c", "--backoff=1s,5s,9s", "--max-deliver=4"))
    assert "ack_wait 20s and a backoff that begins with 1s" in complaint(
        consumer("edit", stream, "c", "--wait=20s", "-f")
    )
    assert "max_deliver 2 is less than the 3 waits" in complaint(consumer("edit", stream, "c", "--max-deliver=2", "-f"))
    printed(consumer("edit", stream, "c", "--backoff=none", "--wait=20s", "--force"))
    config = told("c")["config"]
    assert ("backoff" in config, config["ack_wait"]) == (False, 20 * SECOND)


def test_a_paused_consumer_delivers_nothing_until_it_is_resumed(consumer, stream, told):
    printed(consumer("add", stream, "c"))
    assert "There is no terminal to ask on: give --force" in complaint(consumer("pause", stream, "c", "1h"))
    paused = printed(consumer("pause", stream, "c", "90m", "--force"))
    assert paused.startswith(f"paused c of stream {stream} until 2")
    assert told("c")["paused"] is True
    assert "Paused: until" in printed(consumer("info", stream, "c"))
    said = complaint(consumer("next", stream, "c", "--timeout=50ms"))
    assert said.endswith(f"printed 0 of 1; it is paused until {told('c')['config']['pause_until']}")
    assert printed(consumer("resume", stream, "c", "-f")) == f"resumed c of stream {stream}\n"
    assert json.loads(printed(consumer("next", stream, "c", "--json")))["data"] == "0"
    assert "is not paused" in complaint(consumer("resume", stream, "c", "--force"))
    assert "is in the past by the server's clock" in complaint(consumer("pause", stream, "c", "2020-01-01", "--force"))


BAD_INPUT = {
    ("add", "STREAM", "c", "--filter=elsewhere.>"): "filter elsewhere.> matches nothing that stream STREAM stores",
    ("add", "STREAM", "c", "--filter=STREAM.*", "--filter=STREAM.a"): "filters STREAM.* and STREAM.a overlap",
    ("add", "STREAM", "c", "--backoff=1s,2s,3s", "--max-deliver=2"): "max_deliver 2 is less than the 3 waits",
    ("add", "STREAM", "c", "--backoff=1s,2s", "--wait=30s"): "ack_wait 30s and a backoff that begins with 1s",
    ("add", "STREAM", "c", "--ack=none", "--max-pending=5"): "nothing is ever acknowledged: leave out max_ack_pending",
    ("add", "STREAM", "c", "--max-pending=0"): "max_ack_pending 0 is not possible",
    ("add", "STREAM", "c", "--replicas=3"): "replicas > 1 not supported in non-clustered mode",
    ("add", "STREAM", "a.b"): "consumer name 'a.b': '.' at character 2 is not allowed",
    ("add", "a b", "c"): "stream name 'a b': ' ' at character 2 is not allowed",
    ("info", "STREAMS", "c"): "there is no stream STREAMS; did you mean STREAM",
    ("ls", "STREAMS"): "there is no stream STREAMS; did you mean STREAM",
    ("report", "STREAMS"): "there is no stream STREAMS; did you mean STREAM",
    ("info", "STREAM", "biling"): "there is no consumer biling; did you mean billing?",
    ("edit", "STREAM", "biling", "--wait=1s"): "there is no consumer biling; did you mean billing?",
    ("rm", "STREAM", "biling", "--force"): "there is no consumer biling; did you mean billing?",
    ("pause", "STREAM", "biling", "1h", "--force"): "there is no consumer biling; did you mean billing?",
    ("resume", "STREAM", "biling", "--force"): "there is no consumer biling; did you mean billing?",
    ("next", "STREAM", "biling"): "there is no consumer biling; did you mean billing?",
    ("next", "STREAMS", "billing"): "there is no stream STREAMS; did you mean STREAM",
    ("next", "STREAM", "push"): "consumer push of stream STREAM pushes its messages to x.y: it has no messages to pull",
    ("add", "STREAMS", "c"): "there is no stream STREAMS; did you mean STREAM",
}
MISUSE = {
    ("add", "STREAM"): "CONSUMER is missing, and there is no terminal to ask on",
    ("ls",): "STREAM is missing, and there is no terminal to ask on",
    ("info", "STREAM"): "CONSUMER is missing, and there is no terminal to ask on",
    ("add", "STREAM", "c", "--deliver=soon"): "'soon' is not a start; write all, new, last",
    ("add", "STREAM", "c", "--wait=long"): "'long' is not a duration; write 30s, 1h30m or 7d",
    ("add", "STREAM", "c", "--ack=maybe"): "'maybe' is not one of explicit, all, none",
    ("add", "STREAM", "c", "--backoff=1s,soon"): "'soon' is not a duration",
    ("add", "STREAM", "c", "--metadata=x"): "'x' is not metadata; write it as name=value",
    ("add", "STREAM", "c", "--sample=101"): "--sample",
    ("pause", "STREAM", "billing", "soon"): "'soon' is not a duration",
    ("pause", "STREAM", "billing", "--force"): "UNTIL is missing, and there is no terminal to ask on",
    ("next", "STREAM", "billing", "--ack", "--nak"): "--ack and --nak contradict each other",
    ("next", "STREAM", "billing", "--term", "--in-progress"): "--term and --in-progress contradict each other",
    ("next", "STREAM", "billing", "--delay=3s"): "give --nak, too",
    ("next", "STREAM", "billing", "--reason=x"): "give --term, too",
    ("next", "STREAM", "billing", "--timeout=0"): "'0' is not a duration",
}


def test_bad_input_is_told_in_one_sentence(consumer, stream, of_others):
    printed(consumer("add", stream, "billing"))
    for words, said in BAD_INPUT.items():
        done = consumer(*(word.replace("STREAM", stream) for word in words))
        assert said.replace("STREAM", stream) in complaint(done), words
    for words, said in MISUSE.items():
        done = consumer(*(word.replace("STREAM", stream) for word in words))
        assert (done.status, done.out) == (2, ""), words
        assert said in done.err, words
        assert "Traceback" not in done.err, words
    assert printed(consumer("ls", stream, "--names")) == "billing\nfleeting\npush\n"


def test_what_is_missing_is_asked_for_on_a_terminal(natty_commands, stream, told):
    with Terminal(
        natty_commands.environment, natty_commands.folder, "consumer", "add", stream, "--wait=20s"
    ) as terminal:
        terminal.asks("Consumer:")
        terminal.types("a b")
        terminal.asks("' ' at character 2 is not allowed")
        terminal.types("billing")
        terminal.asks("Start: all, new, last, subject, a sequence, 1h, or a time [all]:")
        terminal.types("soon")
        terminal.asks("'soon' is not a start")
        terminal.types("new")
        terminal.asks("Ack policy [explicit]:")
        terminal.types("2")
        terminal.asks("Replay [instant]:")
        terminal.types("")
        terminal.asks("Subjects to deliver [all]:")
        terminal.types(f"{stream}.new")
        terminal.asks("Maximum deliveries, -1: no limit [-1]:")
        terminal.types("5")
        terminal.asks("Maximum unacknowledged, -1: no limit [1000]:")
        terminal.types("")
        status, out = terminal.ends()
    assert (status, out.splitlines()[0]) == (0, f"Consumer billing of stream {stream}")
    config = told("billing")["config"]
    wanted = {"deliver_policy": "new", "ack_policy": "all", "filter_subject": f"{stream}.new", "ack_wait": 20 * SECOND}
    assert config | wanted | {"max_deliver": 5, "max_ack_pending": 1000} == config


def test_nothing_is_asked_where_all_that_is_needed_was_given(consumer, stream, told):
    printed(consumer("add", stream, "c", typed=[]))
    printed(consumer("info", stream, "c", typed=[]))
    assert told("c")["config"]["deliver_policy"] == "all"


def test_stream_and_consumer_are_chosen_from_those_that_there_are(consumer, stream, of_others):
    done = consumer("rm", stream, typed=["2", "y"])
    assert done.status == 0
    assert done.out.endswith(f"deleted push of stream {stream}\n")
    assert "  1  fleeting" in done.err
    declined = consumer("rm", stream, "fleeting", typed=["n"])
    assert declined.status == 1
    assert printed(consumer("ls", stream, "--names")) == "fleeting\n"


def test_a_server_without_jetstream_is_told_in_one_sentence(consumer, natty_commands, natty_tls, tmp_path):
    with NatsServer(ServerOptions(jetstream=False), tls_files=natty_tls, folder=tmp_path / "nats") as server:
        for words in (
            ("ls", "S"),
            ("info", "S", "c"),
            ("add", "S", "c"),
            ("next", "S", "c"),
            ("pause", "S", "c", "1h", "-f"),
        ):
            assert "JetStream is not enabled on this server or account" in complaint(
                consumer(*words, "--server", server.url)
            )


PERMISSIONS = """
authorization { users: [
  {user: admin, password: admin}
  {user: reader, password: reader,
   permissions: {publish: ["$JS.API.CONSUMER.MSG.NEXT.S.mine", "$JS.ACK.S.mine.>"], subscribe: ["_INBOX.>"]}}
] }
"""


def test_missing_permissions_are_told_in_one_sentence(consumer, natty_commands, natty_tls, tmp_path):
    with NatsServer(ServerOptions(authorization=PERMISSIONS), tls_files=natty_tls, folder=tmp_path / "nats") as server:
        natty_commands.options |= {"servers": [server.url], "user": "admin", "password": "admin"}

        async def make(natty):
            await natty.create_stream("S", subjects=["s"])
            await natty.publish("s", b"hello")
            for name in ("mine", "theirs"):
                await natty.create_consumer("S", name)

        natty_commands.served(make)
        reader = ("--server", server.url, "--user", "reader", "--password", "reader")
        allowed = consumer("next", "S", "mine", "--raw", *reader)
        assert (allowed.status, allowed.out) == (0, "hello\n")
        for words in (("next", "S", "theirs"), ("ls", "S"), ("info", "S", "mine"), ("rm", "S", "mine", "-f")):
            said = complaint(consumer(*words, *reader))
            assert said.startswith("natty: not permitted: Permissions Violation for Publish to"), words
