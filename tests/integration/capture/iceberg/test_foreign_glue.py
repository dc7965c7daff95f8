"""The table in AWS Glue, as moto serves it. moto ignores the version that an update names: a proxy compares it."""

import asyncio
import json
import sys
import urllib.request

import aiohttp
import pytest
from aiohttp import web
from exposing import sequences_of
from foreign_catalogs import Registered
from pyiceberg.catalog.glue import GlueCatalog
from stores import Program, kill

from capture.errors import CatalogAwayError, CatalogRefusedError, ForeignEntryError
from capture.iceberg.foreign_catalog import CURRENT, MOVED, REGISTERED
from natty.metrics.http import serve
from natty.testing import free_ports


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """The properties of a catalog in a server of its own process."""
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    def answers():
        try:
            urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5).close()
        except OSError:
            return False
        return True

    process = Program(command, tmp_path_factory.mktemp("glue"), {}).start(answers)
    yield {
        "uri": url,
        "glue.region": "us-east-1",
        "glue.access-key-id": "tests",
        "glue.secret-access-key": "not-a-secret-for-tests",
    }
    kill(process)


class Comparing:
    """A proxy of moto that refuses an update as Glue does, if it names another version than the table's.

    `updates` are the bodies of these requests as they were sent. `before` runs once before an update is compared.
    """

    def __init__(self, url):
        self.url, self.updates, self.before = url, [], None

    async def answer(self, request):
        name, body = request.headers["X-Amz-Target"], await request.read()
        if name.endswith(".UpdateTable"):
            sent = json.loads(body)
            self.updates.append(sent)
            if self.before:
                before, self.before = self.before, None
                await before()
            asked = json.dumps({"DatabaseName": sent["DatabaseName"], "Name": sent["TableInput"]["Name"]}).encode()
            _, found = await self._forward(request, name.replace("UpdateTable", "GetTable"), asked)
            if sent.get("VersionId") not in (None, json.loads(found)["Table"]["VersionId"]):
                said = {"__type": "ConcurrentModificationException", "message": "another version"}
                return web.json_response(said, status=400)
        status, found = await self._forward(request, name, body)
        return web.Response(status=status, body=found)

    async def _forward(self, request, name, body):
        headers = {"X-Amz-Target": name, "Authorization": request.headers["Authorization"]}
        headers["Content-Type"] = request.headers["Content-Type"]
        async with aiohttp.ClientSession() as session, session.post(self.url, data=body, headers=headers) as found:
            return found.status, await found.read()


@pytest.fixture
async def proxy(glue):
    comparing = Comparing(glue["uri"])
    application = web.Application()
    application.router.add_post("/", comparing.answer)
    async with serve(application, "127.0.0.1", 0, None) as comparing.uri:
        yield comparing


@pytest.fixture
async def archive(tmp_path, glue, proxy, request):
    properties = glue | {"uri": proxy.uri}
    world = Registered(tmp_path, type="glue", uri="", namespace=request.node.name[-30:], properties=properties)
    yield world
    world.catalog.close()


async def test_an_entry_follows_the_table_on_condition_of_its_version(archive, glue, proxy):
    await archive.commit()
    assert await archive.set() == REGISTERED
    await archive.commit()
    assert await archive.set() == MOVED
    assert await archive.set() == CURRENT
    assert [one["VersionId"] for one in proxy.updates] == ["1"]
    reader = await asyncio.to_thread(GlueCatalog, "lake", **glue, **{"glue.endpoint": glue["uri"]})
    table = await asyncio.to_thread(reader.load_table, archive.config.table.catalog.identify("orders", "S"))
    assert table.metadata_location == archive.location()
    assert await asyncio.to_thread(sequences_of, table) == [1, 2]
    reader.glue.close()


async def test_a_version_that_changed_meanwhile_is_refused(archive, glue, proxy):
    await archive.commit()
    await archive.set()
    await archive.commit()
    database, name = archive.config.table.catalog.identify("", "S")
    other = await asyncio.to_thread(GlueCatalog, "other", **glue, **{"glue.endpoint": glue["uri"]})
    theirs = {"Name": name, "Parameters": {"owner": "somebody else"}}

    async def change():
        await asyncio.to_thread(other.glue.update_table, DatabaseName=database, TableInput=theirs)

    proxy.before = change
    with pytest.raises(ForeignEntryError, match="at the same moment"):
        await archive.set()
    found = await asyncio.to_thread(other.glue.get_table, DatabaseName=database, Name=name)
    assert found["Table"]["Parameters"] == theirs["Parameters"]
    other.glue.close()


async def test_a_table_of_somebody_else_is_refused_also_one_that_is_no_iceberg_table(archive):
    await archive.commit()
    await archive.set()
    client, (database, name) = archive.catalog._entries._catalog.glue, archive.config.table.catalog.identify("", "S")
    await asyncio.to_thread(client.update_table, DatabaseName=database, TableInput={"Name": name, "Parameters": {}})
    await archive.commit()
    with pytest.raises(ForeignEntryError, match="names no metadata, which this archive did not write"):
        await archive.set()
    assert await archive.set(take_over=True) == MOVED
    assert await archive.catalog.remove(archive.table, "S")


@pytest.mark.long
async def test_a_server_that_is_away_and_credentials_that_are_missing_are_sentences(tmp_path, glue, monkeypatch):
    [port] = free_ports(1)
    away = Registered(tmp_path, type="glue", uri="", properties=glue | {"uri": f"http://127.0.0.1:{port}"})
    await away.commit()
    with pytest.raises(CatalogAwayError, match=r"the glue catalog at .* does not answer: Could not connect"):
        await away.set()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    keys = {name: value for name, value in glue.items() if "key" not in name}
    refused = Registered(tmp_path, archive="other", type="glue", uri="", properties=keys)
    await refused.commit()
    with pytest.raises(CatalogRefusedError, match="Unable to locate credentials; check"):
        await refused.set()
