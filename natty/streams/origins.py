"""Finds streams that take messages from a work queue, and refuses them on servers that lose messages there."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from natty.errors import NattyError, UnsupportedError
from natty.jetstream import JetStream
from natty.names import covers
from natty.streams.info import ServerStreamConfig, stream_info
from natty.streams.schema import StreamSource
from natty.wire.servers import FAULTS, text_of

FAULT = FAULTS["filtered sources of a work queue"]


async def refuse_lossy_sources(jetstream: JetStream, config: Mapping[str, Any]) -> None:
    """UnsupportedError if a stream would take some subjects of a work queue, and this server would lose the others.

    Only on nats-server 2.14.0 to 2.14.5. If the origin cannot be read, the server decides.
    """
    version = jetstream.connection.server_version
    if not FAULT.affects(version):
        return
    for origin in origins_of(config):
        there = await _config_of(jetstream, origin)
        if there is not None and takes_part_of_queue(origin, there):
            raise UnsupportedError(
                f"stream {config.get('name', '')} would take {', '.join(filters_of(origin))} of work queue"
                f" {origin['name']}, and nats-server {text_of(version)} would delete messages on its other subjects:"
                f" {FAULT.remedy}"
            )


def origins_of(config: Mapping[str, Any]) -> Iterable[StreamSource]:
    """Return the sources and the mirror of a configuration."""
    return [*(config.get("sources") or []), *([config["mirror"]] if config.get("mirror") else [])]


def filters_of(origin: StreamSource) -> list[str]:
    """Return the subjects that a source takes; empty: all."""
    named = [origin.get("filter_subject"), *(one.get("src") for one in origin.get("subject_transforms") or [])]
    return [one for one in named if one]


def takes_part_of_queue(origin: StreamSource, config: Mapping[str, Any]) -> bool:
    """Return whether a source takes some subjects, and not all, of a stream that is a work queue."""
    filters = filters_of(origin)
    if config.get("retention") != "workqueue" or not filters:
        return False
    subjects = config.get("subjects") or [">"]
    return not all(covers(filters, subject) for subject in subjects)


async def _config_of(jetstream: JetStream, origin: StreamSource) -> ServerStreamConfig | None:
    there = copy.copy(jetstream)
    there.prefix = (origin.get("external") or {}).get("api") or jetstream.prefix
    try:
        return (await stream_info(there, origin["name"]))["config"]
    except (NattyError, TimeoutError):
        return None
