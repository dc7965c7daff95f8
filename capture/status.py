"""An archive as its nodes see it: what they publish, and who leads. `capture status` and the status page show this."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from capture.config import CaptureConfig
from capture.errors import CaptureError
from capture.head import COMPACTION, SWEEP
from capture.state import BUCKET, Board, View
from natty import Natty


@dataclass(frozen=True)
class Status:
    """An archive as it was found: what is published of it, and who leads as far as the elections tell."""

    archive: str
    view: View
    sweeper: str
    compactor: str

    @property
    def troubles(self) -> list[str]:
        """A sentence for each thing that is wrong."""
        return self.view.troubles(leader=self.sweeper)

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs; ages in seconds."""
        view = self.view
        return {
            "archive": self.archive,
            "ok": not self.troubles,
            "troubles": self.troubles,
            "leaders": {"sweep": self.sweeper or None, "compaction": self.compactor or None},
            "age": round(view.ago, 3),
            "state": msgspec.to_builtins(view.state),
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
        natty.get_leader(SWEEP.election(config.name)),
        natty.get_leader(COMPACTION.election(config.name)),
    )
    if view.state is None and not view.nodes:
        raise CaptureError(
            f"nothing is published of archive {config.name} in bucket {BUCKET}: no node has run yet, or with another"
            " name, account or server"
        )
    return Status(config.name, view, sweeper or "", compactor or "")
