"""REST catalogs for tests: SeaweedFS's, a process of its own, and one that can replace entries.

SeaweedFS is the one server that we found on PyPI or npm for Iceberg's REST protocol, and it ignores `overwrite`. The
second one answers as the specification says that a catalog with `overwrite` does. It proves nothing about Lakekeeper
and Polaris, which need a database or Java of their own.
"""

import asyncio
import contextlib
import json
import tempfile
import urllib.request
from pathlib import Path

from aiohttp import web
from obstore.store import S3Store
from patient import PATIENCE
from stores import Program, kill, program

from natty.metrics.access import Certificate
from natty.metrics.http import serve
from natty.testing import DevCA, free_ports

KEY, SECRET = "catalog-tests", "not-a-secret-for-tests"
BUCKET = "lake"


class SeaweedCatalog:
    """SeaweedFS with its REST catalog over an S3 Tables bucket. `kill` and `start` it at any time."""

    def __init__(self, folder):
        names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc", "admin")
        *ports, iceberg = free_ports(len(names) + 1)
        self.ports = dict(zip(names, ports, strict=True))
        options = [
            "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false",
            "-master.telemetry=false", "-s3.iam=false", f"-tableBucket={BUCKET}", "-s3.port.lance=0",
            "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock", f"-s3.port.iceberg={iceberg}",
        ]  # fmt: skip
        for name, port in self.ports.items():
            part, _, kind = name.partition(".")
            options.append(f"-{part}.port{'.' + kind if kind else ''}={port}")
        self.environment = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        self._program = Program([program("weed"), "mini", *options], folder, self.environment)
        self.uri = f"http://127.0.0.1:{iceberg}"
        self.s3 = f"http://127.0.0.1:{self.ports['s3']}"
        self.settings = {
            "type": "rest",
            "uri": self.uri,
            "warehouse": f"s3://{BUCKET}",
            "timeout": PATIENCE,
            "properties": {"credential": f"{KEY}:{SECRET}", "s3.endpoint": self.s3},
        }

    def start(self):
        """Start it, and wait until the catalog answers. It blocks."""
        self._process = self._program.start(self._answers)

    def kill(self):
        kill(self._process)
        for port in (*self.ports.values(), self.ports["admin"] + 10_000):
            for left in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def _answers(self):
        asked = f"grant_type=client_credentials&client_id={KEY}&client_secret={SECRET}&scope=catalog"
        try:
            with urllib.request.urlopen(f"{self.uri}/v1/oauth/tokens", asked.encode(), timeout=5) as answer:
                headers = {"Authorization": f"Bearer {json.load(answer)['access_token']}"}
            request = urllib.request.Request(f"{self.uri}/v1/{BUCKET}/namespaces", headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    @property
    def bucket(self):
        return S3Store(
            BUCKET,
            endpoint=self.s3,
            access_key_id=KEY,
            secret_access_key=SECRET,
            client_options={"allow_http": True, "timeout": f"{PATIENCE:g}s"},
        )

    async def mirror(self, store):
        """Copy the archive's metadata into the bucket, where the catalog reads them."""
        for one in await store.list("iceberg/"):
            if "/metadata/" in one.path and not one.path.endswith("version-hint.text"):
                await self.bucket.put_async(one.path, await store.get(one.path))


class OverwritingCatalog:
    """A REST catalog over TLS that registers and replaces entries. `status` is what it refuses everything with.

    `stalls` makes it accept requests and never answer. `requests` are the methods and paths that it was asked, `heard`
    the headers and bodies. `answer` may answer a request in its place. `overrides` are in its `/v1/config`, `config` in
    each table.
    """

    TOKEN = "of this catalog alone"
    CREDENTIAL = "capture:s3cret/of+this catalog"

    def __init__(self, folder):
        self.tables, self.namespaces, self.requests = {}, set(), []
        self.status, self.stalls, self.rewrites = 0, False, False
        self.heard, self.answer, self.overrides, self.config = [], None, {}, {}
        self.going_on = asyncio.Event()
        DevCA.create().write(folder / "tls")
        self.tls = folder / "tls"

    def settings(self, uri):
        return {
            "type": "rest",
            "uri": uri,
            "ca": str(self.tls / "ca.pem"),
            "timeout": PATIENCE,
            "properties": {"token": self.TOKEN},
        }

    @contextlib.asynccontextmanager
    async def serve(self, port=0, *, plain=False):
        """Serve it; yield its URL."""
        application = web.Application(middlewares=[self._guard])
        namespace = "/v1/namespaces/{namespace}"
        application.add_routes(
            [
                web.get("/v1/config", self._config),
                web.post("/v1/oauth/tokens", self._issue_token),
                web.post("/v1/namespaces", self._create_namespace),
                web.get(namespace, self._namespace),
                web.get(f"{namespace}/tables/{{table}}", self._load),
                web.post(f"{namespace}/register", self._register),
            ]
        )
        tls = Certificate(self.tls / "server.pem", self.tls / "server-key.pem")
        async with serve(application, "127.0.0.1", port, None if plain else tls) as url:
            try:
                yield url
            finally:
                self.going_on.set()

    @web.middleware
    async def _guard(self, request, handler):
        self.requests.append(f"{request.method} {request.path}")
        self.heard.append((dict(request.headers), await request.text()))
        if self.answer and (answer := await self.answer(request)) is not None:
            return answer
        if self.stalls:
            await self.going_on.wait()
        issues = request.path == "/v1/oauth/tokens"
        if not issues and request.headers.get("Authorization") != f"Bearer {self.TOKEN}":
            return _error(401, "NotAuthorizedException", "who are you?")
        if self.status:
            return _error(self.status, "Refused", "not for you")
        return await handler(request)

    async def _config(self, request):
        paths = ["namespaces", "namespaces/{namespace}/register"]
        endpoints = [f"POST /v1/{{prefix}}/{path}" for path in paths]
        endpoints += [f"GET /v1/{{prefix}}/namespaces/{{namespace}}{path}" for path in ("", "/tables/{table}")]
        return web.json_response({"defaults": {}, "overrides": self.overrides, "endpoints": endpoints})

    async def _issue_token(self, request):
        given = await request.post()
        if f"{given['client_id']}:{given['client_secret']}" != self.CREDENTIAL:
            return _error(401, "NotAuthorizedException", "who are you?")
        return web.json_response({"access_token": self.TOKEN, "token_type": "bearer"})

    async def _create_namespace(self, request):
        self.namespaces.add("\x1f".join((await request.json())["namespace"]))
        return web.json_response(await request.json() | {"properties": {}})

    async def _namespace(self, request):
        name = request.match_info["namespace"]
        if name not in self.namespaces:
            return _error(404, "NoSuchNamespaceException", name)
        return web.json_response({"namespace": name.split("\x1f"), "properties": {}})

    async def _load(self, request):
        name = request.match_info["namespace"], request.match_info["table"]
        return self._shown(name) if name in self.tables else _error(404, "NoSuchTableException", name[1])

    async def _register(self, request):
        wanted = await request.json()
        name = request.match_info["namespace"], wanted["name"]
        if name in self.tables and not wanted.get("overwrite"):
            return _error(409, "AlreadyExistsException", f"{wanted['name']} exists")
        self.tables[name] = wanted["metadata-location"]
        return self._shown(name)

    def _shown(self, name):
        location = self.tables[name]
        metadata = json.loads(Path(location.removeprefix("file://")).read_text())
        shown = f"{location}.rewritten" if self.rewrites else location
        return web.json_response({"metadata-location": shown, "metadata": metadata, "config": self.config})


def _error(status, kind, message):
    return web.json_response({"error": {"message": message, "type": kind, "code": status}}, status=status)
