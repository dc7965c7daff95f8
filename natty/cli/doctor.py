"""`natty doctor`: checks the connection, the server, streams, consumers, clocks and certificates."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console

from natty import Natty
from natty.cli import checks, connect, server_checks
from natty.cli.checks import Finding, Status
from natty.cli.run import EXIT_ERROR
from natty.cli.tables import Json, print_document
from natty.cli.terminal import printable
from natty.config import tls
from natty.config.units import parse_time
from natty.errors import ConsumerNotFoundError, NattyError, StreamNotFoundError
from natty.streams import ConsumerInfo, StreamInfo, stream_info
from natty.streams.listing import all_consumers, all_streams
from natty.streams.stranded import find_stranded

LOOK_AGAIN = 2.0  # seconds between two checks of messages that seem stranded
_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


@connect.options
def doctor(*, nats: dict[str, Any], as_json: Json = False) -> None:
    """Summarise the server, and report current and upcoming problems. Exits with 1 if a check fails."""
    report(*connect.call(nats, _examine), as_json=as_json)


def report(facts: dict[str, Any], findings: list[Finding], *, as_json: bool) -> None:
    """Print facts and findings; exit with status 1 if a finding is a failure."""
    if as_json:
        print_document(facts | {"checks": [asdict(one) for one in findings]})
    else:
        _show(facts, findings)
    if any(one.status is Status.FAIL for one in findings):
        raise typer.Exit(EXIT_ERROR)


def _show(facts: dict[str, Any], findings: list[Finding]) -> None:
    """Print facts, then findings, each with its status first."""
    console = Console(highlight=False)
    for name, value in facts.items():
        console.print(printable(f"      {name}: {value}"), markup=False, soft_wrap=True)
    for one in findings:
        console.print(f"{one.status:<6}", style=_STYLES[one.status], end="")
        console.print(printable(f"{one.check}: {one.text}"), markup=False, soft_wrap=True)


async def _examine(natty: Natty) -> tuple[dict[str, Any], list[Finding]]:
    began = time.perf_counter()
    await natty.connection.flush()
    round_trip = time.perf_counter() - began
    account = await natty.jetstream.request("INFO")
    info = natty.connection.server_info
    facts = {
        "server": info.get("server_name", ""),
        "version": info.get("version", ""),
        "cluster": info.get("cluster", "none"),
        "tls": "required by us, in use" if natty.config.tls_required else "not in use",
        "round trip, ms": round(1000 * round_trip, 2),
        "jetstream streams": account["streams"],
        "jetstream storage, bytes": account["storage"],
        "largest message, bytes": info.get("max_payload", 0),
    }
    findings = [checks.check_version(natty.connection.server_version), *checks.check_limits(account)]
    findings += await _jetstream(natty)
    return facts, findings + _certificates(natty, datetime.now(UTC))


async def _jetstream(natty: Natty) -> list[Finding]:
    streams = await all_streams(natty.jetstream)
    consumers, missing = [], list[str]()
    for stream in streams.found:
        if stream["state"]["consumer_count"]:
            name = stream["config"]["name"]
            try:
                listing = await all_consumers(natty.jetstream, name)
            except StreamNotFoundError:  # deleted in the meantime
                continue
            consumers += listing.found
            missing += [f"{consumer} of stream {name}" for consumer in listing.missing]
    return [
        *checks.check_streams(streams.found, streams.missing),
        *checks.check_consumers(consumers, missing),
        *checks.check_schedules(streams.found, consumers),
        *server_checks.check_faults(natty.connection.server_version, streams.found, consumers),
        *server_checks.check_durability(streams.found, clustered=bool(natty.connection.server_info.get("cluster"))),
        *server_checks.check_stranded(*await _find_stranded(natty, streams.found, consumers)),
        *checks.check_clock(await _skews(natty, streams.found)),
    ]


async def _find_stranded(
    natty: Natty, streams: list[StreamInfo], consumers: list[ConsumerInfo]
) -> tuple[dict[tuple[str, str], list[int]], dict[tuple[str, str], str]]:
    """Check the consumers of work queues twice: messages that a cluster is about to delete are gone the second time.

    Return the stranded messages, and why others could not be checked, each by (stream, consumer).
    """
    unknown: dict[tuple[str, str], str] = {}

    async def look(key: tuple[str, str]) -> list[int]:
        try:
            return await find_stranded(natty.jetstream, *key)
        except (ConsumerNotFoundError, StreamNotFoundError):  # deleted in the meantime
            return []
        except NattyError as error:
            unknown[key] = str(error)
            return []

    queues = {one["config"]["name"] for one in streams if one["config"].get("retention") == "workqueue"}
    found = {(one["stream_name"], one["name"]): list[int]() for one in consumers if one["stream_name"] in queues}
    for key in list(found):
        found[key] = await look(key)
    suspects = {key: sequences for key, sequences in found.items() if sequences}
    if suspects:
        await asyncio.sleep(LOOK_AGAIN)
    return {key: sorted(set(before) & set(await look(key))) for key, before in suspects.items()}, unknown


async def _skews(natty: Natty, streams: list[StreamInfo]) -> dict[str, tuple[float, float]]:
    """Request the time of each server that leads a stream."""
    asked = {(stream.get("cluster") or {}).get("leader", "the server"): stream["config"]["name"] for stream in streams}
    skews = {}
    for server, stream in asked.items():
        sent = time.time()
        try:
            answer = await stream_info(natty.jetstream, stream)
        except StreamNotFoundError:  # deleted in the meantime
            continue
        received = time.time()
        told = parse_time(answer["ts"]) / 1e9
        skews[server] = (told - (sent + received) / 2, (received - sent) / 2)
    return skews


def _certificates(natty: Natty, now: datetime) -> list[Finding]:
    config, findings = natty.config, []
    if ends := natty.connection.server_certificate.get("notAfter"):
        until = datetime.fromtimestamp(ssl.cert_time_to_seconds(ends), UTC)
        findings.append(checks.check_certificate("the server's certificate", until, now))
    if config.tls_cert:
        ours = tls.expiries(config.tls_cert)[0]
        findings.append(checks.check_certificate(f"the client certificate {config.tls_cert}", ours, now))
    if config.tls_ca:
        authority = max(tls.expiries(config.tls_ca))
        findings.append(checks.check_certificate(f"the CA certificate {config.tls_ca}", authority, now))
    return findings
