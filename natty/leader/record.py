"""What an election writes: the lease, the epoch, and what a look at the lease can show. Names of subjects, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from natty.message import parse_headers

Kind = Literal["held", "released", "expired", "deleted", "absent"]


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record on the lease's key: who holds office, for how long, and the nonce of the write."""

    v: int = 1
    id: str
    inc: str
    term: int = 0
    state: Literal["held", "released"]
    L: float
    nonce: str
    to: str = ""
    prio: int = 0
    addr: str = ""


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """The record that begins a term; its sequence is the term's fencing token."""

    v: int = 1
    id: str
    inc: str
    term: int
    lease: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody saw on the lease's key: `deleted` is all that no holder writes, a damaged record too."""

    revision: int
    kind: Kind
    lease: Lease | None = None


ABSENT = Sight(0, "absent")


def sight_of(revision: int, header_block: bytes, data: bytes) -> Sight:
    """Return what this message on the lease's key says."""
    headers = parse_headers(header_block) if header_block else {}
    if headers.get("Nats-Marker-Reason") == ["MaxAge"]:
        return Sight(revision, "expired")
    try:
        lease = msgspec.json.decode(data, type=Lease)
    except msgspec.DecodeError:  # somebody's delete, purge or blind write
        return Sight(revision, "deleted")
    return Sight(revision, lease.state, lease)


@dataclass(frozen=True, slots=True)
class Subjects:
    """Where an election's records stand."""

    bucket: str
    key: str

    @property
    def stream(self) -> str:
        """The bucket's stream."""
        return f"KV_{self.bucket}"

    @property
    def lease(self) -> str:
        """The lease's."""
        return f"$KV.{self.bucket}.{self.key}"

    @property
    def epoch(self) -> str:
        """The epoch's."""
        return f"{self.lease}.epoch"

    @property
    def fence(self) -> str:
        """What every commit writes beside itself, on condition that the epoch is still its own."""
        return f"{self.lease}.fence"

    def commit(self, name: str) -> str:
        """The commits' of this name."""
        return f"{self.lease}.commit.{name}"

    def term(self, number: int | str) -> str:
        """The note of a term, for the audit trail."""
        return f"{self.lease}.terms.{number}"


def observed(bucket: str, key: str = ">") -> str:
    """Where the server republishes what was stored under a key."""
    return f"el.obs.{bucket}.{key}"
