import json
import ssl

import pytest
from secret import write_secret

from natty.config.settings import Config, beside, redact, resolve
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
    config = resolve({"servers": "tls://k:1", "user": None}, environment=environment, context="dev")
    assert (config.servers, config.user, config.tls_ca) == (("tls://k:1",), "environment", "/context.pem")


def test_the_selected_context_is_read_when_none_is_named(home, tmp_path):
    folder, environment = home
    (tmp_path / "nats" / "context.txt").write_text("prod\n")
    (folder / "prod.json").write_text(json.dumps({"url": "tls://a:1,tls://b:2", "tls_first": True}))
    config = resolve(environment=environment)
    assert (config.servers, config.tls_first) == (("tls://a:1", "tls://b:2"), True)


SELECTED = {"url": "tls://s:1", "user": "sue", "password": "secret", "ca": "/s.pem", "cert": "/c.pem", "key": "/k.pem"}
NAMED = {"url": "tls://n:1", "user": "ned", "password": "secret"}


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, ("tls://s:1", "sue")),
        ({"NATS_CONTEXT": "named"}, ("tls://n:1", "ned")),
        ({"NATS_URL": "nats://e:1"}, ("nats://e:1", "")),
        ({"NATS_URL": "nats://e:1", "NATS_CONTEXT": "named"}, ("nats://e:1", "ned")),
        ({"servers": "nats://k:1"}, ("nats://k:1", "")),
        ({"servers": "nats://k:1", "NATS_CONTEXT": "named"}, ("nats://k:1", "")),
        ({"servers": "nats://k:1", "NATS_URL": "nats://e:1", "NATS_CONTEXT": "named"}, ("nats://k:1", "")),
        ({"servers": "nats://k:1", "context": "named"}, ("nats://k:1", "ned")),
        ({"NATS_URL": "nats://e:1", "context": "named"}, ("nats://e:1", "ned")),
        ({"context": "named", "NATS_CONTEXT": "prod"}, ("tls://n:1", "ned")),
        ({"servers": "nats://k:1", "NATS_USER": "eve"}, ("nats://k:1", "eve")),
    ],
)
def test_a_server_that_is_named_gets_no_credentials_of_a_context_that_is_less_so(home, tmp_path, named, expected):
    folder, environment = home
    (tmp_path / "nats" / "context.txt").write_text("prod\n")
    write_secret(folder / "prod.json", json.dumps(SELECTED))
    write_secret(folder / "named.json", json.dumps(NAMED))
    environment |= {name: value for name, value in named.items() if name.isupper()}
    explicit = {"servers": named.get("servers")}
    config = resolve(explicit, environment=environment, context=named.get("context"))
    assert (*config.servers, config.user) == expected
    assert bool(config.password) == (config.user in ("sue", "ned"))
    assert bool(config.tls_ca) == bool(config.tls_cert) == (config.user == "sue")


def test_a_selected_context_that_is_broken_does_not_matter_where_a_server_is_named(home, tmp_path):
    (tmp_path / "nats" / "context.txt").write_text("prod\n")
    with pytest.raises(ConfigError, match="'prod' can't be read"):
        resolve(environment=home[1])
    assert resolve({"servers": "nats://k:1"}, environment=home[1]).servers == ("nats://k:1",)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("$TLS/ca.pem", "/etc/tls/ca.pem"),
        ("${TLS}/ca.pem", "/etc/tls/ca.pem"),
        ("${TLS}${EMPTY}/$NAME.pem", "/etc/tls/ca.pem"),
        ("file:///etc/ca.pem", "/etc/ca.pem"),
        ("file://$TLS/ca.pem", "/etc/tls/ca.pem"),
        ("~/ca.pem", "/somewhere/ca.pem"),
        ("file://~/ca.pem", "/somewhere/ca.pem"),
        ("/a$/ca.pem", "/a$/ca.pem"),
    ],
)
def test_the_paths_of_a_context_are_expanded(home, monkeypatch, written, read):
    folder, environment = home
    monkeypatch.setenv("HOME", "/somewhere")
    write_secret(folder / "c.json", json.dumps({"ca": written, "creds": written, "password": "$TLS"}))
    environment |= {"TLS": "/etc/tls", "NAME": "ca", "EMPTY": ""}
    config = resolve(environment=environment, context="c")
    assert (config.tls_ca, config.creds, config.password) == (read, read, "$TLS")


def test_a_variable_in_a_context_that_is_not_set_is_named(home):
    (home[0] / "c.json").write_text(json.dumps({"ca": "$NOWHERE/ca.pem"}))
    with pytest.raises(ConfigError, match=r"the ca of .*c\.json is \$NOWHERE/ca\.pem, and the variable NOWHERE is not"):
        resolve(environment=home[1], context="c")


@pytest.mark.parametrize(
    "key", ["socks_proxy", "user_jwt", "user_seed", "nsc", "windows_cert_store", "windows_ca_certs_match"]
)
def test_a_setting_of_a_context_that_natty_can_not_honour_is_refused(home, key):
    (home[0] / "c.json").write_text(json.dumps({"url": "nats://a:1", key: "localhost:1080"}))
    with pytest.raises(ConfigError, match=rf"c\.json sets {key}, which natty does not support: \S+"):
        resolve(environment=home[1], context="c")
    (home[0] / "c.json").write_text(json.dumps({"url": "nats://a:1", key: ""}))
    assert resolve(environment=home[1], context="c").servers == ("nats://a:1",)


