"""The main job on real input: the steps of a user with the public API and command line, one after the other."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capture.archive.heads import SWEEP
from capture.archive.picture import Picture
from capture.cli.demo import flights, tables
from capture.cli.demo.fleet import NODES, Fleet, within
from capture.cli.demo.screen import Result, Screen
from capture.cli.demo.watch import watch
from capture.config.load import load
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.pipelines.document import progress_of
from capture.reading.pipeline_view import PipelineView
from capture.spark import SparkDriver, View
from capture.stores import Store, open_store
from capture.verification.check import archive_picture, check
from natty import Natty, RequestTimeoutError
from natty.cli.run import run_async
from natty.config.secret_files import make_folder
from natty.config.tls import DevCA, TLSFiles
from natty.testing import NatsCluster, ServerOptions

POLL = 0.1  # seconds
REMOVE_WITHIN = 15.0  # seconds
IGNORE = ".gitignore"  # `make_folder` writes it; an interrupted run may leave it alone in the folder

_CAPTURE_TOML = """\
stream = "{stream}"
durable = "capture"
store = {store}
decoder = "json"
partition = "subject:1"   # flights.<origin>.<carrier>: one folder for each origin
ack_wait = 8.0
log = {log}

[limits]
max_age = 2.0
max_messages = 20_000

[sweep]
every = 0.5

[compaction]
every = 2.0
min_files = 12
max_wait = 10.0
lease = 4.0      # seconds after the crash of a leader until the other node compacts, and runs pipelines

[spark]
class_data = false   # the archive of Spark's classes would be made at this first start, which takes a minute
properties = {{ "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1" }}   # a session of a minute starts faster

[nats]
servers = {servers}
tls_ca = {ca}
tls_cert = {cert}
tls_key = {key}
{pipelines}"""


async def run_demo(
    rows: int | None, port: int | None, given: Path | None, *, keep: bool, watched: bool, as_json: bool
) -> bool:
    """Run the demo and show it. True if nothing is missing and all tables equal the CSV's. No process is left."""
    flights.data_file()
    console = Console(stderr=as_json)
    folder = given or Path(tempfile.mkdtemp(prefix="capture-demo-"))
    if given and folder.exists() and any(one.name != IGNORE for one in folder.iterdir()):
        raise CaptureError(f"{folder} is not empty: give another --folder, or remove it first")
    make_folder(folder)
    keep = keep or given is not None
    temporary = folder / "tmp" if keep else folder
    atexit.register(remove, temporary)  # if a second Ctrl-C interrupts the removal below
    began = time.monotonic()
    with Screen(console) as screen:
        try:
            result = await Demo(folder, screen, rows, port, watched=watched).run()
        finally:
            remove(temporary)
    result.seconds = time.monotonic() - began
    result.folder = str(folder) if keep else ""
    if as_json:
        verdicts = {"answers_equal": result.answers_equal, "tables_equal": result.tables_equal, "ok": result.ok}
        print(json.dumps(vars(result) | verdicts, indent=2))
    else:
        screen.summary(result, folder)
    return result.ok


