"""The read-only REST catalog, asked by Iceberg's own clients over TLS."""

import asyncio
import contextlib
import json
import os
import ssl
import urllib.error
import urllib.request
from datetime import timedelta

import msgspec
import obstore
import polars
import pytest
from archiving import compact_once, store_all, sweep_once
from derived_tables import STEPS, Derived
from electing import vacated
from exposing import HOUR, expose_files, sequences_of, table_file
from patient import PATIENCE
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    UnauthorizedError,
)
from secret import write_secret

from capture.archive import chain
from capture.archive.heads import PIPELINES, TermHead
from capture.archive.table import Table
from capture.cli import main
from capture.config.load import load
from capture.config.pipelines import pipelines_name, pipelines_store
from capture.errors import ConfigError
from capture.iceberg import Exposer
from capture.node.status.iceberg_rest import Archive, RestCatalog, reading_hints
from capture.pipelines.document import Pipelines
from capture.stores import open_store
from capture.stores.address import Address
from capture.stores.object_client import client
from capture.testing import HeadState, MemoryHead
from natty.errors import ConfigError as NattyConfigError
from natty.metrics.access import Certificate
from natty.metrics.http import serve
from natty.testing import DevCA

TOKEN = "a token that nobody guesses"
SERVES = """
import sys
from capture.cli import main

sys.argv[1:] = ["catalog", "serve", "--config", *sys.argv[1:]]
main()
"""


