"""A store of the user, `module:function`: opened by its URL, kept to the contract, and refused in one sentence."""

import subprocess
import sys
from types import ModuleType

import pytest

from capture.archive.iceberg_state import is_reachable
from capture.cli.config import redact_value
from capture.config.load import load
from capture.config.streams import below
from capture.errors import AlreadyStoredError, ConfigError, NotStoredError, StoreError
from capture.stores import FileStore, MemoryStore, OwnStore, check_store, open_store
from capture.stores.open import explain_unopenable
from capture.stores.own_store import guard, opening_url

SHELF = MemoryStore("shelf")


class Failing(MemoryStore):
    async def get(self, path):
        raise ConnectionResetError("the driver lost its connection")

    async def list(self, prefix=""):
        raise KeyError

    async def put(self, path, data, *, if_absent=True):
        raise AssertionError(f"was asked for {path}")


@pytest.fixture(autouse=True)
def shelves(monkeypatch):
    module = ModuleType("shelves")
    module.calls = []

    def shelf(**settings):
        module.calls.append(settings)
        return SHELF

    def needy(*, bucket):
        return SHELF

    def unable(**settings):
        raise RuntimeError("no such bucket")

    module.run = subprocess.run
    module.shelf, module.needy, module.unable = shelf, needy, unable
    module.Plain, module.failing, module.number = MemoryStore, Failing, 7
    module.other = lambda: "not a store"
    monkeypatch.setitem(sys.modules, "shelves", module)
    return module


async def test_a_users_store_behind_its_url_passes_the_check_of_every_store():
    await check_store(open_store("shelves:Plain"))
    await check_store(open_store("shelves:shelf/in a/folder?bucket=x"))


async def test_the_query_is_the_functions_arguments_and_the_folder_is_captures(shelves):
    store = open_store("shelves:shelf/or%20ders?bucket=lake&deep=a%26b")
    assert isinstance(store, OwnStore)
    assert shelves.calls == [{"bucket": "lake", "deep": "a&b"}]
    await store.put("a/b", b"1", if_absent=False)
    assert [one.path for one in await SHELF.list("or ders/")] == ["or ders/a/b"]
    assert [one.path for one in await store.list("a/")] == ["a/b"]
    assert await open_store(opening_url(store)).get("a/b") == b"1", "the URL opens it again"
    with pytest.raises(AlreadyStoredError):
        await store.put("a/b", b"2")
    with pytest.raises(NotStoredError):
        await store.get("none")


async def test_an_error_of_the_users_driver_becomes_a_store_error_with_operation_and_path():
    store = open_store("shelves:failing?name=secret")
    with pytest.raises(
        StoreError, match=r"^get a/b failed in the store shelves:failing: ConnectionResetError: the dri"
    ):
        await store.get("a/b")
    with pytest.raises(StoreError, match=r"^list failed in the store shelves:failing: KeyError$"):
        await store.list()
    with pytest.raises(StoreError, match="not a path inside a store"):
        await store.put("../up", b"")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("shelvez:shelf", r"can't be loaded: ModuleNotFoundError: .*\. Write \./shelvez:shelf for a folder"),
        ("shelves:chest", "can't be loaded: AttributeError"),
        ("shelves:number", "is not a function but int"),
        ("shelves:needy", "can't be called with no arguments: missing a required (keyword-only )?argument: 'bucket'"),
        ("shelves:needy?bukket=x", "can't be called with bukket: "),
        ("shelves:shelf?bucket", "is not name=value&name=value"),
        ("shelves:shelf?bucket=a&bucket=b", "shelves:shelf: the text after the \\? has bucket more than once"),
        ("s3://lake?region=a&region=b", "s3://lake: the text after the \\? has region more than once"),
        ("shelves:shelf/../up", "is not a path inside a store"),
        ("shelves:unable", "failed: RuntimeError: no such bucket"),
        ("shelves:other", r"returned str, which has no put, get, get_range, list, delete, remove_leftovers"),
        ("s3:bucket/a", r"write s3://bucket/a, or \./s3:bucket/a for a folder"),
        ("file:/a", r"write file:///a, or \./file:/a for a folder"),
        ("2026:orders", r"Write \./2026:orders for a folder"),
        ("shelves:shelf?bucket=***", r"^shelves:shelf: the values of this URL are hidden: write them in the place of"),
        ("os:system?command=true", "^the store 'os:system' is a part of Python, not a store"),
        ("shelves:run?args=true", "^the store 'shelves:run' is a part of Python, not a store"),
    ],
)
def test_a_store_that_can_not_be_made_is_refused_with_the_reason_and_what_to_write(url, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    ["shelves:chest", "shelves:number", "shelves:needy", "shelves:unable?bucket=x", "shelves:ill", "unwell:shelf"],
)
def test_a_folder_is_suggested_only_if_there_is_no_such_module(url, shelves, tmp_path, monkeypatch):
    def ill():
        raise ModuleNotFoundError("No module named 'driver'", name="driver")

    shelves.ill = ill
    (tmp_path / "unwell.py").write_text("import driver_that_is_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as failed:
        open_store(url)
    assert "for a folder of that name" not in str(failed.value)
    for missing in ("shelvez:shelf", "shelvez.deep:shelf", "os.shelvez:shelf"):
        with pytest.raises(ConfigError, match=f"Write ./{missing} for a folder of that name$"):
            open_store(missing)


@pytest.mark.parametrize("url", ["plug-x:shelf?token=hunter2", "s3:lake?token=hunter2", "shelves:none?token=hunter2"])
def test_a_url_that_is_refused_is_shown_without_its_query(url):
    with pytest.raises(ConfigError) as failed:
        open_store(url)
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///lake", ""),
        ("file:///lake?private=true", ""),
        ("s3://lake/orders?region=eu", ""),
        ("gs://lake", ""),
        ("shelves:shelf/orders?bucket=x", ""),
        ("", "its URL '' does not begin with file:///, s3://, az:// or gs://, and is not module:function"),
        ("lake", "its URL 'lake' does not begin"),
        ("/lake", "its URL '/lake' does not begin"),
        ("postgres-prod/lake", "its URL 'postgres-prod/lake' does not begin"),
        ("memory://x", "its URL 'memory://x' does not begin"),
        ("postgres://x?token=hunter2", "its URL 'postgres://x' does not begin"),
        ("file:lake", "can't be loaded: ModuleNotFoundError: No module named 'file'"),
        ("file://lake", "names a host or a relative folder"),
        ("s3:///lake", "does not name a bucket"),
        ("shelvez:shelf", "can't be loaded: ModuleNotFoundError"),
        ("__main__:shelf", "can't be loaded: AttributeError"),
        ("__main__:Shelf", "__main__:Shelf is in the program itself: write the store into a module"),
    ],
)
def test_other_processes_open_what_is_at_one_place_for_all_of_them_and_the_users_function_is_not_called(
    url, reason, shelves, monkeypatch
):
    monkeypatch.setattr("__main__.Shelf", MemoryStore, raising=False)
    found = explain_unopenable(url)
    assert reason in found
    assert bool(found) == bool(reason)
    assert shelves.calls == []


