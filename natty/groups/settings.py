"""The bucket, the work queue and the consumers of pcgroups 0.2: their names, settings and timings.

Do not add settings: Go's library compares them, and refuses different ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from natty.errors import BadGroupError
from natty.groups.partitions import destination
from natty.groups.records import ElasticRecord
from natty.names import check_name
from natty.streams import StreamConfig, to_wire

STATIC_BUCKET = "static-consumer-groups"
ELASTIC_BUCKET = "elastic-consumer-groups"
PRIORITY_GROUP = "PCG"  # of every member's consumer
_NAME = re.compile(r"[-_=A-Za-z0-9]+")

ACK_WAIT = 5.0  # seconds, the default
SHORTEST_PIN = 1.0  # seconds; also the shortest time that a pull is open
RECONCILE_AFTER = 0.5  # seconds beyond the ack wait
_OURS = ("name", "durable_name", "filter_subjects", "priority_policy", "priority_groups", "priority_timeout")
_IMPOSSIBLE = ("filter_subject", "deliver_subject", "deliver_group", "flow_control", "idle_heartbeat")
_DEFAULTS: dict[str, Any] = {
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "replay_policy": "instant",
    "max_ack_pending": 1,
    "num_replicas": 0,
}


def record_key(stream: str, group: str) -> str:
    """Return the key of a group's record in its bucket. BadGroupError for a name that can't be part of a key."""
    for kind, name in (("stream", stream), ("group", group)):
        if not _NAME.fullmatch(name):
            raise BadGroupError(
                f"{kind} name {name!r} can't be part of a group's key: letters, digits, '-', '_' and '=' can"
            )
    return f"{stream}.{group}"


def work_queue(stream: str, group: str) -> str:
    """Return the name of the stream that an elastic group reads."""
    return f"{stream}-{group}"


def static_consumer(group: str, member: str) -> str:
    """Return the name of a static member's durable consumer, which is on the group's stream."""
    return f"{group}-{member}"


def is_outdated(consumer: Mapping[str, Any], member: str) -> bool:
    """Return whether a consumer's configuration is that of a member of pcgroups 0.1.

    It differs from later ones in its priority group, which has the member's name there.
    """
    return consumer.get("priority_policy") == "pinned_client" and consumer.get("priority_groups") == [member] != [
        PRIORITY_GROUP
    ]


def check_member(name: str) -> str:
    """Return the name if a member can have it: it becomes a consumer's name, or part of one. BadNameError."""
    return check_name("member", name)


@dataclass(frozen=True)
class Timings:
    """Timings derived from the ack wait, in seconds. Instances of one member must agree on it, in all languages."""

    ack_wait: float = ACK_WAIT

    @property
    def pinned_ttl(self) -> float:
        """Time without a pull after which the server pins a standby instead."""
        return max(self.ack_wait, SHORTEST_PIN)

    @property
    def inactive_threshold(self) -> float:
        """Time without a pull after which the server removes an elastic member's consumer."""
        return self.ack_wait

    @property
    def pull_expires(self) -> float:
        """Time that a pull is open."""
        return max(self.ack_wait / 2, SHORTEST_PIN)

    @property
    def pull_heartbeat(self) -> float:
        """Time between two heartbeats of the server on an open pull."""
        return self.pull_expires / 2

    @property
    def reconcile(self) -> float:
        """Time between two comparisons of a member's state with the server's."""
        return self.ack_wait + RECONCILE_AFTER


def bucket_settings() -> StreamConfig:
    """Return the settings of a bucket of records as Go's library creates it, without the replicas."""
    return {
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "duplicate_window": 120.0,
    }


def work_queue_settings(stream: str, group: str, record: ElasticRecord, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an elastic group's work queue; `source` is that of the stream that it copies."""
    return {
        "name": work_queue(stream, group),
        "retention": "workqueue",
        "discard": "new",
        "storage": source["storage"],
        "num_replicas": source["num_replicas"],
        "max_msgs": record.max_messages,
        "max_bytes": record.max_bytes,
        "allow_direct": True,
        "sources": [{"name": stream, "subject_transforms": transforms(record)}],
    }


def transforms(record: ElasticRecord) -> list[dict[str, str]]:
    """Return the subject transforms that give the messages of an elastic group their partition token."""
    return [{"src": one.filter, "dest": destination(one, record.partitions)} for one in record.partitioning_filters()]


def elastic_consumer(member: str, filters: list[str], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the configuration of an elastic member's consumer, as on the wire; `settings` are the user's, in seconds.

    Create it with `action: create`, or it overwrites another one's. BadGroupError for settings that members can't have.
    """
    given = _complete_settings(settings)
    for name, only in (("deliver_policy", "all"), ("ack_policy", "explicit")):
        if given[name] != only:
            raise BadGroupError(f"{name} {given[name]!r} is not possible in an elastic group: use {only!r}")
    threshold = {"inactive_threshold": given["ack_wait"]}
    return {"name": member, **to_wire(given | threshold), **_pin_settings(filters, given["ack_wait"])}


def static_member_consumer(
    group: str, member: str, filters: list[str], settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the configuration of a static member's consumer; see `elastic_consumer`."""
    given = _complete_settings(settings)
    name = static_consumer(group, member)
    return {"name": name, "durable_name": name, **to_wire(given), **_pin_settings(filters, given["ack_wait"])}


def _complete_settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    given = _DEFAULTS | {name: value for name, value in (settings or {}).items() if value is not None}
    if refused := sorted(set(given) & {*_OURS, *_IMPOSSIBLE}):
        raise BadGroupError(f"{', '.join(refused)} of a member's consumer can't be chosen: leave it out")
    if not given.get("ack_wait", 0) > 0:
        given["ack_wait"] = ACK_WAIT
    return given


def _pin_settings(filters: list[str], ack_wait: float) -> dict[str, Any]:
    pinned = {
        "priority_policy": "pinned_client",
        "priority_timeout": Timings(ack_wait).pinned_ttl,
        "priority_groups": [PRIORITY_GROUP],
    }
    return {"filter_subjects": filters, **to_wire(pinned)}
