"""Rebuilds a stream from its archive, exactly as it was, by the plan of `capture.restoring.plan`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from capture.archive.encryption import Keys
from capture.config.settings import CaptureConfig
from capture.errors import RestoreError, RestoreRefusedError
from capture.restoring.archive import ArchiveWriter
from capture.restoring.past import read_past
from capture.restoring.pick import rows_of
from capture.restoring.plan import Options, Plan, Target
from capture.restoring.prepare import draw_plan
from capture.restoring.uptake import (
    POLL,
    LeftoverFilesError,
    consumers_there,
    give_up,
    incomplete_config,
    remove_leftover,
    stream_there,
    try_replicas,
    upload,
)
from capture.stores import Store
from natty import JetStreamError, Natty
from natty.config.units import write_count
from natty.errors import RequestTimeoutError
from natty.names import check_name
from natty.streams import stream_state
from natty.streams.listing import all_streams

REMOVED_WITHIN = 1.0  # seconds in which a server removes the files of a deleted stream, as a rule
THERE_WITHIN = 60.0  # seconds in which a server must report all consumers and messages

Progress = Callable[[int, int], None]
"""Called with the number of messages sent, and the number to send."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The result: `messages` were sent, and the stream `kept` this many of them."""

    plan: Plan
    messages: int
    kept: int
    seconds: float
    not_kept: tuple[str, ...] = ()


async def prepare(
    natty: Natty, config: CaptureConfig, store: Store, options: Options, *, offline: bool = False
) -> Plan:
    """Read the archive and the server's facts, and make the plan. Writes nothing.

    RestoreRefusedError, ManifestError. It reads objects only if their records do not decide which messages are chosen;
    then it also raises the errors of `reading.merge.merge_shares`.
    """
    if options.name:
        check_name("stream", options.name)
    past = await read_past(None if offline else natty, config, store, options.window)
    return await draw_plan(past, options, await look_at(natty), store, keys=config.keys())


async def look_at(natty: Natty) -> Target:
    """Read the server's facts. RestoreRefusedError if the subjects of a stream can't be read."""
    streams = await all_streams(natty.jetstream)
    if streams.missing:
        raise RestoreRefusedError(
            f"no server answers for stream {streams.missing[0]}: overlaps of subjects can't be detected"
        )
    return Target(
        version=natty.connection.server_version,
        streams={one["config"]["name"]: one["config"] for one in streams.found},
        account=await natty.jetstream.request("INFO"),
    )


async def restore_exactly(
    natty: Natty, plan: Plan, store: Store, keys: Keys | None = None, on_progress: Progress | None = None
) -> Restored:
    """Carry out a plan on nats-server 2.15 or later. The stream is restored whole, or not at all.

    If the new stream has messages of a deleted one of its name, it is removed, and restored once more.

    RestoreRefusedError if the plan has obstacles; nothing was written. RestoreError, FormatError, CipherError,
    NotStoredError, NattyError: it removed what it had written, or the error says what is left.
    """
    if plan.obstacles:
        raise RestoreRefusedError(plan.obstacles[0])
    try:
        return await _restore(natty, plan, store, keys, on_progress)
    except LeftoverFilesError:
        await asyncio.sleep(REMOVED_WITHIN)
        return await _restore(natty, plan, store, keys, on_progress)


async def _restore(natty: Natty, plan: Plan, store: Store, keys: Keys | None, on_progress: Progress | None) -> Restored:
    """Carry out a plan. LeftoverFilesError if the new stream had old messages; it was removed, as after each error."""
    began, token = time.monotonic(), token_hex(8)
    await remove_leftover(natty, plan.name)
    sent = 0

    def count(messages: int) -> None:
        nonlocal sent
        sent += messages
        if on_progress is not None:
            on_progress(sent, plan.messages)

    try:
        making = incomplete_config(plan.config, token)
        await try_replicas(natty, making)
        async with aclosing(_pieces(plan, store, keys, count)) as pieces:
            await upload(natty, making | {"num_replicas": 1}, plan.state(), pieces)
        state = await stream_state(natty.jetstream, plan.name)
        if state["messages"] > sent and not plan.config.get("mirror"):
            reason = f"the server has {state['messages']:,} messages, and {sent:,} were sent"
            raise LeftoverFilesError(plan.name, reason)
        goes_on = bool(plan.config.get("mirror")) and state["last_seq"] > plan.last
        if plan.config.get("retention", "limits") == "limits" and state["last_seq"] != plan.last and not goes_on:
            raise RestoreError(f"the server's last sequence is {state['last_seq']}, and not {plan.last}")
        floors = {one["config"]["name"]: one["state"]["ack_floor"] for one in plan.consumers}
        await consumers_there(natty, plan.name, floors, THERE_WITHIN)
        await natty.jetstream.request(f"STREAM.UPDATE.{plan.name}", plan.config)
    except BaseException:
        await give_up(natty, plan.name, token)
        raise
    replicas = plan.config.get("num_replicas", 1)
    await stream_there(natty, plan.name, state["last_seq"], THERE_WITHIN, replicas=replicas)
    fewer = [text async for text in _replicate_consumers(natty, plan)]
    return Restored(
        plan=plan,
        messages=sent,
        kept=state["messages"],
        seconds=time.monotonic() - began,
        not_kept=(*_report_left_out(plan, sent, state), *fewer, *plan.not_kept),
    )


async def _replicate_consumers(natty: Natty, plan: Plan) -> AsyncGenerator[str, None]:
    """Restore consumers' own replica counts; the other consumers have the stream's. Yield failures.

    The stream's leader may not know yet that the stream has replicas, and refuses these updates until it does.
    """
    for config in (one["config"] for one in plan.consumers if one["config"].get("num_replicas", 0) > 1):
        request = {"stream_name": plan.name, "config": config, "action": "update"}
        until = time.monotonic() + THERE_WITHIN
        while True:
            try:
                await natty.jetstream.request(f"CONSUMER.CREATE.{plan.name}.{config['name']}", request)
                break
            except (JetStreamError, RequestTimeoutError) as error:
                if time.monotonic() > until:
                    yield f"consumer {config['name']} does not have its {config['num_replicas']} replicas: {error}"
                    break
                await asyncio.sleep(POLL)


async def _pieces(
    plan: Plan, store: Store, keys: Keys | None, count: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    """Yield the archive's bytes. RestoreError unless the objects hold the messages that their records name."""
    writer, seen = ArchiveWriter(now_ns=time.time_ns()), 0
    yield writer.begin(plan.state(), [_on_one_server(consumer) for consumer in plan.consumers])
    with ThreadPoolExecutor(1) as thread:
        async with aclosing(rows_of(store, plan.supply, plan.wanted, keys=keys)) as tables:
            async for rows in tables:
                yield await asyncio.get_running_loop().run_in_executor(thread, writer.add, rows)
                seen += len(rows)
                count(len(rows))
    if seen != plan.messages:
        raise RestoreError(f"the archive's objects hold {seen:,} of {plan.messages:,} messages that their records name")
    yield writer.end()


def _on_one_server(consumer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer as it is uploaded: with one replica, as the stream has then."""
    config = consumer["config"]
    return {**consumer, "config": config | {"num_replicas": min(config.get("num_replicas", 0), 1)}}


def _report_left_out(plan: Plan, sent: int, state: Mapping[str, Any]) -> Iterable[str]:
    if state["messages"] < sent:
        reason = "acknowledged by all consumers, or expired"
        yield f"{write_count(sent - state['messages'], 'message', 'was', 'were')} left out by the server: {reason}"