class World:
    """An archive with a table of two files, and the catalog over TLS that tells of it."""

    def __init__(self, folder):
        self.store = open_store(str(folder / "archive"))
        self.state = HeadState()
        self.head = None
        DevCA.create().write(folder / "tls")
        self.tls = folder / "tls"

    async def commit(self, *files):
        table = await chain.read(self.store, self.head, Table)
        wanted = msgspec.structs.replace(table, files=[*table.files, *files])
        table = await expose_files(Exposer(self.store), table.files, wanted, now=HOUR)
        self.head = await chain.commit(self.store, MemoryHead(1, self.state), self.head, table)

    @contextlib.asynccontextmanager
    async def serve(self):
        catalog = RestCatalog({"orders": Archive(self.store, self.state.read)}, ["another token of old", TOKEN])
        tls = Certificate(self.tls / "server.pem", self.tls / "server-key.pem")
        async with serve(catalog.application(), "127.0.0.1", 0, tls) as url:
            yield url

    def client(self, url, token=TOKEN):
        tls = {"cabundle": str(self.tls / "ca.pem")}
        return contextlib.closing(load_catalog("orders", type="rest", uri=url, token=token, ssl=tls))

    def get(self, url, path, *, method="GET", token=TOKEN):
        """Return status and JSON of an answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{url}{path}", method=method, headers=headers)
        context = ssl.create_default_context(cafile=self.tls / "ca.pem")
        try:
            with urllib.request.urlopen(request, context=context) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")


@pytest.fixture
async def world(tmp_path, monkeypatch):
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they would win over what the client is told
        monkeypatch.delenv(name, raising=False)
    world = World(tmp_path)
    first = await table_file(world.store, [1, 2, 3], name="a", key="a/b %")
    await world.commit(first, await table_file(world.store, [4, 5], name="b"))
    return world


async def test_icebergs_own_client_lists_and_reads_what_is_committed(world, monkeypatch):
    def ask(url):
        with world.client(url) as catalog:
            assert catalog.list_namespaces() == [("orders",)]
            assert catalog.list_namespaces("orders") == []
            assert catalog.list_tables("orders") == [("orders", "S")]
            assert catalog.namespace_exists("orders")
            assert catalog.load_namespace_properties("orders") == {}
            assert catalog.table_exists("orders.S")
            assert not catalog.table_exists("orders.T")
            table = catalog.load_table("orders.S")
            assert sequences_of(table) == [1, 2, 3, 4, 5]
            for planner in ("plugin", "pyiceberg"):  # Polars takes its own where it is installed
                monkeypatch.setenv("POLARS_ICEBERG_PLANNER", planner)
                rows = polars.scan_iceberg(table).filter(polars.col("key") == "a/b %").select("sequence").collect()
                assert rows["sequence"].to_list() == [1, 2, 3]

    def ask_again(url):
        with world.client(url) as catalog:
            return sequences_of(catalog.load_table("orders.S"))

    async with world.serve() as url:
        await asyncio.to_thread(ask, url)
        await world.commit(await table_file(world.store, [6], name="c"))
        assert await asyncio.to_thread(ask_again, url) == [1, 2, 3, 4, 5, 6]


async def test_nobody_is_let_in_without_the_token(world):
    async with world.serve() as url:
        for token in ("", "wrong", f"{TOKEN} and more", TOKEN[:-1]):
            for path in ("/v1/config", "/v1/namespaces/orders/tables/S", "/nowhere"):
                status, answer = await asyncio.to_thread(world.get, url, path, token=token)
                assert (status, answer["error"]["type"]) == (401, "NotAuthorizedException")
        with pytest.raises(UnauthorizedError):
            await asyncio.to_thread(world.client, url, token="wrong")
        assert (await asyncio.to_thread(world.get, url, "/v1/config", token="another token of old"))[0] == 200


async def test_what_is_not_there_is_answered_by_icebergs_error_model(world):
    def ask(url):
        with world.client(url) as catalog:
            with pytest.raises(NoSuchTableError):
                catalog.load_table("orders.T")
            with pytest.raises(NoSuchNamespaceError):
                catalog.list_tables("payments")

    async with world.serve() as url:
        await asyncio.to_thread(ask, url)
        for path, kind in (
            ("/v1/namespaces/orders/tables/T", "NoSuchTableException"),
            ("/v1/namespaces/payments", "NoSuchNamespaceException"),
            ("/v1/namespaces/payments/tables/S", "NoSuchNamespaceException"),
            ("/v1/namespaces?parent=payments", "NoSuchNamespaceException"),
            ("/v2/anything", "NoSuchEndpointException"),
        ):
            status, answer = await asyncio.to_thread(world.get, url, path)
            assert status == answer["error"]["code"] == 404
            assert answer["error"]["type"] == kind


async def test_whether_something_is_there_is_answered_without_a_body_or_the_metadata(world):
    async with world.serve() as url:
        exposed = (await chain.read(world.store, world.head, Table)).iceberg["S"]
        await world.store.delete(exposed.metadata)
        for path, status in (
            ("/v1/namespaces/orders", 204),
            ("/v1/namespaces/orders/tables/S", 204),
            ("/v1/namespaces/orders/tables/T", 404),
            ("/v1/namespaces/payments", 404),
            ("/v1/namespaces/payments/tables/S", 404),
        ):
            assert await asyncio.to_thread(world.get, url, path, method="HEAD") == (status, None)
        answer = await asyncio.to_thread(world.get, url, "/v1/namespaces/orders", method="HEAD", token="wrong")
        assert answer == (401, None)


async def test_what_clients_may_ask_besides_changes_no_answer(world):
    async with world.serve() as url:
        for path, besides in (
            ("/v1/config", "warehouse=orders"),
            ("/v1/namespaces", "parent="),
            ("/v1/namespaces", "pageToken=&pageSize=1"),
            ("/v1/namespaces/orders/tables", "pageToken=&pageSize=1"),
            ("/v1/namespaces/orders/tables/S", "snapshots=all"),
        ):
            plain = await asyncio.to_thread(world.get, url, path)
            assert plain[0] == 200
            assert await asyncio.to_thread(world.get, url, f"{path}?{besides}") == plain
        status, answer = await asyncio.to_thread(world.get, url, "/v1/namespaces/orders%1Feu")
        assert (status, answer["error"]["type"]) == (404, "NoSuchNamespaceException")


async def test_nobody_can_write_by_it(world):
    def write(url):
        with world.client(url) as catalog:
            table = catalog.load_table("orders.S")
            with pytest.raises((ForbiddenError, NotImplementedError)):
                table.append(table.scan().to_arrow())
            with pytest.raises((ForbiddenError, NotImplementedError)):
                catalog.drop_table("orders.S")
            assert catalog.load_table("orders.S").metadata == table.metadata

    async with world.serve() as url:
        await asyncio.to_thread(write, url)
        for method, path in (
            ("POST", "/v1/namespaces/orders/tables/S"),
            ("DELETE", "/v1/namespaces/orders/tables/S"),
            ("POST", "/v1/namespaces"),
        ):
            status, answer = await asyncio.to_thread(world.get, url, path, method=method)
            assert (status, answer["error"]["type"]) == (403, "ForbiddenException")


async def test_an_archive_that_cant_be_read_is_told_as_such_and_later_again(world):
    async with world.serve() as url:
        name = world.state.head.path
        data = await world.store.get(name)
        await world.store.delete(name)
        status, answer = await asyncio.to_thread(world.get, url, "/v1/namespaces/orders/tables")
        assert (status, answer["error"]["type"]) == (503, "ServiceUnavailableException")
        await world.store.put(name, data)
        assert (await asyncio.to_thread(world.get, url, "/v1/namespaces/orders/tables"))[0] == 200


async def test_before_the_first_compaction_there_is_a_namespace_without_tables(world):
    world.state.head = None
    async with world.serve() as url:
        assert await asyncio.to_thread(world.get, url, "/v1/namespaces/orders/tables") == (200, {"identifiers": []})


async def test_plain_http_stays_on_this_machine(world):
    catalog = RestCatalog({}, [TOKEN])
    for host in ("0.0.0.0", "192.0.2.1", "catalog.example.com", "::"):
        with pytest.raises(NattyConfigError, match="loopback"):
            async with serve(catalog.application(), host, 0, None):
                pass
    async with serve(catalog.application(), "127.0.0.1", 0, None) as url:
        assert url.startswith("http://127.0.0.1:")


def test_a_token_that_could_be_guessed_is_refused():
    with pytest.raises(ConfigError, match="the catalog needs a token"):
        RestCatalog({}, [])
    for tokens in (["short"], [TOKEN, "short"]):
        with pytest.raises(NattyConfigError, match="a token needs at least 16 characters"):
            RestCatalog({}, tokens)


def test_clients_are_told_where_an_s3_server_is_and_no_credential():
    place = {"s3.endpoint": "https://s3.example.com", "s3.path-style-access": "true"}
    region = {"client.region": "eu", "s3.region": "eu"}
    url = "s3://bucket/prefix?endpoint=https://s3.example.com"
    assert reading_hints(url, {}) == place
    assert reading_hints(f"{url}&region=eu", {}) == place | region
    assert reading_hints("s3://bucket?region=eu", {}) == region
    assert reading_hints("az://container?endpoint=https://azure.example.com", {}) == {}
    assert reading_hints("s3://bucket", {}) == reading_hints("file:///archive", {}) == {}


def test_clients_are_told_the_endpoint_and_region_that_the_environment_sets():
    place = {"s3.endpoint": "https://s3.example.com", "s3.path-style-access": "true"}
    region = {"client.region": "eu", "s3.region": "eu"}
    secrets = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
    general = {"AWS_ENDPOINT_URL": "https://s3.example.com", "AWS_DEFAULT_REGION": "eu"}
    assert reading_hints("s3://bucket", general | secrets) == place | region
    particular = {"AWS_ENDPOINT_URL_S3": "https://s3.example.com", "AWS_REGION": "eu"}
    others = {"AWS_ENDPOINT_URL": "https://other.example.com", "AWS_DEFAULT_REGION": "us"}
    assert reading_hints("s3://bucket", particular | others) == place | region
    url = "s3://bucket?endpoint=https://s3.example.com&region=eu"
    assert (
        reading_hints(url, {"AWS_ENDPOINT_URL_S3": "https://other.example.com", "AWS_REGION": "us"}) == place | region
    )
    for elsewhere in ("az://container", "gs://bucket", "file:///archive"):
        assert reading_hints(elsewhere, particular) == {}


@pytest.mark.parametrize("unset", ["", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"])
def test_clients_are_told_the_endpoint_and_region_that_our_own_client_uses(monkeypatch, unset):
    environment = {
        "AWS_ENDPOINT_URL_S3": "https://s3.example.com",
        "AWS_ENDPOINT_URL": "https://other.example.com",
        "AWS_REGION": "eu",
        "AWS_DEFAULT_REGION": "us",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if unset:
        monkeypatch.delenv(unset)
    signed = obstore.sign(client(Address.parse("s3://bucket"), os.environ), "GET", "key", timedelta(seconds=60))
    hints = reading_hints("s3://bucket", os.environ)
    assert signed.startswith(f"{hints['s3.endpoint']}/bucket/key?")
    assert f"%2F{hints['s3.region']}%2Fs3%2F" in signed


async def test_the_command_serves_what_nats_says_until_it_is_told_to_stop(fleet, tmp_path, monkeypatch):
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    tls = tmp_path / "tls"
    DevCA.create().write(tls)
    write_secret(tmp_path / "tokens", f"{TOKEN}\n")
    path = fleet.configure(partition="time", decoder="raw")
    config = load(path)
    store = open_store(config.store)
    await fleet.publish([b"1", b"2"])
    await store_all(fleet.natty, config, store)
    await sweep_once(fleet.natty, config, store)
    await compact_once(fleet.natty, config, store)
    served = ["--cert", tls / "server.pem", "--key", tls / "server-key.pem", "--token-file", tmp_path / "tokens"]
    process = fleet.start("catalog", path, script=SERVES, arguments=[*served, "--port", 0])
    await fleet.said("catalog", "served on https://")
    url = fleet.log("catalog").read_text().split()[-1]

    def ask():
        options = {"token": TOKEN, "ssl": {"cabundle": str(tls / "ca.pem")}}
        with contextlib.closing(load_catalog("any", type="rest", uri=url, **options)) as catalog:
            return sequences_of(catalog.load_table((config.name, config.stream)))

    assert await asyncio.to_thread(ask) == [1, 2]
    assert await fleet.stop(process) == 0


async def test_tables_of_pipelines_are_beside_those_of_the_streams(world, tmp_path):
    derived = Derived(tmp_path / "pipelines")
    expected = await STEPS[0](derived)
    streams = Archive(world.store, world.state.read)
    both = Archive(derived.store, derived.state.read, Pipelines, beside=streams)
    apart = Archive(derived.store, HeadState().read, Pipelines)

    def ask(url):
        options = {"token": TOKEN}
        with contextlib.closing(load_catalog("any", type="rest", uri=url, **options)) as catalog:
            assert catalog.list_tables("orders") == [("orders", "S"), ("orders", "daily")]
            assert catalog.list_tables("pipelines") == []
            assert [catalog.table_exists(f"orders.{one}") for one in ("S", "daily", "T")] == [True, True, False]
            assert sequences_of(catalog.load_table("orders.S")) == [1, 2, 3, 4, 5]
            return catalog.load_table("orders.daily").scan().to_arrow()["total"].to_pylist()

    catalog = RestCatalog({"orders": both, "pipelines": apart}, [TOKEN])
    async with serve(catalog.application(), "127.0.0.1", 0, None) as url:
        assert sorted(await asyncio.to_thread(ask, url)) == [total for _, _, total in expected]


@pytest.mark.long
async def test_the_command_serves_the_tables_of_pipelines_that_nats_names_or_offline_the_newest(fleet, tmp_path):
    path = fleet.configure(partition="time", decoder="raw")
    with path.open("a") as file:
        file.write(f"""
