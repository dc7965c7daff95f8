"""Formats the server's answers about consumers as rows and facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from natty.config.units import NANOSECONDS, nanoseconds_of, parse_time, show_duration, show_size, write_time
from natty.streams import ConsumerInfo
from natty.streams.listing import Listing
from natty.streams.report import mark_servers

Rows = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def list_rows(listing: Listing[ConsumerInfo], now: datetime) -> Rows:
    """Return the columns and rows of `ls`."""
    rows: list[tuple[Any, ...]] = []
    for one in listing.found:
        last = since(one["delivered"].get("last_active"), now)
        counts = f"{one['num_ack_pending']:,}", f"{one['num_pending']:,}"
        rows.append((one["name"], kind_of(one["config"]), one["config"].get("description", ""), *counts, last))
    rows += [(name, "no server answers for it", "", "", "", "") for name in listing.missing]
    return ("consumer", "kind", "description", ">unacknowledged", ">waiting", "last delivery"), rows


def report_rows(listing: Listing[ConsumerInfo], stored: int, *, raw: bool) -> Rows:
    """Return the columns and rows of `report`, for a stream with `stored` messages; `raw` numbers are not formatted."""
    rows: list[tuple[Any, ...]] = []
    for one in listing.found:
        config, waiting = one["config"], one["num_pending"]
        counts = [one["num_ack_pending"], one["num_redelivered"], waiting, one["ack_floor"]["stream_seq"]]
        shown = [str(count) if raw else f"{count:,}" for count in counts]
        if waiting and stored and not raw:
            shown[2] += f" / {min(100, 100 * waiting // stored)}%"
        ack_wait = config.get("ack_wait", 0) / NANOSECONDS
        wait = (f"{ack_wait:g}" if raw else show_duration(ack_wait)) if ack_wait else ""
        rows.append((one["name"], kind_of(config), config["ack_policy"], wait, *shown, _servers(one)))
    rows += [(name, "no server answers for it", *[""] * 7) for name in listing.missing]
    columns = ("consumer", "kind", "acks", ">ack wait", ">unacknowledged", ">redelivered", ">waiting", ">ack floor")
    return (*columns, "cluster"), rows


def kind_of(config: Mapping[str, Any]) -> str:
    """Return the kind of a consumer: durable pull, or one of another client."""
    lasting = "durable" if config.get("durable_name") else "ephemeral"
    return f"{lasting} {'push' if config.get('deliver_subject') else 'pull'}"


def since(moment: str | None, now: datetime) -> str:
    """Return how long ago a time in the server's format was; "never" if there is none."""
    if not moment:
        return "never"
    return f"{show_duration(max(0, round((nanoseconds_of(now) - parse_time(moment)) / 1e9)))} ago"


def facts_of(info: Mapping[str, Any], now: datetime) -> list[tuple[str, Any]]:
    """Return the facts about a consumer, as names and values."""
    return [*_settings(info["config"]), *_state(info, now)]


def _settings(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    filters = config.get("filter_subjects") or [config.get("filter_subject", "")]
    start = config["deliver_policy"].replace("_", " ")
    for name in ("opt_start_seq", "opt_start_time"):
        start += f" {config[name]}" if config.get(name) else ""
    own = {key: value for key, value in config.get("metadata", {}).items() if not key.startswith("_nats.")}
    return [
        ("Kind", kind_of(config)),
        ("Description", config.get("description")),
        ("Delivers to", config.get("deliver_subject")),
        ("Filter", ", ".join(filters)),
        ("Start", start),
        ("Ack policy", config["ack_policy"]),
        ("Ack wait", _duration(config, "ack_wait")),
        ("Backoff", ", ".join(show_duration(one / NANOSECONDS) for one in config.get("backoff") or [])),
        ("Replay", config["replay_policy"]),
        ("Max deliveries", _limit(config, "max_deliver")),
        ("Max unacknowledged", _limit(config, "max_ack_pending")),
        ("Max waiting requests", _limit(config, "max_waiting")),
        ("Max messages per request", _limit(config, "max_batch")),
        ("Max bytes per request", show_size(config["max_bytes"]) if config.get("max_bytes", 0) > 0 else ""),
        ("Max request duration", _duration(config, "max_expires")),
        ("Sampling", f"{config['sample_freq'].rstrip('%')}%" if config.get("sample_freq") else ""),
        ("Headers only", config.get("headers_only") or ""),
        ("Deleted when idle for", _duration(config, "inactive_threshold")),
        ("Replicas", config.get("num_replicas") or ""),
        ("In memory", config.get("mem_storage") or ""),
        ("Priority", config.get("priority_policy", "")),
        ("Groups", config.get("priority_groups") or []),
        ("Metadata", [f"{key}={value}" for key, value in own.items()]),
    ]


def _state(info: Mapping[str, Any], now: datetime) -> list[tuple[str, Any]]:
    config = info["config"]
    paused = f"until {config.get('pause_until')}" if info.get("paused") else ""
    if left := info.get("pause_remaining", 0):
        paused += f", {show_duration(round(left / NANOSECONDS))} from now"
    groups = info.get("priority_groups") or []
    pinned = [f"{one['group']}: {one['pinned_client_id']}" for one in groups if one.get("pinned_client_id")]
    return [
        ("Created", f"{write_time(parse_time(info['created']) / NANOSECONDS)}, {since(info['created'], now)}"),
        ("Paused", paused),
        ("Cluster", _servers(info)),
        ("Last delivered", _place(info["delivered"], now)),
        ("Acknowledged up to", _place(info["ack_floor"], now)),
        ("Unacknowledged", info["num_ack_pending"]),
        ("Redelivered", info["num_redelivered"]),
        ("Not yet delivered", info["num_pending"]),
        ("Waiting requests", info["num_waiting"]),
        ("Pinned", pinned),
    ]


def _place(one: Mapping[str, Any], now: datetime) -> str:
    sequences = f"stream sequence {one['stream_seq']:,}, consumer sequence {one['consumer_seq']:,}"
    return f"{sequences}, {since(one.get('last_active'), now)}"


def _duration(config: Mapping[str, Any], name: str) -> str:
    return show_duration(config[name] / NANOSECONDS) if config.get(name) else ""


def _limit(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name, 0)
    return f"{value:,}" if value > 0 else "no limit" if value < 0 else ""


def _servers(one: Mapping[str, Any]) -> str:
    return ", ".join(mark_servers(one.get("cluster")))
