"""The durable consumers that a node reads: its own, or those of the members of a static group.

Members of pcgroups' elastic groups read a work queue, where the server takes only explicit acknowledgements (10098);
every message would be stored twice there, under a sequence that is not the stream's. A static group's members read the
stream itself, and pcgroups leaves their acknowledgements to the user: capture creates their consumers with
`ack_policy: all`, and no client that handles messages one by one may read beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from capture.archive.recording import Consumer, Recording, StreamRecord
from capture.archive.scope import Asked, read_records
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError, ManifestError
from capture.ingest.durable import TOGETHER, Durable
from capture.ingest.pinned_consumer import PIN_TTL
from capture.stores import Store
from natty import JetStreamError, Natty, StreamNotFoundError
from natty.errors import ConsumerNotFoundError, GroupNotFoundError
from natty.groups import StaticRecord, list_groups


async def consumers(natty: Natty, config: CaptureConfig) -> list[Durable]:
    """Return the consumers that the configuration names: none, this node's, or those of all nodes of a group.

    Raises GroupNotFoundError, BadGroupError; ConfigError for an elastic group, or a member that is not listed.
    """
    if config.is_direct:
        return []
    if not config.group:
        return [config.consumer()]
    record = await _record(natty, config)
    owners = [name for name, partitions in record.assignment().items() if partitions]
    if config.member and config.member not in owners:
        raise ConfigError(
            f"member {config.member} of group {config.group} has no partition; these have: {', '.join(sorted(owners))}"
        )
    admin = natty.static_group(config.stream, config.group)
    return [
        Durable(
            stream=config.stream,
            name=admin.consumer_name(owner),
            ack_wait=config.ack_wait,
            max_ack_pending=config.max_ack_pending,
            start=config.start,
            ack=TOGETHER,
            filter_subjects=tuple(record.filters_of(owner)),
            pinned=PIN_TTL,
        )
        for owner in owners
        if config.member in ("", owner)
    ]


async def consumer_names(natty: Natty, config: CaptureConfig) -> list[str]:
    """Return the names of all consumers through which the stream is captured, whichever nodes read them.

    Returns none if the group has no record, or for direct gets. Raises BadGroupError.
    """
    if config.is_direct:
        return []
    if not config.group:
        return [config.durable]
    admin = natty.static_group(config.stream, config.group)
    try:
        return [admin.consumer_name(name) for name in (await admin.read()).member_names]
    except GroupNotFoundError:
        return []


@dataclass(frozen=True)
class Position:
    """The progress of some consumers together, in sequences of the stream.

    All their messages up to `floor` are acknowledged, all up to `delivered` were delivered. `pending` messages were not
    delivered yet, `unacked` ones were.
    """

    floor: int
    delivered: int
    pending: int
    unacked: int

    @classmethod
    def of(cls, states: Sequence[Mapping[str, Any]]) -> Position:
        """Return the position for the server's information about these consumers, at least one.

        A consumer without outstanding messages does not limit the position. After a purge, a consumer that has nothing
        pending may still report 0 as its ack floor; its delivered messages are settled then.
        """

        def furthest(where: str, *behind: str) -> int:
            waiting = [one[where]["stream_seq"] for one in states if any(one[what] for what in behind)]
            return int(min(waiting, default=max(one["delivered"]["stream_seq"] for one in states)))

        return cls(
            floor=furthest("ack_floor", "num_pending", "num_ack_pending"),
            delivered=furthest("delivered", "num_pending"),
            pending=sum(one["num_pending"] for one in states),
            unacked=sum(one["num_ack_pending"] for one in states),
        )


async def consumer_states(natty: Natty, config: CaptureConfig, stream: str = "") -> list[dict[str, Any]]:
    """Return the server's information about the consumers of `consumer_names`, without those that do not exist."""
    config = msgspec.structs.replace(config, stream=stream or config.stream)
    states = []
    for name in await consumer_names(natty, config):
        with suppress(ConsumerNotFoundError):
            states.append(await natty.jetstream.request(f"CONSUMER.INFO.{config.stream}.{name}"))
    return states


def consumers_of(record: StreamRecord, config: CaptureConfig, asked: Iterable[Asked]) -> dict[str, Consumer]:
    """Return capture's consumers among the recorded ones of a stream, by their names."""
    wanted = {one.durable for one in asked} if config.group else {config.durable}
    return {name: record.consumers[name] for name in sorted(wanted & record.consumers.keys())}


async def read_recorded_consumers(config: CaptureConfig, store: Store, recording: Recording) -> dict[str, Consumer]:
    """Return capture's consumers as they were recorded; none if the records can't be read: the audit reports that."""
    record = recording.streams.get(config.stream)
    try:
        return consumers_of(record, config, await read_records(store, config.stream)) if record else {}
    except ManifestError:
        return {}


def explain_deletion(error: JetStreamError, config: CaptureConfig) -> str:
    """Return what to do after the stream or the consumer was deleted while the node read it."""
    if isinstance(error, StreamNotFoundError):
        return (
            f"stream {config.stream} was deleted while this node captured it. The captured messages are in the archive:"
            f" `capture verify` compares it with what was recorded of the stream, `capture restore` brings it back"
        )
    which = f"a consumer of group {config.group}" if config.group else f"consumer {config.durable}"
    return (
        f"{which} of stream {config.stream} was deleted while this node read it: start the node again. It creates "
        "the consumer again, with the same start; the compaction removes messages that are stored twice because of it"
    )


async def _record(natty: Natty, config: CaptureConfig) -> StaticRecord:
    try:
        return await natty.static_group(config.stream, config.group).read()
    except GroupNotFoundError as error:
        if config.group in await list_groups(natty.jetstream, "elastic", config.stream):
            raise ConfigError(
                f"group {config.group} of stream {config.stream} is elastic: its work queue holds copies, and does not"
                f" support cumulative acknowledgements. Capture with a static group, or without a group"
            ) from error
        raise ConfigError(
            f"there is no static group {config.group} of stream {config.stream}: create it, with a member per partition"
            f" (natty group static create balanced {config.stream} {config.group} 4 p0 p1 p2 p3)"
        ) from error
