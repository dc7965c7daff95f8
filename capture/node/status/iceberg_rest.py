"""A read-only Iceberg REST catalog (Apache Iceberg's `rest-catalog-open-api.yaml`): each archive is a namespace, each
of its streams a table, and so is each pipeline. It returns the tables that a head names at that moment.

The catalog gives readers no credentials: they need their own to read the store.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from capture.archive import chain
from capture.archive.chain import Head, HeadReader
from capture.archive.iceberg_state import Exposable, folder
from capture.archive.table import Table
from capture.errors import CaptureError, ConfigError, NotStoredError
from capture.stores import Address, Store
from capture.stores.address import SCHEMES
from natty import NattyError
from natty.metrics.access import Tokens

READS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
"""The endpoints that the catalog lists to clients."""

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""The variables that the S3 client reads too; the first that is set counts."""

log = logging.getLogger("capture.catalog")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Archive:
    """The tables of a document as last committed; the last one that was read is cached until the head changes.

    It is an archive's table, or another `kind`: that of pipelines. The tables `beside` are listed with them.
    """

    def __init__(
        self, store: Store, head: HeadReader, kind: type[Exposable] = Table, *, beside: Archive | None = None
    ) -> None:
        self.store = store
        self.beside = beside
        self._head = head
        self._kind = kind
        self._known: tuple[Head, Exposable] | None = None

    def __repr__(self) -> str:
        return f"Archive({self.store.url})"

    async def table(self) -> Exposable:
        """Return the committed document; an empty one before the first commit. CaptureError, NattyError."""
        head = await self._head()
        if head is None:
            return self._kind()
        if self._known is None or self._known[0] != head:
            self._known = head, await chain.read(self.store, head, self._kind)
        return self._known[1]

    async def list_tables(self) -> set[str]:
        """Return the names of the tables. CaptureError, NattyError."""
        beside = await self.beside.list_tables() if self.beside else set()
        return beside | (await self.table()).iceberg.keys()

    async def metadata(self, stream: str) -> tuple[str, bytes] | None:
        """Return the location and the content of a stream's metadata file; None if there is no such table."""
        for attempt in range(2):
            exposed = (await self.table()).iceberg.get(stream)
            if exposed is None:
                return await self.beside.metadata(stream) if self.beside else None
            base = exposed.location.removesuffix(folder(stream))
            try:
                return f"{base}{exposed.metadata}", await self.store.get(exposed.metadata)
            except NotStoredError:  # a NATS server answered that is behind by a whole grace time
                self._known = None
                if attempt:
                    raise
        raise AssertionError("two attempts")


class RestCatalog:
    """Serves some archives, by name, to clients that present one of the tokens."""

    def __init__(self, archives: Mapping[str, Archive], tokens: Iterable[str]) -> None:
        self._archives = archives
        self._tokens = Tokens(tokens)
        if not self._tokens:
            raise ConfigError("the catalog needs a token: without one it would answer every client")

    def __repr__(self) -> str:
        return f"RestCatalog({', '.join(self._archives)})"

    def application(self) -> web.Application:
        """Return the catalog as a web application."""
        application = web.Application(middlewares=[self._guard])
        namespace = "/v1/namespaces/{namespace}"
        table = f"{namespace}/tables/{{table}}"
        application.add_routes(
            [
                web.get("/v1/config", self._config),
                web.get("/v1/namespaces", self._namespaces),
                web.get(namespace, self._namespace, allow_head=False),
                web.head(namespace, self._has_namespace),
                web.get(f"{namespace}/tables", self._tables),
                web.get(table, self._table, allow_head=False),
                web.head(table, self._has_table),
            ]
        )
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests without a token, and return every error in the form that Iceberg's clients expect."""
        if not self._tokens.admit(request.headers.get("Authorization", "")):
            return _error(401, "NotAuthorizedException", "a valid bearer token is needed")
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed:
            return _error(403, "ForbiddenException", "this catalog is read-only: only capture's leader commits")
        except web.HTTPException as error:
            return _error(error.status, "NoSuchEndpointException", f"{request.method} {request.path}: {error.reason}")
        except (CaptureError, NattyError) as error:
            log.error("the catalog could not answer: %s", error, extra={"action": "catalog_failed"})
            return _error(503, "ServiceUnavailableException", "the archive can't be read at the moment")

    async def _config(self, request: web.Request) -> web.StreamResponse:
        return _json({"defaults": {}, "overrides": {}, "endpoints": list(READS)})

    async def _namespaces(self, request: web.Request) -> web.StreamResponse:
        if parent := request.query.get("parent"):
            return _json({"namespaces": []}) if parent in self._archives else _no_namespace(parent)
        return _json({"namespaces": [[name] for name in self._archives]})

    async def _namespace(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["namespace"]
        return _json({"namespace": [name], "properties": {}}) if name in self._archives else _no_namespace(name)

    async def _has_namespace(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["namespace"]
        return web.Response(status=204) if name in self._archives else _no_namespace(name)

    async def _tables(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["namespace"]
        if name not in self._archives:
            return _no_namespace(name)
        tables = await self._archives[name].list_tables()
        return _json({"identifiers": [{"namespace": [name], "name": stream} for stream in sorted(tables)]})

    async def _table(self, request: web.Request) -> web.StreamResponse:
        name, stream = request.match_info["namespace"], request.match_info["table"]
        if name not in self._archives:
            return _no_namespace(name)
        archive = self._archives[name]
        found = await archive.metadata(stream)
        if found is None:
            return _no_table(name, stream)
        location, metadata = found
        config = reading_hints(archive.store.url, os.environ)
        return _json({"metadata-location": location, "metadata": msgspec.Raw(metadata), "config": config})

    async def _has_table(self, request: web.Request) -> web.StreamResponse:
        name, stream = request.match_info["namespace"], request.match_info["table"]
        if name not in self._archives:
            return _no_namespace(name)
        tables = await self._archives[name].list_tables()
        return web.Response(status=204) if stream in tables else _no_table(name, stream)


def reading_hints(store_url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what clients need to reach an S3 server besides the location: its endpoint and region. Never a credential.

    What the URL omits comes from the environment, as for our own client.

    The region has two names: the specification's, and the one that Polars reads. With a custom endpoint, the bucket is
    in the path, as in our own client's requests.
    """
    if store_url.partition("://")[0] not in SCHEMES:
        return {}
    address = Address.parse(store_url)
    if address.scheme != "s3":
        return {}
    hints: dict[str, str] = {}
    if endpoint := address.endpoint or _first(environment, ENDPOINTS):
        hints |= {"s3.endpoint": endpoint, "s3.path-style-access": "true"}
    if region := address.region or _first(environment, REGIONS):
        hints |= {"client.region": region, "s3.region": region}
    return hints


def _first(environment: Mapping[str, str], names: Iterable[str]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _no_namespace(name: str) -> web.Response:
    return _error(404, "NoSuchNamespaceException", f"there is no archive {name}")


def _no_table(name: str, stream: str) -> web.Response:
    return _error(404, "NoSuchTableException", f"there is no table {stream} in {name}")


def _error(status: int, kind: str, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": kind, "code": status}}, status)


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
