"""Restores a stream by publishing: on servers before 2.15, and to other subjects.

A published message gets a new time. Its headers record when, in which stream and at which sequence it was first stored:
`Capture-Stream`, `Capture-Sequence`, `Capture-Time`. Headers that would have an effect on the server (`Nats-Rollup`,
`Nats-TTL`, `Nats-Msg-Id`, …) are published as `Capture-Nats-…`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from capture.archive.encryption import Keys
from capture.errors import RestoreError, RestoreRefusedError
from capture.restoring.pick import rows_of
from capture.restoring.plan import Plan
from capture.restoring.rebuild import THERE_WITHIN, Progress, Restored
from capture.restoring.uptake import HIDDEN, give_up, incomplete_config, remove_leftover, stream_there
from capture.stores import Store
from natty import Natty, NattyError, PublishError
from natty.jetstream import read_ack
from natty.streams import stream_state
from natty.wire.message import Batch, Outgoing, status_of

WINDOW = 4096  # messages without an ack
WINDOW_BYTES = 8 << 20
ACK_WITHIN = 60.0  # seconds without any ack
GAP = b"_capture.restore.gap"
"""The subject of fillers for sequences without a message. They are purged at the end."""
FIELDS_SINCE: Mapping[str, tuple[int, int]] = {
    "allow_msg_ttl": (2, 11),
    "subject_delete_marker_ttl": (2, 11),
    "allow_msg_counter": (2, 12),
    "allow_atomic": (2, 12),
    "allow_msg_schedules": (2, 12),
    "persist_mode": (2, 12),
    "allow_batched": (2, 14),
}
"""The server version that introduced each setting of a stream, after 2.10."""
NOT_BY_PUBLISHING = (
    "when messages were stored: the server gives them the time of now, and the header Capture-Time says when it was",
    "headers that begin with Nats-: they are renamed to Capture-Nats-…, since servers would act on them",
)
_RESERVED = re.compile(rb"\r\n(?=Nats-)", re.IGNORECASE)
_BEGIN = b"NATS/1.0\r\n"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast messages are published: at `speed` times the original pace; 0: as fast as the server accepts them."""

    speed: float = 0.0

    def due(self, first_ns: int, time_ns: int) -> float:
        """Return how many seconds after the first message a message is due."""
        return max(0.0, (time_ns - first_ns) / 1e9 / self.speed) if self.speed else 0.0


def write_origin(stream: str, sequence: int, time_ns: int, headers: bytes | None) -> bytes:
    """Return the raw headers of a message that is published again: its own ones and its origin."""
    kept = _RESERVED.sub(b"\r\nCapture-", headers or _BEGIN + b"\r\n")
    kept = kept[:-2] if kept.endswith(b"\r\n\r\n") else kept + b"\r\n"  # not every publisher ends its headers
    when = f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{time_ns % 10**9:09d}Z"
    facts = f"Capture-Stream: {stream}\r\nCapture-Sequence: {sequence}\r\nCapture-Time: {when}\r\n\r\n"
    return kept + facts.encode()


# --- with their sequences ---------------------------------------------------------------------------------------------


