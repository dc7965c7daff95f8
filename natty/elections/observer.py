"""Who leads: for dashboards, and for clients that talk to the leader. A hint; base no decisions on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from natty.config.units import clock
from natty.elections.driver import Call
from natty.elections.options import LEASE_KEY, ElectionOptions, silence
from natty.elections.record import ABSENT, Epoch, Sight, Subjects, hinted_revision, republish_subject, sight_of
from natty.errors import (
    BadRecordError,
    BucketNotFoundError,
    ConnectionClosedError,
    NattyError,
    NoRespondersError,
)
from natty.jetstream import JetStream
from natty.kv.json_records import decode
from natty.streams import stream_state
from natty.wire.background import wait_until_set
from natty.wire.message import Batch

READ_AGAIN = 1.0  # seconds until a failed read is retried
NO_NEWS = 0.1  # seconds after a read that showed nothing new


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads, as far as can be seen: if `node` is empty, there is no leader."""

    node: str = ""
    token: int = 0
    term: int = 0
    since: str = ""  # the server's time stamp of the term's beginning
    lease: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.node)


async def leadership(jetstream: JetStream, subjects: Subjects) -> Leadership:
    """Return who leads, as last written. If the bucket is missing, there is no leader."""
    return await _resolve(jetstream, subjects, await _sight(jetstream, subjects))


async def _sight(jetstream: JetStream, subjects: Subjects) -> Sight:
    try:
        last = await jetstream.read(subjects.stream, subject=subjects.lease)
    except BucketNotFoundError:
        return ABSENT
    return ABSENT if last is None else sight_of(last.sequence, last.header_block, last.data)


async def _resolve(jetstream: JetStream, subjects: Subjects, sight: Sight) -> Leadership:
    if sight.lease is None or sight.kind != "held":
        return Leadership()
    stored = await jetstream.read(subjects.stream, subject=subjects.epoch)
    lease = sight.lease
    nobody_yet = Leadership(lease.id, 0, lease.term, "", lease.lasts)
    try:
        epoch: Epoch | None = None if stored is None else decode(stored.data, Epoch)
    except BadRecordError:  # the term has no readable token
        return nobody_yet
    if stored is None or epoch is None or (epoch.inc, epoch.term) != (lease.inc, lease.term):
        return nobody_yet
    return Leadership(lease.id, stored.sequence, lease.term, stored.time, lease.lasts)


async def observe(jetstream: JetStream, options: ElectionOptions) -> AsyncGenerator[Leadership, None]:
    """Yield who leads, now and after each change. Also yields that there is no leader, after a lease of silence.

    Republished messages only say when to look: everything that is yielded was read from the bucket. Ends when the
    client is closed. NotConnectedError for a client that was not opened, or was closed before.
    """
    if not jetstream.connection.supervised:
        raise jetstream.connection.no_session()
    subjects, news = Subjects(options.bucket, options.lease_key), asyncio.Event()
    seen: Sight | None = None
    seen_at, now = clock(), Leadership()

    def on_lease(batch: Batch) -> None:
        if max(map(hinted_revision, batch.raw)) > (seen.revision if seen is not None else 0):
            news.set()

    def on_epoch(batch: Batch) -> None:
        if not now.token:
            news.set()

    def on_event(event: str) -> None:
        news.set()

    subscriptions = [
        jetstream.connection.subscribe(republish_subject(options.bucket, options.lease_key), on_lease),
        jetstream.connection.subscribe(republish_subject(options.bucket, f"{options.lease_key}.epoch"), on_epoch),
    ]
    jetstream.connection.listeners.append(on_event)
    try:
        shown: Leadership | None = None
        while True:
            news.clear()
            try:
                sight = await _sight(jetstream, subjects)
                if seen is None or sight.revision != seen.revision:
                    now = await _resolve(jetstream, subjects, sight)
                    seen, seen_at = sight, clock()
                elif now and clock() - seen_at >= silence(now.lease):
                    now = Leadership()
                elif now and not now.token:
                    now = await _resolve(jetstream, subjects, sight)
                else:
                    await asyncio.sleep(NO_NEWS)  # limits how often a wrong hint is followed
            except ConnectionClosedError:
                return
            except NattyError:
                await asyncio.sleep(READ_AGAIN)
                continue
            if now != shown and (now.token or not now):
                shown = now
                yield now
            wait = max(0.0, silence(now.lease) - (clock() - seen_at)) if now else None
            await wait_until_set(news, wait)
    finally:
        jetstream.connection.listeners.remove(on_event)
        for subscription in subscriptions:
            subscription.close()


async def ask_to_step_down(jetstream: JetStream, options: ElectionOptions, to: str = "") -> str:
    """Ask the leader, on any machine, to leave office; return its name, "" if there is no leader.

    NattyError if the leader does not answer.
    """
    subjects = Subjects(options.bucket, options.lease_key)
    sight = await _sight(jetstream, subjects)
    if sight.kind != "held" or sight.lease is None:
        return ""
    if not jetstream.connection.is_inbox(sight.lease.addr.encode()):
        raise NattyError(
            f"{sight.lease.id} can't be asked: its address {sight.lease.addr!r} is not below our inbox prefix"
            f" {jetstream.connection.config.inbox_prefix}; set inbox_prefix to that of its candidates"
        )
    call = msgspec.json.encode(Call(do="step_down", id=to))
    try:
        answer = await jetstream.connection.request(sight.lease.addr, call)
    except (NoRespondersError, TimeoutError) as error:
        raise NattyError(
            f"{sight.lease.id} does not answer: it has ended or is frozen, and another candidate takes over within"
            f" {sight.lease.lasts:g} s"
        ) from error
    return sight.lease.id if b"true" in answer[3] else ""


async def elections(jetstream: JetStream, bucket: str) -> list[str]:
    """Return the names of the elections in a bucket that ever had a leader, sorted."""
    try:
        state = await stream_state(jetstream, f"KV_{bucket}", subjects=f"$KV.{bucket}.>")
    except BucketNotFoundError:
        return []
    prefix = f"$KV.{bucket}."
    found = state.get("subjects") or {}
    names = (name[len(prefix) : -len(".epoch")] for name in found if name.endswith(".epoch"))
    return sorted(name for name in names if LEASE_KEY.fullmatch(name))
