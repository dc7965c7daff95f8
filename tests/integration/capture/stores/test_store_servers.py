import asyncio
import hashlib
import json
import ssl
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest
from patient import PATIENCE
from secret import write_secret
from stores import KEY_ID, SECRET
from stores_faults import FaultyHTTP, Say

from capture.archive.manifest import Partition, Stored, block_path, encode, entry_path
from capture.archive.sequences import Sequences
from capture.errors import StoreError, StoreUnreadableError
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.stores import check_store, open_store
from capture.stores.deletion import delete_all
from capture.testing import HeadState, MemoryHead
from natty.wire.background import map_concurrently


async def test_s3_keeps_the_contract(s3):
    await check_store(open_store(s3.url()))


async def test_a_store_may_be_the_bucket_itself(s3):
    store = open_store(s3.url(""))
    await store.put("of the bucket/one", b"x")
    assert await store.get("of the bucket/one") == b"x"
    assert [one.path for one in await store.list("of the")] == ["of the bucket/one"]
    await store.delete("of the bucket/one")
    assert [one.path for one in await store.list() if one.path.startswith((".tmp", "of the"))] == []


@pytest.fixture
def issuing(seaweedfs, bare_environment):
    """A credentials service as containers have one; returns the file of its answer."""
    folder = Path(seaweedfs.folder) / "issued"
    folder.mkdir(exist_ok=True)
    serving = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), serving) as service:
        Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}/credentials"
        bare_environment.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        bare_environment.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(write_secret(folder / "token", "x")))
        bare_environment.setenv("AWS_REGION", "us-east-1")
        yield folder / "credentials"
        service.shutdown()


def issue(path, secret):
    """Let the service hand out this secret for a minute: the driver asks again within the last five."""
    ends = datetime.now(UTC) + timedelta(minutes=1)
    given = {"AccessKeyId": KEY_ID, "SecretAccessKey": secret, "Token": "", "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}
    path.write_text(json.dumps(given))


async def refusal(store):
    """Return why an object can't be read, "" if it can."""
    try:
        await store.get("one")
    except StoreUnreadableError as error:
        return str(error)
    return ""


async def test_credentials_of_the_containers_service_are_renewed_while_a_store_is_open(seaweedfs, issuing):
    issue(issuing, SECRET)
    store = open_store(seaweedfs.url())
    await store.put("one", b"1")
    async with asyncio.timeout(PATIENCE):
        issue(issuing, "deleted since")
        while "refused our credentials" not in await refusal(store):
            await asyncio.sleep(0.02)
        issue(issuing, SECRET)
        while await refusal(store):
            await asyncio.sleep(0.02)


async def test_credentials_of_the_environment_are_those_when_a_store_was_opened(s3, monkeypatch):
    address = s3.url()
    store = open_store(address)
    await store.put("one", b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert await store.get("one") == b"1"
    with pytest.raises(StoreUnreadableError, match="refused our credentials"):
        await open_store(address).get("one")


async def test_azure_keeps_the_contract(azure):
    await check_store(open_store(azure.url()))


async def test_azure_deletes_several_objects_by_one_request_whether_they_exist_or_not(azure, monkeypatch):
    store = open_store(azure.url())
    assert store.deletes_at_once == 256
    names = [f"a/{number}" for number in range(300)]
    await map_concurrently(names, lambda name: store.put(name, b""), at_once=16)
    single = []
    monkeypatch.setattr(store, "_delete", single.append)
    await delete_all(store, names)
    assert (await store.list(), single) == ([], [])
    monkeypatch.undo()
    await store.put("one", b"")
    await delete_all(store, ["none", "one", "nor this"])
    assert await store.list() == []
    assert store.deletes_at_once == 256


async def test_a_store_that_ignores_conditional_puts_is_refused_at_the_first_put_and_holds_nothing_of_ours(careless_s3):
    store = open_store(careless_s3.url("here"))
    for _ in range(2):
        with pytest.raises(StoreError, match=r"s3://lake/here ignores conditional puts: .*: use a store that keeps"):
            await store.put("a", b"x")
    assert [one for one in Path(careless_s3.folder).rglob("*") if one.is_file()] == []


async def test_google_is_asked_to_create_only_if_absent(natty_tls, bare_environment):
    bare_environment.setenv("GOOGLE_BEARER_TOKEN", "not-a-secret")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(natty_tls.server_cert, natty_tls.server_key)
    async with FaultyHTTP(0, context) as server:
        server.fault = lambda request: Say(403, "AccessDenied")
        store = open_store(f"gs://lake/a b?endpoint={server.endpoint}&ca={natty_tls.ca}")
        with pytest.raises(
            StoreUnreadableError, match=r"^gs://lake/a b does not allow .*, while writing a trial object\): give"
        ):
            await store.put("one", b"x")
    [request] = server.requests
    assert request.method == "PUT"
    assert unquote(request.target).startswith("/lake/a b/.tmp/trial-")
    assert request.headers["x-goog-if-generation-match"] == "0"
    assert request.headers["authorization"] == "Bearer not-a-secret"


def stored_block(number):
    content = b"rows of %d" % number
    sha256 = hashlib.sha256(content).hexdigest()
    return Stored(
        path=block_path(Partition("S", "k %", 0, 3600), number, number, 1, sha256, ".parquet"),
        stream="S",
        key="k %",
        interval=0,
        first=number,
        last=number,
        count=1,
        bytes=len(content),
        sha256=sha256,
        format="parquet",
        sequences=Sequences.from_range(number, number).to_bytes(),
    )


@pytest.mark.parametrize("server", ["s3", "azure"])
async def test_a_sweep_adopts_what_an_object_store_holds_and_removes_what_nobody_named(server, request):
    store, head, table = open_store(request.getfixturevalue(server).url()), MemoryHead(), HeadState()
    entry = stored_block(7)
    await store.put(entry.path, b"rows of 7")
    await store.put(entry_path(entry.path), encode(entry))
    await store.put(stored_block(8).path, b"its writer died")
    now = max(one.modified for one in await store.list())
    report = await sweep(Leading(store, head, table.read, grace=100.0), now=now + 10)
    assert (report.adopted, report.messages, report.removed_objects) == (1, 1, 0)
    report = await sweep(Leading(store, head, table.read, grace=100.0), now=now + 200)
    assert (report.adopted, report.removed_objects) == (0, 1)
    assert [one.path for one in await store.list("blocks/")] == [entry.path]
    assert await store.list("_entries/") == []
    assert await store.get(entry.path) == b"rows of 7"
