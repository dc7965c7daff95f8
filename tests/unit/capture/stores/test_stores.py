import asyncio
import errno
import os
import re
from pathlib import Path
from urllib.request import url2pathname

import pytest
from obstore.exceptions import GenericError

from capture.config.load import load
from capture.errors import (
    AlreadyStoredError,
    ConfigError,
    NotStoredError,
    StoreError,
    StoreFullError,
    StoreUnreadableError,
)
from capture.stores import Address, FileStore, MemoryStore, check_store, open_store
from capture.stores.refusals import refusal


async def test_the_memory_store_keeps_the_contract():
    await check_store(MemoryStore())


async def test_the_file_store_keeps_the_contract(tmp_path):
    await check_store(FileStore(tmp_path / "new" / "lake"))
    assert sorted(one.name for one in (tmp_path / "new" / "lake").iterdir()) == [".tmp"]


async def test_the_check_finds_a_store_that_overwrites(tmp_path):
    class Overwriting(MemoryStore):
        async def put(self, path, data, *, if_absent=True):
            await super().put(path, data, if_absent=False)

    with pytest.raises(AssertionError, match="if_absent replaced an object"):
        await check_store(Overwriting())


async def test_the_check_finds_a_store_that_shows_halves():
    class Halving(MemoryStore):
        async def put(self, path, data, *, if_absent=True):
            if not if_absent and len(data) > 1000:
                await super().put(path, data[:1000], if_absent=False)
                await asyncio.sleep(0)
            await super().put(path, data, if_absent=if_absent)

    with pytest.raises(AssertionError, match="half-written object"):
        await check_store(Halving())


async def test_a_local_file_is_copied_in_and_left_where_it_was(tmp_path):
    source = tmp_path / "spilled"
    source.write_bytes(b"rows")
    for store in (FileStore(tmp_path / "lake"), MemoryStore()):
        await store.put("blocks/one", source)
        assert await store.get("blocks/one") == b"rows"
    assert source.read_bytes() == b"rows"


async def test_modified_times_come_from_the_stores_clock():
    store = MemoryStore(clock=lambda: 1234.5)
    await store.put("a", b"")
    assert [one.modified for one in await store.list()] == [1234.5]


async def test_half_written_files_are_hidden_and_removed_once_they_are_old(tmp_path):
    store = FileStore(tmp_path)
    await store.put("a", b"x")
    for name, age in (("old", 1000), ("young", 10)):
        part = tmp_path / ".tmp" / name
        part.write_bytes(b"half")
        os.utime(part, (5000 - age, 5000 - age))
    assert [one.path for one in await store.list()] == ["a"]
    assert await store.remove_leftovers(600, 5000) == 1
    assert [one.name for one in (tmp_path / ".tmp").iterdir()] == ["young"]


async def test_a_store_that_does_not_exist_yet_is_empty(tmp_path):
    store = FileStore(tmp_path / "none")
    assert await store.list() == []
    assert await store.remove_leftovers(0, 0) == 0
    await store.delete("a/b")
    with pytest.raises(NotStoredError, match="there is no a/b in file://"):
        await store.get("a/b")


async def test_a_folder_is_no_object(tmp_path):
    store = FileStore(tmp_path)
    await store.put("a/b", b"x")
    with pytest.raises(NotStoredError):
        await store.get("a")


async def test_deleting_the_last_object_of_a_folder_removes_the_folder_and_writers_make_it_again(tmp_path):
    store, other = FileStore(tmp_path), FileStore(tmp_path)
    await store.put("a/b/one", b"1")
    await other.delete("a/b/one")
    assert not (tmp_path / "a").exists()
    await store.put("a/b/two", b"2")
    assert await other.get("a/b/two") == b"2"


async def test_every_step_of_a_put_is_synced_before_it_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def record(handle):
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", record)
    await FileStore(tmp_path / "lake").put("a/b/one", b"1")
    lake = str(tmp_path / "lake")
    assert synced[-1] == f"{lake}/a/b"
    assert any(one.startswith(f"{lake}/.tmp/") for one in synced)
    assert {str(tmp_path), lake, f"{lake}/a"} <= set(synced)


async def test_an_object_that_another_writer_left_unsynced_is_synced_before_it_counts_as_stored(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"linked by a writer that died")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    with pytest.raises(AlreadyStoredError):
        await FileStore(tmp_path).put("a/one", b"x")
    assert synced[-1] == str(tmp_path / "a")


