"""The records of an election: the lease, the epoch, the sight of a lease that was read, and the subjects' names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from natty.elections.options import LONGEST_LEASE
from natty.errors import BadRecordError
from natty.kv.json_records import Text, Whole, decode
from natty.wire.message import RawMessage, parse_headers

MOST_BYTES = 64 * 1024  # of a record
LAST_TERM = 2**52  # no honest record has such a term: Unix milliseconds number the terms

Address = Annotated[str, msgspec.Meta(max_length=512, pattern=r"^[^\s\x00-\x1f\x7f*>]*\Z")]
"""A subject to publish on, or an empty string."""

_SEQUENCE = re.compile(rb"\r\nNats-Sequence:[ \t]*([0-9]{1,20})[ \t]*\r\n")

Kind = Literal["held", "released", "expired", "deleted", "absent"]


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record on the lease's key: the holder, for how long, and the nonce of the write."""

    v: Whole = 1
    id: Text
    inc: Text
    term: Whole = 0
    state: Literal["held", "released"]
    L: Annotated[float, msgspec.Meta(gt=0)]
    nonce: Text
    to: Text = ""
    prio: Whole = 0
    addr: Address = ""

    @property
    def lasts(self) -> float:
        """How long the holder may act without renewing: `L`, at most the longest lease that an election can have."""
        return min(self.L, LONGEST_LEASE)


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """The record that begins a term; its sequence is the term's fencing token."""

    v: Whole = 1
    id: Text
    inc: Text
    term: Whole
    lease: Whole
    nonce: Text


@dataclass(frozen=True, slots=True)
class Sight:
    """A sight of the lease's key: `deleted` is any record that no holder writes. `damage`: why it can't be read."""

    revision: int
    kind: Kind
    lease: Lease | None = None
    damage: str = ""


ABSENT = Sight(0, "absent")


def sight_of(revision: int, header_block: bytes, data: bytes) -> Sight:
    """Return the content of this message on the lease's key. A message that can't be read counts as deleted."""
    headers = parse_headers(header_block) if header_block else {}
    if headers.get("Nats-Marker-Reason") == ["MaxAge"]:
        return Sight(revision, "expired")
    try:
        lease: Lease = decode(data, Lease, most_bytes=MOST_BYTES)
    except BadRecordError as error:  # a delete, a purge or a blind write
        return Sight(revision, "deleted", damage=str(error) if data else "")
    return Sight(revision, lease.state, lease)


def hinted_revision(raw: RawMessage) -> int:
    """Return the revision that a republished message has on the lease's key, 0 if no server republished it.

    Any client that may publish there can send such a message, so read the key before you act on it. This is cheap,
    because a client can send many: the rest of the message is decoded only if this revision is new.
    """
    found = _SEQUENCE.search(raw[2]) if len(raw[2]) <= MOST_BYTES else None
    return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of an election's records."""

    bucket: str
    key: str

    @property
    def stream(self) -> str:
        """The bucket's stream."""
        return f"KV_{self.bucket}"

    @property
    def lease(self) -> str:
        """The subject of the lease."""
        return f"$KV.{self.bucket}.{self.key}"

    @property
    def epoch(self) -> str:
        """The subject of the epoch."""
        return f"{self.lease}.epoch"

    @property
    def fence(self) -> str:
        """The subject of the fence: each commit also writes it, on condition that the epoch is still its own."""
        return f"{self.lease}.fence"

    def commit(self, name: str) -> str:
        """The subject of the commits of this name."""
        return f"{self.lease}.commit.{name}"

    def term(self, number: int | str) -> str:
        """The subject of a term's note in the audit trail."""
        return f"{self.lease}.terms.{number}"


def republish_subject(bucket: str, key: str = ">") -> str:
    """Return the subject where the server republishes messages that were stored under a key."""
    return f"el.obs.{bucket}.{key}"