class Demo:
    """One run. Every step uses what a user would use."""

    def __init__(self, folder: Path, screen: Screen, rows: int | None, port: int | None, *, watched: bool) -> None:
        self.rows, self.port, self.watched = rows, port, watched
        self.folder = folder
        self.screen = screen
        self.result = Result()
        self.fleet = Fleet(folder, screen, self.result)
        self.total = min(rows or flights.TOTAL, flights.TOTAL)

    async def run(self) -> Result:
        """Run the steps: cluster, nodes, publish, kill, wait, verify, query, compare tables."""
        self.screen.say("Making certificates and starting a three-node JetStream cluster over TLS")
        files = DevCA.create().write(self.folder / "tls")
        options = ServerOptions(port=self.port, name="demo")
        cluster = NatsCluster(3, options, folder=self.folder / "nats", tls_files=files)
        try:
            with cluster:
                self.result.plain_text = await plain_text_answer(cluster[0].port)
                self.screen.finish(f"The server refuses a client without TLS: {self.result.plain_text}")
                config = self._configure(cluster.urls, files)
                async with (
                    Natty(**config.nats) as natty,
                    watch(natty, config, self.screen) if self.watched else contextlib.nullcontext(),
                ):
                    await self._job(natty, config)
        finally:
            self.fleet.kill()
        return self.result

    async def _job(self, natty: Natty, config: CaptureConfig) -> None:
        await natty.election(SWEEP.election(flights.STREAM)).prepare()  # raises if the server is too old for elections
        await natty.ensure_stream(
            flights.STREAM, subjects=[flights.SUBJECTS], num_replicas=3, allow_batched=True, duplicate_window=600.0
        )
        for name in NODES:
            self.fleet.start(name)
        await self.fleet.find_leader(natty)
        store = open_store(config.store)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._kill_leaders(natty, config))
            await self._capture(natty, config)
            tasks.create_task(self._wait_until_derived(natty, config))
            picture = await self._wait_until_compacted(natty, config, store)
            await self._verify(natty, config, store, picture)
            await self._ask(config, picture)
        await self.fleet.stop()
        await self._compare_tables(natty, config)

    def _configure(self, servers: list[str], files: TLSFiles) -> CaptureConfig:
        """Write `capture.toml`. The nodes run with it, and the user can use it afterwards."""
        text = {
            "stream": flights.STREAM,
            "store": json.dumps(str(self.folder / "archive")),
            "log": json.dumps(str(self.folder / "logs")),
            "servers": json.dumps(servers),
            "ca": json.dumps(str(files.ca)),
            "cert": json.dumps(str(files.client_cert)),
            "key": json.dumps(str(files.client_key)),
            "pipelines": tables.PIPELINES_TOML,
        }
        (self.folder / "logs").mkdir()
        (self.folder / "tmp").mkdir()
        path = self.folder / "capture.toml"
        path.write_text(_CAPTURE_TOML.format(**text))
        return load(path, environment={})

    async def _capture(self, natty: Natty, config: CaptureConfig) -> None:
        """Publish the flights, and wait until they are stored."""
        began = time.monotonic()
        async with self._progress(natty):
            await self._publish(natty)
            async with within("every message is stored and acked"):
                captured = await self._wait_until(natty, self.result.messages)
        self.result.captured_per_second = captured / (time.monotonic() - began)

    async def _publish(self, natty: Natty) -> None:
        began = time.monotonic()
        async with natty.publisher(flights.STREAM) as publisher:
            for number, flight in enumerate(flights.flights(self.rows), start=1):
                await publisher.publish(flight.subject, flight.payload, msg_id=flight.message_id)
                if number % 1000 == 0:
                    self.screen.advance("published", publisher.stored, self.total)
                    await asyncio.sleep(0)
            await publisher.flush()
            self.screen.advance("published", publisher.stored, self.total)
        self.result.messages = publisher.stored
        self.result.published_per_second = publisher.stored / (time.monotonic() - began)

    async def _kill_leaders(self, natty: Natty, config: CaptureConfig) -> None:
        """Kill the sweep's leader when about half is captured, then the pipelines' leader in the middle of a run."""
        async with within("half of the flights are captured"):
            await self._wait_until(natty, self.total / 2)
        await self.fleet.kill_sweeper(natty)
        self.fleet.start(self.result.killed)
        await self.fleet.kill_in_a_run(natty, config)

    async def _count_captured(self, natty: Natty) -> int:
        """Return how many messages are stored and acked."""
        info = await natty.jetstream.request(f"CONSUMER.INFO.{flights.STREAM}.capture")
        waiting = info["num_pending"] + info["num_ack_pending"]
        stream = await natty.jetstream.request(f"STREAM.INFO.{flights.STREAM}")
        return int(stream["state"]["messages"] - waiting)

    async def _wait_until(self, natty: Natty, enough: float) -> int:
        """Wait until at least `enough` messages are stored and acked, and return how many are."""
        while True:
            self.fleet.check()
            with contextlib.suppress(RequestTimeoutError):  # the server is busy: try again
                captured = await self._count_captured(natty)
                self.screen.advance("stored and acked", captured, self.total)
                if captured >= enough:
                    return captured
            await asyncio.sleep(POLL)

    @contextlib.asynccontextmanager
    async def _progress(self, natty: Natty) -> AsyncIterator[None]:
        async def follow() -> None:
            while True:
                with contextlib.suppress(Exception):  # only a display: the steps themselves report errors
                    self.screen.advance("stored and acked", await self._count_captured(natty), self.total)
                await asyncio.sleep(POLL)

        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            task.cancel()

    async def _wait_until_derived(self, natty: Natty, config: CaptureConfig) -> None:
        """Wait until both tables have every message."""
        async with within("the pipelines' tables have every message"):
            while True:
                document = (await PipelineView.open(config, natty)).document
                sets = [document.progress.streams.get(progress_of(one.name, flights.STREAM)) for one in tables.TABLES]
                derived = min(one.held.count if one else 0 for one in sets)
                self.screen.advance("in both tables", derived, self.total)
                if derived >= self.result.messages:
                    return
                self.fleet.check()
                await asyncio.sleep(2 * POLL)

    async def _wait_until_compacted(self, natty: Natty, config: CaptureConfig, store: Store) -> Picture:
        """Wait until the compaction's leader has compacted every block into the table."""
        seen: dict[str, int] = {}
        async with within("every block is compacted"):
            while True:
                picture = await archive_picture(natty, config, store)
                seen |= {one.path: one.bytes for one in picture.blocks}
                compacted = sum(one.count for one in picture.files)
                self.screen.advance("compacted on Spark", compacted, self.total)
                if compacted >= self.result.messages and not picture.blocks:
                    break
                self.fleet.check()
                await asyncio.sleep(2 * POLL)
        blocks = {one.path: one.bytes for one in await store.list("blocks/")} | seen
        self.result.blocks, self.result.block_bytes = len(blocks), sum(blocks.values())
        self.result.files = len(picture.files)
        self.result.file_bytes = sum(one.bytes for one in picture.files)
        return picture

    async def _verify(self, natty: Natty, config: CaptureConfig, store: Store, picture: Picture) -> None:
        verdict = await check(natty, config, store, deep=True)
        self.result.verdict = verdict.sentence()
        complete = sum(one.count for one in picture.files) == self.result.messages == self.total
        self.result.verified = verdict.ok and complete
        self.screen.finish(f"Verified: {self.result.verdict}", well=self.result.verified)

    async def _ask(self, config: CaptureConfig, picture: Picture) -> None:
        """Query Spark, and compare the answers with the CSV read directly."""
        view = View(objects=picture.files, payload_schema=flights.COLUMNS)
        expected = await asyncio.to_thread(flights.compute_expected, self.rows)
        async with SparkDriver(config.spark.options(), log=self.folder / "logs" / "spark-questions.log") as spark:
            for question, wanted in zip(flights.QUESTIONS, expected, strict=True):
                answer = await spark.query(config.store, {"flights": view}, question.sql)
                found = [tuple(row) for row in answer.rows]
                differences = question.compare(found, wanted)
                self.result.questions_asked += 1
                self.result.differences += differences
                self.screen.answer(question, found, equal=not differences)

    async def _compare_tables(self, natty: Natty, config: CaptureConfig) -> None:
        """Read the pipelines' tables with pyiceberg, and compare each row with the CSV read directly."""
        view = await PipelineView.open(config, natty)
        expected = await asyncio.to_thread(tables.compute_tables, self.rows)
        for table in tables.TABLES:
            facts = await view.describe(table.name)
            assert facts.iceberg
            await view.wait_until_announced(table.name)
            found = await tables.read_table(facts.iceberg.location)
            differences = table.compare(found, expected[table.name])
            self.result.tables[table.name] = len(found)
            self.result.table_differences += differences
            self.screen.answer(table, table.show(found), equal=not differences)


