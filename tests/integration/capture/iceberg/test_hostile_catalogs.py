"""REST catalogs, over TLS, that send credentials elsewhere, name code, repeat secrets, or never stop to answer."""

import asyncio
import base64
import contextlib
import gzip
import json

import pytest
from aiohttp import web
from foreign_catalogs import Registered
from patient import PATIENCE, until
from rest_catalogs import OverwritingCatalog

from capture.errors import CatalogAwayError, CatalogError
from capture.iceberg import foreign_session
from capture.iceberg.foreign_catalog import MOVED, REGISTERED

GIVEN = [{"token": OverwritingCatalog.TOKEN}, {"credential": OverwritingCatalog.CREDENTIAL}]


@pytest.fixture
async def server(tmp_path):
    return OverwritingCatalog(tmp_path)


@pytest.fixture
async def thief(server, tmp_path):
    """Another server that the node would trust."""
    other = OverwritingCatalog(tmp_path / "thief")
    other.tls = server.tls

    async def issue(request):
        return web.json_response({"access_token": "x", "token_type": "bearer", "defaults": {}, "overrides": {}})

    other.answer = issue
    return other


@contextlib.asynccontextmanager
async def registered(folder, server, uri, **settings):
    world = Registered(folder, **(server.settings(uri) | settings))
    await world.commit()
    try:
        yield world
    finally:
        world.catalog.close()


@pytest.mark.parametrize("properties", GIVEN)
async def test_either_kind_of_credentials_is_sent_with_the_authority_that_is_configured(tmp_path, server, properties):
    async with server.serve() as uri, registered(tmp_path, server, uri, properties=properties) as archive:
        assert await archive.set() == REGISTERED


@pytest.mark.parametrize("properties", GIVEN)
@pytest.mark.parametrize("plain", [False, True], ids=["https", "http"])
async def test_no_redirect_is_followed(tmp_path, server, thief, properties, plain):
    async with (
        server.serve() as uri,
        thief.serve(plain=plain) as elsewhere,
        registered(tmp_path, server, uri, properties=properties) as archive,
    ):

        async def redirect(request):
            return web.Response(status=307, headers={"Location": f"{elsewhere}{request.path}"})

        server.answer = redirect
        with pytest.raises(CatalogError, match=f"leads this node to {elsewhere}, which gets no credentials"):
            await archive.set()
        assert len(server.requests) == 1
        assert thief.heard == []


@pytest.mark.parametrize("properties", GIVEN)
@pytest.mark.parametrize("name", ["uri", "oauth2-server-uri"])
async def test_a_catalog_may_not_name_another_origin(tmp_path, server, thief, properties, name):
    async with (
        server.serve() as uri,
        thief.serve() as elsewhere,
        registered(tmp_path, server, uri, properties=properties) as archive,
    ):
        server.overrides = {name: f"{elsewhere}/path"}
        if name == "uri" or "credential" in properties:
            with pytest.raises(CatalogError, match=f"leads this node to {elsewhere}"):
                await archive.set()
        else:
            assert await archive.set() == REGISTERED, "a token is fetched nowhere"
        assert thief.heard == []
        server.overrides = {"uri": f"{uri}/"}
        assert await archive.set() in (REGISTERED, "current")


async def test_a_token_may_come_from_the_server_that_is_configured_for_it(tmp_path, server, thief):
    async def issue(request):
        return web.json_response({"access_token": server.TOKEN, "token_type": "bearer"})

    thief.answer = issue
    async with server.serve() as uri, thief.serve() as issuer:
        properties = {"credential": server.CREDENTIAL, "oauth2-server-uri": f"{issuer}/tokens"}
        async with registered(tmp_path, server, uri, properties=properties) as archive:
            assert await archive.set() == REGISTERED
    assert "POST /v1/oauth/tokens" not in server.requests


