"""`natty stream ls`, `info` and `report`: show streams."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, fields
from typing import Annotated, Any, Literal

import typer

from natty.cli import connect
from natty.cli.choose import StreamName, stream_of
from natty.cli.tables import Json, print_document, print_facts, print_table
from natty.cli.terminal import say
from natty.config.units import NANOSECONDS, show_duration, show_size
from natty.streams import StreamInfo, StreamState, stream_info
from natty.streams.listing import Listing, all_streams, stream_names
from natty.streams.report import Order, Replication, Row, leaders_of, replications_of, rows_of, total

Subject = Annotated[str, typer.Option("--subject", help="Only streams whose subjects overlap with this one.")]


@connect.options
def ls(
    *,
    nats: dict[str, Any],
    names: Annotated[bool, typer.Option("--names", "-n", help="Print only names.")] = False,
    subject: Subject = "",
    size_sort: Annotated[
        bool, typer.Option("--size-sort", help="Sort by size, the largest first, instead of by name.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the streams."""
    if names:
        found = _names(nats, subject, by_size=size_sort)
        print_document(found) if as_json else say(*found)
        return
    listing = _list(nats, subject, by_size=size_sort)
    if as_json:
        print_document(listing.found)
    else:
        columns = ("stream", "subjects", ">messages", ">bytes", ">consumers", ">replicas")
        print_table(columns, map(_list_row, listing.found))
    _report_missing(listing)


@connect.options
def info(
    *,
    nats: dict[str, Any],
    name: StreamName = None,
    state: Annotated[bool, typer.Option("--state", help="Show only the state.")] = False,
    as_json: Json = False,
) -> None:
    """Show a stream's configuration and state; with --json, as the server reports them."""
    document = read_info(nats, stream_of(nats, name))
    if not state:
        show_info(document, as_json=as_json)
    elif as_json:
        print_document(document["state"])
    else:
        print_facts("State", _state(document))


@connect.options
def report(
    *,
    nats: dict[str, Any],
    subject: Subject = "",
    cluster: Annotated[str, typer.Option("--cluster", help="Only streams in this cluster.")] = "",
    consumers: Annotated[bool, typer.Option("--consumers", "-o", help="Sort by the number of consumers.")] = False,
    messages: Annotated[bool, typer.Option("--messages", "-m", help="Sort by the number of messages.")] = False,
    name: Annotated[bool, typer.Option("--name", "-n", help="Sort by name.")] = False,
    storage: Annotated[bool, typer.Option("--storage", "-t", help="Sort by storage.")] = False,
    raw: Annotated[bool, typer.Option("--raw", "-r", help="Print plain numbers.")] = False,
    leaders: Annotated[bool, typer.Option("--leaders", "-l", help="Show how many streams each server leads.")] = False,
    as_json: Json = False,
) -> None:
    """Report on all streams, the largest last, with the sums, and on their mirrors and sources."""
    wishes = {Order.CONSUMERS: consumers, Order.MESSAGES: messages, Order.NAME: name, Order.STORAGE: storage}
    order = next((order for order, wished in wishes.items() if wished), Order.BYTES)
    listing = _list(nats, subject)
    rows, copies = rows_of(listing.found, order, cluster=cluster), replications_of(listing.found)
    if as_json:
        found: dict[str, Any] = {"streams": [asdict(row) for row in rows], "total": asdict(total(rows))}
        found |= {"replication": [asdict(one) for one in copies], "leaders": dict(leaders_of(listing.found))}
        print_document(found | {"missing": listing.missing})
        return
    columns = [f">{one.name}" if one.type == "int" else one.name.replace("_", " ") for one in fields(Row)]
    print_table(columns, (_report_row(row, raw) for row in rows), total=_report_row(total(rows), raw))
    if copies:
        columns = [f">{one.name}" if one.type == "int" else one.name for one in fields(Replication)]
        print_table(columns, (_replication_row(one, raw) for one in copies))
    if leaders:
        print_table(("server", ">streams led"), leaders_of(listing.found))
    _report_missing(listing)


def read_info(nats: dict[str, Any], name: str) -> StreamInfo:
    """Return the server's report about a stream. StreamNotFoundError names the nearest streams."""
    return connect.call(nats, lambda natty: stream_info(natty.jetstream, name), stream=name)


def show_info(document: StreamInfo, *, as_json: bool) -> None:
    """Print a stream's configuration and state."""
    if as_json:
        print_document(document)
        return
    print_facts(f"Stream {document['config']['name']}", _configuration(document))
    print_facts("State", _state(document))


def _names(nats: dict[str, Any], subject: str, *, by_size: bool) -> list[str]:
    if by_size:
        return [one["config"]["name"] for one in _list(nats, subject, by_size=True).found]
    return connect.call(nats, lambda natty: stream_names(natty.jetstream, subject=subject))


