"""`capture doctor`: checks the Java and Spark of this machine, and the archive's store and stream."""

from __future__ import annotations

import contextlib
import secrets
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from capture.archive.chain import latest_offline, read
from capture.archive.identity import holds_archive
from capture.archive.table import Table
from capture.cli import checks, settings
from capture.config.settings import CaptureConfig
from capture.config.streams import each
from capture.errors import AlreadyStoredError, CaptureError, OtherStoreError, SparkError, StoreError
from capture.ingest.source import stream_info
from capture.node.moved_store import check_not_moved
from capture.node.user_catalog import UserCatalog
from capture.spark import class_data
from capture.spark.java import candidates, choose
from capture.spark.options import check_master, read_properties
from capture.stores import open_store
from natty import Natty
from natty.cli import connect, server_checks
from natty.cli.checks import Finding, Status
from natty.cli.doctor import report
from natty.cli.run import run_async
from natty.elections import ElectionOptions
from natty.errors import NattyError
from natty.streams import ConsumerInfo
from natty.streams.listing import all_consumers

PROBE_BYTES = 65_536  # a full disk may still store an empty object
MEMORY = Path("/proc/meminfo")
LIMIT = Path("/sys/fs/cgroup/memory.max")
MOVED = "nothing is written into a store without the archive that NATS knows, see archive"
UNCHECKED = "nothing is written until it is known whether the store holds the archive that NATS knows"


@connect.options
def doctor(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
) -> None:
    """Show which Java and Spark are used, and why; with a configuration, test its store and its streams too.

    Exits with 1 if anything is wrong.
    """
    wanted = settings.archive(config, {"store": store}, nats, needs=())
    facts = {"python of the workers": wanted.spark.properties.get("spark.pyspark.python", sys.executable)}
    findings = [*_spark(wanted)]
    of_streams, forbids = run_async(_streams(wanted)) if wanted.stream or wanted.streams else ([], "")
    if wanted.store:
        untested = Finding("store", Status.FAIL, f"not tested: {forbids}")
        findings.append(untested if forbids else run_async(_store(wanted.store)))
    findings += of_streams
    if wanted.stream or wanted.streams:
        findings += run_async(_catalog(wanted))
    report(facts, findings, as_json=as_json)


def _spark(config: CaptureConfig) -> list[Finding]:
    spark = config.spark
    return [
        *checks.check_packages({name: _version(name) for name in checks.PACKAGES}),
        *checks.check_java(candidates(spark.java)),
        *_class_data(config),
        checks.check_memory(_driver_memory(config), _free_bytes()),
        _master(config),
    ]


def _driver_memory(config: CaptureConfig) -> str:
    spark, named = config.spark, {}
    with contextlib.suppress(SparkError):  # an error in that file is reported with the master
        named = read_properties(spark.properties_file) if spark.properties_file else {}
    return {**named, **spark.properties}.get("spark.driver.memory", spark.driver_memory)


def _master(config: CaptureConfig) -> Finding:
    """Report where Spark runs, and the origin of that setting. The file wins over `master`, `properties` over both."""
    spark, named = config.spark, {}
    if spark.properties_file:
        try:
            named = read_properties(spark.properties_file)
        except SparkError as error:
            return Finding("master", Status.FAIL, str(error))
    said = {"spark.master": spark.master}
    origins = {"properties": spark.properties, spark.properties_file: named, "": said}
    origin, master = next((name, of["spark.master"]) for name, of in origins.items() if "spark.master" in of)
    try:
        check_master(master)
    except SparkError as error:
        return Finding("master", Status.FAIL, str(error))
    return Finding("master", Status.OK, f"{master}, from {origin}" if origin else master)


def _class_data(config: CaptureConfig) -> list[Finding]:
    try:
        java = choose(config.spark.java)
    except SparkError:
        return []  # there is no Java, which was reported
    if _version("pyspark") is None:
        return []
    archive: tuple[Path, int | None] | str
    try:
        archive = class_data.archive_of(java)
    except (OSError, RuntimeError) as error:
        archive = str(error)
    return [checks.check_class_data(config.spark.class_data, archive)]


