"""Secrets are shown nowhere, and files that hold some are nobody's to read but their owner's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.pretty import pretty_repr
from secret import write_secret

from capture.archive.encryption import Keys
from capture.archive.signing import PublicKeys, SigningKeys
from capture.cli import app as capture_app
from capture.cli import settings
from capture.config.load import load
from capture.errors import ConfigError, SparkError
from capture.spark.options import read_properties
from capture.stores import check_store, open_store
from capture.stores.file import FileStore
from natty.cli import app as natty_app
from natty.config import secret_files
from natty.config.secret_files import exposure
from natty.config.settings import Config
from natty.config.tls import client_context
from natty.errors import ConfigError as NattyConfigError
from natty.errors import TLSError
from natty.testing import DevCA
from natty.wire.nats_py import _check_login

KEY = f"k:{'A' * 43}="
ROOT = os.getuid() == 0  # as whom this runs, and whose the files are


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_no_secret_is_in_what_a_configuration_shows_of_itself(tmp_path):
    path = tmp_path / "capture.toml"
    write_secret(
        path,
        'stream = "S"\n[store]\nurl = "shelf:Shelf"\npin = "hunter1"\n[nats]\nuser = "me"\npassword = "hunter2"\n'
        '[spark.properties]\n"spark.authenticate.secret" = "hunter3"\n',
    )
    config = load(path, environment={})
    assert config.nats["password"] == "hunter2"
    for shown in (repr(config), str(config), f"{config}", pretty_repr(config), repr([config.spark])):
        assert "hunter" not in shown
    assert "'password': '***'" in repr(config)
    assert "stream='S'" in repr(config)
    assert "spark.authenticate.secret" in repr(config.spark)


FAILING = """
import sys
from typing import Any
from {package}.cli.app import Commands, make_app
from natty.cli.late import Place

def fail() -> None:
    password: Any = "hunter" + "2"
    raise RuntimeError(len(password))

