"""The status page: the content of `capture status` for browsers, Prometheus and probes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from importlib.resources import files
from typing import Any

import msgspec
from aiohttp import web

from capture.errors import CaptureError, NoStatusError
from capture.node.status.history import STEP, History, known_lag
from capture.node.status.pipeline_metrics import pipeline_metrics
from capture.node.status.pipelines import PipelinesStatus
from capture.node.status.status import Status
from capture.verification.outputs import labels, metric
from natty import NattyError
from natty.metrics.access import Tokens
from natty.metrics.pages import PROBES
from natty.wire.background import cancel_all, keep_up

log = logging.getLogger("capture.serve")

FRESH = 1.0  # seconds for which one look answers all requests
LOOK_TIMEOUT = 8.0  # the time limit of a look, in seconds
PAGE = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

ASKED = {"WWW-Authenticate": 'Basic realm="capture: the token is the password", charset="UTF-8"'}

Look = Callable[[], Awaitable[list[Status]]]
LookPipelines = Callable[[], Awaitable[PipelinesStatus | None]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StatusPage:
    """Serves the archives' status, as `look` returns it. With `tokens`, requests must present one of them.

    `pipelines` returns the status of the pipelines, if there are any. `start` is the command that starts a node, and
    `runbook` the URL of docs/runbook.md, "" if it is not known: the page shows both where they help.

    `/` is the page, `/status.json` its content, `/history.json` the last hour, `/metrics` the status for Prometheus.
    `/readyz` reports whether NATS answers, `/livez` whether this process does; these probes need no token.
    """

    def __init__(
        self,
        look: Look,
        tokens: Iterable[str] = (),
        *,
        pipelines: LookPipelines | None = None,
        start: str = "capture run",
        runbook: str = "",
    ) -> None:
        self._look, self._look_at_pipelines = look, pipelines
        self._shown = {"start": start, "runbook": runbook}
        self._history = History()
        self._is_empty = False  # NATS answers, and no node has published anything
        self._tokens = Tokens(tokens)
        self._lock = asyncio.Lock()
        self._found: list[Status] | str = ""  # or why nothing was found
        self._pipelines: PipelinesStatus | None = None
        self._at = float("-inf")

    def __repr__(self) -> str:
        return f"StatusPage({self._found!r})"

    def application(self, path: str = "") -> web.Application:
        """Return the page as a web application. With a `path` ("/name"), all its addresses begin with it."""
        application = web.Application(middlewares=[self._guard])
        application.cleanup_ctx.append(self._remember)
        application.add_routes(
            [
                web.get(f"{path}/", self._page),
                web.get(path + "/{name:page\\.(?:css|js)}", self._page),
                web.get(f"{path}/status.json", self._status),
                web.get(f"{path}/history.json", self._hour),
                web.get(f"{path}/metrics", self._metrics),
                web.get(f"{path}/readyz", self._ready),
                web.get(f"{path}/livez", self._live),
            ]
        )
        return application

    async def _remember(self, application: web.Application) -> AsyncIterator[None]:
        """While the page is served, add a point to the history every few seconds."""

        async def remember() -> None:
            while True:
                found: list[Status] = []
                with contextlib.suppress(TimeoutError, CaptureError, NattyError):  # requests report it
                    async with asyncio.timeout(LOOK_TIMEOUT):
                        found = await self._look()
                self._history.add(found, time.time())
                await asyncio.sleep(STEP)

        task = asyncio.create_task(keep_up("the history of the status page", remember))
        yield
        await cancel_all([task])

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "")
        if self._tokens and request.path not in PROBES and not self._tokens.admit(shown, basic=True):
            return web.Response(status=401, text="a token is needed\n", headers=HEADERS | ASKED)
        answer = await handler(request)
        answer.headers.update(HEADERS)
        return answer

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        content = (files("capture.node.status") / "page" / name).read_bytes()
        return web.Response(body=content, content_type=PAGE[name], charset="utf-8")

    async def _status(self, request: web.Request) -> web.Response:
        found = await self._now()
        said: dict[str, Any] = {"error": found, "empty": self._is_empty}
        if not isinstance(found, str):
            if self._history.lacks(found):  # the rate is known from the first look on
                self._history.add(found, time.time())
            said = {"archives": [one.as_dict() for one in found]}
            said |= {"pipelines": self._pipelines.as_dict()} if self._pipelines else {}
        status = 503 if isinstance(found, str) else 200
        return web.Response(
            body=msgspec.json.encode(said | self._shown), status=status, content_type="application/json"
        )

    async def _hour(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._history.as_dict()), content_type="application/json")

    async def _metrics(self, request: web.Request) -> web.Response:
        found = await self._now()
        if isinstance(found, str):
            return web.Response(status=503, text=f"{found}\n")
        return web.Response(text=metrics(found, self._pipelines), content_type="text/plain", charset="utf-8")

    async def _ready(self, request: web.Request) -> web.Response:
        found = await self._now()
        is_ready = self._is_empty or not isinstance(found, str)
        return web.Response(text="ready\n") if is_ready else web.Response(status=503, text=f"{found}\n")

    async def _live(self, request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _now(self) -> list[Status] | str:
        """Return the current status, or why it is unknown; concurrent requests share one look."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() - self._at > FRESH:
                self._is_empty = False
                try:
                    async with asyncio.timeout(LOOK_TIMEOUT):
                        self._found, self._pipelines = await self._look_at_all()
                except TimeoutError:
                    self._found = f"NATS has not answered for {LOOK_TIMEOUT:g} s"
                except (CaptureError, NattyError) as error:
                    self._found, self._is_empty = str(error), isinstance(error, NoStatusError)
                self._at = clock()
            return self._found

    async def _look_at_all(self) -> tuple[list[Status], PipelinesStatus | None]:
        if self._look_at_pipelines is None:
            return await self._look(), None
        return await asyncio.gather(self._look(), self._look_at_pipelines())