@pytest.mark.parametrize(
    "reference", ["op://vault/item/field", "env://NATS_PW", "data:;base64,c2VjcmV0", "nsc://o/a/u"]
)
@pytest.mark.parametrize("key", ["password", "token", "creds", "nkey", "ca"])
def test_a_reference_to_a_secret_is_refused_and_never_sent_as_it_is_written(home, key, reference):
    (home[0] / "c.json").write_text(json.dumps({key: reference}))
    with pytest.raises(ConfigError, match=rf"the {key} of nats context .*c\.json is a reference, \w+:…") as caught:
        resolve(environment=home[1], context="c")
    assert reference not in str(caught.value)
    assert (f"NATS_{key.upper()}" in str(caught.value)) == (key != "ca")


@pytest.mark.parametrize(
    ("secret", "named"),
    [
        ({"password": "x", "token": "y"}, r"password, token"),
        ({"token": "y"}, "token"),
        ({"url": "nats://t@a:1"}, "url"),
        ({"url": "nats://a:1,nats://me:x@b:1"}, "url"),
    ],
)
def test_a_context_with_a_secret_that_others_may_read_is_refused(home, secret, named):
    file = write_secret(home[0] / "c.json", json.dumps({"user": "me", **secret}))
    resolve(environment=home[1], context="c")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=rf"c\.json holds secrets \({named}\), and others may .*mode 0644.*chmod 600"):
        resolve(environment=home[1], context="c")
    file.write_text(json.dumps({"user": "me", "url": "nats://a:1", "creds": "/a.creds", "password": ""}))
    assert resolve(environment=home[1], context="c").user == "me"


def test_a_setting_of_a_context_that_natty_does_not_know_is_logged(home, caplog):
    (home[0] / "c.json").write_text(
        json.dumps({"description": "x", "color_scheme": "red", "new_thing": "y", "old": ""})
    )
    resolve(environment=home[1], context="c")
    (record,) = caplog.records
    assert "sets new_thing, which natty does not know: natty ignores it" in record.getMessage()


def test_a_missing_or_broken_context_is_named(home):
    folder, environment = home
    with pytest.raises(ConfigError, match=r"nats context 'nope' can't be read: .*nope\.json"):
        resolve(environment=environment, context="nope")
    (folder / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match=r"bad\.json is broken"):
        resolve(environment=environment, context="bad")
    (folder / "bad.json").write_bytes(b'{"url": "\xff"}')
    with pytest.raises(ConfigError, match=r"bad\.json is broken"):
        resolve(environment=environment, context="bad")


def test_a_selection_of_a_context_that_can_not_be_read_is_named(home, tmp_path):
    (tmp_path / "nats" / "context.txt").write_bytes(b"pr\xffd")
    with pytest.raises(ConfigError, match=r"context\.txt, which names the nats context, is not UTF-8"):
        resolve(environment=home[1])
    with pytest.raises(ConfigError, match=r"context\.txt, which names the nats context, can't be read: File name too"):
        resolve(environment=home[1] | {"XDG_CONFIG_HOME": "/" + 300 * "x"})


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


@pytest.mark.parametrize("name", ["inbox_prefix", "domain", "api_prefix"])
@pytest.mark.parametrize("text", ["a.", ".a", "a..b", "a.*", ">", "a b", "a\r\nPUB x 1\r\ny", "a\x00"])
def test_a_prefix_that_no_subject_can_begin_with_is_refused(name, text):
    with pytest.raises(ConfigError, match=f"{name} can't be the beginning of a subject"):
        resolve({name: text}, environment={}, context=None)


def test_answers_need_an_inbox_prefix_and_the_api_needs_none_of_its_own():
    assert resolve({"domain": "", "api_prefix": ""}, environment={}).domain == ""
    with pytest.raises(ConfigError, match="inbox_prefix"):
        resolve({"inbox_prefix": ""}, environment={})


def test_a_context_is_not_given_beside_files_for_the_same(home):
    context = ssl.create_default_context()
    assert resolve({"ssl_context": context}, environment=home[1]).tls_required
    with pytest.raises(ConfigError, match=r"^ssl_context and tls_ca \(NATS_CA in the environment\) exclude each other"):
        resolve({"ssl_context": context}, environment=home[1] | {"NATS_CA": "/ca.pem"})
    with pytest.raises(ConfigError, match=r"^ssl_context and tls_cert \(NATS_CERT in the environment\)"):
        Config(ssl_context=context, tls_cert="a.pem", tls_key="b.pem")
    with pytest.raises(ConfigError, match="tls=False and ssl_context contradict each other"):
        Config(ssl_context=context, tls=False)


@pytest.mark.parametrize("setting", ["check_hostname", "verify_mode"])
def test_a_context_that_does_not_verify_the_server_is_refused(setting):
    context = ssl.create_default_context()
    context.check_hostname = False
    if setting == "verify_mode":
        context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ConfigError, match="ssl_context does not verify the server: it needs verify_mode"):
        Config(ssl_context=context)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"token": 5}, "token must be a text, or a function that returns it and is of type int"),
        ({"user_jwt": "ey…"}, "user_jwt must be a function and is of type str"),
        ({"sign_nonce": bytes}, "sign_nonce signs for a JWT: give user_jwt, too"),
        ({"ssl_context": "ca.pem"}, "ssl_context must be an ssl.SSLContext and is of type str"),
        ({"user_jwt": str, "creds": "a.creds"}, r"user_jwt and creds \(NATS_CREDS in the environment\) exclude"),
        ({"user_jwt": str, "nkey": "a.nk"}, r"user_jwt and nkey \(NATS_NKEY in the environment\) exclude"),
    ],
)
def test_callbacks_are_functions_and_contradict_no_file(settings, text):
    with pytest.raises(ConfigError, match=text):
        resolve(settings, environment={"HOME": "/none"})