@pytest.mark.parametrize(
    ("number", "expected", "text"),
    [
        (errno.ENOSPC, StoreFullError, r"is full \(.* bytes free, while writing a\): free space there$"),
        (errno.EDQUOT, StoreFullError, "is full"),
        (errno.EACCES, StoreUnreadableError, r"Permission denied \(while writing a\); check .* has the permissions"),
        (errno.EROFS, StoreUnreadableError, "Read-only file system"),
        (errno.EIO, StoreError, "Input/output error"),
    ],
)
async def test_the_operating_systems_errors_are_told_apart_by_number(tmp_path, monkeypatch, number, expected, text):
    def fail(handle):
        raise OSError(number, os.strerror(number))

    store = FileStore(tmp_path)
    await store.put("before", b"")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(expected, match=text) as raised:
        await store.put("a", b"x")
    assert str(raised.value).startswith((f"{tmp_path}", f"the store {tmp_path} can't be used: "))
    assert "while writing a)" in str(raised.value)
    assert "\n" not in str(raised.value)
    monkeypatch.undo()
    assert [one.path for one in await store.list()] == ["before"]
    assert list((tmp_path / ".tmp").iterdir()) == []


async def test_a_file_in_the_way_of_the_folder_is_an_unreadable_store(tmp_path):
    (tmp_path / "lake").write_text("not a folder")
    store = FileStore(tmp_path / "lake")
    for attempt in (lambda: store.put("a/b", b"x"), lambda: store.list("a/"), lambda: store.get("a/b")):
        with pytest.raises(StoreUnreadableError, match="is a folder, mounted"):
            await attempt()


async def test_a_file_system_without_hard_links_is_named(tmp_path, monkeypatch):
    def fail(self, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", fail)
    with pytest.raises(StoreError, match="hard link"):
        await FileStore(tmp_path).put("a", b"x")


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "a//b", ".tmp/a", "", "a\\b", "a/", "a\nb"])
async def test_paths_that_leave_the_store_are_refused(tmp_path, path):
    for store in (FileStore(tmp_path), MemoryStore()):
        for attempt in (lambda: store.put(path, b""), lambda: store.get(path), lambda: store.delete(path)):  # noqa: B023
            with pytest.raises(StoreError, match="not a path inside a store"):
                await attempt()


async def test_an_object_that_is_a_symbolic_link_is_not_read_and_a_folder_may_be_one(tmp_path):
    (tmp_path / "outside").write_bytes(b"of somebody else")
    (tmp_path / "real" / "a").mkdir(parents=True)
    (tmp_path / "lake").symlink_to(tmp_path / "real")
    store = FileStore(tmp_path / "lake")
    await store.put("a/one", b"1")
    assert await store.get("a/one") == b"1"
    for name, target in (("link", tmp_path / "outside"), ("inside", tmp_path / "real" / "a" / "one")):
        (tmp_path / "real" / "a" / name).symlink_to(target)
        for read in (store.get(f"a/{name}"), store.get_range(f"a/{name}", 0, 1)):
            with pytest.raises(StoreUnreadableError, match=f"a/{name} in .* is a symbolic link, which is not followed"):
                await read


@pytest.fixture
async def linked(tmp_path):
    """A store with an object in a folder, which is then moved out of the store and replaced by a link."""
    store = FileStore(tmp_path / "lake")
    await store.put("a/b/one", b"1")
    (tmp_path / "lake" / "a" / "b").rename(tmp_path / "outside")
    (tmp_path / "lake" / "a" / "b").symlink_to(tmp_path / "outside")
    return store


@pytest.mark.parametrize("action", ["get", "get_range", "list", "put", "replace", "delete"])
async def test_a_symbolic_link_to_a_folder_is_not_followed_by_any_action(linked, tmp_path, action):
    actions = {
        "get": lambda: linked.get("a/b/one"),
        "get_range": lambda: linked.get_range("a/b/one", 0, 1),
        "list": lambda: linked.list("a/"),
        "put": lambda: linked.put("a/b/two", b"2"),
        "replace": lambda: linked.put("a/b/one", b"2", if_absent=False),
        "delete": lambda: linked.delete("a/b/one"),
    }
    with pytest.raises(
        StoreUnreadableError, match=r"a/b in .*lake is a symbolic link, which is not followed: put its target"
    ):
        await actions[action]()
    assert [(one.name, one.read_bytes()) for one in (tmp_path / "outside").iterdir()] == [("one", b"1")]


async def test_leftovers_are_neither_written_nor_removed_through_a_symbolic_link(tmp_path):
    store = FileStore(tmp_path / "lake")
    (tmp_path / "lake").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").write_bytes(b"old")
    (tmp_path / "lake" / ".tmp").symlink_to(tmp_path / "outside")
    for action in (store.remove_leftovers(0.0, 1e12), store.put("one", b"1")):
        with pytest.raises(StoreUnreadableError, match=r"\.tmp in .* is a symbolic link"):
            await action
    assert [one.name for one in (tmp_path / "outside").iterdir()] == ["mine"]


