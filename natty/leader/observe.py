"""Who leads: for dashboards, and for those who talk to the leader. A hint, never a base for decisions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from natty.errors import BucketNotFoundError, ConnectionClosedError, NattyError, NoRespondersError
from natty.jetstream import JetStream
from natty.leader.driver import Call
from natty.leader.options import ElectionOptions, silence
from natty.leader.record import ABSENT, Epoch, Sight, Subjects, observed, sight_of
from natty.message import RawMessage, parse_headers
from natty.units import clock

READ_AGAIN = 1.0  # seconds until a read that failed is tried again


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads as far as can be seen: nobody if `node` is empty."""

    node: str = ""
    token: int = 0
    term: int = 0
    since: str = ""  # the server's time stamp of the term's beginning
    lease: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.node)


async def leadership(jetstream: JetStream, subjects: Subjects) -> Leadership:
    """Return who leads, as last written. A bucket that is missing means nobody."""
    try:
        last = await jetstream.read(subjects.stream, subject=subjects.lease)
    except BucketNotFoundError:
        return Leadership()
    sight = ABSENT if last is None else sight_of(last.sequence, last.header_block, last.data)
    return await _known(jetstream, subjects, sight)


async def _known(jetstream: JetStream, subjects: Subjects, sight: Sight) -> Leadership:
    if sight.lease is None or sight.kind != "held":
        return Leadership()
    stored = await jetstream.read(subjects.stream, subject=subjects.epoch)
    lease = sight.lease
    if stored is None:
        return Leadership(lease.id, 0, lease.term, "", lease.L)
    epoch = msgspec.json.decode(stored.data, type=Epoch)
    fenced = (epoch.inc, epoch.term) == (lease.inc, lease.term)
    return Leadership(lease.id, stored.sequence if fenced else 0, lease.term, stored.time if fenced else "", lease.L)


async def observe(jetstream: JetStream, options: ElectionOptions) -> AsyncGenerator[Leadership, None]:
    """Yield who leads, now and whenever that changes. Nobody, too, after a lease of silence.

    Ends when the client is closed.
    """
    subjects = Subjects(options.bucket, options.lease_key)
    news = asyncio.Event()
    heard_at = clock()

    def heard(messages: list[RawMessage]) -> None:
        nonlocal heard_at
        for raw in messages:
            sight = sight_of(int(parse_headers(raw[2])["Nats-Sequence"][0]), raw[2], raw[3])
            heard_at = clock()
            if (
                sight.kind != "held"
                or sight.lease is None
                or (sight.lease.id, sight.lease.term) != (now.node, now.term)
            ):
                news.set()

    def on_event(event: str) -> None:
        news.set()

    now = Leadership()
    key = options.lease_key
    subscriptions = [
        jetstream.connection.subscribe(observed(options.bucket, key), heard),
        jetstream.connection.subscribe(observed(options.bucket, f"{key}.epoch"), lambda messages: news.set()),
    ]
    jetstream.connection.listeners.append(on_event)
    try:
        shown: Leadership | None = None
        while True:
            news.clear()
            try:
                now = await leadership(jetstream, subjects)
            except ConnectionClosedError:
                return
            except NattyError:
                await asyncio.sleep(READ_AGAIN)
                news.set()
            else:
                if now != shown and (now.token or not now):
                    shown = now
                    yield now
            heard_at = clock()
            while not news.is_set():
                wait = silence(now.lease) - (clock() - heard_at) if now else None
                try:
                    async with asyncio.timeout(wait):
                        await news.wait()
                except TimeoutError:
                    if clock() - heard_at >= silence(now.lease):
                        now = shown = Leadership()
                        yield now
    finally:
        jetstream.connection.listeners.remove(on_event)
        for subscription in subscriptions:
            subscription.close()


async def ask_to_step_down(jetstream: JetStream, options: ElectionOptions, to: str = "") -> str:
    """Ask the leader, wherever it runs, to leave office; return its name, "" if nobody leads.

    NattyError if it does not answer.
    """
    subjects = Subjects(options.bucket, options.lease_key)
    try:
        last = await jetstream.read(subjects.stream, subject=subjects.lease)
    except BucketNotFoundError:
        return ""
    sight = ABSENT if last is None else sight_of(last.sequence, last.header_block, last.data)
    if sight.kind != "held" or sight.lease is None:
        return ""
    call = msgspec.json.encode(Call(do="step_down", id=to))
    try:
        answer = await jetstream.connection.request(sight.lease.addr, call)
    except (NoRespondersError, TimeoutError) as error:
        raise NattyError(
            f"{sight.lease.id} does not answer: it is gone or frozen, and others take over within {sight.lease.L:g} s"
        ) from error
    return sight.lease.id if b"true" in answer[3] else ""


async def elections(jetstream: JetStream, bucket: str) -> list[str]:
    """Return the names of the elections in a bucket that ever had a leader, sorted."""
    try:
        answer = await jetstream.request(f"STREAM.INFO.KV_{bucket}", {"subjects_filter": f"$KV.{bucket}.>"})
    except BucketNotFoundError:
        return []
    prefix = f"$KV.{bucket}."
    found = answer["state"].get("subjects") or {}
    return sorted(name[len(prefix) : -len(".epoch")] for name in found if name.endswith(".epoch"))
