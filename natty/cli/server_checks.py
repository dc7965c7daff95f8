"""What `natty doctor` and `capture doctor` report about the server: known faults, and possible message loss. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from natty.cli.checks import Finding, Status
from natty.config.units import write_count
from natty.elections.election_bucket import is_election_bucket, show_replicas
from natty.streams.origins import origins_of, takes_part_of_queue
from natty.wire.servers import FAULTS, Version, faults_of, text_of

_EVERY_CALL = "persist_mode is async: the server acknowledges messages before it writes them, so a crash of its process"


def check_faults(
    version: Version, streams: Iterable[Mapping[str, Any]] = (), consumers: Iterable[Mapping[str, Any]] = ()
) -> list[Finding]:
    """Warn of each known fault of this version and each consumer it may affect; fail if a stream loses messages."""
    text, findings = text_of(version), list[Finding]()
    configs = {one["config"]["name"]: one["config"] for one in streams}
    for name, fault in faults_of(version):
        if not fault.here:
            findings.append(_fault(Status.WARN, f"nats-server {text}", name))
        elif fault.here == "sources":
            losing = _describe_losing_queues(configs)
            findings += [_fault(Status.FAIL, f"{who}, nats-server {text}", name) for who in losing]
            findings += [] if losing else [_fault(Status.WARN, f"nats-server {text}", name)]
        elif fault.here == "filters":
            several = [one for one in consumers if len(one["config"].get("filter_subjects") or []) > 1]
            can_be = [one for one in several if not configs.get(one["stream_name"], {}).get("deny_purge")]
            findings += [
                _fault(Status.WARN, f"consumer {one['name']} of stream {one['stream_name']}, nats-server {text}", name)
                for one in can_be
            ]
    return findings


def check_durability(streams: Iterable[Mapping[str, Any]], *, clustered: bool) -> list[Finding]:
    """Warn of streams that lose acknowledged messages with one process, and of elections that depend on one server."""
    findings = []
    for one in streams:
        config = one["config"]
        if config.get("persist_mode") == "async":
            text = f"stream {config['name']}: {_EVERY_CALL} loses some; recreate it without"
            findings.append(Finding("durability", Status.WARN, text))
        if clustered and config.get("num_replicas", 1) < 3 and is_election_bucket(config):
            text = (
                f"elections' bucket {config['name'].removeprefix('KV_')} has"
                f" {show_replicas(config.get('num_replicas', 1))} in a cluster: while its server is down no node is"
                " elected, and its tokens are lost with its disk;"
                f" set 3 replicas with `natty stream edit {config['name']} --replicas 3`"
            )
            findings.append(Finding("durability", Status.WARN, text))
    return findings


def check_stranded(
    found: Mapping[tuple[str, str], Sequence[int]], unknown: Mapping[tuple[str, str], str]
) -> list[Finding]:
    """Fail for messages of work queues that their consumer does not deliver again: (stream, consumer) → sequences.

    Warn of consumers that could not be checked: (stream, consumer) → why.
    """
    fault = FAULTS["purge forgets deliveries"]
    unseen = [
        Finding("stranded", Status.WARN, f"consumer {consumer} of work queue {stream} could not be checked: {why}")
        for (stream, consumer), why in unknown.items()
    ]
    return unseen + [
        Finding(
            "stranded",
            Status.FAIL,
            f"consumer {consumer} of work queue {stream} does not redeliver"
            f" {write_count(len(sequences), 'unacknowledged message')}, {sequences[0]} to {sequences[-1]}:"
            f" {fault.effect}. Delete the consumer while no worker runs, then create it again"
            f" (`natty consumer rm {stream} {consumer}`): a work queue delivers all its messages."
            " Members of groups, and `natty.consume` from nats-server 2.14 on, do this within about a minute."
            f" If they reached max_deliver, delete them (`natty stream rm-msg {stream} SEQUENCE`)",
        )
        for (stream, consumer), sequences in found.items()
        if sequences
    ]


def _describe_losing_queues(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describe the streams that source from part of a work queue on this server."""
    return [
        f"stream {name} sources part of work queue {origin['name']}"
        for name, config in configs.items()
        for origin in origins_of(config)
        if takes_part_of_queue(origin, configs.get(origin["name"], {}))
    ]


def _fault(status: Status, who: str, name: str) -> Finding:
    fault = FAULTS[name]
    return Finding("server fault", status, f"{who}: {fault.effect} ({fault.source.split(',')[0]}): {fault.remedy}")
