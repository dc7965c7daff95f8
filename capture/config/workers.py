"""The workers of one `capture run`: how many, their names, the settings of each, and what they can't share."""

from __future__ import annotations

import os
import socket

import msgspec

from capture.config.settings import CaptureConfig
from capture.config.streams import each
from capture.ingest.durable import TOGETHER


def count_workers(config: CaptureConfig) -> int:
    """Return the number of workers; "auto" is the number of CPU cores that this process may use."""
    return count_cores() if config.workers == "auto" else config.workers


def count_cores() -> int:
    """Return the number of CPU cores that this process may use. A container's quota of CPU time does not count."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def name_worker(config: CaptureConfig, number: int) -> str:
    """Return a worker's name, by its number from 1: the node's name, or the host's, and the number."""
    return f"{config.node or socket.gethostname().partition('.')[0]}-{number}"


def as_worker(config: CaptureConfig, number: int, count: int) -> CaptureConfig:
    """Return the configuration of one of `count` workers.

    Workers of one durable share its `max_ack_pending`, so each has its part of `limits.max_pending`: otherwise the
    server would stop delivering before any of them seals a block. A group's members each have their own consumer.
    """
    stands = config.candidates == "all" or (config.candidates == "one" and number == 1)
    limits = config.limits
    if not config.group:
        limits = msgspec.structs.replace(limits, max_pending=max(1, limits.max_pending // count))
    return msgspec.structs.replace(
        config, node=name_worker(config, number), candidates="all" if stands else "none", limits=limits
    )


def find_worker_faults(config: CaptureConfig) -> list[str]:
    """Return a sentence for each stream that several workers can't capture together, if there are several."""
    if config.workers == 1:
        return []
    faults = []
    for one in each(config):
        if one.member:
            faults.append(
                f"member {one.member} is read by one worker at a time, so workers = {config.workers!r} can't share it:"
                f" remove member, and the workers share the members of group {one.group}"
            )
        elif one.ack == TOGETHER and not one.group:
            faults.append(
                f'ack = "all" is for a durable that one node reads alone, so workers = {config.workers!r} can\'t share'
                f" durable {one.durable}: name a static group of stream {one.stream} in group, or remove ack"
            )
    return faults