def metrics(found: Iterable[Status], pipelines: PipelinesStatus | None = None) -> str:
    """Return the archives' and the pipelines' figures for Prometheus. No label contains a subject or a key."""
    samples: dict[tuple[str, str], list[tuple[str, float]]] = {}

    def add(name: str, text: str, value: float | None, **tags: str) -> None:
        if value is not None:
            samples.setdefault((name, text), []).append((labels(**tags), float(value)))

    for one in found:
        archive = one.archive
        add("ok", "Whether nothing is wrong with the archive.", not one.troubles, archive=archive)
        add("troubles", "Problems of the archive.", len(one.troubles), archive=archive)
        for office, leader in (("sweep", one.sweeper), ("compaction", one.compactor)):
            add("led", "Whether there is a leader.", bool(leader), archive=archive, office=office)
        _add_state(add, one)
        for heard in one.board.nodes:
            tags = {"archive": archive, "node": heard.node.node}
            add("node_heard_seconds", "Seconds since the node's last report.", heard.ago, **tags)
            add("node_troubles", "Problems of the node.", len(heard.node.troubles), **tags)
            pending = None if heard.is_late else heard.node.pending
            add("node_pending", "Messages in the node's open blocks.", pending, **tags)
    text = "".join(metric(f"capture_archive_{name}", text, values) for (name, text), values in samples.items())
    return text + (pipeline_metrics(pipelines, time.time()) if pipelines else "")


def _add_state(add: Callable[..., None], one: Status) -> None:
    state, archive = one.board.state, one.archive
    if state is None:
        return
    for name, text, value in (
        ("swept_seconds", "Seconds since the last sweep.", one.board.ago),
        ("blocks", "Blocks that wait for the compaction.", state.blocks),
        ("block_messages", "Messages in blocks that wait for the compaction.", state.messages),
        ("block_bytes", "Bytes of blocks that wait for the compaction.", state.bytes),
        ("files", "Files of the table.", state.files),
        ("rows", "Messages in the table.", state.rows),
        ("table_bytes", "Bytes of the table.", state.table_bytes),
    ):
        add(name, text, value, archive=archive)
    for entry in one.catalogs:
        text = "Whether the entry in the user's catalog shows the table."
        add("catalog_current", text, not entry.trouble, archive=archive, stream=entry.stream)
    for stream in state.streams:
        tags: dict[str, Any] = {"archive": archive, "stream": stream.stream}
        add("stream_held", "Messages of the stream in the archive.", stream.held, **tags)
        if one.knows(stream):  # a figure that does not change any more would look well for ever
            add("stream_pending", "Messages of the stream not delivered yet.", stream.pending, **tags)
            add("stream_unacked", "Messages of the stream not acknowledged yet.", stream.unacked, **tags)
            add("stream_lag_seconds", "Age of the oldest message not captured.", known_lag(stream), **tags)
        if not one.board.is_late:
            add("stream_missing", "Acknowledged messages that are in no object.", stream.missing, **tags)
            add("stream_awaited", "Acknowledged messages that nodes may still store.", stream.awaited, **tags)
            add("stream_healed", "Messages that the sweep's leader stored because no node had.", stream.healed, **tags)
            add("stream_gone", "Messages that left the stream before a node stored them.", stream.gone, **tags)
