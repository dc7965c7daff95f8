"""The table in AWS Glue, as moto serves it. moto ignores the version that an update names: the request is looked at."""

import asyncio
import sys
import urllib.request

import pytest
from exposing import sequences_of
from foreign_catalogs import Registered
from pyiceberg.catalog.glue import GlueCatalog
from stores import Program, kill

from capture.errors import CatalogAwayError, CatalogRefusedError, ForeignEntryError
from capture.iceberg.foreign_catalog import CURRENT, MOVED, REGISTERED
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


@pytest.fixture
async def archive(tmp_path, glue, request):
    world = Registered(tmp_path, type="glue", uri="", namespace=request.node.name[-30:], properties=glue)
    yield world
    world.catalog.close()


async def test_an_entry_follows_the_table_on_condition_of_its_version(archive, glue):
    await archive.commit()
    assert await archive.set() == REGISTERED
    await archive.commit()
    asked = []
    events = archive.catalog._entries._catalog.glue.meta.events
    events.register("provide-client-params.glue.UpdateTable", lambda params, **_: asked.append(params))
    assert await archive.set() == MOVED
    assert await archive.set() == CURRENT
    assert [one["VersionId"] for one in asked] == ["1"]
    reader = await asyncio.to_thread(GlueCatalog, "lake", **glue, **{"glue.endpoint": glue["uri"]})
    table = await asyncio.to_thread(reader.load_table, archive.config.table.catalog.identify("orders", "S"))
    assert table.metadata_location == archive.location()
    assert await asyncio.to_thread(sequences_of, table) == [1, 2]
    reader.glue.close()


async def test_a_version_that_changed_meanwhile_is_refused(archive):
    await archive.commit()
    await archive.set()
    await archive.commit()

    def conflict(params, **_):
        glue = archive.catalog._entries._catalog.glue
        raise glue.exceptions.ConcurrentModificationException({"Error": {}}, "UpdateTable")

    archive.catalog._entries._catalog.glue.meta.events.register("provide-client-params.glue.UpdateTable", conflict)
    with pytest.raises(ForeignEntryError, match="at the same moment"):
        await archive.set()


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