def split_settings(config: Mapping[str, Any], version: tuple[int, ...]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that a server of this version knows, and the names of the others."""
    unknown = [name for name in config if FIELDS_SINCE.get(name, (0, 0)) > version[:2]]
    return {name: value for name, value in config.items() if name not in unknown}, sorted(
        name for name in unknown if config[name]
    )


async def rebuild_published(
    natty: Natty, plan: Plan, store: Store, keys: Keys | None = None, on_progress: Progress | None = None
) -> Restored:
    """Carry out a plan on a server before 2.15: the stream begins where it did, and every message gets its sequence.

    It fills gaps while it publishes, and purges the fillers at the end. Raises the errors of
    `restoring.rebuild.restore_exactly`.
    """
    if plan.obstacles:
        raise RestoreRefusedError(plan.obstacles[0])
    began, token = time.monotonic(), token_hex(8)
    final, unknown = split_settings(plan.config, natty.connection.server_version)
    await remove_leftover(natty, plan.name)
    try:
        await natty.jetstream.request(f"STREAM.CREATE.{plan.name}", _initial_config(final, plan, token))
        prefix = f"{HIDDEN}{token}.".encode()
        async with aclosing(_messages(plan, store, keys)) as batches, _Publishing(natty, plan.stream) as publishing:
            async for batch in batches:
                await publishing.send([(prefix + subject, headers, data, seq) for subject, headers, data, seq in batch])
                if on_progress is not None:
                    on_progress(min(plan.messages, publishing.messages), plan.messages)
            await publishing.wait_until_stored()
        await natty.jetstream.request(f"STREAM.PURGE.{plan.name}", {"filter": GAP.decode()})
        for one in plan.consumers:
            await natty.jetstream.request(
                f"CONSUMER.CREATE.{plan.name}.{one['config']['name']}", _consumer_request(plan, one)
            )
        state = await stream_state(natty.jetstream, plan.name)
        if state["last_seq"] != plan.last or state["messages"] != plan.messages:
            raise RestoreError(
                f"the server has {state['messages']:,} messages up to sequence {state['last_seq']}, and not"
                f" {plan.messages:,} up to {plan.last}"
            )
        await natty.jetstream.request(f"STREAM.UPDATE.{plan.name}", final)
    except BaseException:
        await give_up(natty, plan.name, token)
        raise
    await stream_there(natty, plan.name, state["last_seq"], THERE_WITHIN)
    settings = [f"settings that this server does not know: {', '.join(unknown)}"] if unknown else []
    counts = ["consumers count their deliveries from 1 again"] if plan.consumers else []
    return Restored(
        plan=plan,
        messages=plan.messages,
        kept=state["messages"],
        seconds=time.monotonic() - began,
        not_kept=(*NOT_BY_PUBLISHING, *settings, *counts, *plan.not_kept),
    )


def _initial_config(config: Mapping[str, Any], plan: Plan, token: str) -> dict[str, Any]:
    """Return the first configuration of the stream: its only subjects are unknown to other clients.

    Interest retention would keep no messages before consumers exist.
    """
    making = {name: value for name, value in incomplete_config(config, token).items() if name != "subject_transform"}
    return making | {
        "first_seq": max(1, plan.first),
        "subjects": [f"{HIDDEN}{token}.>"],
        "subject_transform": {"src": f"{HIDDEN}{token}.>", "dest": ">"},
        "retention": "limits" if config.get("retention") == "interest" else config.get("retention", "limits"),
        "deny_purge": False,
        "no_ack": False,
    }


def _consumer_request(plan: Plan, consumer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for a consumer that continues after its ack floor."""
    config, after = dict(consumer["config"]), consumer["state"]["ack_floor"]["stream_seq"]
    if after:
        config.pop("opt_start_time", None)
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
    return {"stream_name": plan.name, "config": config}


Sendable = tuple[bytes, bytes, bytes, int]
"""Subject, raw headers, payload, and the sequence that the message must get; 0: any."""


async def _messages(plan: Plan, store: Store, keys: Keys | None) -> AsyncGenerator[list[Sendable], None]:
    """Yield every message with its sequence, and fillers for the gaps between them."""
    upcoming = max(1, plan.first)
    async with aclosing(rows_of(store, plan.supply, plan.wanted, keys=keys)) as tables:
        async for rows in tables:
            batch: list[Sendable] = []
            for sequence, time_ns, subject, headers, payload in zip(
                *(column.to_pylist() for column in rows), strict=True
            ):
                if sequence > upcoming:
                    yield batch
                    batch = []
                    for some in _fillers(upcoming, sequence - 1):
                        yield some
                batch.append((subject, write_origin(plan.stream, sequence, time_ns, headers), payload, sequence))
                upcoming = sequence + 1
            yield batch
    for some in _fillers(upcoming, plan.last):
        yield some


def _fillers(first: int, last: int) -> Iterator[list[Sendable]]:
    """Yield a message for each of these sequences, WINDOW at a time: a gap may have millions."""
    for start in range(first, last + 1, WINDOW):
        yield [(GAP, b"", b"", one) for one in range(start, min(start + WINDOW, last + 1))]


# --- to other subjects -----------------------------------------------------------------------------------------------


async def replay(
    natty: Natty,
    plan: Plan,
    store: Store,
    prefix: str,
    *,
    pace: Pace | None = None,
    keys: Keys | None = None,
    on_progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Restored:
    """Publish the plan's messages again in their order, each below `prefix`, to any stream with that subject.

    It waits until each is stored. PublishError names the first message that no stream stored, or that was refused;
    those before it stay published. `pace` sets the speed.
    """
    pace, began = pace or Pace(), clock()
    first_ns: int | None = None
    async with (
        aclosing(rows_of(store, plan.supply, plan.wanted, keys=keys)) as tables,
        _Publishing(natty, plan.stream) as publishing,
    ):
        async for rows in tables:
            batch: list[Sendable] = []
            for sequence, time_ns, subject, headers, payload in zip(
                *(column.to_pylist() for column in rows), strict=True
            ):
                first_ns = time_ns if first_ns is None else first_ns
                early = began + pace.due(first_ns, time_ns) - clock() if pace.speed else 0.0
                if early > 0:
                    await publishing.send(batch)
                    batch = []
                    await sleep(early)
                batch.append(
                    (
                        b"%b.%b" % (prefix.encode(), subject),
                        write_origin(plan.stream, sequence, time_ns, headers),
                        payload,
                        0,
                    )
                )
            await publishing.send(batch)
            if on_progress is not None:
                on_progress(publishing.messages, plan.messages)
        await publishing.wait_until_stored()
    sent = publishing.messages
    return Restored(
        plan=plan, messages=sent, kept=sent, seconds=clock() - began, not_kept=("sequences", *NOT_BY_PUBLISHING)
    )


# --- publishing ------------------------------------------------------------------------------------------------------


class _Publishing:
    """Publishes in order, a window of messages at a time, and checks every ack."""

    def __init__(self, natty: Natty, stream: str) -> None:
        self._connection, self._stream = natty.connection, stream
        self._inbox = natty.connection.new_inbox()
        self._subscription = natty.connection.subscribe(f"{self._inbox.decode()}.*", self._acks)
        self._waiting: dict[bytes, tuple[bytes, int, int]] = {}
        self._bytes = self._number = 0
        self._heard = asyncio.Event()
        self._fault: NattyError | RestoreError | None = None
        natty.connection.listeners.append(self._on_event)
        natty.connection.refusals.listeners.append(self._on_refusal)
        self.messages = 0

    async def __aenter__(self) -> _Publishing:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._subscription.close()
        self._connection.listeners.remove(self._on_event)
        self._connection.refusals.listeners.remove(self._on_refusal)

    async def send(self, batch: list[Sendable]) -> None:
        """Send messages; wait while too many have no ack."""
        for start in range(0, len(batch), 256):
            await self._wait_until(lambda: len(self._waiting) < WINDOW and self._bytes < WINDOW_BYTES)
            wire: list[Outgoing] = []
            for subject, headers, data, sequence in batch[start : start + 256]:
                self._number += 1
                reply = b"%b.%x" % (self._inbox, self._number)
                self._waiting[reply] = (subject, sequence, len(headers) + len(data))
                self._bytes += len(headers) + len(data)
                wire.append((subject, reply, headers, data))
            self._connection.send_many(wire)
            await self._connection.drain()

    async def wait_until_stored(self) -> None:
        """Wait until every message is stored. PublishError, RestoreError."""
        await self._wait_until(lambda: not self._waiting)

    async def _wait_until(self, ready: Callable[[], bool]) -> None:
        while self._fault is None and not ready():
            self._heard.clear()
            try:
                async with asyncio.timeout(ACK_WITHIN):
                    await self._heard.wait()
            except TimeoutError:
                raise RestoreError(f"the server acknowledged nothing for {ACK_WITHIN:g} s") from None
        if self._fault is not None:
            raise self._fault

    def _acks(self, batch: Batch) -> None:
        for reply, _, headers, payload in batch.raw:
            subject, sequence, size = self._waiting.pop(reply, (b"", 0, 0))
            if not subject:
                continue
            self._bytes -= size
            try:
                self._check(subject.decode("utf-8", "replace"), sequence, headers, payload)
            except (NattyError, RestoreError) as error:
                self._fault = self._fault or error
            self.messages += subject.endswith(GAP) is False
        self._heard.set()

    def _check(self, subject: str, sequence: int, headers: bytes, payload: bytes) -> None:
        if not payload and status_of(headers)[0] == 503:
            raise PublishError(f"no stream takes {subject!r}: create one whose subjects cover it", subject=subject)
        ack = read_ack(payload, subject)
        if sequence and ack.seq != sequence:
            raise RestoreError(f"the server stored message {sequence} at sequence {ack.seq}")

    def _on_refusal(self, text: str) -> None:
        """Fail if publishing is not permitted: the server names the subject and drops the message."""
        subjects = {subject for subject, _, _ in self._waiting.values()}
        for subject in subjects:
            if b'to "%b"' % subject in text.encode():
                name = subject.decode("utf-8", "replace")
                self._fault = self._fault or PublishError(f"not permitted: {text}", subject=name)
                self._heard.set()

    def _on_event(self, event: str) -> None:
        if event != "connected":
            self._fault = self._fault or RestoreError("the connection was lost in between")
            self._heard.set()
