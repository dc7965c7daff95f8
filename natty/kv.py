from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from math import ceil
from typing import Any

from natty.errors import (
    BucketNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    NattyError,
    RevisionConflictError,
    WrongLastSequenceError,
)
from natty.jetstream import JetStream, StoredMessage
from natty.message import Headers
from natty.stream import NANOSECONDS, ensure_stream

_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
_OF_ONE_WRITE = ("Natty-Nonce", "Nats-Expected-", "Nats-Msg-Id")  # headers that must not be written a second time
MARKER_TTL = 60.0  # seconds that the note of an expired key stays


class BadKeyError(NattyError):
    """A bucket's or key's name holds a character that is not allowed."""


@dataclass(frozen=True)
class Entry:
    """A key's value, and the revision that an update or refresh must name."""

    key: str
    value: bytes
    revision: int
    header_block: bytes = b""


def marked_name(kind: str, name: str, pattern: re.Pattern[str]) -> str:
    """Return the name if it matches; BadKeyError names the first character that doesn't."""
    if not name:
        raise BadKeyError(f"the {kind}'s name is empty")
    match = pattern.match(name)
    bad = re.search(r"^\.|\.$|(?<=\.)\.", name)  # an empty token
    places = [match.end() if match else 0, bad.start() if bad else len(name)]
    if (place := min(places)) < len(name):
        raise BadKeyError(f"{kind} {name!r}: {name[place]!r} at character {place + 1} is not allowed there")
    return name


async def create_bucket(
    jetstream: JetStream, bucket: str, *, ttl: float | None = None, replicas: int | None = None, description: str = ""
) -> Bucket:
    """Make the bucket if there is none. `ttl` in seconds is for all keys; replicas default to 3 on a cluster, else 1.

    StreamExistsError if it exists with another TTL or number of replicas (only what is named is compared).
    """
    name = f"KV_{marked_name('bucket', bucket, _BUCKET)}"
    try:
        await jetstream.request(f"STREAM.INFO.{name}")
        wanted = {"max_age": ttl, "num_replicas": replicas}
    except BucketNotFoundError:
        jetstream.require("a key-value bucket", 2, 11)
        clustered = bool(jetstream.connection.server_info.get("cluster"))
        wanted = bucket_settings(bucket, ttl, replicas or (3 if clustered else 1), description)
    await ensure_stream(jetstream, name, wanted)
    return Bucket(jetstream, bucket)


def bucket_settings(bucket: str, ttl: float | None, replicas: int, description: str) -> dict[str, Any]:
    """Return the settings of a bucket's stream: ADR-8, with TTLs for single keys and notes of expired ones."""
    return {
        "subjects": [f"$KV.{bucket}.>"],
        "num_replicas": replicas,
        "description": description,
        "max_age": ttl or 0.0,
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": MARKER_TTL,
        "duplicate_window": min(ttl, 120.0) if ttl else 120.0,
    }