async def _store(url: str) -> Finding:
    """Create an object, try to create it again, and remove it."""
    try:
        store = open_store(url)
        path = f"doctor-{secrets.token_hex(8)}"
        await store.put(path, secrets.token_bytes(PROBE_BYTES))
        try:
            await store.put(path, b"")
        except AlreadyStoredError:
            text = "it can be written, and does not replace an object that must be created only if absent"
            begun = "" if await holds_archive(store) else "; it holds no archive yet"
            return Finding("store", Status.OK, text + begun)
        finally:
            await store.delete(path)
    except CaptureError as error:
        return Finding("store", Status.FAIL, str(error))
    return Finding("store", Status.FAIL, "it replaced an object that must be created only if absent")


async def _catalog(config: CaptureConfig) -> list[Finding]:
    """Report whether the user's catalog answers, and whether each stream's entry is free or the archive's own."""
    found = []
    for one in each(config) if config.table.catalog.type else ():
        catalog = UserCatalog(store := open_store(one.store or "."), one)
        try:
            table = await read(store, await latest_offline(store, Table), Table)
            found.append(Finding("catalog", Status.OK, await catalog.reach(table, one.stream)))
        except CaptureError as error:
            found.append(Finding("catalog", Status.FAIL, str(error)))
        catalog.close()
    return found


async def _streams(config: CaptureConfig) -> tuple[list[Finding], str]:
    """Return the findings about the streams, and why the store must not be tested by a write; "" if it may be."""
    try:
        async with Natty(**config.nats) as natty:
            found = [await stream_info(natty, one.stream) for one in each(config)]
            unfit = [*map(partial(_check_direct, natty), each(config), found)]
            moved = [await _check_moved(natty, one) for one in each(config) if one.store]
            server = await _server(natty, found)
    except (NattyError, CaptureError) as error:
        return [Finding("stream", Status.FAIL, str(error))], f"{UNCHECKED}: {error}"
    streams = [Finding("stream", Status.OK, _describe(info)) for info in found]
    findings = [*streams, *filter(None, unfit), *(one for one, _ in moved if one), *server]
    return findings, next((forbids for _, forbids in moved if forbids), "")


def _check_direct(natty: Natty, config: CaptureConfig, info: dict[str, Any]) -> Finding | None:
    """Report if the stream is to be captured without a consumer, and does not allow that."""
    from capture.node.direct_source import check_direct

    try:
        if config.is_direct:
            check_direct(natty, info)
    except (CaptureError, NattyError) as error:
        return Finding("source", Status.FAIL, str(error))
    return None


async def _check_moved(natty: Natty, config: CaptureConfig) -> tuple[Finding | None, str]:
    """Report if the archive that NATS knows is in another store, so that a node would refuse to start.

    The second value says why the store must not be tested by a write; "" if it may be.
    """
    try:
        await check_not_moved(natty, open_store(config.store), config)
    except OtherStoreError as error:
        return Finding("archive", Status.FAIL, str(error)), MOVED
    except StoreError as error:
        return None, f"{UNCHECKED}: {error}"
    return None, ""


async def _server(natty: Natty, streams: list[dict[str, Any]]) -> list[Finding]:
    """Report the server's known faults, and messages of these streams and the elections that it may lose."""
    consumers, buckets = list[ConsumerInfo](), list[dict[str, Any]]()
    with contextlib.suppress(NattyError):  # an account with a node's permissions may not list consumers
        for info in streams:
            consumers += (await all_consumers(natty.jetstream, info["config"]["name"])).found
    with contextlib.suppress(NattyError):  # no election was held yet, or this account may not see it
        buckets.append(await natty.jetstream.request(f"STREAM.INFO.KV_{ElectionOptions.bucket}"))
    clustered = bool(natty.connection.server_info.get("cluster"))
    return [
        *checks.check_elections(natty.connection.server_version),
        *server_checks.check_faults(natty.connection.server_version, streams, consumers),
        *server_checks.check_durability([*streams, *buckets], clustered=clustered),
    ]


def _describe(info: dict[str, Any]) -> str:
    by = "direct get" if info["config"].get("allow_direct") else "a consumer, since allow_direct is not set"
    return f"{info['config']['name']} holds {info['state']['messages']:,} messages; Spark reads it by {by}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _free_bytes() -> int | None:
    """Return the free memory of the machine or of our container's limit; None if the system does not report it."""
    try:
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        return min(free, int(LIMIT.read_text()))
    except (OSError, ValueError):  # no limit
        return free
