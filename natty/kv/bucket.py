"""A key-value bucket: its reads, conditional writes, watches and status."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from math import ceil
from typing import TypeVar, Unpack

from natty.config.options import Count, CountOrZero, check_value, make_options
from natty.config.units import NANOSECONDS, clock, seconds_of
from natty.errors import (
    BucketNotFoundError,
    ConnectionClosedError,
    JetStreamError,
    KeyExistsError,
    KeyNotFoundError,
    NattyError,
    PublishError,
    RequestTimeoutError,
    RevisionConflictError,
    UnsupportedError,
    WrongLastSequenceError,
)
from natty.jetstream import JetStream, StoredMessage
from natty.kv.bucket_config import make_bucket
from natty.kv.entry import BucketStatus, Entry, Gone, PictureComplete, headers_to_keep, stored_entry, ttl_header
from natty.kv.key_names import check_bucket, check_filter, check_key
from natty.kv.watch import Watch, WatchOptions, WatchSettings
from natty.streams import stream_info
from natty.wire.message import Headers, as_payload, encode_headers

ATTEMPTS = 20  # to change a key that other clients change at the same time
PAUSE = 0.005  # seconds between two attempts, on average; doubles up to PAUSE_MAX
PAUSE_MAX = 0.2
LEARN_AGAIN = 60.0  # seconds after which the bucket's shortest possible TTL is requested again
LEARN_WITHIN = 1.0  # seconds: a refresh must not wait long for it
MOST_SKIPPED = 100  # names that are remembered, to log each once
_TTL_DISABLED = 10166

log = logging.getLogger("natty.kv")


T = TypeVar("T")


class Bucket:
    """A key-value bucket. Reads come from the stream's leader; deleted and expired keys read as absent.

    The server alone decides on conditional writes (`create`, `update`, `refresh`, `modify`, `delete` with a revision);
    a read is a hint. All methods raise BadKeyError for an invalid name, BucketNotFoundError unless said otherwise, and
    RequestTimeoutError if a write stayed in doubt.
    """

    def __init__(self, jetstream: JetStream, name: str) -> None:
        self.name = check_bucket(name)
        self.stream = f"KV_{name}"
        self._root = f"$KV.{name}."
        self._jetstream = jetstream
        self._shortest_ttl, self._learn_at = 0.0, float("-inf")
        self._skipped_keys: set[bytes] = set()

    def __repr__(self) -> str:
        return f"Bucket({self.name!r})"

    async def get(self, key: str, *, revision: int | None = None) -> Entry:
        """Return the key's entry, or its entry at `revision` if the bucket still holds it. KeyNotFoundError."""
        check_value("revision", revision, Count | None)
        if revision is None:
            return self._present(key, await self._last(key))
        message = await self._jetstream.read(self.stream, sequence=revision)
        if message is None or message.subject != self._root + check_key(key):
            raise KeyNotFoundError(f"bucket {self.name} holds no revision {revision} of key {key!r}")
        return self._present(key, message)

    async def _last(self, key: str) -> StoredMessage | None:
        return await self._jetstream.read(self.stream, subject=self._root + check_key(key))

    def _present(self, key: str, message: StoredMessage | None) -> Entry:
        entry = stored_entry(key, message)
        if entry is None:
            raise KeyNotFoundError(f"there is no key {key!r} in bucket {self.name}")
        return entry

    async def put(self, key: str, value: bytes, *, ttl: float | str | None = None, create_bucket: bool = False) -> int:
        """Store the value unconditionally, and return its revision.

        `create_bucket` creates a missing bucket with the default settings; otherwise BucketNotFoundError. `ttl`, in
        seconds or as text ("7d"), is for this key alone, rounded up to whole seconds. UnsupportedError if the server
        or the bucket does not support it, or would make it longer: with `history`, a TTL is never shorter than
        `marker_ttl`.
        """
        check_key(key)
        return await self._in_bucket(lambda: self._put(key, value, ttl), create_bucket)

    async def _put(self, key: str, value: bytes, ttl: float | str | None) -> int:
        headers = await self._ttl(ttl)
        with self._translate_ttl_error():
            return (await self._jetstream.publish(self._root + key, value, headers=headers, stream=self.stream)).seq

    async def _in_bucket(self, write: Callable[[], Awaitable[T]], create_bucket: bool) -> T:
        try:
            return await write()
        except BucketNotFoundError as error:
            if not create_bucket:
                text = f"{error}: make it with create_bucket(), or give create_bucket=True"
                raise BucketNotFoundError(text, code=error.code, err_code=error.err_code) from error
        await make_bucket(self._jetstream, self.name)
        return await write()

    async def create(
        self, key: str, value: bytes, *, ttl: float | str | None = None, create_bucket: bool = False
    ) -> int:
        """Store the value of a key that is absent, deleted or expired. KeyExistsError.

        `create_bucket` and `ttl` as for `put`.
        """
        value = as_payload(value, "the value of a key")

        def only_if_absent(there: Entry | None) -> bytes:
            if there is not None:
                raise KeyExistsError(f"key {key!r} exists in bucket {self.name}, revision {there.revision}")
            return value

        check_key(key)
        created = await self._in_bucket(lambda: self._change(key, only_if_absent, ttl), create_bucket)
        assert created is not None
        return created.revision

    async def update(self, key: str, value: bytes, *, revision: int, ttl: float | str | None = None) -> int:
        """Store the value if the key is still at `revision`, and return the new one. RevisionConflictError."""
        try:
            return await self._write(key, value, expected=revision, headers=await self._ttl(ttl))
        except WrongLastSequenceError as error:
            raise await self._conflict(key, revision) from error

    async def modify(
        self, key: str, change: Callable[[bytes | None], bytes | None], *, ttl: float | str | None = None
    ) -> Entry | None:
        """Store what `change` returns for the value (None: the key is absent); return the resulting entry, if any.

        `change` is called again with the newer value each time another client was faster, so it must have no side
        effects. An unchanged value is not written. A write keeps the headers and restarts the key's own TTL, unless
        `ttl` sets another. RevisionConflictError after twenty lost races.
        """
        return await self._change(key, lambda there: change(None if there is None else there.value), ttl)

    async def _change(
        self, key: str, change: Callable[[Entry | None], bytes | None], ttl: float | str | None
    ) -> Entry | None:
        pause = PAUSE
        for _ in range(ATTEMPTS):
            last = await self._last(key)
            there = stored_entry(key, last)
            value = change(there)
            if value == (None if there is None else there.value):
                return there
            headers = {"KV-Operation": "DEL"} if value is None else await self._new_headers(there, ttl)
            try:
                revision = await self._write(key, value or b"", expected=last.sequence if last else 0, headers=headers)
            except WrongLastSequenceError:
                await asyncio.sleep(random.uniform(0, 2 * pause))
                pause = min(2 * pause, PAUSE_MAX)
            else:
                return None if value is None else Entry(key, value, revision, encode_headers(headers))
        raise RevisionConflictError(
            f"key {key!r} of bucket {self.name} was changed by other clients {ATTEMPTS} times during this update:"
            " try again later, or use fewer writers"
        )

    async def refresh(
        self,
        key: str | Entry,
        *,
        revision: int | None = None,
        value: bytes | None = None,
        ttl: float | str | None = None,
        timeout: float | None = None,
    ) -> Entry:
        """Restart the key's TTL by storing the same value again, and return its new entry.

        This is a compare-and-set on the revision of the given `Entry`, without a new read, or on the revision read now.
        With `revision` or `value`, also only if the key has that one. Does not restore a key that is gone. Keeps the
        headers and the key's own TTL, unless `ttl` sets another. `valid_until` of the result is the earliest end of
        that TTL, counted from before the write was sent, by `elections.clock()`, which includes this machine's sleep;
        None without an own TTL. RevisionConflictError (`current` is the revision found instead), KeyNotFoundError if
        the key is gone, RequestTimeoutError if the write was in doubt for `timeout` seconds.
        """
        entry = key if isinstance(key, Entry) else await self.get(key)
        if not entry.has_value:
            raise ValueError(f"the entry of {entry.key!r} was read without its value, so it can't be written again")
        if revision not in (None, entry.revision) or value not in (None, entry.value):
            raise RevisionConflictError(
                f"key {entry.key!r} has another value or revision, {entry.revision}, than the one to refresh",
                current=entry.revision,
            )
        headers = await self._new_headers(entry, ttl)
        sent = clock()
        try:
            new = await self._write(entry.key, entry.value, expected=entry.revision, headers=headers, timeout=timeout)
        except WrongLastSequenceError as error:
            self._present(entry.key, await self._last(entry.key))
            raise await self._conflict(entry.key, entry.revision) from error
        refreshed = Entry(entry.key, entry.value, new, encode_headers(headers))
        lives = refreshed.ttl
        return replace(refreshed, valid_until=None if lives is None else sent + lives)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete the key; the bucket keeps its history. A missing key or bucket is not an error.

        With `revision`, only if the key is at it: RevisionConflictError.
        """
        await self._mark(key, {"KV-Operation": "DEL"}, revision)

    async def purge(self, key: str, *, revision: int | None = None, ttl: float | str | None = None) -> None:
        """Delete the key and its history; otherwise like `delete`. The server removes the marker after `ttl`.

        A watch that is disconnected for longer reports the key as vanished.
        """
        await self._mark(key, {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}, revision, ttl)

    async def _mark(
        self, key: str, operation: dict[str, str], revision: int | None, ttl: float | str | None = None
    ) -> None:
        if revision is not None:
            try:
                await self._write(key, b"", expected=revision, headers=operation | await self._ttl(ttl))
            except WrongLastSequenceError as error:
                raise await self._conflict(key, revision) from error
            return
        subject = self._root + check_key(key)
        with suppress(BucketNotFoundError), self._translate_ttl_error():
            headers = operation | await self._ttl(ttl)
            await self._jetstream.publish(subject, b"", headers=headers, stream=self.stream)

    async def _write(
        self, key: str, value: bytes, *, expected: int, headers: Headers, timeout: float | None = None
    ) -> int:
        check_value("revision", expected, CountOrZero)
        with self._translate_ttl_error():
            return await self._jetstream.compare_and_set(
                self.stream,
                self._root + check_key(key),
                value,
                expected=expected,
                nonce=uuid.uuid4().hex,
                headers=headers,
                timeout=self._jetstream.connection.config.timeout if timeout is None else timeout,
            )

    async def _conflict(self, key: str, revision: int) -> RevisionConflictError:
        try:
            there = stored_entry(key, await self._last(key))
        except NattyError:  # the refusal is certain anyway
            return RevisionConflictError(f"key {key!r} is not at revision {revision} any more")
        now = "it is gone" if there is None else f"it is at {there.revision}"
        current = 0 if there is None else there.revision
        return RevisionConflictError(f"key {key!r} is not at revision {revision} any more: {now}", current=current)

    async def _new_headers(self, entry: Entry | None, ttl: float | str | None) -> dict[str, str | list[str]]:
        return {**(headers_to_keep(entry) if entry else {}), **await self._ttl(ttl)}

    async def _ttl(self, life: float | str | None) -> dict[str, str]:
        """Return the header of a key's TTL. UnsupportedError if the server would store a longer one."""
        ttl = None if life is None else seconds_of("ttl", life)
        headers = ttl_header(ttl)
        if ttl is not None:
            self._jetstream.require("a time to live of a single key")
            if clock() >= self._learn_at or ceil(ttl) < self._shortest_ttl:
                await self._learn_shortest_ttl()
            if ceil(ttl) < (shortest := self._shortest_ttl):
                raise UnsupportedError(
                    f"a ttl of {ttl:g} s is too short for bucket {self.name}: it keeps history, and the markers of"
                    f" expired keys for {shortest:g} s, so the server would keep the key for {shortest:g} s. Take a ttl"
                    f" of at least {shortest:g} s, or shorten the markers (make the bucket with marker_ttl=1; of this"
                    f" one: natty stream edit {self.stream} --subject-del-markers-ttl 1s)"
                )
        return headers

    async def _learn_shortest_ttl(self) -> None:
        """Read the TTL to which the server raises shorter ones. Without the permission to read it, skip the check."""
        first = self._learn_at == float("-inf")
        self._learn_at = clock() + LEARN_AGAIN
        timeout = self._jetstream.connection.config.timeout
        try:
            answer = await self._jetstream.request(
                f"STREAM.INFO.{self.stream}", timeout=timeout if first else min(timeout, LEARN_WITHIN)
            )
        except BucketNotFoundError:
            self._learn_at = float("-inf")
            raise
        except NattyError as error:  # keep the last known TTL
            log.info("the settings of bucket %s could not be read: %s", self.name, error)
            return
        config = answer["config"]
        raised = config["max_msgs_per_subject"] != 1
        self._shortest_ttl = config.get("subject_delete_marker_ttl", 0) / NANOSECONDS if raised else 0.0

    @contextmanager
    def _translate_ttl_error(self) -> Iterator[None]:
        """Raise UnsupportedError if the server refuses a write because the bucket supports no TTL of single keys."""
        try:
            yield
        except PublishError as error:
            if isinstance(error.__cause__, JetStreamError) and error.__cause__.err_code == _TTL_DISABLED:
                raise UnsupportedError(
                    f"bucket {self.name} does not support a ttl of a single key: its stream {self.stream} was made"
                    " without allow_msg_ttl"
                ) from error
            raise

    async def keys(self, *filters: str) -> list[str]:
        """Return the keys that exist, sorted. The server filters.

        A filter may have wildcards: `*` for a token, a last `>` for the rest. Without, it matches all keys below it.
        Costs a few requests and one pass over the headers of the bucket's last messages, for any number of keys. The
        result has all keys that the stream's leader had at the time of the request.
        """
        wanted = [one if "*" in one or ">" in one else f"{one.rstrip('.')}.>" for one in filters]
        last = {entry.key: entry for entry in await self._picture(*wanted, values=False)}  # changed meanwhile: once
        return sorted(key for key, entry in last.items() if isinstance(entry, Entry))

    async def history(self, key: str) -> list[Entry | Gone]:
        """Return the key's entries that the bucket still holds, oldest first; the last one shows whether it exists.

        Empty for a key that never existed, or has no entries left.
        """
        return await self._picture(check_key(key), history=True)

    async def _picture(self, *filters: str, **options: Unpack[WatchSettings]) -> list[Entry | Gone]:
        found: list[Entry | Gone] = []
        loop, timeout = asyncio.get_running_loop(), self._jetstream.connection.config.timeout
        try:
            async with (
                asyncio.timeout(timeout) as bound,
                aclosing(self.watch(*filters, **options).__aiter__()) as events,
            ):
                async for event in events:
                    if isinstance(event, PictureComplete):
                        return found
                    found.append(event)
                    bound.reschedule(loop.time() + timeout)
        except TimeoutError:
            raise RequestTimeoutError(f"bucket {self.name} sent nothing for {timeout:g} s") from None
        raise ConnectionClosedError

    def watch(self, *keys: str, **options: Unpack[WatchSettings]) -> Watch:
        """Return a watch of these keys (wildcards `*` and `>` allowed), or without keys of the whole bucket.

        Options: `WatchSettings`.
        """
        filters = tuple(check_filter(key) for key in keys) or (">",)
        chosen = make_options(WatchOptions, "watch", options)
        return Watch(self._jetstream, self.stream, self._root, filters, chosen, skipped=self._warn_of)

    def _warn_of(self, name: bytes) -> None:
        if name in self._skipped_keys or len(self._skipped_keys) > MOST_SKIPPED:
            return
        self._skipped_keys.add(name)
        text = "bucket %s has an entry under %r, which is not a key (ADR-8): skipped"
        if len(self._skipped_keys) > MOST_SKIPPED:
            text = "bucket %s has more entries that are not keys, as %r: skipped; further ones are not logged"
        log.warning(text, self.name, name, extra={"action": "bad_key"})

    async def status(self) -> BucketStatus:
        """Return the content and the configuration of the bucket."""
        answer = await stream_info(self._jetstream, self.stream)
        config, state = answer["config"], answer["state"]
        return {
            "bucket": self.name,
            "description": config.get("description", ""),
            "values": state["messages"],
            "bytes": state["bytes"],
            "last_revision": state["last_seq"],
            "ttl": config.get("max_age", 0) / NANOSECONDS,
            "ttl_of_keys": bool(config.get("allow_msg_ttl")),
            "marker_ttl": config.get("subject_delete_marker_ttl", 0) / NANOSECONDS,
            "history": config["max_msgs_per_subject"],
            "replicas": config["num_replicas"],
            "storage": config["storage"],
            "created": answer["created"],
        }