def test_a_folder_with_a_query_like_name_is_still_a_folder():
    assert isinstance(open_store("./shelves:shelf"), FileStore)
    assert isinstance(open_store("lake/shelves:shelf"), FileStore)


async def test_an_object_is_a_store_only_with_the_methods_and_a_url():
    assert OwnStore(SHELF).url == "memory://shelf"
    with pytest.raises(ConfigError, match="store is a object, which has no put"):
        OwnStore(object())


def test_only_a_store_of_a_user_is_put_behind_the_wrapper(tmp_path):
    class Mine(FileStore):
        pass

    for ours in (SHELF, FileStore(tmp_path), open_store("s3://lake"), open_store("shelves:Plain")):
        assert guard(ours) is ours
    assert isinstance(guard(Mine(tmp_path)), OwnStore)


def test_the_section_store_gives_a_users_store_its_settings(tmp_path):
    file = tmp_path / "capture.toml"
    file.write_text('stream = "S"\n[store]\nurl = "shelves:shelf"\nbucket = "a b&c"\nprivate = true\nretries = 3\n')
    config = load(file, environment={})
    assert config.store == "shelves:shelf?bucket=a%20b%26c&private=true&retries=3"
    file.write_text('stream = "S"\n[store]\nurl = "shelves:shelf"\nbuckets = ["a"]\n')
    with pytest.raises(ConfigError, match="`buckets` is not a text, number or truth value, but list"):
        load(file, environment={})


def test_each_of_several_streams_has_a_folder_before_the_query():
    assert below("shelves:shelf?bucket=x/y", "ORDERS") == "shelves:shelf/ORDERS?bucket=x/y"


def test_the_values_of_a_users_store_are_not_shown_since_they_may_be_secret():
    assert redact_value(("store",), "shelves:shelf/a?token=x&region=eu") == "shelves:shelf/a?token=***&region=***"


def test_a_users_store_does_not_show_the_values_of_its_settings():
    store = open_store("shelves:shelf/a?token=hunter2&region=hunter2")
    assert store.url == "shelves:shelf/a?token=***&region=***"
    assert opening_url(store) == "shelves:shelf/a?token=hunter2&region=hunter2"
    assert "hunter2" not in repr(store)


@pytest.mark.parametrize(
    "url", ["plug-x:nope?password=hunter2", "s3:foo?password=hunter2", "shelvez:shelf?password=hunter2",
            "shelves:needy?password=hunter2", "shelves:shelf?hunter2", "file://lake?password=hunter2", "file:///lake?password=hunter2",
            "s3://lake?password=hunter2", "smb://me:hunter2@host/x?password=hunter2", "file://me:hunter2@host/x"]
)  # fmt: skip
def test_no_refusal_of_a_url_shows_what_may_be_secret(url):
    with pytest.raises(ConfigError) as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)


def test_other_engines_reach_a_users_store_only_at_a_location_that_is_named():
    own = open_store("shelves:Plain")
    assert not is_reachable(own)
    assert is_reachable(own, "https://lake.example/orders")
    assert is_reachable(SHELF)
