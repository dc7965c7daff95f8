"""How many messages of each partition are waiting: for people and dashboards, not for decisions."""

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
from natty.wire.counters import LAG

logger = logging.getLogger("natty.groups")

IDLE = 5.0  # seconds after which the server removes a counting consumer, should we not be able to


async def lag(jetstream: JetStream, admin: GroupAdmin[Any], partitions: Sequence[int] | None = None) -> dict[int, int]:
    """Return how many messages each partition holds that nobody has acknowledged; of the partitions named, or of all.

    Of an elastic group, what its work queue holds: the cost grows with the number of different subjects. Of a static
    group, what the stream holds behind the first message that its member has not acknowledged. What an elastic group's
    server has not copied yet is in neither. GroupNotFoundError, BadGroupError; 0 where the stream is missing.
    """
    record = await admin.read()
    wanted = range(record.partitions) if partitions is None else partitions
    count = _buffered if isinstance(admin, ElasticAdmin) else _behind
    counts = await asyncio.gather(*(count(jetstream, admin, record, one) for one in wanted))
    return dict(zip(wanted, counts, strict=True))


async def _buffered(jetstream: JetStream, admin: GroupAdmin[Any], record: Record, partition: int) -> int:
    found, seen = 0, 0
    while True:
        question = {"subjects_filter": f"{partition}.>", "offset": seen}
        try:
            answer = await jetstream.request(f"STREAM.INFO.{admin.consumed_stream}", question)
        except StreamNotFoundError:
            return 0
        subjects: dict[str, int] = answer["state"].get("subjects") or {}
        found += sum(subjects.values())
        seen += len(subjects)
        if not subjects or seen >= answer.get("total", 0):
            return found


async def _behind(jetstream: JetStream, admin: GroupAdmin[Any], record: Record, partition: int) -> int:
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
    """What waited in a partition when it was counted last."""

    waiting: int = 0


async def count_lag(
    jetstream: JetStream, admin: GroupAdmin[Any], member: str, every: float, partitions: Callable[[], Sequence[int]]
) -> None:
    """Count what waits in a member's partitions every so many seconds, for metrics, until cancelled.

    `partitions` is asked each time: those that the member has no more are 0 here, whoever has them tells of them.
    """
    observed = jetstream.connection.observed
    parts: dict[int, PartitionLag] = {}
    try:
        while True:
            try:
                counts = await lag(jetstream, admin, partitions())
            except NattyError as error:
                logger.info("what waits in %s can't be counted: %s", admin, error, extra={"action": "lag"})
                counts = {}
            except Exception:
                logger.exception("what waits in %s can't be counted", admin, extra={"action": "lag"})
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
