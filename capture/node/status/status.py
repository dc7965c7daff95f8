"""The status of an archive: its published state, and its leaders. `capture status` and the status page show it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from capture.archive.heads import COMPACTION, SWEEP
from capture.archive.iceberg_state import CatalogState, FreshState
from capture.config.settings import CaptureConfig
from capture.errors import NoStatusError
from capture.ingest.board import ALLOWANCE, BUCKET, Board, BoardState, NodeState, StreamState, server_time
from capture.ingest.board_trouble import Trouble
from capture.ingest.source import stream_info
from capture.node.status.ack_floor_holder import explain
from capture.node.status.backlog import read_backlog
from natty import Natty, NattyError

ASK_WITHIN = 3.0  # seconds within which NATS must report how far a stream is captured
POSITION = (
    "first",
    "last",
    "acked",
    "pending",
    "unacked",
    "lag",
    "waiting_from",
)  # fields of `StreamState` that come from NATS
NO_CANDIDATE = "no running node is a candidate, a node with Spark is needed"
FOUND = ("gaps", "gaps_are", "missing", "missing_are")  # fields that come from a sweep


@dataclass(frozen=True)
class Status:
    """The status of an archive: its published state, and its leaders as far as the elections report them.

    The progress of the streams named in `asked` was read from NATS now. For other streams it is the result of the last
    sweep, and is unknown if that sweep was too long ago: see `knows`. `is_to_compact` says that the configuration has
    settings for the compaction.
    """

    archive: str
    board: BoardState
    sweeper: str
    compactor: str
    asked: frozenset[str] = frozenset()
    is_to_compact: bool = False

    @property
    def troubles(self) -> list[Trouble]:
        """A sentence for each problem."""
        found = self.board.troubles(leader=self.sweeper)
        lacks = self.is_to_compact and self.lacks_candidate
        return [*found, Trouble(f"nobody compacts: {NO_CANDIDATE}")] if lacks else found

    @property
    def catalogs(self) -> list[CatalogState]:
        """The entries in the user's catalog, as the running leader of the compaction reports them."""
        return [entry for one in self._compacting for entry in one.catalogs]

    @property
    def fresh(self) -> FreshState | None:
        """The state of the fresh table, as the running leader of the compaction reports it."""
        return next((one.fresh for one in self._compacting if one.fresh), None)

    @property
    def _compacting(self) -> list[NodeState]:
        """The running leader of the compaction; all running nodes if the election reports none.

        A leader that died may have reported a moment ago.
        """
        nodes = [one.node for one in self.board.nodes if not one.is_late]
        return [one for one in nodes if one.node == self.compactor] if self.compactor else nodes

    @property
    def lacks_candidate(self) -> bool:
        """Whether no node leads the compaction, and no running node can."""
        return not self.compactor and not self.board.locations

    def knows(self, stream: StreamState) -> bool:
        """Return whether a stream's `acked`, `pending`, `unacked` and `lag` are at most a few sweeps old."""
        return stream.stream in self.asked or not self.board.is_late

    def as_dict(self) -> dict[str, Any]:
        """Return the status for programs; ages in seconds. Figures that are not known any more are null.

        `troubles` have a `text`, and the `entry` of docs/runbook.md about it. `held_back` says what a stream's ack
        floor waits for.
        """
        board = self.board
        state, troubles = msgspec.to_builtins(board.state), self.troubles
        for found, stream in zip(state["streams"], board.state.streams, strict=True) if board.state else ():
            found["held_back"] = explain(stream, board.nodes) if self.knows(stream) else None
            found |= {} if self.knows(stream) else dict.fromkeys(POSITION)
            found |= {} if not board.is_late else dict.fromkeys(FOUND)
        return {
            "archive": self.archive,
            "ok": not troubles,
            "troubles": msgspec.to_builtins(troubles),
            "leaders": {"sweep": self.sweeper or None, "compaction": self.compactor or None},
            "age": round(board.ago, 3),
            "late": board.is_late,
            "state": state,
            "nodes": [
                msgspec.to_builtins(one.node) | {"age": round(one.ago, 3), "late": one.is_late} for one in board.nodes
            ],
        }


async def look(natty: Natty, configs: Sequence[CaptureConfig]) -> list[Status]:
    """Return the status of each archive. NoStatusError if nothing is published of one; NattyError."""
    return [await _look(natty, one) for one in configs]


async def _look(natty: Natty, config: CaptureConfig) -> Status:
    board, sweeper, compactor = await asyncio.gather(
        Board(natty, config.name).read(),
        natty.election(SWEEP.election(config.name)).holder(ALLOWANCE),
        natty.election(COMPACTION.election(config.name)).holder(ALLOWANCE),
    )
    if board.state is None and not board.nodes and not board.unreadable:
        raise NoStatusError(
            f"bucket {BUCKET} has no status of archive {config.name}: no node is running, start one with `capture run`;"
            " or it runs with another archive name, account or server"
        )
    found = Status(
        config.name,
        board,
        sweeper.id if sweeper else "",
        compactor.id if compactor else "",
        is_to_compact=config.has_compaction,
    )
    return await _refresh(natty, config, found)


async def _refresh(natty: Natty, config: CaptureConfig, found: Status) -> Status:
    """Return the status with the current state of the streams, as far as NATS reports it."""
    state = found.board.state
    if state is None:
        return found
    now = await asyncio.gather(*(_read_position(natty, config, one) for one in state.streams))
    streams = [asked or one for asked, one in zip(now, state.streams, strict=True)]
    board = replace(found.board, state=msgspec.structs.replace(state, streams=streams))
    return replace(found, board=board, asked=frozenset(one.stream for one in now if one))


async def _read_position(natty: Natty, config: CaptureConfig, stream: StreamState) -> StreamState | None:
    """Return the current progress of a stream; None if NATS does not report it, or refuses the request."""
    try:
        async with asyncio.timeout(ASK_WITHIN):
            backlog = await read_backlog(natty, config, stream.stream)
            info = await stream_info(natty, stream.stream)
    except (NattyError, TimeoutError):
        return None
    return msgspec.structs.replace(
        stream,
        first=int(info["state"]["first_seq"]),
        last=int(info["state"]["last_seq"]),
        acked=backlog.acked,
        pending=backlog.pending,
        unacked=backlog.unacked,
        waiting_from=backlog.first,
        lag=None if backlog.oldest is None else max(0.0, server_time(info) - backlog.oldest),
    )
