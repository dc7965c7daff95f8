"""How a streaming query reaches NATS: options without secrets, and variables with them."""

import pytest

from capture.errors import ConfigError
from capture.spark.connection_options import write_options
from capture.spark.jetstream.source_options import ReadOptions
from natty.config.settings import resolve

LINK = {"servers": ["tls://a:4222", "tls://b:4222"], "tls_ca": "/etc/ca.pem", "timeout": "7s", "tls_first": True}


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No variables and no contexts of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NATS_URL", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN", "NATS_CREDS", "NATS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def test_options_mean_the_same_connection():
    options, variables = write_options(LINK | {"creds": "a.creds", "domain": "hub", "inbox_prefix": "_INBOX_x"})
    read = ReadOptions.of(options | {"stream": "S"})
    wanted = resolve(LINK | {"creds": options["credentials"], "domain": "hub", "inbox_prefix": "_INBOX_x"})
    assert resolve(read.nats) == wanted
    assert options["credentials"].startswith("/"), "Spark's processes have another folder"
    assert variables == {}


def test_secrets_are_only_in_variables(monkeypatch):
    monkeypatch.setenv("NATS_PASSWORD", "hunter2")
    options, variables = write_options(LINK | {"user": "me"})
    assert variables == {"NATS_USER": "me", "NATS_PASSWORD": "hunter2"}
    assert "hunter2" not in repr(options)
    assert write_options(LINK | {"token": "t0k"})[1] == {"NATS_TOKEN": "t0k", "NATS_PASSWORD": "hunter2"}


@pytest.mark.parametrize("own", [{"Credentials": "/etc/follower.creds"}, {"nkey": "/etc/follower.nk"}])
def test_a_user_of_its_own_replaces_that_of_the_node(own):
    options, variables = write_options(LINK | {"creds": "/etc/node.creds", "user": "me", "password": "hunter2"}, own)
    assert variables == {}
    assert "/etc/node.creds" not in options.values()
    assert set(own.values()) <= set(options.values())
    assert options["tlsCa"] == "/etc/ca.pem"


def test_a_context_of_its_own_replaces_everything():
    assert write_options(LINK | {"user": "me"}, {"context": "follower"}) == ({"context": "follower"}, {})


def test_tls_is_never_lost():
    options, _ = write_options({"servers": "a:4222", "tls": True})
    assert resolve(ReadOptions.of(options | {"stream": "S"}).nats).tls_required


@pytest.mark.parametrize(
    ("given", "own", "said"),
    [
        ({"servers": "nats://me:hunter2@a:4222"}, {}, r"nats://\*\*\*@a:4222 has a login"),
        ({"user_jwt": lambda: "x"}, {}, "can't connect with the setting user_jwt"),
        ({"token": lambda: "x"}, {}, "a token that a function returns"),
        ({"ignore_discovered_servers": True}, {}, "ignore_discovered_servers"),
        ({}, {"password": "hunter2"}, "there is no option password; there are apiPrefix"),
    ],
)
def test_what_no_option_can_have_is_refused_without_showing_it(given, own, said):
    with pytest.raises(ConfigError, match=said) as error:
        write_options(LINK | given, own)
    assert "hunter2" not in str(error.value)
