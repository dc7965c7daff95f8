"""`natty account`: shows the connection and the account's use of JetStream."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from natty.cli import connect
from natty.cli.tables import Json, print_document, print_facts, print_table
from natty.config.units import show_size
from natty.streams.account import Account, account_info, usage

app = typer.Typer(help="The account.", no_args_is_help=True)

_SIZES = ("memory", "storage")


@app.callback()
def _group() -> None:
    """The account."""


@app.command()
@connect.options
def info(*, nats: dict[str, Any], as_json: Json = False) -> None:
    """Show the connection, and the account's JetStream usage and limits."""
    account = connect.call(nats, lambda natty: account_info(natty.jetstream))
    if as_json:
        print_document(asdict(account))
        return
    print_facts("Connection", _connection(account))
    if not account.jetstream:
        print_facts("JetStream", [("Not available", account.why_not)])
        return
    print_facts("JetStream", _jetstream(account.jetstream))
    rows = [
        (
            tier or "all",
            name,
            _show_value(name, used),
            "no limit" if limit < 0 else _show_value(name, limit),
            f"{100 * used // limit}%" if limit > 0 else "",
        )
        for tier, names in usage(account.jetstream).items()
        for name, (used, limit) in names.items()
    ]
    print_table(("tier", "resource", ">used", ">limit", ">share"), rows)


def _connection(account: Account) -> list[tuple[str, Any]]:
    told, user = account.connection, account.user
    names = [user.get("account_name"), user.get("account")]
    allowed = user.get("permissions") or {}
    secured = f"yes, {told['tls_subject']} by {told['tls_issuer']}" if told["tls_subject"] else told["tls"]
    return [
        ("User", user.get("user_name") or user.get("user")),
        ("Account", " ".join(dict.fromkeys(name for name in names if name))),
        *((f"May {verb}", _permission(allowed.get(verb))) for verb in ("publish", "subscribe")),
        ("Server", f"{told['server']}, {told['version']}"),
        ("Server id", told["server_id"]),
        ("Address", told["address"]),
        ("Cluster", told["cluster"]),
        ("Client id", str(told["client_id"])),
        ("Client address", told["client_ip"]),
        ("Round trip", f"{told['round_trip_seconds'] * 1000:.2f} ms"),
        ("TLS", secured),
        ("Largest message", show_size(told["max_payload_bytes"])),
    ]


def _permission(rule: dict[str, Any] | None) -> str:
    """Return a rule in words; "" if everything is allowed."""
    parts = [("", (rule or {}).get("allow")), ("not ", (rule or {}).get("deny"))]
    return "; ".join(f"{word}{', '.join(sorted(subjects))}" for word, subjects in parts if subjects)


def _jetstream(told: dict[str, Any]) -> list[tuple[str, Any]]:
    api = told.get("api") or {}
    limits = told.get("limits") or {}
    reserved = {what: told.get(f"reserved_{what}", 0) for what in _SIZES}
    largest = {what: limits.get(f"{what}_max_stream_bytes", -1) for what in _SIZES}
    return [
        ("Domain", told.get("domain")),
        ("API level", api.get("level", 0)),
        ("API requests", api.get("total", 0)),
        ("API errors", api.get("errors", 0)),
        ("Reserved", _sizes(reserved)),
        ("Max stream size", _sizes(largest)),
        ("max_bytes required", limits.get("max_bytes_required") or ""),
        ("Max unacknowledged", f"{limits['max_ack_pending']:,}" if limits.get("max_ack_pending", -1) > 0 else ""),
    ]


def _sizes(of: dict[str, int]) -> list[str]:
    return [f"{show_size(one)} of {what}" for what, one in of.items() if one > 0]


def _show_value(name: str, value: int) -> str:
    return show_size(value) if name in _SIZES else f"{value:,}"
