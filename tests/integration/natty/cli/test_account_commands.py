import json

import pytest
from accounts import Operator
from command_line import CommandLine
from commands import printed
from patient import NEVER

from natty.testing import NatsServer, ServerOptions

LIMITED = """
accounts {
  SHOP {
    users: [
      {user: clerk, password: clerk, permissions: {publish: {allow: ["$JS.API.INFO", "$SYS.REQ.USER.INFO", "orders.>"],
       deny: "orders.secret"}}}
      {user: mute, password: mute, permissions: {publish: "nothing"}}
    ]
    jetstream: {max_memory: 2MB, max_store: 100MB, max_streams: 5, max_consumers: 7, max_ack_pending: 500}
  }
}
"""
TIERED = {
    "tiered_limits": {
        "R1": {"mem_storage": 2048, "disk_storage": 1 << 30, "streams": 4, "consumer": 9},
        "R3": {"mem_storage": 0, "disk_storage": -1, "streams": 6, "consumer": -1},
    }
}


@pytest.fixture
def server_of(natty_tls, tmp_path, monkeypatch, capsys):
    """Return a function that starts a server and returns the commands that talk to it."""
    started = []

    def start(**options):
        server = NatsServer(ServerOptions(**options), tls_files=natty_tls, folder=tmp_path / "nats")
        started.append(server.__enter__())
        return CommandLine(server.connect_options(), tmp_path, monkeypatch, capsys)

    yield start
    for server in started:
        server.__exit__(None, None, None)


def rows(shown):
    """Return the words of each line, by the first two."""
    return {tuple(line.split()[:2]): line.split()[2:] for line in shown.splitlines() if len(line.split()) > 2}


def test_use_and_limits_of_the_account_are_shown_with_the_connection(server_of):
    natty = server_of(authorization=LIMITED)
    shown = printed(natty("account", "info", "--user", "clerk", "--password", "clerk"))
    facts = dict(line.strip().split(": ", 1) for line in shown.splitlines() if ": " in line)
    assert (facts["User"], facts["Account"], facts["Server"]) == ("clerk", "SHOP", "natty, " + facts["Server"][7:])
    assert facts["May publish"] == "$JS.API.INFO, $SYS.REQ.USER.INFO, orders.>; not orders.secret"
    assert facts["TLS"] == "yes, natty-server by natty test CA"
    assert facts["Round trip"].endswith(" ms")
    assert facts["Largest message"] == "1 MiB"
    assert int(facts["API level"]) >= 1
    assert rows(shown)["all", "memory"] == ["0", "B", "2", "MiB", "0%"]
    assert rows(shown)["all", "storage"] == ["0", "B", "100", "MiB", "0%"]
    assert rows(shown)["all", "streams"] == ["0", "5", "0%"]
    assert rows(shown)["all", "consumers"] == ["0", "7", "0%"]


def test_what_is_used_is_counted(natty_commands, natty_name):
    async def make(natty):
        await natty.create_stream(natty_name("USED"))

    natty_commands.served(make)
    told = json.loads(printed(natty_commands("account", "info", "--json")))
    assert told["jetstream"]["streams"] >= 1
    assert told["jetstream"]["limits"]["max_streams"] == -1
    assert (told["why_not"], told["user"]["account"], told["connection"]["tls"]) == ("", "$G", True)
    assert 0 < told["connection"]["round_trip_seconds"] < 60
    assert rows(printed(natty_commands("account", "info")))["all", "streams"][1:] == ["no", "limit"]


def test_an_account_with_tiers_is_shown_tier_by_tier(server_of, tmp_path):
    operator = Operator(TIERED)
    creds = operator.credentials(tmp_path / "user.creds", seconds=NEVER)
    natty = server_of(config=operator.config)
    natty.options |= {"creds": str(creds)}
    natty.served(lambda client: client.create_stream("S", storage="memory"))
    found = rows(printed(natty("account", "info", "--creds", creds)))
    assert found["R1", "memory"] == ["0", "B", "2", "KiB", "0%"]
    assert found["R1", "storage"] == ["0", "B", "1", "GiB", "0%"]
    assert found["R3", "storage"] == ["0", "B", "no", "limit"]
    assert (found["R1", "streams"], found["R3", "streams"]) == (["1", "4", "25%"], ["0", "6", "0%"])


def test_a_server_without_jetstream_is_shown_all_the_same(server_of):
    natty = server_of(jetstream=False)
    shown = printed(natty("account", "info"))
    assert "Server: natty, 2." in shown
    assert "Not available: JetStream is not enabled on this server or account" in shown
    told = json.loads(printed(natty("account", "info", "--json")))
    assert (told["jetstream"], told["connection"]["server"]) == ({}, "natty")


def test_who_may_not_ask_is_told_in_one_sentence(server_of):
    natty = server_of(authorization=LIMITED)
    done = natty("account", "info", "--user", "mute", "--password", "mute")
    lines = [line for line in done.err.splitlines() if not line.startswith("20")]
    assert (done.status, done.out, len(lines)) == (1, "", 1)
    assert lines[0].startswith('natty: not permitted: Permissions Violation for Publish to "$JS.API.INFO"')


def test_a_subscription_that_is_not_permitted_is_told_instead_of_waiting(server_of):
    natty = server_of(
        authorization='authorization { users: [{user: a, password: a, permissions: {subscribe: "_INBOX.>"}}]}'
    )
    done = natty("sub", "secret.>", "--user", "a", "--password", "a")
    assert (done.status, done.out, "subscribed" in done.err) == (1, "", False)
    assert "natty: not permitted: this user may not subscribe to 'secret.>'" in done.err
