"""The actions that the election's state machine returns for its driver, and its phases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from natty.elections.record import Epoch, Lease


class Phase(StrEnum):
    """The phase of a candidate."""

    IDLE = "idle"
    OBSERVING = "observing"
    ACQUIRING = "acquiring"
    FENCING = "fencing"
    LEADING = "leading"
    STOPPING = "stopping"
    RELEASING = "releasing"
    LOST = "lost"


IN_OFFICE = {Phase.LEADING, Phase.STOPPING}
HOLDING = IN_OFFICE | {Phase.FENCING, Phase.RELEASING}


@dataclass(frozen=True, slots=True)
class Write:
    """Store a record if the lease's last sequence is `expected`; the answer is `stored`, `refused` or `doubt`."""

    key: Literal["lease", "epoch"]
    record: Lease | Epoch
    expected: int | None
    ttl: int | None
    timeout: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Store a delete marker on the lease's key if the key is empty; the answer is `marked`, stored or not.

    There may be a leader although the key is empty: the bucket may have been purged, or created again. A candidate can
    wait for the end of that leader's lease, but must not then write on condition that the key is still empty: meanwhile
    another node may have been elected and the bucket purged again. A marker has a revision that no later state of the
    key has: the candidate that first writes over it, a lease after it was stored, is the only leader.
    """

    timeout: float


@dataclass(frozen=True, slots=True)
class Read:
    """Read the lease; the answer is `read` or `unread` with this number."""

    number: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Elected:
    """A term begins: start the work, and call `joined` when it has ended."""

    token: int
    term: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the work; `joined` follows when it has stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The term is over, even if the work still runs."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """The candidate has left office and nothing of the term still runs; `released` if others may act at once."""

    released: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the holder at this address to hand over to us."""

    addr: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Another holder, or another term, was seen."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class WentBack:
    """The stream seems to have lost its tail: `last` is less than a revision seen before."""

    before: int
    last: int


Action = Write | Mark | Read | Elected | Stop | Lost | Left | Ask | Seen | WentBack
