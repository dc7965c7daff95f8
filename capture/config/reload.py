"""What may change in a node that runs, and what needs a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from capture.config.load import settings
from capture.config.provenance import Place
from capture.config.settings import CaptureConfig

COMPACTION = (
    *("every", "cron", "waiting_files", "waiting_bytes", "min_files", "max_wait"),
    *("target_bytes", "max_groups", "max_bytes", "distinct", "decrypt"),
)
LIVE = {
    ("drain",),
    ("retention",),
    *(("sweep", name) for name in ("every", "grace")),
    *(
        ("limits", name)
        for name in ("max_messages", "max_bytes", "max_age", "max_open", "max_open_bytes", "max_pending")
    ),
    *(("compaction", name) for name in COMPACTION),
    *(("table", name) for name in ("keep_snapshots", "keep_for")),
    *(("logging", name) for name in ("level", "format", "loggers", "summary_every")),
}
"""The settings that a running node takes up. Each is read whenever it is needed, and by nobody else's work."""


@dataclass(frozen=True)
class Change:
    """The configuration to go on with, which settings `changed` to what, which were `kept` for want of a restart."""

    config: CaptureConfig
    changed: list[str]
    kept: list[str]


def plan_reload(running: CaptureConfig, wanted: CaptureConfig) -> Change:
    """Return what becomes of a running configuration where another one is wanted; ConfigError if that makes no sense.

    A shorter `sweep.grace` is kept: other nodes still take up to half of the longer one from a block to its entry, and
    what has no entry within the grace is deleted. For the same reason nobody takes longer after it has grown.
    """
    before, after = dict(settings(running)), dict(settings(wanted))
    differing = [place for place, value in after.items() if value != before[place]]
    live = [place for place in differing if place in LIVE and not _is_shorter_grace(place, before, after)]
    config = running
    for place in live:
        config = _with(config, place, after[place])
    config.block_limits().check_consumer(ack_wait=running.ack_wait, max_ack_pending=running.max_ack_pending)
    return Change(
        config,
        changed=[f"{'.'.join(place)} = {after[place]!r}" for place in live],
        kept=[".".join(place) for place in differing if place not in live],
    )


def _is_shorter_grace(place: Place, before: dict[Place, Any], after: dict[Place, Any]) -> bool:
    return place == ("sweep", "grace") and after[place] < before[place]


def _with(config: CaptureConfig, place: Place, value: Any) -> CaptureConfig:
    if len(place) == 1:
        return msgspec.structs.replace(config, **{place[0]: value})
    table, name = place
    return msgspec.structs.replace(config, **{table: msgspec.structs.replace(getattr(config, table), **{name: value})})