class Bucket:
    """A key-value bucket. Reads come from the stream's leader; deleted and expired keys read as absent."""

    def __init__(self, jetstream: JetStream, name: str) -> None:
        self.name = marked_name("bucket", name, _BUCKET)
        self.stream = f"KV_{name}"
        self._jetstream = jetstream

    def __repr__(self) -> str:
        return f"Bucket({self.name!r})"

    def _subject(self, key: str) -> str:
        return f"$KV.{self.name}.{marked_name('key', key, _KEY)}"

    async def get(self, key: str) -> Entry:
        """Return the key's entry. KeyNotFoundError, BucketNotFoundError."""
        last = await self._last(key)
        if last is None or last.is_marker:
            raise KeyNotFoundError(f"there is no key {key!r} in bucket {self.name}")
        return Entry(key, last.data, last.sequence, last.header_block)

    async def _last(self, key: str) -> StoredMessage | None:
        return await self._jetstream.read(self.stream, subject=self._subject(key))

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Store the value whatever was there, and return its revision. `ttl` in seconds, rounded up to whole ones."""
        subject, headers = self._subject(key), _ttl_header(ttl)
        return (await self._jetstream.publish(subject, value, headers=headers, stream=self.stream)).seq

    async def create(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Store the value of a key that is absent (deleted and expired ones are). KeyExistsError."""
        last = await self._last(key)
        if last is not None and not last.is_marker:
            raise KeyExistsError(f"key {key!r} exists in bucket {self.name}, revision {last.sequence}")
        try:
            return await self._write(key, value, expected=last.sequence if last else 0, headers=_ttl_header(ttl))
        except WrongLastSequenceError as error:
            raise KeyExistsError(f"key {key!r} was created in bucket {self.name} by somebody else") from error

    async def update(self, key: str, value: bytes, *, revision: int, ttl: float | None = None) -> int:
        """Store the value if the key is still at `revision`, and return the new one. RevisionConflictError."""
        try:
            return await self._write(key, value, expected=revision, headers=_ttl_header(ttl))
        except WrongLastSequenceError as error:
            raise RevisionConflictError(f"key {key!r} is not at revision {revision} any more: {error}") from error

    async def _write(self, key: str, value: bytes, *, expected: int, headers: Headers) -> int:
        return await self._jetstream.compare_and_set(
            self.stream,
            self._subject(key),
            value,
            expected=expected,
            nonce=uuid.uuid4().hex,
            headers=headers,
            timeout=self._jetstream.connection.config.timeout,
        )

    async def refresh(self, key: str, *, revision: int | None = None) -> int:
        """Restart the key's TTL by storing the same value again, and return the new revision.

        Only if nobody changed the key in between: it is a compare-and-set on `revision`, or on the one read. A key that
        expired meanwhile is not brought back. Its headers are kept, its own TTL among them.
        RevisionConflictError, KeyNotFoundError.
        """
        entry = await self.get(key)
        if revision is not None and entry.revision != revision:
            raise RevisionConflictError(f"key {key!r} is at revision {entry.revision}, not at {revision}")
        stored = StoredMessage("", entry.revision, b"", entry.header_block, "").headers
        headers = {name: values for name, values in stored.items() if not name.startswith(_OF_ONE_WRITE)}
        try:
            return await self._write(key, entry.value, expected=entry.revision, headers=headers)
        except WrongLastSequenceError as error:
            raise RevisionConflictError(f"key {key!r} was changed while it was refreshed: {error}") from error

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete the key; a missing one is no error. With `revision`, only at it: RevisionConflictError."""
        headers = {"KV-Operation": "DEL"}
        if revision is None:
            await self._jetstream.publish(self._subject(key), b"", headers=headers, stream=self.stream)
            return
        try:
            await self._write(key, b"", expected=revision, headers=headers)
        except WrongLastSequenceError as error:
            raise RevisionConflictError(f"key {key!r} is not at revision {revision} any more: {error}") from error

    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that exist, sorted; with `prefix`, those below this token (the server filters)."""
        root = f"$KV.{self.name}."
        filtered = f"{root}{prefix.rstrip('.')}.>" if prefix else f"{root}>"
        answer = await self._jetstream.request(f"STREAM.INFO.{self.stream}", {"subjects_filter": filtered})
        subjects = answer["state"].get("subjects") or {}
        found = await asyncio.gather(*(self._last(subject[len(root) :]) for subject in subjects))
        return sorted(
            message.subject[len(root) :] for message in found if message is not None and not message.is_marker
        )

    async def status(self) -> dict[str, Any]:
        """Return `{bucket, values, bytes, ttl, replicas}`; `values` counts notes of deleted keys, too."""
        answer = await self._jetstream.request(f"STREAM.INFO.{self.stream}")
        config, state = answer["config"], answer["state"]
        return {
            "bucket": self.name,
            "values": state["messages"],
            "bytes": state["bytes"],
            "ttl": config.get("max_age", 0) / NANOSECONDS,
            "replicas": config["num_replicas"],
        }


async def delete_bucket(jetstream: JetStream, bucket: str) -> None:
    """Delete the bucket and all in it; a missing one is no error."""
    try:
        await jetstream.request(f"STREAM.DELETE.KV_{marked_name('bucket', bucket, _BUCKET)}")
    except BucketNotFoundError:
        return


def _ttl_header(ttl: float | None) -> dict[str, str]:
    if ttl is None:
        return {}
    if ttl <= 0:
        raise ValueError(f"a ttl of {ttl:g} s is over before it begins; name more than 0, or None for no end")
    return {"Nats-TTL": str(ceil(ttl))}  # whole seconds, never shorter than asked