def remove(folder: Path) -> None:
    """Remove a folder that ending processes may still use."""
    deadline = time.monotonic() + REMOVE_WITHIN
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(POLL if folder.exists() else 0.0)


async def plain_text_answer(port: int) -> str:
    """Speak the protocol without TLS to a server, and return its answer before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await reader.readline()  # INFO
        writer.write(b'CONNECT {"verbose":false,"tls_required":false}\r\nPING\r\n')
        answer = await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        answer = b""
    finally:
        writer.close()
    text = answer.decode("utf-8", "replace").strip()
    if "PONG" in text:
        raise CaptureError("the server answered a client without TLS; its configuration does not require TLS")
    return text or "the server closed the connection"


def demo(
    rows: Annotated[int | None, typer.Option(min=1, help="Number of flights; default: all 336 776.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files, and print where they are.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Folder for the files; default: a temporary one.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65533, help="Port of the first server; default: a free one.")
    ] = None,
    watched: Annotated[
        bool, typer.Option("--watch", help="Show the status page in a browser while the demo runs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run the end-to-end demo on real flights: a TLS cluster, two nodes, a killed leader, Spark, verification.

    Exits with 1 if a check fails. A signal ends it, with its processes and temporary files; the exit status is then 128
    plus the signal's number: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """
    resolved = folder and folder.resolve()
    ok = run_async(run_demo(rows, port, resolved, keep=keep, watched=watched, as_json=as_json))
    raise typer.Exit(0 if ok else 1)