Commands.places["fail"] = Place("__main__:fail", "Fail.")
make_app()(["fail"])
"""


@pytest.mark.parametrize("package", ["natty", "capture"])
def test_a_traceback_has_no_values(package):
    app = {"natty": natty_app, "capture": capture_app}[package].make_app()
    assert app.pretty_exceptions_show_locals is False
    done = subprocess.run([sys.executable, "-c", FAILING.format(package=package)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr
    assert "hunter2" not in done.stderr


# --- who may read a file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666, 0o602, 0o660])
def test_a_file_that_others_may_read_or_change_is_told_with_what_to_do(tmp_path, mode):
    path = write_secret(tmp_path / "key", KEY)
    assert exposure(path) == ""
    path.chmod(mode)
    assert exposure(path) == f"others may read or change it (mode {mode:04o}): chmod 600 {path}"


def test_a_group_may_read_what_is_root_s(tmp_path):
    path = write_secret(tmp_path / "key", KEY)
    path.chmod(0o640)
    assert (exposure(path) == "") is ROOT


def test_what_kubernetes_mounts_may_have_its_modes(tmp_path):
    volume = tmp_path / "volume"
    (volume / "..2026_11_22_18_00_00.123").mkdir(parents=True)
    (volume / "..data").symlink_to("..2026_11_22_18_00_00.123")
    (volume / "key").symlink_to("..data/key")
    write_secret(volume / "..data" / "key", KEY)
    (volume / "key").chmod(0o644)
    assert (exposure(volume / "key") == "") is ROOT
    (tmp_path / "key").symlink_to(volume / "key")
    assert (exposure(tmp_path / "key") == "") is ROOT
    deep = volume / "..data" / "tls" / "key"  # as `items` with a path make it
    deep.parent.mkdir()
    write_secret(deep, KEY).chmod(0o644)
    assert (exposure(deep) == "") is ROOT
    (volume / "key").chmod(0o666)
    assert "mode 0666" in exposure(volume / "key")


@pytest.mark.parametrize("name", ["..", "..hidden", "..2026", "..data", "..2026_11_22_18_00_00.123"])
def test_a_folder_that_only_has_such_a_name_is_no_volume(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    path = write_secret(folder / "key", KEY)
    path.chmod(0o644)
    assert "mode 0644" in exposure(path)


def test_a_mounted_secret_is_the_file_that_is_meant_not_a_path_that_begins_so(tmp_path, monkeypatch):
    mounted = tmp_path / "run" / "secrets"
    mounted.mkdir(parents=True)
    monkeypatch.setattr(secret_files, "ORCHESTRATOR", mounted)
    for path in (mounted / "key", mounted.parent / "key"):
        write_secret(path, KEY).chmod(0o644)
    (mounted.parent / "link").symlink_to(mounted / "key")
    (mounted / "link").symlink_to(mounted.parent / "key")
    assert (exposure(mounted / "key") == "") is (exposure(mounted.parent / "link") == "") is ROOT
    for path in (mounted / ".." / "key", mounted / "link"):
        assert "mode 0644" in exposure(path)


@pytest.mark.skipif(not ROOT, reason="only root can give a file away")
def test_root_may_use_a_file_of_another_owner_who_alone_may_read_it(tmp_path):
    path = write_secret(tmp_path / "key", KEY)
    os.chown(path, 1000, 1000)
    assert exposure(path) == ""
    path.chmod(0o640)
    assert "mode 0640" in exposure(path)


def test_a_pipe_is_not_looked_at():
    ours, theirs = os.pipe()
    try:
        assert exposure(f"/dev/fd/{ours}") == ""
    finally:
        os.close(ours)
        os.close(theirs)


def test_every_file_with_a_secret_is_refused_where_others_may_read_it(tmp_path):
    def exposed(name, content):
        path = write_secret(tmp_path / name, content)
        path.chmod(0o644)
        return str(path)

    key = exposed("keys", KEY)
    for read in (Keys.load, SigningKeys.load):
        with pytest.raises(ConfigError, match=r"the key file .*keys holds secrets, and others may read or change it"):
            read(key)
    assert PublicKeys.load(key)  # these are no secret
    with pytest.raises(ConfigError, match=r"the token file .*tokens holds secrets, and others may"):
        settings.tokens(Path(exposed("tokens", "a token of sixteen")))
    for secret in (
        'password = "x"',
        'token = "x"',
        'servers = "tls://me:x@host"',
        'servers = ["tls://a", "tls://t@b"]',
    ):
        file = exposed("capture.toml", f'stream = "S"\nstore = "lake"\n[nats]\n{secret}\n')
        with pytest.raises(ConfigError, match=r"capture.toml holds secrets \(nats\.\w+\), and others may"):
            load(Path(file), environment={})
    spark = '[spark.properties]\n"spark.authenticate.secret" = "x"\n'
    with pytest.raises(ConfigError, match=r"holds secrets \(spark\.properties\.spark\.authenticate\.secret\)"):
        load(Path(exposed("capture.toml", f'stream = "S"\nstore = "lake"\n{spark}')), environment={})
    own = 'url = "shelf:Shelf"'
    for secret, name in (
        (f'{own}\npassword = "x"', "store.password"),
        (f'{own}\napi_key = "x"', "store.api_key"),
        (f'{own}\ndsn = "db://me:x@host"', "store.dsn"),
        ('url = "shelf:Shelf?token=x"', "store.url"),
    ):
        file = exposed("capture.toml", f'stream = "S"\n[store]\n{secret}\n')
        with pytest.raises(ConfigError, match=rf"capture.toml holds secrets \({name}\), and others may"):
            load(Path(file), environment={})
    with pytest.raises(ConfigError, match=r"capture.toml holds secrets \(store\), and others may"):
        load(Path(exposed("capture.toml", 'stream = "S"\nstore = "shelf:Shelf?pwd=x"\n')), environment={})
    harmless = f'{own}\nfile = "/lake.db"\npassword_file = "p"\nkeyspace = "k"\nat = "https://host/a"'
    assert load(Path(exposed("capture.toml", f'stream = "S"\n[store]\n{harmless}\n')), environment={}).stream == "S"
    plain = exposed("capture.toml", 'stream = "S"\nstore = "lake"\n[nats]\nservers = "tls://host"\nuser = "me"\n')
    assert load(Path(plain), environment={}).stream == "S"
    with pytest.raises(SparkError, match=r"holds secrets \(spark.authenticate.secret\), and others may"):
        read_properties(exposed("spark.conf", "spark.authenticate.secret x\n"))
    files = DevCA.create().write(tmp_path / "tls")
    files.client_key.chmod(0o644)
    with pytest.raises(TLSError, match=r"The key .* is private, and others may read or change it \(mode 0644\): chmod"):
        client_context(ca=files.ca, cert=files.client_cert, key=files.client_key)
    for kind, name in (("credentials file", "creds"), ("nkey file", "nkey")):
        with pytest.raises(NattyConfigError, match=f"the {kind} .* holds a secret, and others may"):
            _check_login(Config(**{name: exposed(name, "SUA")}))


@pytest.mark.parametrize(("kind", "name"), [("credentials file", "creds"), ("nkey file", "nkey")])
def test_a_login_that_can_not_be_read_is_an_error_in_a_sentence(tmp_path, kind, name):
    (tmp_path / "round").symlink_to(tmp_path / "round")
    (tmp_path / "folder").mkdir()
    for path, said in {
        "missing": f"there is no {kind}",
        "folder": f"there is no {kind}",
        "folder/missing/too": f"there is no {kind}",
        "x" * 300: f"the {kind} .* can't be read: File name too long; check its path",
        "round": f"the {kind} .* can't be read: Too many levels of symbolic links",
    }.items():
        with pytest.raises(NattyConfigError, match=said):
            _check_login(Config(**{name: str(tmp_path / path)}))


WITHOUT_RIGHTS = """
import os, sys
from natty.config.settings import Config
from natty.wire.nats_py import _check_login
if os.geteuid() == 0:
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        _check_login(Config(creds=path))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_login_in_a_folder_that_we_may_not_search_is_an_error_in_a_sentence(tmp_path):
    file, within = tmp_path / "creds", tmp_path / "shut" / "creds"
    within.parent.mkdir()
    for one in (file, within):
        one.touch()
        one.chmod(0)
    within.parent.chmod(0)
    try:
        command = [sys.executable, "-c", WITHOUT_RIGHTS, file, within]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    finally:
        within.parent.chmod(0o700)
    denied = "ConfigError the credentials file {} can't be read: Permission denied; check its permissions"
    assert said == [denied.format(file), denied.format(within)]


