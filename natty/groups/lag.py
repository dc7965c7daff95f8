"""Counts the waiting messages of each partition, for people and dashboards, not for decisions."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from natty.config.units import NANOSECONDS
from natty.errors import ConsumerNotFoundError, NattyError, StreamNotFoundError
from natty.groups.admin import GroupAdmin
from natty.groups.elastic import ElasticAdmin
from natty.groups.partitions import partition_filters
from natty.groups.records import Record
from natty.jetstream import JetStream
from natty.streams.info import subject_counts
from natty.wire.background import map_concurrently
from natty.wire.counters import LAG

logger = logging.getLogger("natty.groups")

IDLE = 5.0  # seconds after which the server removes a counting consumer that we could not delete


async def lag(jetstream: JetStream, admin: GroupAdmin[Any], partitions: Sequence[int] | None = None) -> dict[int, int]:
    """Return the number of unacknowledged messages in each partition: in `partitions`, or in all.

    For an elastic group it counts the messages in the work queue: the cost grows with the number of different subjects,
    and messages that the server has not copied yet are not counted. For a static group it counts the stream's messages
    from the first one that the member has not acknowledged.
    GroupNotFoundError, BadGroupError. The counts of an elastic group without its work queue are 0.
    """
    record = await admin.read()
    wanted = range(record.partitions) if partitions is None else partitions
    count = _count_buffered if isinstance(admin, ElasticAdmin) else _count_behind
    counts = await map_concurrently(wanted, lambda one: count(jetstream, admin, record, one))
    return dict(zip(wanted, counts, strict=True))


async def _count_buffered(jetstream: JetStream, admin: GroupAdmin[Any], record: Record, partition: int) -> int:
    try:
        counts, _ = await subject_counts(jetstream, admin.consumed_stream, f"{partition}.>")
    except StreamNotFoundError:
        return 0
    return sum(counts.values())


async def _count_behind(jetstream: JetStream, admin: GroupAdmin[Any], record: Record, partition: int) -> int:
    owner = next((name for name, parts in record.assignment().items() if partition in parts), "")
    consumer = f"{admin.consumed_stream}.{admin.consumer_name(owner)}"
    try:
        floor = (await jetstream.request(f"CONSUMER.INFO.{consumer}"))["ack_floor"]["stream_seq"]
    except ConsumerNotFoundError:
        floor = 0
    name = f"natty_lag_{secrets.token_hex(6)}"
    config = {
        "name": name,
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": floor + 1,
        "filter_subjects": partition_filters([partition], record.subjects, mapped=False),
        "inactive_threshold": round(IDLE * NANOSECONDS),
        "mem_storage": True,
        "num_replicas": 1,
    }
    body = {"stream_name": admin.consumed_stream, "config": config, "action": "create"}
    made = await jetstream.request(f"CONSUMER.CREATE.{admin.consumed_stream}.{name}", body)
    await jetstream.request(f"CONSUMER.DELETE.{admin.consumed_stream}.{name}")
    return int(made["num_pending"])


@dataclass(eq=False)
class PartitionLag:
    """The last count of waiting messages in a partition."""

    waiting: int = 0


async def count_lag(
    jetstream: JetStream, admin: GroupAdmin[Any], member: str, every: float, partitions: Callable[[], Sequence[int]]
) -> None:
    """Count the waiting messages in a member's partitions every `every` seconds, for metrics, until cancelled.

    It calls `partitions` each time, and removes the counts of partitions that the member no longer has: their new
    owner reports them.
    """
    observed = jetstream.connection.observed
    parts: dict[int, PartitionLag] = {}
    try:
        while True:
            try:
                counts = await lag(jetstream, admin, partitions())
            except NattyError as error:
                logger.info("the waiting messages of %s can't be counted: %s", admin, error, extra={"action": "lag"})
                counts = {}
            except Exception:
                logger.exception("the waiting messages of %s can't be counted", admin, extra={"action": "lag"})
                counts = {}
            for partition in parts.keys() - counts.keys():
                observed.retire(parts.pop(partition))
            for partition, waiting in counts.items():
                part = parts.setdefault(partition, PartitionLag())
                part.waiting = waiting
                observed.add(part, LAG, admin.stream, admin.name, member, str(partition))
            await asyncio.sleep(every)
    finally:
        for part in parts.values():
            observed.retire(part)
