"""Evaluates what `natty doctor` found. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from natty.config.units import NANOSECONDS
from natty.names import overlap
from natty.streams.account import usage
from natty.streams.changes import SCHEDULES
from natty.wire.servers import NEEDS, text_of

SKEW_WARN, SKEW_FAIL = 1.0, 30.0  # seconds between two clocks
SILENT = 5.0  # seconds without a sign of life from a replica; its leader hears from it every second
NEARLY_FULL = 0.8  # of a limit
CERTIFICATE_WARN = 7.0  # days before it ends
ACK_WAIT_SHORT, ACK_WAIT_LONG = 2.0, 3600.0  # seconds
_STREAM_LIMITS = {"messages": "max_msgs", "bytes": "max_bytes"}


class Status(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    status: Status
    text: str


def check_version(version: tuple[int, ...]) -> Finding:
    """Report the features that this server is too old for."""
    text = text_of(version)
    if missing := [f"{name} ({need})" for name, need in NEEDS.items() if not need.is_met_by(version)]:
        return Finding("version", Status.WARN, f"{text} is too old for {', '.join(missing)}")
    return Finding("version", Status.OK, f"{text} supports everything that natty uses")


def check_limits(account: Mapping[str, Any]) -> list[Finding]:
    """Compare what the account uses with its limits."""
    findings = []
    for tier, names in usage(account).items():
        for name, (used, limit) in names.items():
            if limit > 0 and used >= NEARLY_FULL * limit:
                status = Status.FAIL if used >= limit else Status.WARN
                text = f"{name}{f' of {tier}' if tier else ''}: {used} of {limit} are used"
                findings.append(Finding("limits", status, text))
    return findings or [Finding("limits", Status.OK, "the account is far below its JetStream limits")]


def check_streams(streams: Iterable[Mapping[str, Any]], missing: Iterable[str] = ()) -> list[Finding]:
    """Find replicas that are lost or late, and streams that will soon refuse messages."""
    findings = [Finding("replicas", Status.FAIL, f"no server answers for stream {name}") for name in missing]
    looked_at = list(streams)
    for one in looked_at:
        findings += _replicas(f"stream {one['config']['name']}", one)
        findings += _check_limits(one)
    return findings or [
        Finding("streams", Status.OK, f"{len(looked_at)}: replicas are complete, no stream is about to refuse messages")
    ]


def check_consumers(consumers: Iterable[Mapping[str, Any]], missing: Iterable[str] = ()) -> list[Finding]:
    """Find lost replicas, and settings and positions that delay or repeat messages."""
    findings = [Finding("replicas", Status.FAIL, f"no server answers for consumer {name}") for name in missing]
    looked_at = list(consumers)
    for one in looked_at:
        name = f"consumer {one['name']} of stream {one['stream_name']}"
        findings += _replicas(name, one)
        findings += _settings(name, one)
    return findings or [Finding("consumers", Status.OK, f"{len(looked_at)}: replicas are complete, ack_wait is sane")]


def check_schedules(streams: Iterable[Mapping[str, Any]], consumers: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Find consumers of work queues that get schedules, and remove them by their acks."""
    configs = (one["config"] for one in streams)
    queues = {one["name"] for one in configs if one.get("allow_msg_schedules") and one.get("retention") == "workqueue"}
    findings = []
    for one in consumers:
        stream, config = one["stream_name"], one["config"]
        filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
        if stream in queues and any(overlap(f"{SCHEDULES}.{stream}.>", pattern) for pattern in filters):
            text = (
                f"consumer {one['name']} of stream {stream} gets {SCHEDULES}.{stream}.>, too: its ack removes what"
                " waits to be published; give it a filter without these subjects"
            )
            findings.append(Finding("schedules", Status.WARN, text))
    return findings


def check_clock(skews: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Compare clocks: server → (its time minus ours, the possible error), in seconds."""
    if not skews:
        return [Finding("clock", Status.OK, "not compared: there is no stream to request the time with")]
    findings = []
    for server, (skew, doubt) in skews.items():
        off = max(0.0, abs(skew) - doubt)
        status = Status.FAIL if off > SKEW_FAIL else Status.WARN if off > SKEW_WARN else Status.OK
        way = "ahead of" if skew > 0 else "behind"
        text = f"{server} is {abs(skew):.3f} s {way} this machine (± {doubt:.3f} s)"
        findings.append(Finding("clock", status, text if status is Status.OK else f"{text}: set the clocks by NTP"))
    return findings


def check_certificate(whose: str, ends: datetime, now: datetime) -> Finding:
    """Report how long a certificate is still valid."""
    days = (ends - now).total_seconds() / 86400
    if days < 0:
        return Finding("certificate", Status.FAIL, f"{whose} expired on {ends:%Y-%m-%d %H:%M} UTC: renew it")
    text = f"{whose} expires on {ends:%Y-%m-%d %H:%M} UTC, in {days:.1f} days"
    if days < CERTIFICATE_WARN:
        return Finding("certificate", Status.WARN, f"{text}: renew it")
    return Finding("certificate", Status.OK, text)


def _replicas(name: str, one: Mapping[str, Any]) -> list[Finding]:
    cluster = one.get("cluster")
    if not cluster:
        return []
    findings = []
    if not cluster.get("leader"):
        findings.append(Finding("replicas", Status.FAIL, f"{name} has no leader"))
    for replica in cluster.get("replicas") or []:
        silent = replica.get("active", 0) / NANOSECONDS
        if replica.get("offline") or silent > SILENT:  # a killed server is only silent, not offline
            text = f"{name} has lost its replica on {replica['name']}, silent for {silent:.0f} s"
            findings.append(Finding("replicas", Status.FAIL, text))
        elif not replica.get("current", True):
            text = f"{name} on {replica['name']} is {replica.get('lag', 0)} operations behind"
            findings.append(Finding("replicas", Status.WARN, text))
    return findings


def _check_limits(one: Mapping[str, Any]) -> list[Finding]:
    config, state = one["config"], one["state"]
    if config.get("discard") != "new":
        return []
    return [
        Finding(
            "streams",
            Status.WARN,
            f"stream {config['name']} holds {state[name]} of {config[limit]} {name}, and refuses more at the limit",
        )
        for name, limit in _STREAM_LIMITS.items()
        if config.get(limit, -1) > 0 and state[name] >= NEARLY_FULL * config[limit]
    ]


def _settings(name: str, one: Mapping[str, Any]) -> list[Finding]:
    config, findings = one["config"], []
    if config.get("ack_policy") == "none":
        return []
    ack_wait, most = config.get("ack_wait", 0) / NANOSECONDS, config.get("max_ack_pending", 0)
    if ack_wait < ACK_WAIT_SHORT:
        text = f"{name} waits {ack_wait:g} s for an ack: slower handlers get their messages twice; raise ack_wait"
        findings.append(Finding("ack_wait", Status.WARN, text))
    if ack_wait > ACK_WAIT_LONG:
        text = f"{name} waits {ack_wait:g} s for an ack: after a crash, its messages wait that long; lower ack_wait"
        findings.append(Finding("ack_wait", Status.WARN, text))
    if 0 < most <= one.get("num_ack_pending", 0):
        text = (
            f"{name} has {most} unacknowledged messages, its maximum: the server delivers no more until some are acked"
        )
        findings.append(Finding("consumers", Status.WARN, text))
    return findings