async def test_an_object_that_is_a_link_is_listed_by_its_own_size_and_deleted_itself(tmp_path):
    (tmp_path / "outside").write_bytes(bytes(1000))
    store = FileStore(tmp_path / "lake")
    await store.put("a/one", b"1")
    (tmp_path / "lake" / "a" / "link").symlink_to("../../outside")
    assert [(one.path, one.bytes) for one in await store.list("a/")] == [("a/link", 13), ("a/one", 1)]
    await store.delete("a/link")
    assert (tmp_path / "outside").stat().st_size == 1000
    assert [one.path for one in await store.list("a/")] == ["a/one"]


async def test_a_pipe_in_an_object_s_place_is_refused_rather_than_waited_at(tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe")
    with pytest.raises(StoreUnreadableError, match="a pipe or a device, not a file"):
        await FileStore(tmp_path).get("a/pipe")


async def test_a_range_is_never_negative():
    with pytest.raises(ValueError, match="negative"):
        await MemoryStore().get_range("a", -1, 2)


async def test_a_store_opens_by_its_url(tmp_path):
    folder = tmp_path / "with space %41"
    await FileStore(folder).put("a", b"1")
    for url in (FileStore(folder).url, str(folder), folder.as_uri()):
        assert await open_store(url).get("a") == b"1"
    assert url2pathname(FileStore(folder).url.removeprefix("file://")) == str(folder)


async def test_memory_stores_are_shared_by_name():
    await open_store("memory://shared-by-name").put("a", b"1", if_absent=False)
    assert await open_store("memory://shared-by-name").get("a") == b"1"
    assert await open_store("memory://another-name").list() == []
    with pytest.raises(AlreadyStoredError):
        await open_store("memory://shared-by-name").put("a", b"2")


@pytest.mark.parametrize("url", ["ftp://bucket", "", "file://host/x", "file://relative", "module:", "s3:bucket"])
def test_an_unknown_kind_of_store_is_refused_with_the_known_ones(url):
    with pytest.raises(ConfigError, match="file:///"):
        open_store(url)


@pytest.mark.parametrize("path", ["./a:b", "/srv/a:b", "lake/date=1:2", Path("a:b")])
def test_a_folder_may_have_a_colon_in_its_name(path):
    assert open_store(open_store(path).url).root == Path(path).absolute()


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/a/pre fix",
        "s3://bucket/p%2541%25",
        "az://container/prefix?timeout=5",
        "gs://bucket/ÄÖ",
        "s3://bucket/p?endpoint=https://127.0.0.1:9000&region=eu-1&ca=/etc/ca.pem",
        "s3://bucket?endpoint=http://minio:9000&plain_http=true&encryption=aws:kms&kms_key=arn:aws:kms:eu-1:1:key/a&timeout=2.5",
    ],
)
def test_the_address_of_an_object_store_is_one_url_that_other_processes_can_be_given(url):
    address = Address.parse(url)
    assert Address.parse(address.text) == address
    assert repr(address) == f"Address({address.text!r})"


def test_an_address_says_where_objects_lie():
    address = Address.parse("s3://bucket/with space/p%2541/")
    assert (address.scheme, address.bucket, address.prefix) == ("s3", "bucket", "with space/p%41")
    assert Address.parse("az://container").prefix == ""
    assert Path(Address.parse("s3://bucket?ca=relative.pem").ca) == Path("relative.pem").absolute()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://", "does not name a bucket: write s3://bucket/prefix"),
        ("az:///prefix", "does not name a container"),
        ("s3://host:9000/bucket", "does not name a bucket"),
        ("s3://bucket/a/../b", "'a/../b' is not a path inside a store"),
        ("s3://bucket?endpoint=http://minio:9000", "is not encrypted: use https, or set plain_http = true"),
        ("s3://bucket?endpoint=minio:9000", "is not https://host:port"),
        ("s3://bucket?encryption=rot13", "encryption"),
        ("s3://bucket?kms_key=k", "applies to encryption"),
        ("gs://bucket?encryption=AES256", "apply to s3:// only"),
        ("az://container?region=eu-1", "apply to s3:// only"),
        ("s3://[::1", "does not name a bucket"),
        ("file://[::1", "the store's URL is not valid"),
        ("s3://bucket?endpoint=https://[::1 x", "is not https://host:port"),
        ("s3://bucket?timeout=0", "timeout"),
        ("s3://bucket?secret_key=x", "there is no setting `secret_key`"),
        ("s3://bucket?nonsense", "is not name=value"),
        ("s3://bucket?ca=/no/such.pem", "CA file /no/such.pem can't be read: No such file"),
        ("az://container", "Account must be specified; check AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_an_object_store_that_can_not_be_opened_says_why(url, sentence, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=sentence) as raised:
        open_store(url)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://key:very-secret@bucket", "^s3://bucket contains credentials, which logs would show: set AWS_ACCESS"),
        (
            "s3://bucket?endpoint=https://key:very-secret@minio",
            "^s3://bucket contains credentials, which logs would show: set AWS_ACCESS",
        ),
        ("s3://bucket?very-secret", "^s3://bucket: the text after the . is not name=value&name=value"),
    ],
)
def test_credentials_in_a_url_are_refused_and_not_shown(url, sentence):
    with pytest.raises(ConfigError, match=sentence) as raised:
        open_store(url)
    assert "very-secret" not in str(raised.value)


