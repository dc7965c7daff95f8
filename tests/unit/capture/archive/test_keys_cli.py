"""`capture keys`, and `capture head` without a server."""

import asyncio
import base64
import json

import pytest
from archived import KEYS, SIGNER, Archived
from secret import write_secret
from typer.testing import CliRunner

from capture.archive.encryption import Keys
from capture.archive.signing import PublicKeys, SigningKeys
from capture.cli.app import make_app
from capture.errors import ConfigError


@pytest.fixture
def run(monkeypatch):
    """Run a command and return what it prints; its error is raised."""
    monkeypatch.delenv("CAPTURE_SIGNING_KEYS", raising=False)

    def run(*arguments):
        return CliRunner().invoke(make_app(), [*map(str, arguments)], catch_exceptions=False).stdout

    return run


def test_a_new_key_encrypts_and_signs_and_no_two_are_the_same(run):
    one, other = run("keys", "new", "mine"), run("keys", "new", "mine")
    assert one.startswith("mine:")
    assert one != other
    assert repr(Keys.parse(one, "here")) == "Keys(mine)"
    assert len(base64.b64decode(one.partition(":")[2])) == 32


@pytest.mark.parametrize("name", ["", "a b", "a:b", "#a"])
def test_a_name_that_a_key_file_could_not_hold_is_refused(run, name):
    with pytest.raises(ConfigError, match="can't be the name of a key"):
        run("keys", "new", name)


def test_the_public_keys_of_a_key_file_verify_what_it_signs(run, tmp_path):
    write_secret(tmp_path / "keys", "".join(run("keys", "new", name) for name in ("new", "old")))
    (tmp_path / "capture.toml").write_text(f'signing_key_file = "{tmp_path / "keys"}"\n')
    (tmp_path / "public").write_text(run("keys", "public", "--config", tmp_path / "capture.toml"))
    signed = SigningKeys.load(str(tmp_path / "keys")).sign("orders", "p", b'{"a":1}')
    PublicKeys.load(str(tmp_path / "public")).check("orders", "p", signed)


def test_without_a_key_there_is_no_public_one(run):
    with pytest.raises(ConfigError, match="set signing_key_file or CAPTURE_SIGNING_KEYS"):
        run("keys", "public")


def test_the_variable_of_signing_keys_is_no_unknown_setting(run, monkeypatch):
    monkeypatch.setenv("CAPTURE_SIGNING_KEYS", "mine:" + base64.b64encode(bytes(range(32))).decode())
    [(name, key)] = KEYS.public.lines().items()
    assert run("keys", "public") == f"{name}:{key}\n"


def test_the_newest_documents_of_an_archive_are_its_heads(run, tmp_path):
    archived = asyncio.run(Archived(SIGNER, folder=tmp_path).make())
    printed = [json.loads(line) for line in run("head", "--offline", "--store", tmp_path).splitlines()]
    committed = [state.head for state in archived.heads.values()]
    assert [(one["path"], one["sha256"]) for one in printed] == [(one.path, one.sha256) for one in committed]