# --- files that we write ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "said"),
    [(0o644, "other users can read the file that the key is written to (mode 0644): chmod 600"), (0o600, "")],
)
def test_who_puts_a_new_key_into_a_file_that_others_may_read_is_told(tmp_path, mode, said):
    path = write_secret(tmp_path / "key", "")
    path.chmod(mode)
    with path.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "capture", "keys", "new", "mine"], stdout=file, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 0
    assert done.stderr.count("\n") == bool(said)
    assert said in done.stderr
    assert path.read_text().startswith("mine:")


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("private", [True, False])
async def test_a_private_store_s_files_are_its_user_s_alone_whatever_the_umask(tmp_path, private):
    url = f"{(tmp_path / 'a lake').as_uri()}?private={str(private).lower()}"
    store = open_store(url)
    assert isinstance(store, FileStore)
    assert open_store(store.url).private is private  # as executors open it
    (tmp_path / "content").write_bytes(b"from a file")
    await store.put("a/b/one", b"1")
    await store.put("a/b/one", b"2", if_absent=False)
    await store.put("a/two", tmp_path / "content")
    found = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "a lake").rglob("*")}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600 if private else 0o666}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700 if private else 0o777}
    assert (tmp_path / "a lake").stat().st_mode & 0o777 == (0o700 if private else 0o777)


async def test_a_private_store_keeps_what_every_store_promises(tmp_path):
    await check_store(open_store(f"{tmp_path.as_uri()}?private=true"))


def test_the_configuration_makes_a_store_private(tmp_path):
    def config(lines):
        return load(write_secret(tmp_path / "capture.toml", f'stream = "S"\n[store]\n{lines}\n'), environment={})

    for url in (str(tmp_path / "a lake"), (tmp_path / "a lake").as_uri()):
        opened = open_store(config(f'url = "{url}"\nprivate = true').store)
        assert (opened.root, opened.private) == (tmp_path / "a lake", True)
        assert not open_store(config(f'url = "{url}"\nprivate = false').store).private
    for lines, said in (
        ('url = "s3://lake"\nprivate = true', "private"),
        ('url = "memory://lake"\nprivate = true', "private: for a folder only"),
        ('url = "/lake"\nprivate = 3', "`private` is true or false, not 3"),
        ('url = "/lake"\nregion = "eu"', "region: for s3://"),
    ):
        with pytest.raises(ConfigError, match=said):
            config(lines)
    with pytest.raises(ConfigError, match="is private=true, or empty"):
        open_store("file:///lake?privat=true")
