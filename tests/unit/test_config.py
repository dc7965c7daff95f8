import json

import pytest

from natty.config import Config, beside, redact, resolve
from natty.errors import ConfigError


@pytest.fixture
def home(tmp_path):
    """A nats context folder, and the environment that points to it."""
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    return folder, {"XDG_CONFIG_HOME": str(tmp_path)}


def test_defaults_are_used_when_nothing_is_said(home):
    assert resolve(environment=home[1]) == Config()


def test_keyword_beats_environment_beats_context_beats_default(home):
    folder, environment = home
    (folder / "dev.json").write_text(json.dumps({"url": "nats://c:1", "user": "context", "ca": "/context.pem"}))
    environment |= {"NATS_CONTEXT": "dev", "NATS_USER": "environment", "NATS_CA": ""}
    config = resolve({"servers": "tls://k:1", "user": None}, environment=environment)
    assert (config.servers, config.user, config.tls_ca) == (("tls://k:1",), "environment", "/context.pem")


def test_the_selected_context_is_read_when_none_is_named(home, tmp_path):
    folder, environment = home
    (tmp_path / "nats" / "context.txt").write_text("prod\n")
    (folder / "prod.json").write_text(json.dumps({"url": "tls://a:1,tls://b:2", "tls_first": True}))
    config = resolve(environment=environment)
    assert (config.servers, config.tls_first) == (("tls://a:1", "tls://b:2"), True)


def test_a_missing_or_broken_context_is_named(home):
    folder, environment = home
    with pytest.raises(ConfigError, match=r"nats context 'nope' can't be read: .*nope\.json"):
        resolve(environment=environment, context="nope")
    (folder / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match=r"bad\.json is broken"):
        resolve(environment=environment, context="bad")


def test_an_unknown_setting_is_named_with_those_there_are(home):
    with pytest.raises(ConfigError, match=r"unknown setting serverz; there are: .*servers"):
        resolve({"serverz": "x"}, environment=home[1])


@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
@pytest.mark.parametrize(("text", "seconds"), [("5s", 5.0), ("500ms", 0.5), ("1.5m", 90.0), ("7", 7.0)])
def test_a_timeout_in_the_environment_has_a_unit(home, name, text, seconds):
    assert getattr(resolve(environment=home[1] | {f"NATS_{name.upper()}": text}), name) == seconds


@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
def test_a_timeout_that_is_none_is_refused(home, name):
    with pytest.raises(ConfigError, match=rf"^{name} \(NATS_{name.upper()}\) is 'soon'.*write 5s"):
        resolve(environment=home[1] | {f"NATS_{name.upper()}": "soon"})


def test_several_urls_may_be_a_list_or_have_commas(home):
    assert resolve({"servers": " a:1, tls://b:2 ,"}, environment=home[1]).servers == ("nats://a:1", "tls://b:2")
    assert resolve({"servers": ["a:1"]}, environment=home[1]).servers == ("nats://a:1",)
    with pytest.raises(ConfigError, match="no server URL"):
        resolve({"servers": ","}, environment=home[1])


def test_a_home_folder_in_a_path_is_expanded(home, monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert resolve({"tls_ca": "~/ca.pem"}, environment=home[1]).tls_ca == "/somewhere/ca.pem"


def test_no_secret_shows_in_a_repr():
    config = Config(servers=("tls://ann:hunter2@a:1",), user="ann", password="hunter2", token="t0ken", tls_ca="/ca.pem")
    assert repr(config) == "Config(tls://***@a:1, TLS required)"
    assert redact("nats://ann:p/w@d@host:1") == "nats://***@host:1"


def test_a_discovered_server_is_reached_as_the_first_one_was():
    assert beside("tls://ann:pw@a:1", "10.0.0.2:4222") == "tls://ann:pw@10.0.0.2:4222"
    assert beside("nats://a:1", "[::1]:4222") == "nats://[::1]:4222"


@pytest.mark.parametrize(
    ("settings", "required"),
    [
        ({}, False),
        ({"servers": ("nats://a:1", "tls://b:1")}, True),
        ({"tls_ca": "/ca.pem"}, True),
        ({"tls_first": True}, True),
        ({"tls": True}, True),
    ],
)
def test_tls_is_required_when_anything_asks_for_it(settings, required):
    assert Config(**settings).tls_required is required


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_cert": "/c.pem"}, "needs its key"),
        ({"tls_key": "/k.pem"}, "needs its key"),
        ({"tls": False, "tls_ca": "/ca.pem"}, "contradict"),
        ({"servers": ("wss://ann:pw@a:1",)}, r"wss://\*\*\*@a:1: only nats:// and tls://"),
        ({"servers": ("tls://ann:pw@a:client",)}, r"tls://\*\*\*@a:client names no host and port; write tls://"),
        ({"servers": ("nats://",)}, "nats:// names no host and port"),
        ({"servers": ("tls://[::1",)}, r"tls://\[::1 names no host and port"),
    ],
)
def test_a_configuration_that_can_not_work_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Config(**settings)


def test_tls_off_and_a_tls_url_contradict_each_other():
    with pytest.raises(ConfigError, match="contradict"):
        Config(servers=("tls://a:1",), tls=False)


@pytest.mark.parametrize("given", [{"servers": 3}, {"servers": [3]}, {"user": 3}, {"timeout": "soon"}])
def test_a_value_of_the_wrong_kind_is_named(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        resolve(given, environment={})
