"""Which settings may change in a running node, and which need a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from capture.config.load import settings
from capture.config.pipelines import PIPELINE, read_pipelines
from capture.config.provenance import Place
from capture.config.settings import CaptureConfig
from capture.config.streams import each
from natty import Natty
from natty.names import check_name

COMPACTION = (
    *("every", "cron", "waiting_files", "waiting_bytes", "min_files", "max_wait"),
    *("target_bytes", "max_groups", "max_bytes", "distinct", "decrypt"),
)
LIVE = {
    ("drain",),
    PIPELINE,
    ("retention",),
    *(("sweep", name) for name in ("every", "grace")),
    *(
        ("limits", name)
        for name in ("max_messages", "max_bytes", "max_age", "max_open", "max_open_bytes", "max_pending")
    ),
    *(("compaction", name) for name in COMPACTION),
    *(("table", name) for name in ("keep_snapshots", "keep_for", "fresh")),
    *(("logging", name) for name in ("level", "format", "loggers", "summary_every")),
}
"""The settings that a running node applies. Each is read when it is needed, and only by this node's own work."""


@dataclass(frozen=True)
class Change:
    """The new configuration, the `changed` settings with their values, and those `kept` because they need a restart."""

    config: CaptureConfig
    changed: list[str]
    kept: list[str]


def check_reload(running: CaptureConfig, wanted: CaptureConfig) -> Change:
    """Return the change to a configuration that was read again. CaptureError or NattyError if a node can't use it.

    Settings that need a restart are checked, too.
    """
    for one in each(wanted):
        check_uses(one)
    Natty(**wanted.nats)
    return plan_reload(running, wanted)


def check_uses(config: CaptureConfig) -> None:
    """Check settings that a node uses only after it has connected or been elected. Raises ConfigError, BadNameError."""
    for kind in ("stream", "durable", "group", "member"):
        if name := getattr(config, kind):
            check_name(kind, name)
    config.signer()
    config.public_keys()


def plan_reload(running: CaptureConfig, wanted: CaptureConfig) -> Change:
    """Return the change from a running configuration to another one. Raises ConfigError if the result is invalid.

    A shorter `sweep.grace` is not applied: other nodes may still take up to half of the longer grace from a block to
    its entry, and blocks without an entry within the grace are deleted. For the same reason no node takes longer after
    the grace has grown.
    """
    before, after = dict(settings(running)), dict(settings(wanted))
    differing = [place for place, value in after.items() if value != before[place]]
    live = [place for place in differing if place in LIVE and not _is_shorter_grace(place, before, after)]
    config = running
    for place in live:
        config = _with(config, place, after[place])
    if PIPELINE in live:
        read_pipelines(config)
    if not config.is_direct:
        config.block_limits().check_consumer(ack_wait=running.ack_wait, max_ack_pending=running.max_ack_pending)
    return Change(
        config,
        changed=[_describe(place, before[place], after[place]) for place in live],
        kept=[".".join(place) for place in differing if place not in live],
    )


def _describe(place: Place, before: Any, after: Any) -> str:
    """Return a changed setting with its value; of pipelines, which of them changed and how."""
    if place != PIPELINE:
        return f"{'.'.join(place)} = {after!r}"
    were, are = ({one.name: one for one in each} for each in (before, after))
    said = [f"{name} added" for name in are if name not in were]
    said += [f"{name} changed" for name, one in are.items() if name in were and one != were[name]]
    said += [f"{name} removed" for name in were if name not in are]
    return f"pipeline: {', '.join(said) or 'their order'}"


def _is_shorter_grace(place: Place, before: dict[Place, Any], after: dict[Place, Any]) -> bool:
    return place == ("sweep", "grace") and after[place] < before[place]


def _with(config: CaptureConfig, place: Place, value: Any) -> CaptureConfig:
    if len(place) == 1:
        return msgspec.structs.replace(config, **{place[0]: value})
    table, name = place
    return msgspec.structs.replace(config, **{table: msgspec.structs.replace(getattr(config, table), **{name: value})})