def test_a_ca_file_that_holds_no_certificate_is_named(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="No certificates found"):
        open_store(f"s3://bucket?ca={tmp_path}/ca.pem")


def test_the_store_section_of_capture_toml_becomes_the_url(tmp_path):
    path = tmp_path / "capture.toml"
    path.write_text('stream = "S"\n[store]\nurl = "s3://bucket/p"\nendpoint = "https://minio:9000"\ntimeout = 5\n')
    assert load(path, environment={}).store == "s3://bucket/p?endpoint=https://minio:9000&timeout=5"
    path.write_text('stream = "S"\n[store]\nurl = "s3://bucket/p?timeout=5"\nregion = "eu-1"\n')
    assert load(path, environment={}).store == "s3://bucket/p?region=eu-1&timeout=5"
    assert load(path, {"store": "/elsewhere"}, environment={}).store == "/elsewhere"
    assert load(path, environment={"CAPTURE_STORE": "gs://b"}).store == "gs://b"


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ('endpoint = "https://minio"', "no url: write url = "),
        (
            'url = "/folder"\nregion = "eu-1"',
            "region: for s3://, az://, gs:// and module:function only, not for /folder",
        ),
        ('url = "s3://b"\nendpont = "x"', "there is no setting `endpont`"),
        ('url = "s3://b"\ntimeout = "soon"', "timeout"),
    ],
)
def test_a_wrong_store_section_is_refused_by_name(tmp_path, section, sentence):
    path = tmp_path / "capture.toml"
    path.write_text(f'stream = "S"\n[store]\n{section}\n')
    with pytest.raises(ConfigError, match=sentence):
        load(path, environment={})


def test_a_store_section_may_name_a_folder(tmp_path):
    path = tmp_path / "capture.toml"
    path.write_text('stream = "S"\n[store]\nurl = "/folder"\n')
    assert load(path, environment={}).store == "/folder"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "Error performing GET http://meta.test/latest/api/token - status code: 403 Forbidden: no",
            r"no credentials were found \(while reading a\): set AWS_ACCESS_KEY_ID",
        ),
        ("Error performing GET http://meta.test/computeMetadata/v1/token - error sending request", "no credentials"),
        (
            "Generic error: Error performing PUT https://a.test/x?sig=very-secret&se=1 - what is this\n\nDebug",
            r"what is this \(while reading a\)$",
        ),
        ("", r"^s3://bucket/p: GenericError \(while reading a\)$"),
    ],
)
def test_what_the_driver_says_is_told_without_signed_urls(text, sentence):
    error = refusal(GenericError(text), "reading a", Address.parse("s3://bucket/p"))
    assert re.search(sentence, str(error))
    assert str(error).startswith("s3://bucket/p: ")
    assert "(while reading a)" in str(error)
    assert "very-secret" not in str(error)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("status code: 507", "s3://bucket/p is full (507, while writing a/b): free space there"),
        ("status code: 500", "s3://bucket/p answered 500 (while writing a/b): see the store's log"),
        (
            "status code: 403 <Code>AccessDenied</Code>",
            "s3://bucket/p does not allow it (403 AccessDenied, while writing a/b): give these credentials the right to"
            " read, write, list and delete",
        ),
    ],
)
def test_an_error_says_what_was_done_before_what_to_do(text, sentence):
    assert str(refusal(GenericError(text), "writing a/b", Address.parse("s3://bucket/p"))) == sentence


async def test_an_object_has_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr("capture.stores.object.LARGEST_BYTES", 10)
    store = open_store("s3://bucket")
    (tmp_path / "large").write_bytes(bytes(11))
    for data in (bytes(11), tmp_path / "large"):
        with pytest.raises(StoreError, match="a has 11 bytes; an object has at most 10"):
            await store.put("a", data)
    with pytest.raises(StoreError, match="can't be read: No such file"):
        await store.put("a", tmp_path / "missing")


def test_stores_show_what_they_are(tmp_path):
    assert repr(MemoryStore("x")) == "MemoryStore(memory://x, 0 objects)"
    assert repr(FileStore("/lake")) == "FileStore('/lake')"
    assert repr(open_store("s3://bucket/p")) == "ObjectStore(s3://bucket/p)"
