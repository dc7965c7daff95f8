"""Bad input to `natty stream …`: one clear sentence and an exit status. The commands run in this process."""

import pytest
from command_line import CommandLine
from commands import complaint, printed

from natty.testing import NatsServer, ServerOptions

READER = """
authorization {
  users: [
    {user: admin, password: secret}
    {user: reader, password: secret, permissions: {publish: {allow: ["$JS.API.STREAM.INFO.*", "$JS.API.STREAM.LIST"]}}}
  ]
}
"""


@pytest.fixture(scope="module")
def guarded(natty_tls, nats_server_binary, tmp_path_factory):
    """A server where `reader` may look at streams and do nothing else."""
    folder = tmp_path_factory.mktemp("guarded")
    options = ServerOptions(authorization=READER)
    with NatsServer(options, folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture(scope="module")
def plain(natty_tls, nats_server_binary, tmp_path_factory):
    """A server without JetStream."""
    folder = tmp_path_factory.mktemp("plain")
    options = ServerOptions(jetstream=False)
    with NatsServer(options, folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
def stream(natty_commands):
    """Run `natty stream …`."""
    return lambda *words, **typed: natty_commands("stream", *words, **typed)


@pytest.fixture
def name(stream, natty_name):
    name = natty_name("ORDERS")
    printed(stream("add", name, "--subjects", f"{name}.>", "--storage", "memory"))
    return name


def usage(done):
    """Return the last line of a usage error."""
    assert (done.status, done.out) == (2, "")
    assert "Traceback" not in done.err
    return done.err.rstrip().splitlines()[-1]


EACH = {
    "info": (),
    "edit": ("--max-msgs", "5", "--force"),
    "rm": ("--force",),
    "purge": ("--force",),
    "rm-msg": ("1", "--force"),
    "get": ("1",),
    "copy": ("COPY", "--subjects", "copy.>"),
}


@pytest.mark.parametrize("verb", EACH)
def test_an_unknown_stream_is_told_with_the_nearest_names(stream, name, verb):
    wrong = name.replace("ORDERS", "ORDRES")
    said = complaint(stream(verb, wrong, *EACH[verb]))
    assert said.startswith(f"natty: there is no stream {wrong}; did you mean {name}")
    assert said.endswith("?")


@pytest.mark.parametrize("verb", EACH)
@pytest.mark.parametrize(("bad", "place"), [("OR DERS", "' ' at character 3"), ("OR.DERS", "'.' at character 3")])
def test_a_name_that_is_none_is_told_with_the_position(stream, verb, bad, place):
    assert complaint(stream(verb, bad, *EACH[verb])) == f"natty: stream name {bad!r}: {place} is not allowed"


def test_a_new_name_that_is_none_is_told_with_the_position(stream, name):
    assert complaint(stream("add", "A.B", "--subjects", "a.b")) == (
        "natty: stream name 'A.B': '.' at character 2 is not allowed"
    )
    assert complaint(stream("copy", name, "A B", "--subjects", "a.b")) == (
        "natty: stream name 'A B': ' ' at character 2 is not allowed"
    )


def test_subjects_that_overlap_are_told_with_the_stream_that_has_them(stream, name):
    other = f"{name}_B"
    clash = f"its subjects overlap: {name}.eu with {name}.> of stream {name}"
    assert complaint(stream("add", other, "--subjects", f"{other}.x,{name}.eu")) == f"natty: stream {other}: {clash}"
    printed(stream("add", other, "--subjects", f"{other}.x"))
    edited = stream("edit", other, "--subjects", f"{other}.x,{name}.eu", "--force")
    assert complaint(edited) == f"natty: stream {other}: {clash}"
    copied = stream("copy", name, f"{name}_C", "--subjects", f"{name}.eu")
    assert complaint(copied) == f"natty: stream {name}_C: {clash}"


def test_limits_that_are_impossible_are_told(stream, natty_name):
    name = natty_name("NONE")
    add = ("add", name, "--subjects", f"{name}.>")
    refused = {
        ("--replicas", "3"): f"stream {name}: num_replicas is 3, and this server is not in a cluster: use 1",
        (
            "--max-bytes",
            "4000TB",
        ): f"stream {name}: the server does not have the storage that max_bytes 3.9 PiB reserves",
        (
            "--max-bytes",
            "4000TB",
            "--storage",
            "memory",
        ): f"stream {name}: the server does not have the memory that max_bytes",
        ("--max-age", "1h", "--dupe-window", "2h"): "duplicate_window is 2h and max_age 1h",
        ("--max-msg-size", "4GB"): "max_msg_size is 4 GiB, and a server accepts less than 2 GiB",
        ("--max-age", "10ms"): "max_age is 10ms: the shortest is 100ms",
        ("--replicas", "7"): "num_replicas is 7: write 1 to 5",
        ("--max-msgs", "-5"): "max_msgs is -5: write a limit, or -1 for none",
    }
    for flags, said in refused.items():
        assert complaint(stream(*add, *flags)).startswith(f"natty: {said}"), flags
    assert complaint(stream("info", name)).startswith(f"natty: there is no stream {name}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add",), "Error: STREAM is missing, and there is no terminal to ask on: give it"),
        (("add", "X"), "Error: --subjects is missing, and there is no terminal to ask on: give it"),
        (("info",), "Error: STREAM is missing, and there is no terminal to ask on: give it"),
        (("get", "X"), "Error: SEQUENCE, or --last-for, is missing, and there is no terminal to ask on: give it"),
        (("rm-msg", "X"), "Error: SEQUENCE is missing, and there is no terminal to ask on: give it"),
        (("copy", "X"), "Error: Missing argument 'DESTINATION'."),
        (("get", "X", "1", "--last-for", "x"), "Error: Invalid value: choose one of SEQUENCE and --last-for"),
        (("get", "X", "0"), "Error: Invalid value for 'SEQUENCE': "),
        (("add", "X", "--max-bytes", "1Q"), "'1Q' is not a size; write 512, 64KB or 1GiB"),
        (("add", "X", "--max-age", "soon"), "'soon' is not a duration; write 30s, 1h30m or 7d"),
        (("add", "X", "--storage", "tape"), "'tape' is not one of file, memory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_usage_is_told_in_one_sentence(stream, words, said):
    assert said in usage(stream(*words))


def test_subjects_that_are_none_are_told(stream):
    assert complaint(stream("add", "X", "--subjects", "a..b")) == (
        "natty: subject 'a..b' has an empty token at character 3"
    )
    assert complaint(stream("purge", "X", "--subject", "a b", "--force")) == (
        "natty: subject 'a b': ' ' at character 2 is not allowed"
    )


def test_what_a_stream_denies_is_told(stream, natty_commands, natty_name):
    name = natty_name("KEPT")
    printed(stream("add", name, "--subjects", f"{name}.>", "--deny-delete", "--deny-purge"))
    natty_commands.served(lambda natty: natty.publish(f"{name}.x", b"kept"))
    assert "message delete not permitted" in complaint(stream("rm-msg", name, "1", "--force"))
    assert "stream purge not permitted" in complaint(stream("purge", name, "--force"))
    assert printed(stream("get", name, "1", "--raw")) == "kept\n"


EVERY = [("ls",), ("ls", "-n"), ("report",), ("add", "NEW", "--subjects", "new")] + [
    (verb, "X", *words) for verb, words in EACH.items()
]


def test_a_server_without_jetstream_is_told(plain, tmp_path, monkeypatch, capsys):
    natty = CommandLine(plain.connect_options(), tmp_path, monkeypatch, capsys)
    for words in EVERY:
        assert complaint(natty("stream", *words)) == (
            "natty: JetStream is not enabled on this server or account; put `jetstream {}` into the server's"
            " configuration"
        ), words


def test_missing_permissions_are_told(guarded, tmp_path, monkeypatch, capsys):
    natty = CommandLine(guarded.connect_options(), tmp_path, monkeypatch, capsys)
    admin = ("--user", "admin")
    monkeypatch.setenv("NATS_PASSWORD", "secret")
    printed(natty("stream", "add", "X", "--subjects", "x", *admin))
    natty.options |= {"user": "admin", "password": "secret"}
    natty.served(lambda client: client.publish("x", b"1"))
    for words in EVERY:
        said = natty("stream", *words, "--user", "reader")
        if words[0] in ("info", "report", "ls") and "-n" not in words:
            printed(said)
            continue
        assert complaint(said).startswith("natty: not permitted: "), words
        assert "$JS.API." in complaint(said), words
    missing = natty("stream", "info", "Y", "--user", "reader")  # names may not be asked for: it is told without them
    assert complaint(missing) == "natty: there is no stream Y"
    assert printed(natty("stream", "get", "X", "1", "--raw", *admin)) == "1\n"


@pytest.mark.parametrize(
    ("flag", "setting"), [("--max-bytes", "max_bytes"), ("--max-msgs", "max_msgs"), ("--first-sequence", "first_seq")]
)
def test_a_number_that_no_server_can_hold_is_told_by_its_name(stream, natty_name, flag, setting):
    other = natty_name("HUGE")
    told = complaint(stream("add", other, "--subjects", f"{other}.>", "--defaults", flag, "9" * 23))
    assert told == (
        f"natty: {setting} is {'9' * 23}, more than a server can store: the largest number is 9223372036854775807"
    )
