"""An archive as its nodes see it: what they publish, and who leads. `capture status` and the status page show this."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from capture.archive.heads import COMPACTION, SWEEP
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.ingest.board import ALLOWANCE, BUCKET, Board, StreamState, View, server_time
from capture.status.backlog import read_backlog
from natty import Natty, NattyError

ASK_WITHIN = 3.0  # seconds that NATS has to say how far a stream is captured
POSITION = ("first", "last", "acked", "pending", "unacked", "lag")  # fields of `StreamState` that NATS is asked for
FOUND = ("gaps", "gaps_are", "missing", "missing_are")  # fields that a sweep finds


@dataclass(frozen=True)
class Status:
    """An archive as it was found: what is published of it, and who leads as far as the elections tell.

    How far its streams are captured was asked of NATS now, where `asked` has their names; else it is what the last
    sweep has found, and is not known any more if that is too long ago: see `knows`.
    """

    archive: str
    view: View
    sweeper: str
    compactor: str
    asked: frozenset[str] = frozenset()

    @property
    def troubles(self) -> list[str]:
        """A sentence for each thing that is wrong."""
        return self.view.troubles(leader=self.sweeper)

    def knows(self, stream: StreamState) -> bool:
        """Tell whether `acked`, `pending`, `unacked` and `lag` of a stream are of now, or a few sweeps old at most."""
        return stream.stream in self.asked or not self.view.is_late

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs; ages in seconds. What is not known any more is null."""
        view = self.view
        state = msgspec.to_builtins(view.state)
        for found, stream in zip(state["streams"], view.state.streams, strict=True) if view.state else ():
            found |= {} if self.knows(stream) else dict.fromkeys(POSITION)
            found |= {} if not view.is_late else dict.fromkeys(FOUND)
        return {
            "archive": self.archive,
            "ok": not self.troubles,
            "troubles": self.troubles,
            "leaders": {"sweep": self.sweeper or None, "compaction": self.compactor or None},
            "age": round(view.ago, 3),
            "state": state,
            "nodes": [
                msgspec.to_builtins(one.node) | {"age": round(one.ago, 3), "late": one.is_late} for one in view.nodes
            ],
        }


async def look(natty: Natty, configs: Sequence[CaptureConfig]) -> list[Status]:
    """Return what is published of each archive. CaptureError if nothing is of one; NattyError."""
    return [await _look(natty, one) for one in configs]


async def _look(natty: Natty, config: CaptureConfig) -> Status:
    view, sweeper, compactor = await asyncio.gather(
        Board(natty, config.name).read(),
        natty.election(SWEEP.election(config.name)).holder(ALLOWANCE),
        natty.election(COMPACTION.election(config.name)).holder(ALLOWANCE),
    )
    if view.state is None and not view.nodes and not view.unreadable:
        raise CaptureError(
            f"nothing is published of archive {config.name} in bucket {BUCKET}: no node has run yet, or with another"
            " name, account or server"
        )
    found = Status(config.name, view, sweeper.id if sweeper else "", compactor.id if compactor else "")
    return await _asked(natty, config, found)


async def _asked(natty: Natty, config: CaptureConfig, found: Status) -> Status:
    """Return the status with the streams as NATS says that they are now, as far as it says so."""
    state = found.view.state
    if state is None:
        return found
    now = await asyncio.gather(*(_position(natty, config, one) for one in state.streams))
    streams = [asked or one for asked, one in zip(now, state.streams, strict=True)]
    view = replace(found.view, state=msgspec.structs.replace(state, streams=streams))
    return replace(found, view=view, asked=frozenset(one.stream for one in now if one))


async def _position(natty: Natty, config: CaptureConfig, stream: StreamState) -> StreamState | None:
    """Return how far a stream is captured now; None if NATS does not say, or does not let us ask."""
    try:
        async with asyncio.timeout(ASK_WITHIN):
            backlog = await read_backlog(natty, config, stream.stream)
            info = await natty.jetstream.request(f"STREAM.INFO.{stream.stream}")
    except (NattyError, TimeoutError):
        return None
    return msgspec.structs.replace(
        stream,
        first=int(info["state"]["first_seq"]),
        last=int(info["state"]["last_seq"]),
        acked=backlog.acked,
        pending=backlog.pending,
        unacked=backlog.unacked,
        lag=None if backlog.oldest is None else max(0.0, server_time(info) - backlog.oldest),
    )
