"""The table in REST catalogs: SeaweedFS's own, killed and restarted; and one that can replace entries, over TLS."""

import asyncio
import contextlib

import certifi
import pytest
from exposing import sequences_of
from foreign_catalogs import Registered
from patient import PATIENCE, until
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from rest_catalogs import BUCKET, OverwritingCatalog, SeaweedCatalog

from capture.errors import (
    CatalogAwayError,
    CatalogError,
    CatalogRefusedError,
    CatalogUnfitError,
    ForeignEntryError,
)
from capture.iceberg.foreign_catalog import CURRENT, MOVED, REGISTERED
from natty.testing import free_ports


@contextlib.asynccontextmanager
async def registered(folder, server, uri, **settings):
    world = Registered(folder, **(server.settings(uri) | settings))
    try:
        yield world
    finally:
        world.catalog.close()


@pytest.fixture
async def server(tmp_path):
    return OverwritingCatalog(tmp_path)


async def test_a_catalog_that_can_replace_entries_shows_the_table_after_each_commit(tmp_path, server, monkeypatch):
    """`ca` wins over REQUESTS_CA_BUNDLE, which overrides that of other clients."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    async with server.serve() as uri, registered(tmp_path, server, uri, namespace="lake.raw") as archive:
        await archive.commit()
        assert await archive.set() == REGISTERED
        await archive.commit()
        assert await archive.set() == MOVED
        assert await archive.set() == CURRENT
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        ssl = {"cabundle": str(server.tls / "ca.pem")}
        catalog = await asyncio.to_thread(
            lambda: load_catalog("lake", type="rest", uri=uri, token=server.TOKEN, ssl=ssl)
        )
        table = await asyncio.to_thread(catalog.load_table, ("lake", "raw", "S"))
        assert table.metadata_location == archive.location()
        assert await asyncio.to_thread(sequences_of, table) == [1, 2]
        catalog.close()


async def test_an_entry_of_somebody_else_is_refused_and_taken_over_on_request(tmp_path, server):
    async with server.serve() as uri, registered(tmp_path, server, uri, namespace="lake") as archive:
        other = Registered(tmp_path, archive="staging")
        await other.commit()
        theirs = server.tables["lake", "S"] = other.location()
        await archive.commit()
        with pytest.raises(ForeignEntryError, match="capture catalog register --take-over"):
            await archive.set()
        assert server.tables["lake", "S"] == theirs
        assert await archive.set(take_over=True) == MOVED
        assert server.tables["lake", "S"] == archive.location()


async def test_an_entry_whose_metadata_are_gone_can_be_taken_over(tmp_path, server):
    async with server.serve() as uri, registered(tmp_path, server, uri, namespace="lake") as archive:
        await archive.commit()
        await archive.set()
        (tmp_path / server.tables["lake", "S"].removeprefix(f"file://{tmp_path}/")).unlink()
        await archive.commit()
        with pytest.raises(CatalogAwayError, match="the rest catalog at"):
            await archive.set()
        assert await archive.set(take_over=True) == MOVED
        assert server.tables["lake", "S"] == archive.location()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_catalog_that_refuses_is_reported_with_what_to_check(tmp_path, server, status):
    async with server.serve() as uri, registered(tmp_path, server, uri) as archive:
        await archive.commit()
        await archive.set()
        server.status = status
        await archive.commit()
        with pytest.raises(CatalogRefusedError, match=f"{uri} refuses this node: .*check the credentials"):
            await archive.set()
        server.status = 0
        assert await archive.set() == MOVED


async def test_a_wrong_token_is_reported_without_it(tmp_path, server):
    wrong = {"properties": {"token": "nobody's"}}
    async with server.serve() as uri, registered(tmp_path, server, uri, **wrong) as archive:
        await archive.commit()
        with pytest.raises(CatalogRefusedError, match="who are you") as raised:
            await archive.set()
        assert "nobody's" not in str(raised.value)


async def test_a_server_that_is_not_trusted_gets_no_token(tmp_path, server):
    async with server.serve() as uri, registered(tmp_path, server, uri, ca="") as archive:
        await archive.commit()
        with pytest.raises(CatalogAwayError, match=r"is not trusted: .*set ca in \[table\.catalog\]"):
            await archive.set()
        assert server.requests == []


@pytest.mark.parametrize(("status", "kind"), [(503, CatalogAwayError), (500, CatalogAwayError), (418, CatalogError)])
async def test_what_a_catalog_answers_is_in_the_sentence(tmp_path, server, status, kind):
    async with server.serve() as uri, registered(tmp_path, server, uri) as archive:
        await archive.commit()
        server.status = status
        with pytest.raises(kind, match="not for you"):
            await archive.set()


async def test_a_catalog_that_does_not_answer_is_given_up_after_the_time_limit(tmp_path, server):
    async with server.serve() as uri, registered(tmp_path, server, uri, timeout=0.5) as archive:
        await archive.commit()
        server.stalls = True
        with pytest.raises(CatalogAwayError, match="does not answer"):
            await archive.set()


async def test_a_catalog_that_writes_metadata_of_its_own_is_refused(tmp_path, server):
    server.rewrites = True
    async with server.serve() as uri, registered(tmp_path, server, uri) as archive:
        await archive.commit()
        with pytest.raises(CatalogUnfitError, match="writes metadata of its own"):
            await archive.set()


async def test_no_entry_of_a_rest_catalog_is_dropped(tmp_path, server):
    async with server.serve() as uri, registered(tmp_path, server, uri) as archive:
        await archive.commit()
        await archive.set()
        with pytest.raises(CatalogUnfitError, match="with the catalog's own tools"):
            await archive.catalog.remove(archive.table, "S")
        assert not [one for one in server.requests if one.startswith("DELETE")]


async def test_commits_go_on_while_a_catalog_is_away_and_the_entry_is_mended_when_it_is_back(
    tmp_path, server, caplog, monkeypatch
):
    [port] = free_ports(1)
    uri = f"https://127.0.0.1:{port}"
    async with registered(tmp_path, server, uri, namespace="lake") as archive, archive.keeper.scope():
        await archive.commit()
        archive.keeper.announce(archive.table)
        await until(lambda: "does not answer" in archive.failing.get("catalog", ""))
        attempts, run = [], archive.catalog._run

        async def counted(*call):
            attempts.append(call)
            return await run(*call)

        monkeypatch.setattr(archive.catalog, "_run", counted)
        await archive.commit()
        archive.keeper.announce(archive.table)
        await until(lambda: attempts)
        assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1, "once while it lasts"
        async with server.serve(port):
            await until(lambda: server.tables.get(("lake", "S")) == archive.location())
            await until(lambda: not archive.failing)
            await archive.commit()
            archive.keeper.announce(archive.table)
            await until(lambda: server.tables["lake", "S"] == archive.location())
            await until(lambda: archive.keeper.states["S"].number == archive.table.number)
        await archive.commit()
        archive.keeper.announce(archive.table)
        await until(lambda: "does not answer" in archive.keeper.states["S"].trouble)
        assert archive.keeper.states["S"].number == archive.table.number - 1, "what it showed last"
    assert archive.failing == {}


async def test_no_commit_waits_for_a_catalog_that_stalls(tmp_path, server):
    server.stalls = True
    async with server.serve() as uri, registered(tmp_path, server, uri) as archive, archive.keeper.scope():
        for _ in range(3):
            await archive.commit()
            archive.keeper.announce(archive.table)
        await until(lambda: server.requests)
        assert len(server.requests) == 1, "one request at a time, whatever is announced"


# --- SeaweedFS -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory):
    server = SeaweedCatalog(tmp_path_factory.mktemp("seaweed-catalog"))
    server.start()
    yield server
    server.kill()


def in_seaweed(folder, seaweed, name, **settings):
    given = seaweed.settings | {"namespace": name, "lower_case": True} | settings
    return Registered(folder, location=f"s3://{BUCKET}", **given)


async def test_seaweedfs_registers_a_table_and_can_not_show_the_next_one(tmp_path, seaweed):
    """The first registration says so, since the entry would stay at a table that the archive deletes."""
    archive = in_seaweed(tmp_path, seaweed, "first")
    await archive.commit()
    await seaweed.mirror(archive.store)
    with pytest.raises(CatalogUnfitError, match=r"can't register an entry again.*first\.s stays at s3://lake/iceberg"):
        await archive.set()
    assert (await archive.catalog.inspect(archive.table, "S"))[1], "it is registered, and shows this table"
    await archive.commit()
    await seaweed.mirror(archive.store)
    with pytest.raises(CatalogUnfitError, match="use another catalog"):
        await archive.set()
    assert "shows an earlier table" in (await archive.catalog.inspect(archive.table, "S"))[0]
    archive.catalog.close()


async def test_seaweedfs_deletes_the_files_of_a_dropped_table_so_capture_drops_none(tmp_path, seaweed):
    """This is why an entry is never dropped and registered again."""
    archive = in_seaweed(tmp_path, seaweed, "dropped")
    await archive.commit()
    await seaweed.mirror(archive.store)
    with pytest.raises(CatalogUnfitError):
        await archive.set()
    path = archive.table.iceberg["S"].metadata
    assert (await seaweed.bucket.head_async(path))["path"] == path
    given = {"oauth2-server-uri": f"{seaweed.uri}/v1/oauth/tokens", **seaweed.settings["properties"]}
    reader = await asyncio.to_thread(lambda: RestCatalog("lake", uri=seaweed.uri, warehouse=f"s3://{BUCKET}", **given))
    await asyncio.to_thread(reader.drop_table, "dropped.s")  # with purgeRequested=false
    with pytest.raises(FileNotFoundError):
        await seaweed.bucket.head_async(path)
    reader.close()
    archive.catalog.close()


async def test_seaweedfs_refuses_a_wrong_secret(tmp_path, seaweed):
    archive = in_seaweed(tmp_path, seaweed, "second", properties={"credential": "catalog-tests:wrong"})
    await archive.commit()
    with pytest.raises(CatalogRefusedError, match="check the credentials"):
        await archive.set()
    archive.catalog.close()


async def test_an_unfit_catalog_is_reported_until_it_can_replace_entries(tmp_path, seaweed):
    archive = in_seaweed(tmp_path, seaweed, "third")
    await archive.commit()
    await seaweed.mirror(archive.store)
    archive.keeper.announce(archive.table)
    assert not await archive.keeper.set_all()
    assert not await archive.keeper.set_all(), "the entry shows the table, and will not show the next"
    assert "can't register an entry again" in archive.failing["catalog"]
    archive.catalog.close()


async def test_seaweedfs_that_was_killed_is_asked_again_when_it_is_back(tmp_path, seaweed):
    archive = in_seaweed(tmp_path, seaweed, "fourth")
    await archive.commit()
    await seaweed.mirror(archive.store)
    with pytest.raises(CatalogUnfitError):
        await archive.set()
    await asyncio.to_thread(seaweed.kill)
    with pytest.raises(CatalogAwayError, match="does not answer"):
        await archive.set()
    await asyncio.to_thread(seaweed.start)
    done = ""
    async with asyncio.timeout(PATIENCE):  # it answers before it finds the objects that it stored
        while not done:
            with contextlib.suppress(CatalogAwayError):
                done = await archive.set()
    assert done == CURRENT
    archive.catalog.close()
