from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from natty.config.units import clock, parse_duration, parse_time
from natty.jetstream import StoredMessage
from natty.wire.message import parse_headers

_OF_ONE_WRITE = ("Natty-Nonce", "Nats-Expected-", "Nats-Msg-")  # headers that must not be written a second time
_WITHOUT_VALUE = "Nats-Msg-Size"  # the server's, on what it delivers without payload
_REASONS = {"DEL": "deleted", "PURGE": "purged", "MaxAge": "expired", "Remove": "deleted", "Purge": "purged"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value, and the revision that an update or refresh must name."""

    key: str
    value: bytes
    revision: int
    header_block: bytes = field(default=b"", compare=False)
    time_ns: int = field(default=0, compare=False)  # when the bucket stored it, Unix nanoseconds by the server's clock
    valid_until: float | None = field(default=None, compare=False)  # of a refresh: see there

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers, every value of a repeated name in order."""
        return parse_headers(self.header_block) if self.header_block else {}

    @property
    def ttl(self) -> float | None:
        """The time to live of this key alone, in seconds; None if it has none of its own.

        Other clients write it as a duration ("1m30s"), of which the server drops what is below a second.
        """
        try:
            return float(floor(parse_duration(self.headers.get("Nats-TTL", [""])[0])))
        except ValueError:  # none, or "never"
            return None

    def remaining(self) -> float | None:
        """Seconds that the key lives at least from now on, of what `refresh` returned; None without `valid_until`."""
        return None if self.valid_until is None else self.valid_until - clock()

    @property
    def has_value(self) -> bool:
        """Whether the value is here: it isn't in what a watch without values brings."""
        return _WITHOUT_VALUE not in self.headers


@dataclass(frozen=True, slots=True)
class Gone:
    """A key is absent from this revision on.

    `reason`: deleted, purged or expired, as the bucket's marker says. Without a marker `revision` is 0, and it is
    `bucket deleted`, or `vanished`: removed without a trace while nobody could see it.
    """

    key: str
    revision: int
    reason: str
    time_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PictureComplete:
    """Every key that there was when the watch began has been shown; what follows is live. `keys` is their number."""

    keys: int


def read_entry(key: str, revision: int, header_block: bytes, value: bytes, time_ns: int) -> Entry | Gone:
    """Return what a message of a bucket's stream says: markers are absences."""
    if header_block and (reason := _reason(parse_headers(header_block))):
        return Gone(key, revision, reason, time_ns)
    return Entry(key, value, revision, header_block, time_ns)


def stored_entry(key: str, message: StoredMessage | None) -> Entry | None:
    """Return the entry that a read brought, None if the key is absent."""
    if message is None:
        return None
    found = read_entry(key, message.sequence, message.header_block, message.data, parse_time(message.time))
    return found if isinstance(found, Entry) else None


def headers_to_keep(entry: Entry) -> dict[str, list[str]]:
    """Return the headers that the next write of the same key keeps, its time to live among them."""
    return {name: values for name, values in entry.headers.items() if not name.startswith(_OF_ONE_WRITE)}


def ttl_header(ttl: float | None) -> dict[str, str]:
    """Return the header of a time to live: whole seconds, never shorter than asked for. ValueError for 0 or less."""
    if ttl is None:
        return {}
    if ttl <= 0:
        raise ValueError(f"a ttl of {ttl:g} s is over before it begins; name more than 0, or None for no end")
    return {"Nats-TTL": str(ceil(ttl))}


def _reason(headers: dict[str, list[str]]) -> str:
    if marked := headers.get("Nats-Marker-Reason"):
        return _REASONS.get(marked[0], marked[0])
    return _REASONS.get(headers.get("KV-Operation", [""])[0], "")