@pytest.mark.parametrize("place", ["overrides", "config"])
async def test_a_catalog_names_no_code_that_the_node_runs(tmp_path, server, place, monkeypatch):
    """pyiceberg imports and calls what `auth` of `/v1/config`, and `py-io-impl` of a table, name."""
    witness = tmp_path / "witness"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hostile.py").write_text(f"open({str(witness)!r}, 'w').close()\nIo = dict\n")
    code = {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": ["touch", str(witness)]}}
    said = {"overrides": {"auth": code}, "config": {"py-io-impl": "hostile.Io"}}
    async with server.serve() as uri, registered(tmp_path, server, uri) as archive:
        setattr(server, place, said[place])
        assert await archive.set() == REGISTERED
        await archive.commit()
        assert await archive.set() == MOVED
    assert not witness.exists()


@pytest.mark.parametrize("properties", GIVEN)
@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 409, 418, 500, 503])
async def test_no_sentence_repeats_what_a_catalog_repeats(tmp_path, server, properties, status):
    heard = []

    async def repeat(request):
        if status != 401 and request.path == "/v1/oauth/tokens":
            return None
        text = f"{request.headers.get('Authorization')} {await request.text()} {dict(request.headers)}"
        heard.append(text)
        said = {"message": text, "type": text, "code": status}
        return web.json_response({"error": said, "defaults": text, "overrides": {}}, status=status)

    async with server.serve() as uri:
        with_password = uri.replace("//", "//reader:p4ss%2Fw@")
        async with registered(tmp_path, server, with_password, properties=properties) as archive:
            server.answer = repeat
            with pytest.raises(CatalogError) as raised:
                await archive.set()
    assert any(secret in heard[0] for secret in (server.TOKEN, "s3cret%2Fof%2Bthis+catalog"))
    for secret in (server.TOKEN, "s3cret", "p4ss"):
        assert secret not in str(raised.value)
        assert base64.b64encode(secret.encode()).decode()[:4] not in str(raised.value)


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_without_an_end_is_given_up_and_not_stored(tmp_path, server, packed, monkeypatch):
    monkeypatch.setattr(foreign_session, "LARGEST", 1_000_000)
    ended = asyncio.Event()

    async def flood(request):
        answer = web.StreamResponse(headers={"Content-Encoding": "gzip"} if packed else {})
        await answer.prepare(request)
        piece = gzip.compress(bytes(100_000_000)) if packed else bytes(100_000)
        with contextlib.suppress(ConnectionError):
            while request.transport and not request.transport.is_closing():
                await answer.write(piece)
                await asyncio.sleep(0)
        ended.set()
        return answer

    async with server.serve() as uri, registered(tmp_path, server, uri) as archive:
        server.answer = flood
        with pytest.raises(CatalogError, match="sends more than 1,000,000 bytes in one answer"):
            await archive.set()
        async with asyncio.timeout(PATIENCE):
            await ended.wait()


async def test_an_answer_that_comes_by_bytes_ends_at_the_time_limit(tmp_path, server):
    async def drip(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while not server.going_on.is_set():
                await answer.write(b" ")
                await asyncio.sleep(0.05)
        return answer

    async with server.serve() as uri, registered(tmp_path, server, uri, timeout=0.5) as archive:
        server.answer = drip
        with pytest.raises(CatalogAwayError, match=r"does not answer: its answer was not complete within 0\.5 s"):
            await archive.set()
        busy = archive.catalog._busy
        await until(lambda: not (busy and busy.is_alive()))
        server.answer = None
        server.going_on.set()


async def test_control_characters_of_a_catalog_reach_no_sentence(tmp_path, server):
    async def answer(request):
        said = {"message": "\x1b[31mRED\x1b]0;pwn\x07\r\nINFO a forged line", "type": "\x9b2J", "code": 400}
        return web.json_response({"error": said}, status=400)

    async with server.serve() as uri, registered(tmp_path, server, uri) as archive:
        server.tables["lake", "S"] = f"{archive.location()}\x1b[31m\n"
        server.answer = answer
        with pytest.raises(CatalogError, match="RED") as raised:
            await archive.set()
        assert str(raised.value).isprintable()

        async def show(request):
            if "tables" not in request.path:
                return None
            metadata = json.loads(await archive.store.get(archive.table.iceberg["S"].metadata))
            return web.json_response({"metadata-location": "s3://\x1b[31m\nINFO forged", "metadata": metadata})

        server.answer = show
        with pytest.raises(CatalogError, match="did not write") as raised:
            await archive.set()
        assert str(raised.value).isprintable()
