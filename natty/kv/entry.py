"""What a bucket returns: entries, keys that are gone, and its status."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor
from typing import TypedDict

from natty.config.units import check_ttl, clock, parse_duration, parse_time
from natty.jetstream import StoredMessage
from natty.wire.message import parse_headers

_OF_ONE_WRITE = ("Natty-Nonce", "Nats-Expected-", "Nats-Msg-")  # headers that a later write must not repeat
_WITHOUT_VALUE = "Nats-Msg-Size"  # the server sets it on messages without their payload
_REASONS = {"DEL": "deleted", "PURGE": "purged", "MaxAge": "expired", "Remove": "deleted", "Purge": "purged"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value, and its revision, which an update or refresh names."""

    key: str
    value: bytes
    revision: int
    header_block: bytes = field(default=b"", compare=False)
    time_ns: int = field(default=0, compare=False)  # when the bucket stored it, Unix nanoseconds by the server's clock;
    # 0 on what `modify` and `refresh` have written: the server's answer to a write has no time
    valid_until: float | None = field(default=None, compare=False)  # set by `refresh`

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers, every value of a repeated name in order."""
        return parse_headers(self.header_block) if self.header_block else {}

    @property
    def ttl(self) -> float | None:
        """The key's own TTL in seconds; None if it has none.

        Other clients write it as a duration ("1m30s"); the server drops fractions of a second.
        """
        try:
            return float(floor(parse_duration(self.headers.get("Nats-TTL", [""])[0])))
        except ValueError:  # none, or "never"
            return None

    def remaining(self) -> float | None:
        """Return for how many seconds at least the key still lives, after `refresh`; None without `valid_until`."""
        return None if self.valid_until is None else self.valid_until - clock()

    @property
    def has_value(self) -> bool:
        """Whether the entry has its value: a watch without values returns entries that don't."""
        return _WITHOUT_VALUE not in self.headers


@dataclass(frozen=True, slots=True)
class Gone:
    """A key is absent from this revision on.

    `reason`: deleted, purged or expired, according to the bucket's marker. Without a marker, `revision` is 0 and
    `reason` is `bucket deleted` or `vanished`: removed without a trace while the watch was disconnected.
    """

    key: str
    revision: int
    reason: str
    time_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PictureComplete:
    """All `keys` keys that existed when the watch began have been shown; later events are live."""

    keys: int


class BucketStatus(TypedDict):
    """The content and the configuration of a bucket. Durations are seconds."""

    bucket: str
    description: str
    values: int  # including the markers of deleted keys
    bytes: int
    last_revision: int  # 0: the bucket has never stored a value
    ttl: float  # of every key; 0: no limit
    ttl_of_keys: bool  # whether a key may have its own TTL
    marker_ttl: float  # how long the marker of an expired key stays; 0: no markers
    history: int
    replicas: int
    storage: str
    created: str  # RFC 3339


def read_entry(key: str, revision: int, header_block: bytes, value: bytes, time_ns: int) -> Entry | Gone:
    """Return the entry in a message of a bucket's stream; `Gone` for a marker."""
    if header_block and (reason := _reason(parse_headers(header_block))):
        return Gone(key, revision, reason, time_ns)
    return Entry(key, value, revision, header_block, time_ns)


def stored_entry(key: str, message: StoredMessage | None) -> Entry | None:
    """Return the entry in a message that was read, None if the key is absent."""
    if message is None:
        return None
    found = read_entry(key, message.sequence, message.header_block, message.data, parse_time(message.time))
    return found if isinstance(found, Entry) else None


def headers_to_keep(entry: Entry) -> dict[str, list[str]]:
    """Return the headers that the next write of the same key keeps, including its TTL."""
    return {name: values for name, values in entry.headers.items() if not name.startswith(_OF_ONE_WRITE)}


def ttl_header(ttl: float | None) -> dict[str, str]:
    """Return the header of a TTL: whole seconds, rounded up. ValueError for 0 or less, and for over 100 years."""
    if ttl is None:
        return {}
    if ttl <= 0:
        raise ValueError(f"a ttl of {ttl:g} s is not possible: write more than 0, or None for no expiry")
    check_ttl(ttl)
    return {"Nats-TTL": str(ceil(ttl))}


def _reason(headers: dict[str, list[str]]) -> str:
    if marked := headers.get("Nats-Marker-Reason"):
        return _REASONS.get(marked[0], marked[0])
    return _REASONS.get(headers.get("KV-Operation", [""])[0], "")