[[pipeline]]
name = "daily"
sql = "SELECT subject AS country, date(time) AS day, count(*) AS total FROM {fleet.stream} GROUP BY 1, 2"
mode = "upsert"
key = ["country", "day"]
""")
    config = load(path)
    await store_all(fleet.natty, config, open_store(config.store))
    derived = Derived(pipelines_store(config))

    async def work(term):
        derived.pointer = TermHead(term, PIPELINES)
        committed = await STEPS[0](derived)
        derived.pointer, derived.state.head = None, await derived.pointer.read()
        return committed, await STEPS[1](derived)  # which only the store has

    office = await vacated(fleet.natty, PIPELINES.election(pipelines_name(config)))
    committed, newest = await fleet.natty.election(office, lease=PATIENCE).run(work)
    write_secret(tmp_path / "tokens", f"{TOKEN}\n")
    served = ["--plain-http", "--token-file", tmp_path / "tokens", "--port", 0]

    def ask(url):
        with contextlib.closing(load_catalog("any", type="rest", uri=url, token=TOKEN)) as catalog:
            assert catalog.list_namespaces() == [(config.name,)]
            assert catalog.list_tables(config.name) == [(config.name, "daily")]
            return sorted(catalog.load_table((config.name, "daily")).scan().to_arrow()["total"].to_pylist())

    for name, more, rows in (("committed", [], committed), ("newest", ["--offline"], newest)):
        process = fleet.start(name, path, script=SERVES, arguments=[*served, *more])
        await fleet.said(name, "served on http://")
        url = fleet.log(name).read_text().split()[-1]
        assert await asyncio.to_thread(ask, url) == [total for _, _, total in rows]
        assert await fleet.stop(process) == 0


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        ([], {}, "give --cert and --key to serve over TLS"),
        (["--plain-http", "--cert", "c.pem", "--key", "k.pem"], {}, "give --cert and --key to serve over TLS"),
        (["--cert", "c.pem", "--key", "k.pem"], {}, "are not a certificate and its key"),
        (["--plain-http"], {}, "clients must present a token"),
        (["--plain-http"], {"CAPTURE_CATALOG_TOKEN": "short"}, "a token needs at least 16 characters"),
        (
            ["--plain-http", "--host", "0.0.0.0"],
            {"CAPTURE_CATALOG_TOKEN": TOKEN},
            "only a loopback address can be served",
        ),
        (["--plain-http", "--token-file", "nowhere"], {}, "can't be read"),
    ],
)
def test_the_command_refuses_what_would_not_be_safe(options, variables, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "sys.argv",
        ["capture", "catalog", "serve", "--stream", "S", "--store", str(tmp_path), "--offline", *options],
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert said in capsys.readouterr().err