def _list(nats: dict[str, Any], subject: str, *, by_size: bool = False) -> Listing[StreamInfo]:
    listing = connect.call(nats, lambda natty: all_streams(natty.jetstream, subject=subject))
    if by_size:
        listing.found.sort(key=lambda one: -int(one["state"]["bytes"]))
    return listing


def _list_row(one: StreamInfo) -> tuple[Any, ...]:
    config, state = one["config"], one["state"]
    subjects = ", ".join(config.get("subjects") or [])
    numbers = state["messages"], show_size(state["bytes"]), state["consumer_count"], config["num_replicas"]
    return (config["name"], subjects, *numbers)


def _report_row(row: Row, raw: bool) -> tuple[Any, ...]:
    if raw:
        return astuple(row)
    shown = {field.name: f"{getattr(row, field.name):,}" for field in fields(row) if field.type == "int"}
    return tuple((asdict(row) | shown | {"bytes": show_size(row.bytes)}).values())


def _replication_row(one: Replication, raw: bool) -> tuple[Any, ...]:
    heard = "never" if one.active < 0 else f"{show_duration(round(one.active / NANOSECONDS, 1))} ago"
    numbers = (one.active, one.lag) if raw else (heard, f"{one.lag:,}")
    return (one.stream, one.kind, one.source, one.domain, one.filters, *numbers, one.error)


def _report_missing(listing: Listing[StreamInfo]) -> None:
    if listing.missing:
        print(f"no server answered for {', '.join(listing.missing)}", file=sys.stderr)


def _configuration(document: StreamInfo) -> Iterator[tuple[str, Any]]:
    config: Mapping[str, Any] = document["config"]
    metadata = config.get("metadata") or {}
    yield "Description", config.get("description")
    yield "Subjects", config.get("subjects")
    yield "Created", document["created"]
    for label, setting in _PLAIN.items():
        yield label, config.get(setting)
    for label, setting in _LIMITS.items():
        yield label, _show_limit(config.get(setting, -1), show_size if setting in _SIZES else "{:,}".format)
    yield "Max age", _show_limit(config.get("max_age", 0), _span)
    yield "Duplicate window", _span(config.get("duplicate_window", 0))
    yield "Delete markers", _span(marked) if (marked := config.get("subject_delete_marker_ttl")) else ""
    yield (
        "Allows",
        [name.removeprefix("allow_") for name in sorted(config) if name.startswith("allow_") and config[name]],
    )
    yield "Denies", [name for name in ("delete", "purge") if config.get(f"deny_{name}")]
    for label, setting in _TABLES.items():
        yield label, _table(config.get(setting))
    yield "Metadata", _table({key: value for key, value in metadata.items() if not key.startswith("_nats.")})
    yield "API level required", metadata.get("_nats.req.level")
    yield "Sources", [_table(one) for one in config.get("sources") or []]


def _state(document: StreamInfo) -> Iterator[tuple[str, Any]]:
    state, cluster = document["state"], document.get("cluster") or {}
    yield "Messages", state["messages"]
    yield "Bytes", show_size(state["bytes"])
    yield "First sequence", f"{state['first_seq']:,}{_at(state, 'first_ts')}"
    yield "Last sequence", f"{state['last_seq']:,}{_at(state, 'last_ts')}"
    yield "Deleted messages", state.get("num_deleted", 0)
    yield "Subjects stored", state.get("num_subjects", 0)
    yield "Consumers", state["consumer_count"]
    yield "Leader", cluster.get("leader")
    yield (
        "Replicas",
        [one["name"] + ("" if one.get("current") else " (behind)") for one in cluster.get("replicas") or []],
    )
    for copy in replications_of([document]):
        yield f"{copy.kind.title()} of {copy.source}", f"{copy.lag:,} behind{f', {copy.error}' if copy.error else ''}"


_PLAIN = {
    "Storage": "storage",
    "Replicas": "num_replicas",
    "Retention": "retention",
    "Discard": "discard",
    "Discard new per subject": "discard_new_per_subject",
    "Compression": "compression",
    "Sealed": "sealed",
    "First sequence": "first_seq",
    "Persist mode": "persist_mode",
}
_SIZES = {"max_bytes", "max_msg_size"}
_LIMITS = {
    "Max messages": "max_msgs",
    "Max messages per subject": "max_msgs_per_subject",
    "Max bytes": "max_bytes",
    "Max message size": "max_msg_size",
    "Max consumers": "max_consumers",
}
_TABLES = {
    "Placement": "placement",
    "Consumers' limits": "consumer_limits",
    "Subject transform": "subject_transform",
    "Republish": "republish",
    "Mirror": "mirror",
}


def _show_limit(value: int, show: Callable[[int], str]) -> str:
    return show(value) if value > 0 else "no limit"


def _span(nanoseconds: int) -> str:
    return show_duration(nanoseconds / NANOSECONDS)


def _table(table: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (table or {}).items())


def _at(state: StreamState, key: Literal["first_ts", "last_ts"]) -> str:
    return f" at {state[key]}" if state["messages"] else ""
